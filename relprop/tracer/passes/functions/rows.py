"""What lies along an axis made comparable, however it is written out: softmax, log-softmax, norms.

A region along one axis is tried out on numbers (``trials/regions.py``). If it gives what a softmax
gives, it is one; if it gives the values less their mean, times one number for each row, it is a
norm.
"""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, shape_of, swap
from relprop.tracer.order import Flow
from relprop.tracer.passes.functions.masked import is_mask, softmax_of
from relprop.tracer.passes.functions.norms import FoundNorm, emit_norm, norm_in
from relprop.tracer.passes.functions.shifts import LINEAR
from relprop.tracer.passes.functions.softmaxes import emit_beside, softmax_in
from relprop.tracer.passes.trials.regions import Region, candidates, flow_of, region_of


def raise_rows(graph: fx.Graph, constants: Constants) -> None:
    """Every softmax, log-softmax and norm that is written out → its operation."""
    taken: set[fx.Node] = set()
    known: dict[tuple[str, bool], _Found | None] = {}
    flow = flow_of(graph)
    for narrow in list(candidates(graph)):
        if not narrow.axes or taken & set(narrow.nodes):
            continue
        region = _with_centring(flow, narrow)
        masked = all(is_mask(p, constants) for p in region.parameters)
        if (key := (region.signature, masked)) not in known:
            known[key] = _tried(region, masked)
        found = known[key]
        new = None if found is None else _emit(region, found, constants)
        if new is not None:
            taken |= set(region.nodes)
            swap(region.output, new)
    graph.eliminate_dead_code()


def _with_centring(flow: Flow, region: Region) -> Region:
    """The region and the sums above it in which its source was made of another tensor: the mean
    taken away."""
    if kind(region.source) is not Kind.SUM or region.source not in flow.index:
        return region
    above = flow.dominator(region.source)
    if above is None or shape_of(above) != shape_of(region.source):
        return region
    centring = flow.between(above, region.source)
    if not {kind(n) for n in centring} <= LINEAR or all(kind(n) != Kind.TOTAL for n in centring):
        return region
    wider = region_of(flow, region.output, above)
    return region if wider is None or wider.axes != region.axes else wider


def _tried(region: Region, masked: bool) -> _Found | None:
    """What a region is, whose parameters are masks if ``masked``; ``None`` if it is none of these,
    or cannot be tried out."""
    try:
        found = softmax_in(region) if masked else None
        return norm_in(region) if found is None else found
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None


def _emit(region: Region, found: _Found, constants: Constants) -> fx.Node | None:
    if isinstance(found, FoundNorm):
        return emit_norm(region, found)
    at, axis = region.output, region.axes[0]
    if found == Kind.TOTAL:
        return softmax_of(region, axis, constants)
    if isinstance(found, float):
        return emit_beside(region, axis, found, constants)
    op = aten.softmax.int if found is Kind.SOFTMAX else aten.log_softmax.int
    return emit(at, op, region.source, axis)


_Found = Kind | float | FoundNorm
