"""One explanation of a batch that was computed in parts; and some samples of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from relprop.errors import OptionError, RelpropError
from relprop.explanation.explanation import Explanation
from relprop.explanation.tokens import MAPS, ON_THE_ANSWER
from relprop.interpreter.ledger import Ledger, join_ledgers

# what has an entry for each sample: of an explanation, of one of its inputs
OWN = ("target", "output", "labels", "probability", "started", "predictions")
TENSORS = ("scores", "row", "identity", "content", "padding", "matrix", "input", "layers")
OF_STREAM = (*TENSORS, "tokens", "words", "texts", "originals", "pictures")


class Explanations(list[Explanation]):
    """A list of explanations, which a notebook shows one below another."""

    def _repr_html_(self) -> str:
        return "".join(each._repr_html_() for each in self)


def join(parts: list[Explanation]) -> Explanation:
    """The explanation of the whole batch. Raises ``RelpropError`` where its parts have different
    tokens or attention sites."""
    first = parts[0]
    if len(parts) == 1:
        return first
    _refuse_different(parts)
    ledgers = [part.ledger for part in parts if part.ledger is not None]
    blocks = zip(*(part.blocks or () for part in parts), strict=True)
    streams = {
        name: replace(stream, **_joined([part.streams[name] for part in parts], OF_STREAM))
        for name, stream in first.streams.items()
    }
    return replace(
        first,
        **_joined(parts, OWN),
        streams=streams,
        ledger=None if first.ledger is None else join_ledgers(ledgers),
        blocks=first.blocks and tuple(replace(b[0], **_joined(b, MAPS)) for b in blocks),
    )


def _joined(parts: Sequence[Any], names: Iterable[str]) -> dict[str, Any]:
    """What the parts have by these names, one sample after the other; ``None`` where it is not
    known of some."""
    found: dict[str, Any] = {}
    for name in names:
        values = [getattr(part, name) for part in parts]
        if any(value is None for value in values):
            found[name] = None
        elif isinstance(values[0], Tensor):
            found[name] = torch.cat(values)
        else:  # a list or a tuple
            found[name] = type(values[0])(chain.from_iterable(values))
    return found


def part(whole: Explanation, samples: int | slice) -> Explanation:
    """Some samples of an explanation. Raises ``OptionError`` for one that is not there."""
    if isinstance(samples, int):
        if not -len(whole) <= samples < len(whole):
            raise OptionError(f"explanation[{samples}]: the explanation has {len(whole)} samples")
        at = samples % len(whole)
        samples = slice(at, at + 1)

    def cut(value: Any) -> Any:
        return None if value is None else value[samples]

    def cuts(thing: Any, names: Iterable[str]) -> dict[str, Any]:
        return {name: cut(getattr(thing, name)) for name in names}

    ledger = whole.ledger
    if ledger is not None:
        books = (ledger.accounts, ledger.started, dict(ledger.reached))
        ledger = Ledger(*tree_map_only(Tensor, cut, books))
    return replace(
        whole,
        **cuts(whole, OWN),
        streams={n: replace(s, **cuts(s, OF_STREAM)) for n, s in whole.streams.items()},
        ledger=ledger,
        blocks=whole.blocks and tuple(replace(b, **cuts(b, MAPS)) for b in whole.blocks),
        facts={k: cut(v) if k == ON_THE_ANSWER else v for k, v in whole.facts.items()},
    )


def _refuse_different(parts: Sequence[Explanation]) -> None:
    first = parts[0].streams
    kinds = {
        (
            *((name, stream.scores.shape[1:]) for name, stream in part.streams.items()),
            *(block.path for block in part.blocks or ()),
        )
        for part in parts
    }
    same = all(
        torch.equal(stream.source, first[name].source)
        for part in parts
        for name, stream in part.streams.items()
        if name in first
    )
    if len(kinds) > 1 or not same:
        raise RelpropError(
            "samples took branches of the model with different tokens or attention "
            "sites: explain them one by one"
        )
