"""What lies along an axis made comparable, however it is written out: softmax, log-softmax, norms.

A subgraph along one axis is tried out on numbers (``trials/subgraphs.py``). If it gives what a
softmax gives, it is one; if it gives the values less their mean, times one number for each row, it
is a norm.
"""

from __future__ import annotations

from torch import fx

from relprop.operations import Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import aten, emit, shape_of, swap
from relprop.tracer.order import Flow
from relprop.tracer.passes.functions.masked import is_count, is_mask, softmax_of
from relprop.tracer.passes.functions.norms import FoundNorm, emit_norm, norm_in
from relprop.tracer.passes.functions.softmaxes import (
    emit_beside,
    softmax_in,
)
from relprop.tracer.passes.trials.subgraphs import Subgraph, candidates, flow_of, subgraph_of

#: What takes a mean away.
_LINEAR = frozenset({Kind.SUM, Kind.TOTAL, Kind.AFFINE, Kind.EXPAND, Kind.RESHAPE})


def raise_rows(graph: fx.Graph, constants: Constants) -> None:
    """Every softmax, log-softmax and norm that is written out → its operation."""
    taken: set[fx.Node] = set()
    known: dict[tuple[str, bool], _Found | None] = {}
    flow = flow_of(graph)
    for narrow in list(candidates(graph)):
        if not narrow.axes or taken & set(narrow.nodes):
            continue
        subgraph = _with_centring(flow, narrow)
        masked = all(is_mask(p, constants) or is_count(p) for p in subgraph.parameters)
        if (key := (subgraph.signature, masked)) not in known:
            known[key] = _tried(subgraph, masked)
        found = known[key]
        new = None if found is None else _emit(subgraph, found, constants)
        if new is not None:
            taken |= set(subgraph.nodes)
            swap(subgraph.output, new)


def _with_centring(flow: Flow, subgraph: Subgraph) -> Subgraph:
    """The subgraph and the sums above it in which its source was made of another tensor: the mean
    taken away."""
    if kind(subgraph.source) is not Kind.SUM or subgraph.source not in flow.index:
        return subgraph
    above = flow.dominator(subgraph.source)
    if above is None or shape_of(above) != shape_of(subgraph.source):
        return subgraph
    centring = flow.between(above, subgraph.source)
    if not {kind(n) for n in centring} <= _LINEAR or all(kind(n) != Kind.TOTAL for n in centring):
        return subgraph
    wider = subgraph_of(flow, subgraph.output, above)
    return subgraph if wider is None or wider.axes != subgraph.axes else wider


def _tried(subgraph: Subgraph, masked: bool) -> _Found | None:
    """What a subgraph is, whose parameters are masks if ``masked``; ``None`` if it is none of
    these, or cannot be tried out."""
    try:
        found: _Found | None = softmax_in(subgraph) if masked else None
        if any(kind(n) is Kind.SOFTMAX for n in subgraph.nodes):
            return None
        return norm_in(subgraph) if found is None else found
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None


def _emit(subgraph: Subgraph, found: _Found, constants: Constants) -> fx.Node | None:
    if isinstance(found, FoundNorm):
        return emit_norm(subgraph, found)
    at, axis = subgraph.output, subgraph.axes[0]
    if found == Kind.TOTAL:
        return softmax_of(subgraph, axis, constants)
    if isinstance(found, float):
        return emit_beside(subgraph, axis, found, constants)
    op = aten.softmax.int if found is Kind.SOFTMAX else aten.log_softmax.int
    return emit(at, op, subgraph.source, axis)


_Found = Kind | float | FoundNorm
