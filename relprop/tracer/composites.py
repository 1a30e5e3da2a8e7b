"""Norms and activations written out in Python, recognised by structure: a product or quotient that
is a function of ONE tensor.

RMSNorm is x · rsqrt(mean(x²) + ε), tanh-GELU is ½x(1 + tanh(...)): between x and the last product
there are only pointwise ops and statistics over the last axis. Such a region is one operation to
relevance, and hands it on unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from relprop.tracer.editing import argument, name_of, val
from relprop.tracer.order import Flow

POINTWISE = frozenset(
    "add sub mul div neg abs pow exp log sqrt rsqrt reciprocal tanh sigmoid relu erf "
    "silu gelu softplus clamp clamp_min clamp_max to type_as square "
    "rsub detach maximum minimum where masked_fill expand".split()
)
STATISTICS = frozenset({"mean", "sum", "var", "linalg_vector_norm", "amax"})


@dataclass(frozen=True)
class Composite:
    """``output`` is a function of ``input`` alone, through ``inner`` (``output`` included): a norm
    if it reads ``statistics``, else pointwise."""

    input: fx.Node
    output: fx.Node
    inner: frozenset[fx.Node]
    statistics: bool

    @property
    def label(self) -> str:
        """How ``check`` names it."""
        return "norm written out" if self.statistics else "activation written out"


def find_composites(flow: Flow) -> tuple[Composite, ...]:
    """The largest such regions, none inside another."""
    found: list[Composite] = []
    taken: set[fx.Node] = set()
    for node in reversed(flow.nodes):
        if node in taken or name_of(node) not in ("mul", "div") or len(flow.inputs[node]) < 2:
            continue
        composite = _region(flow, node)
        if composite is not None:
            found.append(composite)
            taken |= composite.inner
    return tuple(reversed(found))


def _region(flow: Flow, output: fx.Node) -> Composite | None:
    source = flow.common_dominator(flow.inputs[output])
    if source is None or val(source).shape != val(output).shape:
        return None
    inner = flow.between(source, output)
    names = [name_of(n) for n in inner]
    if not all(
        name in POINTWISE or (name in STATISTICS and _over_features(n))
        for name, n in zip(names, inner, strict=True)
    ):
        return None
    members = frozenset(inner)
    if any(
        user not in members
        for n in inner
        if n is not output
        for user in n.users
        if user in flow.members
    ):
        return None
    return Composite(source, output, members, any(name in STATISTICS for name in names))


def held_constant(composite: Composite, flow: Flow) -> frozenset[fx.Node] | None:
    """The inner nodes whose values, held constant, leave ``output`` a sum of constants times
    ``input``: deviations, not means. ``None``: none do."""
    linear = {composite.input}
    for node in (n for n in flow.nodes if n in composite.inner):
        name, scaled = (
            name_of(node),
            [a for a in node.args[:2] if isinstance(a, fx.Node) and a in linear],
        )
        kept = name in ("to", "type_as", "neg", "expand", "mean", "sum") and node.args[0] in linear
        added = name in ("add", "sub") and len(scaled) == 2
        if (
            kept
            or added
            or (
                name in ("mul", "div")
                and len(scaled) == 1
                and (name == "mul" or node.args[0] in linear)
            )
        ):
            linear.add(node)
    return frozenset(composite.inner - linear) if composite.output in linear else None


def _over_features(node: fx.Node) -> bool:
    """A statistic over the last axis that keeps it: one number per position."""
    rank = len(val(node.args[0]).shape)  # type: ignore[arg-type]
    dims = argument(node, 2 if name_of(node) == "linalg_vector_norm" else 1, "dim")
    dims = [dims] if isinstance(dims, int) else list(dims or [])
    return [d % rank for d in dims] == [rank - 1] and val(node).dim() == rank
