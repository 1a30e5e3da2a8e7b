"""The canonicalising passes, in order: from what the front ends record to a closed vocabulary, each
word at the height of a rule.

After them one function has one graph, however it was written: no in-place writes, no checks, no
dropout, no fused attention, no complex numbers; whatever is linear is ``linear``, whatever is a
softmax ``softmax``, whatever is a norm or an activation one call; moves that cancel are gone, and
lanes that run side by side are one. Numbers do not change (a check against the model holds it).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from relprop.operations import Kind, kind
from relprop.tracer.constants import Constants
from relprop.tracer.passes.affine import raise_affine
from relprop.tracer.passes.blocks import raise_blocks
from relprop.tracer.passes.complex import make_real
from relprop.tracer.passes.convolutions import raise_convolutions
from relprop.tracer.passes.cosines import scale_operands
from relprop.tracer.passes.disguised import raise_disguised_functions
from relprop.tracer.passes.disguised_attention import raise_disguised_attention
from relprop.tracer.passes.disguised_sums import raise_disguised_sums
from relprop.tracer.passes.factors import join_factors, join_multiples, scale_inputs
from relprop.tracer.passes.functions import raise_functions
from relprop.tracer.passes.indices import join_sums_by_index
from relprop.tracer.passes.lanes import (
    fold_rows,
    join_groups,
    merge_lanes,
    merge_projections,
    merge_weighted,
)
from relprop.tracer.passes.lookups import raise_lookups
from relprop.tracer.passes.missing import leave_out_missing
from relprop.tracer.passes.modes import inline_regions
from relprop.tracer.passes.numbers import drop_differences
from relprop.tracer.passes.orders import sink_orders
from relprop.tracer.passes.picks import pick_tokens
from relprop.tracer.passes.positions import look_up_as_given
from relprop.tracer.passes.products import raise_products, raise_totals
from relprop.tracer.passes.rotations import join_rotations
from relprop.tracer.passes.rows import drop_shifts, raise_rows
from relprop.tracer.passes.same import join_same
from relprop.tracer.passes.shares import weigh_masks
from relprop.tracer.passes.signs import join_signs
from relprop.tracer.passes.simplify import simplify
from relprop.tracer.passes.spelling import respell
from relprop.tracer.passes.split import (
    cut_inputs,
    join_outputs,
    join_split_inputs,
    join_split_products,
)
from relprop.tracer.passes.stored import scale_stored
from relprop.tracer.passes.sums import (
    drop_constant_inputs,
    join_biases,
    join_sums,
    read_constants,
)
from relprop.tracer.passes.towers import part_towers
from relprop.tracer.passes.writes import functionalise


def canonicalise(
    graph: fx.Graph,
    device: torch.device,
    given: Mapping[str, Tensor] | None = None,
    places: Mapping[str, Tensor] | None = None,
    *,
    again: bool = False,
) -> None:
    """Run every pass on ``graph``, in place; what the passes create lives on ``device``.
    ``given``: the constants that the graph holds by name; ``places``: buffers of whole numbers.
    ``again``: the graph has been through them once."""
    if not again:
        drop_differences(graph, Constants(given, device))
    inline_regions(graph, device)
    drop_checks(graph)
    functionalise(graph, Constants(given, device))
    graph.eliminate_dead_code()
    respell(graph, device)
    leave_out_missing(graph, Constants(given, device))
    make_real(graph)
    raise_disguised_sums(graph, Constants(given, device))
    simplify(graph, Constants(given, device))
    join_same(graph)
    part_towers(graph)
    raise_convolutions(graph, Constants(given, device))
    raise_products(graph, spreads=False)
    raise_blocks(graph, Constants(given, device))
    cut_inputs(graph, Constants(given, device))
    read_constants(graph, Constants(given, device))
    scale_inputs(graph)
    scale_operands(graph)
    simplify(graph, Constants(given, device))
    join_same(graph)
    raise_disguised_functions(graph, Constants(given, device))
    raise_rows(graph, Constants(given, device))
    drop_shifts(graph)
    simplify(graph, Constants(given, device))
    join_multiples(graph)
    raise_affine(graph, Constants(given, device))
    raise_products(graph, spreads=True)
    scale_stored(graph)
    join_factors(graph)
    if raise_functions(graph):  # an exponential of a softmax, too
        raise_rows(graph, Constants(given, device))
    raise_lookups(graph, Constants(given, device))
    pick_tokens(graph, Constants({**(given or {}), **(places or {})}, device))
    look_up_as_given(graph, Constants(given, device))
    sink_orders(graph, Constants(given, device))
    join_split_products(graph, Constants(given, device))
    raise_disguised_attention(graph, Constants(given, device))
    simplify(graph, Constants(given, device))
    join_sums_by_index(graph)
    drop_constant_inputs(graph, Constants(given, device))
    join_split_inputs(graph, Constants(given, device))
    join_outputs(graph)
    join_biases(graph)
    join_rotations(graph, Constants(given, device))
    simplify(graph, Constants(given, device))
    join_same(graph)
    merge_lanes(graph)
    merge_projections(graph)
    merge_weighted(graph, Constants(given, device))
    join_groups(graph)
    simplify(graph, Constants(given, device))
    sink_orders(graph, Constants(given, device))
    raise_totals(graph)
    weigh_masks(graph)
    fold_rows(graph)
    join_biases(graph)
    join_sums(graph)
    join_signs(graph)
    simplify(graph, Constants(given, device))
    graph.lint()


def drop_checks(graph: fx.Graph) -> None:
    """Assertions and gradient-mode switches carry no values."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and kind(node) is Kind.CHECK:
            graph.erase_node(node)
