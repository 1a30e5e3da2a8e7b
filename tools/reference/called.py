"""What is kept of a call of a public function: ``tests/reference/calls.py`` has them all."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.reference.calls import BOOKS, MODELS, OWN, answer, calls, model
from tools.reference.drawn import ULP, numbers, restore, round_otherwise
from tools.reference.measure import Entry
from tools.reference.numbers import gap, kept

#: One unit in the last place of float32.
SINGLE = 2.0**-24
OF_BOOKS = (".ledger.", ".lost.", ".absorbed.", ".handed on", ".books")


def measure_call(name: str, rounding: bool) -> Entry:
    """The answer of one call; ``rounding``: how far it moves, too, where the weights of the models
    are rounded otherwise."""
    call, books = calls()[name], name.endswith(BOOKS)
    found, said = answer(call, books)
    of_books = {k for k in found if any(word in k for word in OF_BOOKS)}
    entry: Entry = {
        "said": said,
        "scores": {k: kept(v) for k, v in found.items() if k not in of_books},
        "books": _books({k: found[k] for k in of_books}),
    }
    if rounding and found:
        again = _otherwise(call, books, SINGLE if "float32" in name else ULP)
        entry["moved"] = {
            k: gap(again[k], v) for k, v in found.items() if k in again and k not in of_books
        }
    return entry


def _books(found: dict[str, Tensor]) -> Entry:
    """All books of an answer, measured by the largest number in them."""
    if not found:
        return {}
    largest = max(float(v.double().abs().nan_to_num().max()) for v in found.values() if v.numel())
    return {"all": [largest]} | {k: v.double().tolist() for k, v in sorted(found.items())}


def _otherwise(call: Any, books: bool, ulp: float) -> dict[str, Tensor]:
    """The answer with other last places in the weights of all models."""
    models = [model(name)[0] for name in (*MODELS, *OWN)]
    before = [numbers(m) for m in models]
    for one in models:
        round_otherwise(one, ulp)
    try:
        return answer(call, books)[0]
    finally:
        for one, was in zip(models, before, strict=True):
            restore(one, was)
