"""What relprop says of a pair: by method, scores or the error that was raised instead; and how the
model's compare with the twin's."""

import re
import warnings
from dataclasses import dataclass
from functools import cache

import torch

import relprop
from relprop.errors import RelpropError
from tests.common.models import closeness
from tests.people.everything import PAIRS
from tests.people.pairs import BATCH, METHODS, one

EXACT = 1e-9


@dataclass(frozen=True)
class Found:
    """Of every explained input in order the scores and the row; y_t; the worst residual of the
    ledger, if the method has one."""

    scores: tuple[torch.Tensor, ...]
    rows: tuple[torch.Tensor, ...]
    output: torch.Tensor
    residual: float | None


@dataclass(frozen=True)
class Verdict:
    """One word (same, different, refused, crash, twin), what there is to say, and whether it is
    right."""

    word: str
    detail: str
    right: bool


def explain(model, inputs, target, methods=METHODS):
    """By method, what was found or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the models' own code warns of is not the matter
        try:
            together = relprop.compare(model, inputs, methods, target).explanations
        except Exception:  # of whatever kind: each method then says its own
            together = {}
        return {m: found(together.get(m), model, inputs, target, m) for m in methods}


def found(explanation, model, inputs, target, method, **options):
    """What one method found; without an explanation the method is asked alone, for its error."""
    try:
        e = explanation or relprop.explain(model, inputs, target, method=method, **options)
    except Exception as error:
        return error
    streams = e.streams.values()
    return Found(
        tuple(s.scores.detach() for s in streams),
        tuple(s.row.detach() for s in streams),
        e.output.detach(),
        None if e.ledger is None else e.ledger.worst(),
    )


@cache
def of_model(name, methods=METHODS):
    pair = PAIRS[name]()
    return explain(pair.model, pair.inputs, pair.target, methods)


@cache
def of_twin(name, methods=METHODS):
    pair = PAIRS[name]()
    if not isinstance(pair.twin, tuple):
        return explain(pair.twin, pair.twin_inputs, pair.twin_target, methods)
    each = [
        explain(pair.twin[i], one(pair.twin_inputs, i), pair.twin_target, methods)
        for i in range(BATCH)
    ]
    return {m: joined([e[m] for e in each]) for m in methods}


def joined(parts):
    """Samples that were explained one by one as a batch; the first error, if there is one."""
    errors = [p for p in parts if isinstance(p, Exception)]
    if errors:
        return errors[0]
    return Found(
        tuple(map(torch.cat, zip(*(p.scores for p in parts), strict=True))),
        tuple(map(torch.cat, zip(*(p.rows for p in parts), strict=True))),
        torch.cat([p.output for p in parts]),
        None if parts[0].residual is None else max(p.residual for p in parts),
    )


def gap(a, b):
    """The largest difference of two findings, as a part of the largest score, row or output: of all
    inputs together, since one may get next to nothing."""
    if [s.shape for s in a.scores] != [s.shape for s in b.scores]:
        return float("inf")

    def together(parts):
        return torch.cat([part.flatten() for part in parts])

    kinds = ((a.scores, b.scores), (a.rows, b.rows), ([a.output], [b.output]))
    return max(closeness(together(x), together(y)) for x, y in kinds)


def verdict(name, method, methods=METHODS):
    """The model's explanation by a method, one of those asked together, against the twin's."""
    pair = PAIRS[name]()
    model, twin = of_model(name, methods)[method], of_twin(name, methods)[method]
    if method in pair.refused:
        return refusal(model, twin, pair.refused[method])
    if isinstance(twin, Exception):
        return Verdict("twin", f"the twin: {error_line(twin)}", False)
    if isinstance(model, RelpropError):
        return Verdict("refused", error_line(model), False)
    if isinstance(model, Exception):
        return Verdict("crash", error_line(model), False)
    far = gap(model, twin)
    return Verdict("same" if far <= EXACT else "different", f"{far:.1e}", far <= EXACT)


def refusal(model, twin, pattern):
    """A refusal is right if model and twin are refused with the reason that is true."""
    for one_of_them in (twin, model):
        if not isinstance(one_of_them, Exception):
            return Verdict("different", "not refused", False)
        if not isinstance(one_of_them, RelpropError) or not re.search(pattern, str(one_of_them)):
            return Verdict("refused", f"with another reason: {error_line(one_of_them)}", False)
    return Verdict("refused", error_line(model), True)


def error_line(error):
    """The first line of an error, with its type, without addresses, cut at 200 characters."""
    line = re.sub(r"<[^ <]* object at 0x[0-9a-f]+>", "<...>", (str(error).splitlines() or [""])[0])
    return f"{type(error).__name__}: {line[:200]}"
