"""Tokens that a mask picks: a sequence times zeros with one 1, summed, is the token that stands
there.

That a mask is true in one place at most is proved by trying: what it is made of (ids, masks and
lengths that the model is given, scores by which a router chooses) is drawn many times. A mask of
several is a sum, and stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from relprop.operations import Kind, is_call, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    aten,
    dims_of,
    emit,
    expanded,
    is_float,
    is_live,
    is_tensor,
    rank,
    reshaped,
    shape_of,
    swap,
    tensor_inputs,
    val,
)
from relprop.tracer.passes.trials.parts import Piece

MOST = 100  # nodes that make a mask


DRAWS = 60  # that are tried, of which half must not fail


MOST_DRAWN = 1 << 26  # numbers in all draws: of a large mask few are as good as many of a small one


FAR = 1 << 31


TRUTHS = ([0, 1], [1], [0], [0, 0, 0, 1], [0, 1, 1, 1])


LOOKUPS = (Kind.EMBEDDING, Kind.INDEX, Kind.GATHER)


@dataclass(frozen=True)
class Mask:
    """A tensor of zeros and ones, or of the opposite; ``axis``, counted from the last, has as many
    places as there are tokens."""

    codes: fx.Node
    axis: int
    hides: bool = False


def pick_tokens(graph: fx.Graph, constants: Constants) -> None:
    """Every sum under a mask that is true in one place → what stands there."""
    for node in list(graph.nodes):
        if node._erased or not is_live(node) or not is_float(node):
            continue
        for x, mask in _candidates(node, constants):
            trial = _Trial.of(mask, constants) if val(x).dtype == val(node).dtype else None
            if trial is not None and trial.is_of_scores and not _is_of_rows(node):
                continue
            empty = None if trial is None else trial.leaves_none()
            if empty is not None:
                swap(node, reshaped(node, _picked(node, x, mask, empty), shape_of(node)))
                break


def _candidates(node: fx.Node, constants: Constants) -> Iterator[tuple[fx.Node, Mask]]:
    """The tensors that a call may pick from, and by which mask."""
    if is_call(node, aten.sum) and len(dims_of(node)) == 1:
        product: fx.Node = operand(node)
        axis = dims_of(node)[0] - rank(product)
        for x, codes, hides in _kept(product, constants):
            while kind(codes) is Kind.EXPAND and rank(operand(codes)) == rank(codes):
                codes = operand(codes)
            if shape_of(x) == shape_of(product) and rank(codes) >= -axis:
                yield x, Mask(codes, axis, hides)
    elif kind(node) is Kind.MATMUL and all(is_tensor(a) and rank(a) > 1 for a in arguments(node)):
        a, b = arguments(node)
        if shape_of(a)[:-2] == shape_of(b)[:-2]:
            yield b, Mask(a, -1)
            yield a, Mask(b, -2)


def _is_of_rows(node: fx.Node) -> bool:
    """Whether a call brings several numbers to several places: tokens to experts. One number that
    is picked, as an expert's share, stays a sum."""
    return kind(node) is Kind.MATMUL and min(shape_of(node)[-2:]) > 1


def _kept(x: fx.Node, constants: Constants) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """The tensor of which a call keeps some numbers, all others being 0; by which tensor, and
    whether that one says what is left out."""
    a, b, c = (*arguments(x), None, None, None)[:3]
    if is_call(x, aten.mul) and is_tensor(b):
        yield from ((a, b, False), (b, a, False))
    elif is_call(x, aten.masked_fill) and constants.number(c) == 0:
        yield a, b, True
    elif is_call(x, aten.where):
        for one, other, hides in ((b, c, False), (c, b, True)):
            if is_tensor(one) and constants.number(other) == 0:
                yield one, a, hides


def _picked(at: fx.Node, x: fx.Node, mask: Mask, empty: bool) -> fx.Node:
    """What stands where a mask is 1; ``empty``: zeros where it is 1 nowhere."""
    codes = emit(at, aten.logical_not.default, mask.codes) if mask.hides else mask.codes
    codes = emit(at, aten._to_copy.default, codes, dtype=torch.int64)
    places = emit(at, aten.argmax.default, codes, mask.axis, True)
    there = emit(at, aten.any.dim, codes, mask.axis, True)
    if kind(at) is Kind.MATMUL:
        axis, shape = -3 - mask.axis, shape_of(at)
    else:
        axis, shape = mask.axis, shape_of(x)
        shape[axis] = 1
        lead = [1] * (rank(x) - rank(codes))
        places, there = (reshaped(at, n, [*lead, *shape_of(n)]) for n in (places, there))
    made = emit(at, aten.gather.default, x, rank(x) + axis, expanded(at, places, shape))
    return emit(at, aten.mul.Tensor, made, there) if empty else made


@dataclass(frozen=True)
class _Trial:
    """A mask as a function of what the model is given."""

    mask: Mask
    part: Piece

    @classmethod
    def of(cls, mask: Mask, constants: Constants) -> _Trial | None:
        """``None``: it is made of what is no score or choice."""
        if not is_live(mask.codes) or shape_of(mask.codes)[mask.axis] < 2:
            return None
        seen, left, sources = {mask.codes}, [mask.codes], set()
        while left:
            node = left.pop()
            if node.op == "placeholder" or _are_scores(node, constants):
                sources.add(node)
                continue
            still = (i for i in tensor_inputs(node) if not is_live(i))
            if len(seen) > MOST or any(constants.value(i) is None for i in still):
                return None
            above = [n for n in tensor_inputs(node) if is_live(n) and n not in seen]
            seen.update(above)
            left += above
        part = Piece(tuple(sorted(sources)), mask.codes, tuple(sorted(seen - sources)), constants)
        compares = any(kind(n) is Kind.TEST or is_call(n, aten.one_hot) for n in seen)
        trial = cls(mask, part)
        return trial if compares or not trial.is_of_scores else None

    @property
    def is_of_scores(self) -> bool:
        """Whether what the model computes is chosen by the mask."""
        return any(source.op != "placeholder" for source in self.part.sources)

    def leaves_none(self) -> bool | None:
        """Whether there are draws in which the mask is 1 nowhere; ``None``: in some it is 1 more
        than once, or is no mask."""
        empty, tried = False, 0
        draws = min(DRAWS, max(4, MOST_DRAWN // val(self.mask.codes).numel()))
        for seed in range(draws):
            generator = torch.Generator().manual_seed(seed)
            try:
                found = self.part(*(self._draw(s, generator) for s in self.part.sources))
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue
            count = (found if not self.mask.hides else found == 0).sum(self.mask.axis)
            if bool((count > 1).any()) or not bool(((found == 0) | (found == 1)).all()):
                return None
            empty, tried = empty or bool((count == 0).any()), tried + 1
        return empty if tried >= draws // 2 else None

    def _draw(self, source: fx.Node, generator: torch.Generator) -> Tensor:
        """Numbers for a source: zeros and ones, few and many; small and large ones, and those that
        the mask is made with. For scores, any."""
        if source.op != "placeholder":
            scores = torch.randn(shape_of(source), dtype=torch.float64, generator=generator)
            return scores.exp() if kind(source) is Kind.SOFTMAX else scores
        tokens = shape_of(self.mask.codes)[self.mask.axis]
        pools: list[Sequence[int]] = [*TRUTHS]
        if val(source).dtype != torch.bool and not _is_mask(source, tokens):
            numbers = [n + d for n in self._numbers() for d in (-1, 0, 1)]
            pools += [range(-1, 4), range(tokens + 2), range(1 << 15)]
            pools += [numbers, *([n] for n in numbers)] if numbers else []
        pool = torch.tensor(pools[int(torch.randint(len(pools), (), generator=generator))])
        places = torch.randint(len(pool), shape_of(source), generator=generator)
        return pool[places].to(val(source).dtype)

    def _numbers(self) -> list[int]:
        """What is written into the mask."""
        given = {a for n in self.part.nodes for a in arguments(n) if isinstance(a, (int, float))}
        still = {i for n in self.part.nodes for i in tensor_inputs(n) if not is_live(i)}
        given |= {n for i in still if (n := self.part.constants.number(i)) is not None}
        return sorted(int(n) for n in given if abs(n) < FAR)


def _are_scores(node: fx.Node, constants: Constants) -> bool:
    """Whether numbers are the model's own: of a softmax (these are above 0), a norm, a layer."""
    layer = kind(node) is Kind.LINEAR and constants.value(arguments(node)[1]) is None
    return layer or kind(node) in (Kind.SOFTMAX, Kind.NORM)


def _is_mask(source: fx.Node, tokens: int) -> bool:
    """Whether numbers, one for each token, are looked up in no table."""
    if val(source).numel() != tokens:
        return False
    seen, left = {source}, [source]
    while left:
        users = {u for u in left.pop().users if not is_float(u)} - seen
        seen |= users
        left += users
    return not any(kind(u) in LOOKUPS for n in seen for u in n.users)
