"""An attention site as an operator: from its queries, keys, values and masks to its result, for
some of the queries at a time, so that no map over all pairs of tokens need be held.

Whatever has the axis of the queries is cut, everything else is whole. Found from structure: upwards
from the map that is contracted, by where each operation takes the axes of queries and of keys from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor, fx

from relprop.operations import ELEMENTWISE, Kind, Value, argument, integers, kind
from relprop.tracer.editing import arguments, aten, dims_of, rank, shape_of, tensor_inputs, val
from relprop.tracer.facts import is_floating, role
from relprop.tracer.follow import depending
from relprop.tracer.program import Program, Site
from relprop.tracer.softmax_rows import after_reshape

#: Where an operation is told the sizes of its result, by position.
SIZES = {aten.reshape.default: 1, aten.expand.default: 1}


@dataclass(frozen=True)
class MapAxes:
    """Along which axes of a tensor the queries and the keys of a map lie; ``None``: it has none of
    these."""

    queries: int | None = None
    keys: int | None = None

    def taken(self, before: Callable[[int], int | None]) -> MapAxes:
        """The same of a tensor that is read, by where each axis was ``before``."""
        both = self.queries, self.keys
        return MapAxes(*(None if axis is None else before(axis) for axis in both))


@dataclass
class KeptChunks:
    """Values by chunk. ``read``: the nodes at which anybody looks; the others keep their shapes
    alone. ``left``: how many bytes may still be taken."""

    read: frozenset[fx.Node]
    left: int
    found: dict[Hashable, dict[fx.Node, Value]] = field(default_factory=dict)

    def keep(
        self, key: Hashable, made: dict[fx.Node, Value], given: set[fx.Node]
    ) -> dict[fx.Node, Value]:
        """These values, kept if there is room. ``given``: those that are there anyway."""
        own = {n: v for n, v in made.items() if isinstance(v, Tensor) and n not in given}
        size = sum(v.nbytes for n, v in own.items() if self._looked_at(n, v))
        if size > self.left:
            return made
        self.left -= size
        shapes = {n: _nothing(v) for n, v in own.items() if not self._looked_at(n, v)}
        self.found[key] = made | shapes
        return self.found[key]

    def _looked_at(self, node: fx.Node, value: Tensor) -> bool:
        return node in self.read or not value.is_floating_point()


def _nothing(value: Tensor) -> Tensor:
    """Zeros of a value's shape that take no memory."""
    return value.new_zeros(()).expand(value.shape)


@dataclass(frozen=True)
class Attention:
    """What makes one site's map, and the contraction.

    ``nodes``: the calls from the scores to the contraction, in order. ``entering``: the tensors
    that these read from outside. ``axes``: along which axis the queries lie, of every one of both
    that has them. ``kept``: where chunks are kept from one target to the next.
    """

    site: Site
    nodes: tuple[fx.Node, ...]
    entering: tuple[fx.Node, ...]
    axes: Mapping[fx.Node, int]
    kept: KeptChunks | None = None

    @property
    def queries(self) -> int:
        """How many queries there are."""
        return shape_of(self.site.contraction)[self.axes[self.site.contraction]]

    @cached_property
    def inside(self) -> frozenset[fx.Node]:
        """What need never be whole: maps, but no masks, which are soon made again."""
        return frozenset(filter(is_kept, self.nodes)) - {self.site.contraction}

    def from_last(self, node: fx.Node) -> int:
        """Along which axis a node's queries lie, counted from the last: of one sample's value and
        of a batch's."""
        return self.axes[node] - rank(node)

    def cut(self, node: fx.Node, value: Tensor, first: int, count: int) -> Tensor:
        """Some queries of a node's value; all of it if it has none."""
        return value.narrow(self.from_last(node), first, count) if node in self.axes else value

    def sizes(self, node: fx.Node, count: int) -> tuple[int, list[int]] | None:
        """Which argument of a call names the sizes of its result, and these for ``count`` queries;
        ``None`` if none does."""
        place = SIZES.get(node.target)  # type: ignore[call-overload]
        if place is None or count == self.queries:
            return None
        given = list(arguments(node)[place])
        given[self.axes[node]] = count
        return place, given


def map_bytes(site: Site) -> int:
    """How much memory the map of one sample takes."""
    value = val(site.attention)
    return int(value.numel() * value.dtype.itemsize)


def attention_of(program: Program, site: Site) -> Attention | str:
    """A site as an operator; or why its map must be whole."""
    found = _upwards(program, site)
    if found is None:
        return "one tensor is read both along its queries and as a whole"
    inside, pairs = found
    nodes = tuple(n for n in program.graph.nodes if n in inside)
    entering = dict.fromkeys(i for n in nodes for i in tensor_inputs(n) if i not in inside)
    kept = {n for n in nodes if is_kept(n)} - {site.contraction}
    if any(u not in inside for n in kept for u in n.users):
        return "the model reads the map, or its scores, elsewhere, too"
    if depending(program.graph.nodes, kept | {site.contraction}) & set(entering):
        return "what it is made of depends on its own result"
    if not any(kind(n) is Kind.MATMUL for n in nodes if n is not site.contraction):
        return "its scores are no product that can be made query by query"
    axes = {n: p.queries for n, p in pairs.items() if p.queries is not None}
    return Attention(site, nodes, tuple(entering), axes)


def is_kept(node: fx.Node) -> bool:
    """Whether a value is worth keeping: masks, made of positions and of what an input says of them,
    are soon made again."""
    return is_floating(node) and role(node) == "activation"


def _upwards(program: Program, site: Site) -> tuple[set[fx.Node], dict[fx.Node, MapAxes]] | None:
    """The calls that make a map and contract it, and where queries and keys lie in these and in all
    that they read; ``None`` where one tensor would be read in two ways."""
    below = depending(program.graph.nodes, {site.softmax})
    pairs, inside, left = {site.contraction: MapAxes()}, set[fx.Node](), [site.contraction]
    while left:
        node = left.pop()
        before = _at_contraction(site) if node is site.contraction else _before(node, pairs[node])
        if before is None:
            continue
        inside.add(node)
        for source, pair in before.items():
            known = pairs.setdefault(source, pair)
            if known != pair:
                return None
            followed = pair.queries is not None and (pair.keys is not None or source in below)
            if followed and source.op == "call_function" and source not in inside:
                left.append(source)
    wide = rank(site.contraction)
    pairs[site.contraction] = MapAxes(wide - 1 if site.transposed else wide - 2)
    return inside, pairs


def _at_contraction(site: Site) -> dict[fx.Node, MapAxes]:
    """Where queries and keys lie in the map, and that the values have none of its queries."""
    rows, columns = rank(site.attention) - 2, rank(site.attention) - 1
    lies = MapAxes(columns, rows) if site.transposed else MapAxes(rows, columns)
    return {site.attention: lies, site.values: MapAxes()}


def _before(node: fx.Node, pair: MapAxes) -> dict[fx.Node, MapAxes] | None:
    """Where the axes of a call's result lie in the tensors that it reads; ``None`` where its
    queries are not worked out one by one."""
    what, sources = kind(node), tensor_inputs(node)
    if what is Kind.MATMUL:
        if len(set(sources)) < 2 or min(map(rank, sources)) < 2:
            return None
        return {s: pair.taken(_multiplied(node, s, i)) for i, s in enumerate(sources)}
    if what in ELEMENTWISE or what is Kind.EXPAND:
        return {s: pair.taken(_broadcast(node, s)) for s in sources}
    if what in (Kind.LINEAR, Kind.EMBEDDING):
        return _looked_up(node, pair)
    if what in _RUN_ALONG and pair.queries == argument(node, "dim") % rank(node):
        return None
    before = _MOVED.get(what)
    if before is None:
        return None
    moved = {s: pair.taken(before(node, s)) for s in sources}
    lost = any(m.queries is None and pair.queries is not None for m in moved.values())
    return None if lost else moved


Before = Callable[[int], int | None]


def _broadcast(node: fx.Node, source: fx.Node) -> Before:
    """Axes count from the last; one of length 1 is repeated."""
    shape, wider = shape_of(source), rank(node) - rank(source)

    def before(axis: int) -> int | None:
        i = axis - wider
        return i if 0 <= i < len(shape) and shape[i] == shape_of(node)[axis] else None

    return before


def _multiplied(node: fx.Node, source: fx.Node, place: int) -> Before:
    """Rows are the left operand's, columns the right one's."""
    other = rank(node) - (1 if place == 0 else 2)
    aligned = _broadcast(node, source)
    return lambda axis: None if axis == other else aligned(axis)


def _looked_up(node: fx.Node, pair: MapAxes) -> dict[fx.Node, MapAxes] | None:
    """Rows of a table by their numbers, and sums over the last axis: all axes before it stay."""
    source = argument(node, "indices" if kind(node) is Kind.EMBEDDING else "input")
    if rank(node) - 1 in (pair.queries, pair.keys):
        return None
    return {s: pair if s is source else MapAxes() for s in tensor_inputs(node)}


def _reshaped(node: fx.Node, source: fx.Node) -> Before:
    return lambda axis: after_reshape(tuple(shape_of(node)), tuple(shape_of(source)), axis)


def _permuted(node: fx.Node, source: fx.Node) -> Before:
    return lambda axis: integers(node, "dims")[axis]


def _reduced(node: fx.Node, source: fx.Node) -> Before:
    """Axes that are summed over are gone, or of length 1."""
    gone, keeps = set(dims_of(node)), argument(node, "keepdim")
    left = [i for i in range(rank(source)) if keeps or i not in gone]
    return lambda axis: None if left[axis] in gone else left[axis]


def _same(node: fx.Node, source: fx.Node) -> Before:
    return lambda axis: axis


#: Operations that run along an axis of their result, and leave all axes where they are.
_RUN_ALONG = (Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.SCAN, Kind.SLICE, Kind.JOIN)
_MOVED: Mapping[Kind, Callable[[fx.Node, fx.Node], Before]] = {
    Kind.RESHAPE: _reshaped,
    Kind.PERMUTE: _permuted,
    Kind.TOTAL: _reduced,
    **dict.fromkeys(_RUN_ALONG, _same),
}
