"""The canonicalising passes, in order: from what the front ends record to a closed vocabulary, each
word at the height of a rule.

After them one function has one graph, however it was written: no in-place writes, no checks, no
dropout, no fused attention, no complex numbers; whatever is linear is ``linear``, whatever is a
softmax ``softmax``, whatever is a norm or an activation one call; moves that cancel are gone, and
lanes that run side by side are one. Numbers do not change (a check against the model holds it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, fx

from relprop.operations import Args, Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import drop_unused
from relprop.tracer.passes.attention.by_probing import raise_attention_by_probing
from relprop.tracer.passes.attention.rotations import join_rotations
from relprop.tracer.passes.functions.affine import raise_affine
from relprop.tracer.passes.functions.by_probing import raise_functions_by_probing
from relprop.tracer.passes.functions.channels import raise_channels
from relprop.tracer.passes.functions.elements import raise_functions
from relprop.tracer.passes.functions.rows import raise_rows
from relprop.tracer.passes.lanes.groups import join_groups
from relprop.tracer.passes.lanes.merging import merge_lanes, merge_projections
from relprop.tracer.passes.lanes.same import join_same
from relprop.tracer.passes.lanes.towers import part_towers
from relprop.tracer.passes.lanes.weighted import merge_weighted
from relprop.tracer.passes.lookups.moved_ids import look_up_as_given
from relprop.tracer.passes.lookups.orders import sink_orders
from relprop.tracer.passes.lookups.picks import pick_tokens
from relprop.tracer.passes.lookups.rows import raise_lookups
from relprop.tracer.passes.products.cosines import scale_operands
from relprop.tracer.passes.products.factors import join_factors
from relprop.tracer.passes.products.raising import raise_products
from relprop.tracer.passes.products.routed import route_rows
from relprop.tracer.passes.products.scales import scale_inputs
from relprop.tracer.passes.products.scores import join_scores
from relprop.tracer.passes.products.splits import (
    cut_inputs,
    join_split_inputs,
)
from relprop.tracer.passes.products.stored import scale_stored
from relprop.tracer.passes.simplify.rules import simplify
from relprop.tracer.passes.spelling.autocast import inline_regions
from relprop.tracer.passes.spelling.complex import make_real
from relprop.tracer.passes.spelling.respell import respell
from relprop.tracer.passes.sums.between import raise_between
from relprop.tracer.passes.sums.biases import join_biases
from relprop.tracer.passes.sums.by_probing import raise_sums_by_probing
from relprop.tracer.passes.sums.chosen import raise_choices
from relprop.tracer.passes.sums.multiples import join_multiples
from relprop.tracer.passes.sums.padded import add_to_all
from relprop.tracer.passes.sums.runs import join_sums
from relprop.tracer.passes.sums.weighed import part_layers
from relprop.tracer.passes.writes.distinct import write_distinct
from relprop.tracer.passes.writes.inplace import functionalise
from relprop.tracer.passes.writes.nothing import drop_nothing
from relprop.tracer.passes.writes.weighed import weigh_rows

Needs = Literal["nothing", "constants", "places"]
_Written = list[tuple[fx.Node, object, Args, Mapping[str, object]]]


@dataclass(frozen=True)
class Pass:
    """One line of the table: what runs on the graph, and why it stands there.

    ``needs``: what it is given beside the graph; ``places`` are constants that hold the buffers of
    whole numbers, too. ``after``: it runs only where that pass, above it, has found something.
    """

    run: Callable[..., object]
    why: str
    needs: Needs = "nothing"
    after: Callable[..., object] | None = None


def drop_checks(graph: fx.Graph) -> None:
    """Assertions and gradient-mode switches carry no values."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and kind(node) is Kind.CHECK:
            graph.erase_node(node)


SIMPLIFIED = Pass(simplify, "what cancels now is gone before the next pass looks", "constants")
SAME = Pass(join_same, "what is computed twice is one tensor, so that its readers meet")

PASSES = (
    Pass(inline_regions, "the other passes read one flat graph", "constants"),
    Pass(drop_checks, "they carry no values"),
    Pass(functionalise, "from here on every value has one node", "constants"),
    Pass(drop_nothing, "a tensor without elements is nobody's operand", "constants"),
    Pass(write_distinct, "what is brought to places of its own is written there", "constants"),
    Pass(respell, "one operator for each operation", "constants"),
    Pass(make_real, "relevance travels along real numbers", "constants"),
    Pass(respell, "their real parts have operators of their own", "constants", make_real),
    Pass(raise_sums_by_probing, "c·x + d·y while its pieces still lie together", "constants"),
    SIMPLIFIED,
    SAME,
    Pass(add_to_all, "what some positions get is a term of all"),
    Pass(raise_between, "what lies between two tensors has one form before it is cut"),
    Pass(part_towers, "samples that were joined are towers of their own"),
    Pass(partial(raise_products, spreads=False), "scales stay: a norm may be around them"),
    Pass(cut_inputs, "a shortcut among a layer's inputs is a term", "constants"),
    Pass(scale_inputs, "the scale of a norm stands where the norm is"),
    Pass(scale_operands, "vectors are scaled before they meet"),
    SIMPLIFIED,
    SAME,
    Pass(raise_functions_by_probing, "functions of one tensor, by their numbers", "constants"),
    Pass(raise_rows, "softmax and norms that are written out", "constants"),
    SIMPLIFIED,
    Pass(join_multiples, "x + x⊙w is one scaled tensor"),
    Pass(raise_affine, "the scale and the bias of a norm are its own", "constants"),
    Pass(partial(raise_products, spreads=True), "what scales no norm is a linear map"),
    Pass(scale_stored, "quantised matrices are meant scaled"),
    Pass(join_factors, "a gate is one function of one tensor"),
    Pass(raise_functions, "activations that are written out"),
    Pass(raise_rows, "its exponential was written out", "constants", raise_functions),
    Pass(raise_lookups, "what ids pick is a row of one table", "constants"),
    Pass(pick_tokens, "a mask that is true once picks a token", "places"),
    Pass(look_up_as_given, "scores are those of the ids' own positions", "constants"),
    Pass(sink_orders, "positions stand in the order they are given in", "constants"),
    Pass(raise_attention_by_probing, "attention in parts, by its numbers", "constants"),
    SIMPLIFIED,
    Pass(weigh_rows, "experts' tokens with their shares are one product", "constants"),
    Pass(join_split_inputs, "a layer that was cut by its inputs is one", "constants"),
    Pass(join_biases, "what is added at every position is a layer's own"),
    Pass(raise_channels, "a scale and a bias of channels are a norm's", "constants"),
    Pass(join_rotations, "rotary positions are one sum, however written", "constants"),
    SIMPLIFIED,
    SAME,
    Pass(join_scores, "contents and positions are features of one product"),
    SIMPLIFIED,
    Pass(merge_lanes, "heads and queries side by side are one computation", "constants"),
    SIMPLIFIED,
    SAME,
    Pass(
        merge_projections, "each head's part of the output projection is one layer's", "constants"
    ),
    Pass(merge_weighted, "experts with their shares are one product", "constants"),
    Pass(join_groups, "each head's own result, summed, is one layer"),
    SIMPLIFIED,
    Pass(sink_orders, "merged lanes may lie in another order", "constants"),
    Pass(raise_choices, "what a mask leaves is a choice", "constants"),
    Pass(join_biases, "merged layers have their biases, too"),
    Pass(part_layers, "what was laid side by side to be weighed and added is terms"),
    SIMPLIFIED,
    Pass(join_sums, "three terms and more are one sum, the streams' last form"),
    Pass(join_multiples, "numbers in front of terms are gone now"),
    Pass(route_rows, "experts read their rows, once it is known which layers they are"),
    SIMPLIFIED,
)


#: What stands in the table more than once.
_AGAIN = frozenset(run for run, times in Counter(p.run for p in PASSES).items() if times > 1)


def canonicalise(
    graph: fx.Graph,
    device: torch.device,
    given: Mapping[str, Tensor] | None = None,
    places: Mapping[str, Tensor] | None = None,
) -> None:
    """Run every pass on ``graph``, in place; what the passes create lives on ``device``.
    ``given``: the constants that the graph holds by name; ``places``: buffers of whole numbers.
    What nobody reads after a pass is erased; a pass that has left this very graph as it was does so
    again, and is left out."""
    held: dict[Needs, Mapping[str, Tensor] | None] = {
        "constants": given,
        "places": {**(given or {}), **(places or {})},
    }
    found: dict[Callable[..., object], object] = {}
    left: dict[Callable[..., object], _Written] = {}
    for step in PASSES:
        if step.after is not None and not found[step.after]:
            continue
        before = _written(graph) if step.run in _AGAIN else None
        if before is not None and left.get(step.run) == before:
            continue
        alone = step.needs == "nothing"
        more = () if alone else (Constants(held[step.needs], device),)
        found[step.run] = step.run(graph, *more)
        drop_unused(graph)
        if before is not None and _written(graph) == before:
            left[step.run] = before
    graph.lint()


def _written(graph: fx.Graph) -> _Written:
    """All of a graph that a pass could change."""
    return [(n, n.target, n.args, n.kwargs) for n in graph.nodes]
