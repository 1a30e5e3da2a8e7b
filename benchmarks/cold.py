"""What a first call costs, a repeated one, and texts of new lengths: CPU time ÷ that of one forward
pass, on one thread, beside ``torch.export.export`` alone; of new lengths ÷ a repeated call of each.

    python benchmarks/cold.py                        # all models, five times: hours
    python benchmarks/cold.py bert vit --repeats 1 --out cold.json

Ratios of one run, medians of ``--repeats``, each on a fresh copy of the model, which has seeded
random weights, after another model was explained. ``second`` is the first text of another length,
for which some models are captured once more; ``new`` the median of texts of four further lengths.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from torch import nn

import relprop

LENGTHS = (0.8, 0.6, 0.9, 0.7, 0.5)
#: A model, its inputs of a part of its own length, and the target.
Case = tuple[nn.Module, Callable[[float], Any], Any]


def _ids(length: int, words: int = 20000) -> torch.Tensor:
    return torch.randint(5, words, (1, length))


def _text(kind: str, own: int = 128, target: Any = 1, **config: Any) -> Case:
    maker = getattr(transformers, kind)
    made = maker.config_class(**config)
    made.use_cache = False  # torch.export alone returns no cache of its own
    model = maker(made).eval()

    def inputs(part: float) -> dict[str, torch.Tensor]:
        ids = _ids(round(part * own))
        beside = {"decoder_input_ids": _ids(20)} if made.is_encoder_decoder else {}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **beside}

    return model, inputs, target


def _pixels(name: str) -> Case:
    return timm.create_model(name).eval(), lambda _: torch.randn(1, 3, 224, 224), 1


def _whisper() -> Case:
    config = transformers.WhisperConfig(use_cache=False)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    sound = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": _ids(20)}
    return model, lambda _: sound, None


CASES: dict[str, Callable[[], Case]] = {
    "bert": lambda: _text("BertForSequenceClassification"),
    "gpt2": lambda: _text("GPT2LMHeadModel", target=None),
    "t5": lambda: _text("T5ForConditionalGeneration", target=None),
    "deberta": lambda: _text("DebertaForSequenceClassification", pos_att_type=["c2p", "p2c"]),
    "llama": lambda: _text(
        "LlamaForCausalLM",
        own=512,
        target=None,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
    ),
    "vit": lambda: _pixels("vit_base_patch16_224"),
    "swin": lambda: _pixels("swin_tiny_patch4_window7_224"),
    "whisper": _whisper,
}
OF_LENGTHS = frozenset({"bert", "gpt2", "t5", "deberta", "llama"})


def seconds(call: Callable[[], object]) -> float:
    """The CPU time of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measured(name: str, case: Case) -> dict[str, float]:
    """One run on fresh copies."""
    model, inputs, target = case
    given = inputs(1.0)
    args, kwargs = ((), given) if isinstance(given, dict) else ((given,), {})
    with torch.no_grad():
        forward = min(seconds(lambda: model(*args, **kwargs)) for _ in range(4))
    fresh, exported = copy.deepcopy(model), copy.deepcopy(model)
    found = {"export": seconds(lambda: torch.export.export(exported, args, kwargs))}
    found["first"] = seconds(lambda: relprop.explain(fresh, given, target))
    found["repeated"] = min(seconds(lambda: relprop.explain(fresh, given, target)) for _ in "ab")
    found = {"forward_seconds": forward, **{k: t / forward for k, t in found.items()}}
    if name in OF_LENGTHS:
        ratios = []
        for text in map(inputs, LENGTHS):
            new, again = (seconds(lambda: relprop.explain(fresh, text, target)) for _ in "ab")  # noqa: B023
            ratios.append(new / again)
        found |= {"second": ratios[0], "new": statistics.median(ratios[1:])}
    return found


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(CASES), metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="all runs as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    small = timm.create_model("vit_tiny_patch16_224", depth=2).eval()
    relprop.explain(small, torch.randn(1, 3, 224, 224), 1)
    runs: dict[str, list[dict[str, float]]] = {}
    print(
        "| model | `torch.export` alone | first call | repeated | second length ÷ | new length ÷ |"
    )
    print("|---|---|---|---|---|---|")
    for name in given.models:
        torch.manual_seed(0)
        case = CASES[name]()
        runs[name] = [measured(name, case) for _ in range(given.repeats)]
        columns = ("export", "first", "repeated", "second", "new")
        cells = [
            f"{statistics.median(r[c] for r in runs[name]):.1f}" if c in runs[name][0] else "–"
            for c in columns
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if given.out:
            given.out.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
