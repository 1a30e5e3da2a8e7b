"""One explanation of a batch that was computed in parts; and some samples of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from relprop.errors import OptionError, RelpropError
from relprop.explanation.explanation import Explanation
from relprop.explanation.tokens import ON_THE_ANSWER, Block, TokenScores
from relprop.interpreter.ledger import Ledger, join_ledgers

TENSORS = ("scores", "row", "identity", "content", "padding", "matrix", "input", "layers")
LISTS = ("tokens", "words", "texts", "originals", "pictures")
KINDS = ("attention", "gradient", "relevance")


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
    return replace(
        first,
        streams={name: _join_stream([p.streams[name] for p in parts]) for name in first.streams},
        target=tuple(target for part in parts for target in part.target),
        output=torch.cat([part.output for part in parts]),
        ledger=None if first.ledger is None else join_ledgers(ledgers),
        blocks=_join_blocks(parts),
        labels=_chained_if_all([part.labels for part in parts]),
        probability=_cat_if_all([part.probability for part in parts]),
        started=_cat_if_all([part.started for part in parts]),
        predictions=_chained_if_all([part.predictions for part in parts]),
    )


def part(whole: Explanation, samples: int | slice) -> Explanation:
    """Some samples of an explanation. Raises ``OptionError`` for one that is not there."""
    if isinstance(samples, int):
        if not -len(whole) <= samples < len(whole):
            raise OptionError(f"explanation[{samples}]: the explanation has {len(whole)} samples")
        at = samples % len(whole)
        samples = slice(at, at + 1)

    def cut(value: Any) -> Any:
        return None if value is None else value[samples]

    streams = {
        n: replace(s, **{name: cut(getattr(s, name)) for name in (*TENSORS, *LISTS)})
        for n, s in whole.streams.items()
    }
    return replace(
        whole,
        streams=streams,
        target=whole.target[samples],
        output=whole.output[samples],
        ledger=None if whole.ledger is None else _cut_ledger(whole.ledger, cut),
        blocks=None if whole.blocks is None else tuple(_cut_block(b, cut) for b in whole.blocks),
        labels=cut(whole.labels),
        probability=cut(whole.probability),
        started=cut(whole.started),
        predictions=cut(whole.predictions),
        facts={k: cut(v) if k == ON_THE_ANSWER else v for k, v in whole.facts.items()},
    )


def _cut_ledger(ledger: Ledger, cut: Callable[[Any], Any]) -> Ledger:
    found = (ledger.accounts, ledger.started, dict(ledger.reached))
    return Ledger(*tree_map_only(Tensor, cut, found))


def _cut_block(block: Block, cut: Callable[[Any], Any]) -> Block:
    return Block(block.path, *(cut(getattr(block, kind)) for kind in KINDS))


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


def _join_stream(parts: Sequence[TokenScores]) -> TokenScores:
    tensors = {name: _cat([getattr(part, name) for part in parts]) for name in TENSORS}
    originals = _chained([part.originals for part in parts])
    pictures = _chained([part.pictures for part in parts])
    return replace(
        parts[0],
        **tensors,
        tokens=_chained([part.tokens for part in parts]),
        words=_chained([part.words for part in parts]),
        texts=_chained([part.texts for part in parts]),
        originals=None if originals is None else tuple(originals),
        pictures=None if pictures is None else tuple(pictures),
    )


def _join_blocks(parts: Sequence[Explanation]) -> tuple[Block, ...] | None:
    if parts[0].blocks is None:
        return None
    return tuple(map(_join_block, zip(*(part.blocks or () for part in parts), strict=True)))


def _join_block(parts: tuple[Block, ...]) -> Block:
    return Block(parts[0].path, *(_cat([getattr(part, kind) for part in parts]) for kind in KINDS))


def _chained_if_all(lists: Sequence[Sequence[Any] | None]) -> tuple[Any, ...] | None:
    """Entries per sample, one list after the other; ``None`` where some are not known."""
    if any(one is None for one in lists):
        return None
    return tuple(entry for one in lists for entry in one or ())


def _chained(lists: Sequence[Sequence[Any] | None]) -> list[Any] | None:
    """Lists with an entry per sample, one after the other; ``None`` where they are not known."""
    return None if lists[0] is None else [entry for one in lists for entry in one or ()]


def _cat(tensors: Sequence[Any]) -> Any:
    return None if tensors[0] is None else torch.cat(list(tensors))


def _cat_if_all(tensors: Sequence[Tensor | None]) -> Tensor | None:
    known = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(known) if len(known) == len(tensors) else None
