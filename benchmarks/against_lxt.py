"""``attnlrp`` and ``cp_lrp`` against the published package ``lxt`` (PyPI, 2.1), as a black box on
tiny random models with the same weights, in float64.

``lxt`` 2.1 needs transformers 4.52 (later versions no longer have what it imports), so it takes an
environment of its own:

    python -m venv lxtenv
    lxtenv/bin/pip install torch torchvision "transformers==4.52.4" zennit accelerate tabulate
    lxtenv/bin/pip install --no-deps lxt==2.1
    PYTHONPATH=. lxtenv/bin/python benchmarks/against_lxt.py

Each line: the largest difference of any score as a part of the largest score, by one gradient and
by the walk. ``lxt`` replaces methods of model classes for good and wants models made afterwards, so
every comparison runs in a process of its own, relprop first.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import relprop

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
}
TARGET = 7
MAPS = {"attnlrp": "attnLRP", "cp_lrp": "cp_LRP"}


def randomise(model: nn.Module) -> nn.Module:
    """Weights large enough that attention is far from uniform, norms and biases away from 1 and
    0."""
    source = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = torch.randn(p.shape, generator=source, dtype=torch.float64)
            p.copy_(
                1 + 0.2 * drawn
                if ("norm" in name.lower() and "weight" in name)
                or ("ln_" in name and "weight" in name)
                else 0.3 * drawn
            )
    return model.double().eval()


def llama() -> nn.Module:
    """RoPE, RMSNorm, SwiGLU, grouped queries."""
    import transformers

    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, attn_implementation="eager")
    return randomise(transformers.LlamaForCausalLM(config))


def qwen2() -> nn.Module:
    """As Llama, with biases on queries, keys and values."""
    import transformers

    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=2, attn_implementation="eager")
    return randomise(transformers.Qwen2ForCausalLM(config))


def gpt2() -> nn.Module:
    """LayerNorm with biases, GELU, learned positions."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50,
        n_embd=32,
        n_layer=3,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="eager",
    )
    return randomise(transformers.GPT2LMHeadModel(config))


def bert() -> nn.Module:
    """Post-norm, bidirectional."""
    import transformers

    config = transformers.BertConfig(**SIZES, num_labels=10, attn_implementation="eager")
    return randomise(transformers.BertForTokenClassification(config))


def vit() -> nn.Module:
    """torchvision's: 16 patches of 8×8 pixels and a class token, fused attention with one
    projection for queries, keys and values."""
    from torchvision.models.vision_transformer import VisionTransformer

    return randomise(
        VisionTransformer(
            image_size=32,
            patch_size=8,
            num_layers=3,
            num_heads=4,
            hidden_dim=32,
            mlp_dim=48,
            num_classes=10,
        )
    )


@dataclass(frozen=True)
class Subject:
    """A model, whose module and which maps of ``lxt`` patch it, and what is explained."""

    make: Callable[[], nn.Module]
    module: str
    patches: str
    methods: tuple[str, ...] = ("attnlrp", "cp_lrp")
    pixels: bool = False

    def inputs(self) -> Tensor:
        """Two images, or two sequences of 7 embeddings."""
        shape = (2, 3, 32, 32) if self.pixels else (2, 7, 32)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def logits(self, model: nn.Module, x: Tensor) -> Tensor:
        """All logits, (2, classes) or (2, 7, classes)."""
        found: Tensor = model(x) if self.pixels else model(inputs_embeds=x).logits
        return found


SUBJECTS = {
    "llama": Subject(llama, "transformers.models.llama.modeling_llama", "llama"),
    "qwen2": Subject(qwen2, "transformers.models.qwen2.modeling_qwen2", "qwen2"),
    "gpt2": Subject(gpt2, "transformers.models.gpt2.modeling_gpt2", "gpt2"),
    "bert": Subject(bert, "transformers.models.bert.modeling_bert", "bert", ("attnlrp",)),
    "vit": Subject(
        vit, "torchvision.models.vision_transformer", "vit_torch", ("cp_lrp",), pixels=True
    ),
}


def theirs(subject: Subject, method: str) -> Tensor:
    """input × gradient of a model of the same weights, made after patching, summed over features:
    what ``lxt``'s documentation calls relevance."""
    from lxt.efficient import monkey_patch

    monkey_patch(
        importlib.import_module(subject.module),
        getattr(importlib.import_module(f"lxt.efficient.models.{subject.patches}"), MAPS[method]),
    )
    x = subject.inputs().requires_grad_()
    logits = subject.logits(subject.make(), x)
    (logits[:, -1] if logits.dim() == 3 else logits)[:, TARGET].sum().backward()
    assert x.grad is not None
    return (x * x.grad).sum(1 if subject.pixels else -1).detach().flatten(1)


def ours(subject: Subject, method: str, rules: str, ledger: bool | None) -> Tensor:
    """relprop's scores, by the walk with a ``ledger``."""
    model, x = subject.make(), subject.inputs()
    target: Any = (x.shape[1] - 1, TARGET) if subject.logits(model, x[:1]).dim() == 3 else TARGET
    made = relprop.explain(
        model,
        x if subject.pixels else {"inputs_embeds": x},
        target,
        method=method,
        rules=rules,
        precision="float64",
        ledger=ledger,
    )
    assert ledger or made.facts["relevance"] == "one gradient"
    return made.scores


def compare(name: str, method: str) -> None:
    """Prints one line per rule set of ours."""
    subject = SUBJECTS[name]
    rule_sets = (method, "attnlrp_identity") if method == "attnlrp" else (method,)
    found = {
        rules: [ours(subject, method, rules, ledger) for ledger in (None, True)]
        for rules in rule_sets
    }
    reference = theirs(subject, method)
    for rules, both in found.items():
        gaps = [float((s - reference).abs().max() / reference.abs().max()) for s in both]
        print(f"{name:<8}{rules:<18}" + "".join(f"{gap:<14.1e}" for gap in gaps), flush=True)


def main() -> None:
    """Every comparison, each in a process of its own."""
    if len(sys.argv) == 3:
        compare(sys.argv[1], sys.argv[2])
        return
    print("largest difference / largest score")
    print("model   rule set          one gradient  the walk")
    for name, subject in SUBJECTS.items():
        for method in subject.methods:
            done = subprocess.run(
                [sys.executable, __file__, name, method], capture_output=True, text=True
            )
            print(
                done.stdout
                or f"{name:<8}{method:<18}{(done.stderr.strip().splitlines() or ['failed'])[-1]}\n",
                end="",
            )


if __name__ == "__main__":
    main()
