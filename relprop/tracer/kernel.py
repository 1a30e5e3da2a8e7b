"""PyTorch's fused kernel in place of a site's chunks, where the site is softmax attention and
nothing else: softmax(c·QKᵀ + mask)·V. It makes values and gradients; rules divide by the scores and
results of their own chunk, which are rounded otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from relprop.operations import Kind, kind, operand
from relprop.operations.looking import cannot_look
from relprop.tracer.calls import Values, call_node
from relprop.tracer.editing import arguments, aten, shape_of, val
from relprop.tracer.follow import depending, reached
from relprop.tracer.kernels import attention
from relprop.tracer.queries import Attention

#: A score that a mask sets to this or less is nothing to the softmax, whatever it was.
HIDDEN = -1e30
#: A query of which no score is above this sees no key. What the fused kernel's backward takes off
#: again, the logarithm of a sum, is then lost in rounding (``kernels.attention``).
BLIND = -1e4
ROWS = 256  # of a mask that are looked at in one go
#: What masks scores: where these stand among its arguments, and what is put in their place.
FILLS = {aten.masked_fill.Scalar: (0, 2), aten.where.ScalarOther: (1, 2)}


@dataclass(frozen=True)
class Kernel:
    """What the fused kernel is given, besides the values. ``keys`` are as they are multiplied:
    their positions are columns. ``scores``: the product after ``scale``. ``masks``: the calls that
    make of them what the softmax reads, and all that these need, in order; ``causal``: they hide
    later keys, and nothing else."""

    queries: fx.Node
    keys: fx.Node
    scale: float
    scores: fx.Node
    masks: tuple[fx.Node, ...]
    causal: bool = False

    @cached_property
    def masking(self) -> str:
        """How the masks are made, of what: the same for sites that are masked alike."""
        names = {n: f"#{i}" for i, n in enumerate((self.scores, *self.masks))}

        def described(node: fx.Node) -> str:
            given = fx.map_arg((node.args, node.kwargs), lambda n: names.get(n, n.name))
            return f"{node.target}{given}"

        return f"{tuple(shape_of(self.scores)[-2:])} {[*map(described, self.masks)]}"


def kernel_of(attention: Attention) -> Kernel | None:
    """A site as the fused kernel has it; ``None`` where it is something else."""
    site = attention.site
    if site.transposed or site.attention is not site.softmax:
        return None
    way = [operand(site.softmax)]
    while (masked := _masked(way[-1], attention)) is not None:
        way.append(masked)
    scores, scale = way[-1], 1.0
    while (factor := _factor(way[-1])) is not None:
        scale *= factor
        way.append(operand(way[-1]))
    product = way[-1]
    if kind(product) is not Kind.MATMUL or product not in attention.axes:
        return None
    scaled = set(way[way.index(scores) :])
    masks = [n for n in attention.nodes if n not in scaled | {site.softmax, site.contraction}]
    found = Kernel(operand(product, 0), operand(product, 1), scale, scores, tuple(masks))
    operands = found.queries, found.keys, site.values, site.contraction
    if len({tuple(shape_of(n)[:-2]) for n in operands}) > 1:
        return None
    return replace(found, causal=bool(masks) and is_causal(found, attention))


def _masked(node: fx.Node, attention: Attention) -> fx.Node | None:
    """The scores that a call masks, or adds a bias to; ``None`` where it does neither."""
    if node.target in FILLS:
        place, filled = FILLS[node.target]  # type: ignore[index]
        given = arguments(node)[filled]
        hides = isinstance(given, int | float) and given <= HIDDEN
        return operand(node, place) if hides else None
    if node.target is not aten.add.Tensor or node.kwargs:
        return None
    products = {n for n in attention.nodes if kind(n) is Kind.MATMUL}
    below = depending(attention.nodes, products)
    made = [n for n in node.all_input_nodes if n in below]
    return made[0] if len(made) == 1 and len(node.all_input_nodes) == 2 else None


def _factor(node: fx.Node) -> float | None:
    """The number by which a call multiplies; ``None`` if it does not."""
    if kind(node) not in (Kind.PRODUCT, Kind.QUOTIENT) or len(node.args) != 2:
        return None
    number = node.args[1]
    if not isinstance(number, int | float):
        return None
    return float(number) if kind(node) is Kind.PRODUCT else 1 / float(number)


def _four(t: Tensor) -> Tensor:
    """With all axes before the last three as one, which is there always."""
    wide = t if t.dim() > 3 else t.unsqueeze(1)
    return wide.flatten(0, -4)


@dataclass(frozen=True)
class KernelCall:
    """A call of ``scaled_dot_product_attention``: operands (batch, ..., positions, features),
    ``keys`` with positions as columns, a mask that broadcasts, or ``causal``."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    scale: float
    causal: bool

    @cached_property
    def given(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The operands and the mask as kernels take them: (batch, heads, positions, features)."""
        four = [_four(t) for t in (self.queries, self.keys.mT, self.values)]
        queries, keys, values = (t if t.stride(-1) == 1 else t.contiguous() for t in four)
        if self.mask is None:
            return queries, keys, values, None
        wide = self.mask.expand(*self.queries.shape[:-3], *self.mask.shape[-3:])
        return queries, keys, values, _four(wide)

    @cached_property
    def is_blind(self) -> bool:
        """Whether some query sees no key, or may: a run that is recorded looks at no values."""
        if self.mask is None:
            return False
        return cannot_look(self.mask) or bool((self.mask.amax(-1) < BLIND).any())

    @property
    def is_fused(self) -> bool:
        """Whether PyTorch has a kernel for it that makes no map."""
        if self.is_blind:
            return False
        choice: int = torch._fused_sdp_choice(*self.given, 0.0, self.causal, scale=self.scale)
        return choice != SDPBackend.MATH.value

    def made(self) -> Tensor:
        """softmax(scale·QKᵀ + mask)·V, (batch, ..., positions, features)."""
        attend = attention if self.is_blind else F.scaled_dot_product_attention
        made: Tensor = attend(*self.given, is_causal=self.causal, scale=self.scale)
        return made.reshape(*self.queries.shape[:-1], self.values.shape[-1])


def added(
    kernel: Kernel,
    attention: Attention,
    known: Values,
    like: Tensor,
    count: int,
    dtype: torch.dtype | None,
) -> Tensor:
    """What the masks add to the scores of ``count`` queries, for one sample; ``like`` has the type
    and the device of the scores."""
    scores = val(kernel.scores)
    size = (*(1,) * (scores.dim() - 2), count, scores.shape[-1])
    values = {**known, kernel.scores: like.new_zeros(size)}
    for node in kernel.masks:
        values[node] = call_node(node, values, dtype, attention.sizes(node, count))
    made: Tensor = values[operand(attention.site.softmax)]
    return made


def is_causal(kernel: Kernel, attention: Attention) -> bool:
    """Whether the masks hide from each query the keys after it and nothing else, whatever the
    inputs and parameters are."""
    read = {i for n in kernel.masks for i in n.all_input_nodes} - {*kernel.masks, kernel.scores}
    above = sorted(reached(read))
    if any(n.op != "call_function" for n in above):
        return False
    known: Values = {}
    for node in above:
        known[node] = call_node(node, known, None)
    return causal_alone(kernel, _masks_of(kernel, attention, known)) is True


def _masks_of(kernel: Kernel, attention: Attention, known: Values) -> Iterator[tuple[int, Tensor]]:
    """What the masks add where they read nothing but ``known``, some rows at a time."""
    for first in range(0, attention.queries, ROWS):
        count = min(ROWS, attention.queries - first)
        cut = {n: attention.cut(n, v, first, count) for n, v in known.items()}
        held = [v.device for v in cut.values() if isinstance(v, Tensor)]
        like = torch.empty((), dtype=val(kernel.scores).dtype, device=held[0] if held else None)
        yield first, added(kernel, attention, cut, like, count, None)


def causal_alone(kernel: Kernel, rows: Iterable[tuple[int, Tensor]]) -> bool | None:
    """Whether masks hide the keys after each query and nothing else (``True``), nothing at all
    (``False``), or something else, or need a derivative (``None``). ``rows``: the first of some
    rows, and what the masks add to these, (..., rows, keys)."""
    ways = {False: _hides_nothing}
    if len(set(shape_of(kernel.scores)[-2:])) == 1:
        ways[True] = _hides_later
    for first, mask in rows:
        ways = {causal: way for causal, way in ways.items() if way(mask, first)}
        if not ways or mask.requires_grad:
            return None
    return next(iter(ways))


def _hides_nothing(mask: Tensor, first: int) -> bool:
    return not bool(mask.any())


def _hides_later(mask: Tensor, first: int) -> bool:
    rows, keys = mask.shape[-2:]
    here = torch.arange(first, first + rows, device=mask.device)
    later = torch.arange(keys, device=mask.device) > here.unsqueeze(1)
    hidden, open_to = mask <= HIDDEN, mask.masked_fill(later, 0)
    return bool((hidden == later).all()) and not bool(open_to.any())
