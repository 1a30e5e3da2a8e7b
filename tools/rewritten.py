"""Models of timm and Hugging Face, unchanged but for how they call PyTorch: every function is
called in another way of writing it, drawn by chance, and the maps are compared in float64.

    python -m tools.rewritten --only hf/t5 --draws 3          # of every model that fits
    python -m tools.rewritten --models 20 --seed 1 --mixed    # 20 models by chance
    python -m tools.rewritten --only ViTMSN --minimise        # which ways it takes to differ

A draw takes one way for each function; ``--mixed``: one for each call, so that layers side by side
are written differently. The ways stand in ``tests/spellings/rewriting.py``. A line says whether the
five methods agree, what the rewritten model is refused with, or by how much of the largest score
which method differs, and what it takes. Where they differ no more than weights that are rounded
otherwise would make them (``rounding``), they agree. The exit code is the number of draws that
differ in silence or fail by an error that is not relprop's own.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import relprop
from relprop.errors import InputError, RelpropError, TargetError, first_line
from relprop.tracer.binding import flatten_output
from tests.spellings.rewriting import WAYS, Rewritten, by_function
from tools.sweep.command import chosen_subjects
from tools.sweep.subject import CannotBuild, Subject
from tools.sweep.subjects import build
from tools.sweep.targets import element

METHODS = ("transformer_attribution", "rollout", "gae", "attnlrp", "lrp")
#: The share of the largest score by which maps may differ, and that by which outputs may.
CLOSE, EQUAL = 1e-6, 1e-8
#: How much of a weight is drawn by chance where it is asked what rounding does to a map, and how
#: many times as much as that two ways of writing a function may make.
NUDGE, TIMES = 1e-14, 100

Scores = dict[str, Tensor]


@dataclass(frozen=True)
class Usual:
    """A model as its library has it, in double precision, and its maps."""

    model: nn.Module
    inputs: Any
    target: Any
    scores: Scores


def usual(subject: Subject) -> Usual:
    """What a subject of the sweep gives unchanged. Raises ``CannotBuild``, and the refusal of a
    model that no method explains."""
    built = build(subject, 2)
    model, inputs = built.model.double().eval(), in_double(built.inputs)
    target = built.target
    with called(model, Rewritten(())):
        try:
            scores = explained(model, inputs, target)
        except TargetError:  # an output of many positions
            one = {k: v[:1] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[:1]
            target = element(result(model, one), next(iter(built.pads.values()), None))
            scores = explained(model, inputs, target)
    return Usual(model, inputs, target, scores)


def result(model: nn.Module, inputs: Any) -> Any:
    """What a model gives."""
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def in_double(x: Any) -> Any:
    """Inputs in double precision, where they are floating."""
    if isinstance(x, dict):
        return {k: in_double(v) for k, v in x.items()}
    return x.double() if x.is_floating_point() else x


def explained(
    model: nn.Module, inputs: Any, target: Any, methods: tuple[str, ...] = METHODS
) -> Scores:
    """The scores of every method that takes the model, by method and stream."""
    try:
        comparison = relprop.compare(model, inputs, methods, target=target)
    except RelpropError:
        if len(methods) == 1:
            raise
        found: Scores = {}
        for method in methods:
            with contextlib.suppress(RelpropError):
                found |= explained(model, inputs, target, (method,))
        if not found:
            raise
        return found
    return {
        f"{m}[{name}]" if len(one.streams) > 1 else m: scores.scores
        for m, one in comparison.explanations.items()
        for name, scores in one.streams.items()
    }


@contextlib.contextmanager
def called(model: nn.Module, mode: Rewritten) -> Iterator[None]:
    """Within, the model's forward pass calls functions as ``mode`` says, and numbers that nobody
    gave a precision have double."""
    own, usual_type = type(model), torch.get_default_dtype()

    @functools.wraps(own.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with mode:
            return own.forward(self, *args, **kwargs)

    other = type(own.__name__, (own,), {"forward": forward, "__module__": own.__module__})
    model.__class__ = other
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(usual_type)
        model.__class__ = own


def drawn(seed: object, mixed: bool = False) -> list[str]:
    """For each function one of its ways; all of them where each call has its own."""
    chosen = random.Random(str(seed))
    return list(WAYS) if mixed else [chosen.choice(names) for names in by_function().values()]


def furthest(found: Scores, wanted: Scores) -> dict[str, float]:
    """By method, how far its scores are from those wanted, as a share of the largest."""
    return {
        method: float((found[method] - scores).abs().max() / scores.abs().max().clamp_min(1e-300))
        if found[method].shape == scores.shape
        else float("inf")
        for method, scores in wanted.items()
    }


def rounding(one: Usual, mode: Rewritten) -> dict[str, float]:
    """By method, how far its scores move with weights that are rounded otherwise."""
    model, source = copy.deepcopy(one.model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point():
                chance = torch.randn(weight.shape, generator=source, dtype=weight.dtype)
                weight.mul_(1 + NUDGE * chance)
    with called(model, mode):
        return furthest(explained(model, one.inputs, one.target), one.scores)


def outputs_differ(one: Usual, mode: Rewritten) -> float:
    """By how much of the largest output the rewritten model's own outputs differ."""

    def outputs() -> list[Tensor]:
        found = flatten_output(result(one.model, one.inputs))[0]
        return [t for t in found if t.is_floating_point() and t.numel()]

    with called(one.model, Rewritten(())):
        wanted = outputs()
    with called(one.model, mode):
        found = outputs()
    return max(
        float((f - w).abs().nan_to_num().max() / w[w.isfinite()].abs().max().clamp_min(1e-30))
        for f, w in zip(found, wanted, strict=True)
    )


@dataclass(frozen=True)
class Verdict:
    """What came of one draw: ``agree``, ``refused``, ``DIFFERS``, ``FAILS``, and in words."""

    word: str
    says: str
    used: tuple[str, ...] = ()


def verdict_of(one: Usual, names: list[str], mixed: object = None) -> Verdict:
    """Explain the model rewritten in the ways named, and compare."""
    mode = Rewritten(names, mixed)
    try:
        with called(one.model, mode):
            found = explained(one.model, one.inputs, one.target)
    except InputError as error:  # of the model itself
        return Verdict("FAILS", first_line(error), used(mode))
    except RelpropError as refusal:
        return Verdict("refused", f"{type(refusal).__name__}: {first_line(refusal)}", used(mode))
    except Exception as error:
        return Verdict("FAILS", f"{type(error).__name__}: {first_line(error)}", used(mode))
    if missing := one.scores.keys() - found.keys():
        return Verdict("refused", f"no {', '.join(sorted(missing))}", used(mode))
    far = furthest(found, one.scores)
    worst = {m: d for m, d in far.items() if not d <= CLOSE}
    if not worst:
        return Verdict("agree", f"{max(far.values()):.0e}", used(mode))
    if (off := outputs_differ(one, mode)) > EQUAL:
        return Verdict("FAILS", f"the model rewritten is another function: {off:.0e}", used(mode))
    noise = rounding(one, Rewritten(()))
    if all(d <= TIMES * noise[m] for m, d in worst.items()):
        return Verdict("agree", f"within rounding: {max(worst.values()):.0e}", used(mode))
    said = ", ".join(f"{m} {d:.0e}" for m, d in worst.items())
    return Verdict("DIFFERS", said, used(mode))


def used(mode: Rewritten) -> tuple[str, ...]:
    """The ways that a model had a use for."""
    return tuple(sorted(mode.used))


def fewest(one: Usual, verdict: Verdict, mixed: object = None) -> Verdict:
    """The same with so few ways that none can be left out."""
    for name in verdict.used:
        others = [n for n in verdict.used if n != name]
        if (less := verdict_of(one, others, mixed)).word == verdict.word:
            verdict = Verdict(less.word, less.says, tuple(others))
    return verdict


def parser_for(what: str | None) -> argparse.ArgumentParser:
    """The options by which models are chosen."""
    parser = argparse.ArgumentParser(description=(what or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="*", default=[""], help="parts of names, or patterns with *"
    )
    parser.add_argument("--models", type=int, help="so many of those, by chance")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def subjects_for(args: argparse.Namespace) -> Iterator[tuple[Subject, Usual]]:
    """The models that were asked for, each with what is usual; those left out are printed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    subjects = [s for pattern in args.only for s in chosen_subjects("all", pattern)]
    if args.models is not None:
        subjects = random.Random(args.seed).sample(subjects, min(args.models, len(subjects)))
    for subject in subjects:
        try:
            one = usual(subject)
        except (CannotBuild, RelpropError) as refusal:
            print(f"{subject.name:60} left out: {first_line(refusal)}", flush=True)
            continue
        yield subject, one


def main() -> int:
    """Print a line per draw and a summary."""
    parser = parser_for(__doc__)
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--mixed", action="store_true", help="each call in a way of its own")
    parser.add_argument("--minimise", action="store_true", help="name the ways it takes")
    args = parser.parse_args()
    words: Counter[str] = Counter()
    for subject, one in subjects_for(args):
        for draw in range(args.seed, args.seed + args.draws):
            began, mixed = time.monotonic(), draw if args.mixed else None
            verdict = verdict_of(one, drawn(draw, args.mixed), mixed)
            if args.minimise and verdict.word != "agree":
                verdict = fewest(one, verdict, mixed)
            words[verdict.word] += 1
            by = f" by {' '.join(verdict.used)}" if verdict.word != "agree" else ""
            took = time.monotonic() - began
            print(f"{subject.name:60} {draw:3} {took:5.1f} s  {verdict.word}: {verdict.says}{by}")
            sys.stdout.flush()
    print(", ".join(f"{count} {word}" for word, count in words.items()) or "nothing to compare")
    return words["DIFFERS"] + words["FAILS"]


if __name__ == "__main__":
    sys.exit(main())
