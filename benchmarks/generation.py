"""What an answer of several tokens costs, in explanations of one token: as a span in one walk,
token by token, and in separate calls. ``python -m benchmarks.generation``: ratios in one run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import relprop


def seconds(call: Callable[[], object], times: int) -> float:
    """The least CPU time of some calls, after one that is not counted."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=asked.prompt + asked.answer,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(3, 1000, (1, asked.prompt))
    answer = torch.randint(3, 1000, (1, asked.answer))
    whole = torch.cat([prompt, answer], 1)
    ends = asked.prompt, asked.prompt + asked.answer - 1
    print(f"{asked.answer} tokens after {asked.prompt}, in explanations of the last one")
    for method, together in (("transformer_attribution", True), ("attnlrp", False)):
        span = relprop.targets.span(*ends, together=together)
        last = (ends[1] - 1, int(whole[0, -1]))

        def explained(target: object, method: str = method) -> object:
            return relprop.explain(model, {"input_ids": whole}, target, method=method)

        def rows(method: str = method) -> object:
            return relprop.explain_generation(
                model, {"input_ids": prompt}, output_ids=answer, method=method
            )

        one = seconds(lambda last=last: explained(last), asked.times)
        walk = seconds(lambda span=span: explained(span), asked.times)
        each = seconds(rows, 1)
        print(
            f"{method}: one walk{' (together)' if together else ''} {walk / one:.2f}, "
            f"{asked.answer} rows {each / one:.1f}, {each / one / asked.answer:.2f} of separate "
            "calls"
        )


if __name__ == "__main__":
    main()
