"""What relevance as one gradient and a balanced gradient cost: CPU time ÷ that of one forward pass
and input gradient by autograd alone, on one thread.

    python benchmarks/one_gradient.py          # ViT-B/16, BERT-base at 512, a Llama at 2,048

Ratios of one run, medians of ``--repeats``; models have seeded random weights, one input each, and
are captured already. With ``verify=False`` the model's own forward pass, which ``explain`` compares
the captured graph with at every call, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn

import relprop

Case = tuple[nn.Module, Any, Any, Callable[[], Tensor], Callable[[Tensor], Tensor]]


def vit() -> Case:
    model, image = timm.create_model("vit_base_patch16_224").eval(), torch.randn(1, 3, 224, 224)
    return model, image, 5, lambda: image, lambda x: model(x)[0, 5]


def bert() -> Case:
    model = transformers.BertForSequenceClassification(transformers.BertConfig()).eval()
    ids = torch.randint(30000, (1, 512))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def scalar(x: Tensor) -> Tensor:
        out = model(inputs_embeds=x, attention_mask=inputs["attention_mask"])
        return out.logits[0, 1]

    return model, inputs, 1, lambda: model.get_input_embeddings()(ids), scalar


def llama() -> Case:
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(32000, (1, 2048))

    def scalar(x: Tensor) -> Tensor:
        return model(inputs_embeds=x, use_cache=False, logits_to_keep=1).logits[0, -1, 7]

    return (
        model,
        {"input_ids": ids},
        (2047, 7),
        lambda: model.get_input_embeddings()(ids),
        scalar,
    )


CASES = {"ViT-B/16, 224²": vit, "BERT-base, 512": bert, "Llama-shaped, 2,048": llama}


def seconds(call: Callable[[], object], repeats: int) -> float:
    """CPU time of a call, the median of several after a first."""
    call()
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--walk", action="store_true", help="the walk with books, too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("CPU time ÷ forward + input gradient\n")
    calls: dict[str, dict[str, Any]] = {
        "gradient_x_input": {"method": "gradient_x_input"},
        "gradient_x_input, balanced": {"method": "gradient_x_input", "gradient": "balanced"},
        "gae": {"method": "gae"},
        "gae, balanced": {"method": "gae", "gradient": "balanced"},
        "attnlrp": {"method": "attnlrp"},
        "attnlrp, verify=False": {"method": "attnlrp", "verify": False},
        "cp_lrp, verify=False": {"method": "cp_lrp", "verify": False},
        "epsilon_lrp, verify=False": {"method": "epsilon_lrp", "verify": False},
    }
    if given.walk:
        calls["attnlrp, ledger=True"] = {"method": "attnlrp", "ledger": True}
    for name, make in CASES.items():
        torch.manual_seed(0)
        model, inputs, target, start, scalar = make()
        model.requires_grad_(False)

        def plain(start: Any = start, scalar: Any = scalar) -> object:
            x = start().detach().requires_grad_()
            return torch.autograd.grad(scalar(x), x)

        base = seconds(plain, given.repeats)
        for label, options in calls.items():

            def asked(options: Any = options) -> object:
                return relprop.explain(model, inputs, target, **options)  # noqa: B023

            ratio = seconds(asked, given.repeats) / base
            print(f"{name:22s} {label:28s} {ratio:6.2f}", flush=True)


if __name__ == "__main__":
    main()
