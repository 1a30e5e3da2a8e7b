"""Whether what was read of an explanation fits together: whoever can write a file can write its
checksum, too, and what reads an explanation takes its sizes as they stand there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from relprop.errors import InputError
from relprop.explanation.explanation import Explanation
from relprop.explanation.tokens import TokenScores

MOST = 2**30  # patches in a grid


def refuse_unfit(found: Explanation) -> None:
    """Raise ``InputError`` where what is said of an explanation is not of its tensors' shapes."""
    batch = len(found.target)
    _fits("text", all(isinstance(v, str) for v in (found.method, found.rules, *found.streams)))
    _fits("facts", isinstance(found.facts, dict))
    _fits("labels", found.labels is None or len(found.labels) == batch)
    _fits("predictions", found.predictions is None or len(found.predictions) == batch)
    for target, _, output, probability in found.predictions or ():
        _fits("a prediction", isinstance(target, int) and isinstance(output, float))
        _fits("a prediction", probability is None or isinstance(probability, float))
    _has("output", found.output, (batch,))
    _may_have("probability", found.probability, (batch,))
    _may_have("started", found.started, (batch,))
    for stream in found.streams.values():
        _refuse_unfit_stream(stream, batch)
    for block in found.blocks or ():
        _fits("a block", isinstance(block.path, str) and block.attention.shape[:1] == (batch,))
        _may_have(block.path, block.gradient, block.attention.shape)
        _may_have(block.path, block.relevance, block.attention.shape)
    if (ledger := found.ledger) is not None:
        _fits("the ledger", all(isinstance(text, str) for a in ledger.accounts for text in a.key))
        for amount in tree_leaves((ledger.accounts, ledger.started, dict(ledger.reached))):
            _has("the ledger", amount, (batch,))


def _refuse_unfit_stream(stream: TokenScores, batch: int) -> None:
    """The same of one input."""
    tokens, sizes = stream.scores.shape[1], (stream.grid or (), stream.image or (), stream.extent)
    for name in ("scores", "row", "identity", "content"):
        _has(name, getattr(stream, name), (batch, tokens))
    _has("source", stream.source, (tokens,))
    _may_have("padding", stream.padding, (batch, tokens))
    _may_have("matrix", stream.matrix, (batch, tokens, tokens))
    _fits("content", stream.content.dtype == torch.bool)
    _fits("sizes", all(isinstance(n, int) and n > 0 for size in sizes for n in size))
    if stream.grid is not None:
        _fits("grid", int(stream.source.max()) < math.prod(stream.grid) <= MOST)
    if stream.grid is not None and stream.image is not None:
        _fits("image", len(stream.grid) == len(stream.image))
    _may_have("spans", stream.spans, (tokens, len(stream.extent), 2))
    known = (stream.tokens, stream.words, stream.texts, stream.originals, stream.pictures)
    for names in known:
        _fits("names", names is None or len(names) == batch)
    _fits("tokens", all(len(row) == tokens for row in stream.tokens or ()))
    for text in stream.texts or ():
        size, ends = len(text.text), [end for span in (*text.spans, *text.turns) for end in span]
        _fits("texts", len(text.spans) == tokens and all(0 <= end <= size for end in ends))
    of_words = [i for row in stream.words or () for _, made in row for i in made]
    _fits("words", all(isinstance(i, int) and 0 <= i < tokens for i in of_words))


def _may_have(name: str, tensor: Tensor | None, shape: Sequence[int]) -> None:
    if tensor is not None:
        _has(name, tensor, shape)


def _has(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    of = list(tensor.shape)
    _fits(f"{name} of shape {of}, not {list(shape)},", of == list(shape))


def _fits(what: str, whether: bool) -> None:
    if not whether:
        raise InputError(f"{what} does not fit")
