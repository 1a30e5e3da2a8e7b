"""What ids choose among tensors that depend on no input is a lookup in the table of what each id
gets: ``where`` and masks of every word, a table in several pieces, elements of a flat table."""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from relprop.operations import Kind, kind, operand
from relprop.tracer.constants import Constants
from relprop.tracer.editing import (
    arguments,
    dims_of,
    drop_unused,
    is_float,
    is_live,
    is_tensor,
    swap,
    tensor_inputs,
)
from relprop.tracer.leaves import same_ids
from relprop.tracer.passes.lookups.choice import LOOKUPS, ON_NUMBERS, Choice, are_whole
from relprop.tracer.passes.sums.terms import Terms, folded, is_top, terms_of
from relprop.tracer.passes.trials.subgraphs import only_ones


def join_choices(graph: fx.Graph, constants: Constants) -> bool:
    """Every choice by ids that is no plain lookup → one ``embedding``. Returns whether there may be
    such."""
    chosen = _chosen(graph)
    if not chosen:
        return False
    if _bring_together(graph, chosen):
        chosen = _chosen(graph)
    measured = _measured(graph)
    inputs = [n for n in graph.find_nodes(op="placeholder") if not is_float(n)]
    given = {i for n in inputs for i in same_ids(n)}
    left = [n for n in chosen if not any(user in chosen for user in n.users)]
    while left:
        node = left.pop()
        hidden = _is_hidden(node, chosen, constants)
        choice = Choice(node, chosen, measured, constants)
        if not hidden and choice.ids in given and (new := choice.lookup()) is not None:
            swap(node, new)
        elif hidden or kind(node) in (Kind.JOIN, Kind.TOTAL, Kind.RESHAPE):
            left += [i for i in node.all_input_nodes if i in chosen]
    drop_unused(graph)
    return True


def _bring_together(graph: fx.Graph, chosen: Iterable[fx.Node]) -> bool:
    """Of a sum of three and more, the terms that one input's ids choose are added first. Returns
    whether there were such."""
    found = False
    for node in reversed(list(graph.nodes)):
        if node._erased or not is_top(node) or len(terms := terms_of(node)) < 3:
            continue
        by_input: dict[fx.Node | None, Terms] = {}
        for sign, term in terms:
            alone = term in chosen and len(term.users) == 1
            by_input.setdefault(_only_input(term) if alone else None, []).append((sign, term))
        others = by_input.pop(None, [])
        if any(len(group) > 1 for group in by_input.values()):
            parts = [(1, folded(node, group)) for group in by_input.values()]
            swap(node, folded(node, [*parts, *others]))
            found = True
    drop_unused(graph)
    return found


def _only_input(node: fx.Node) -> fx.Node | None:
    """The input that a choice is made by, if it is one alone."""
    seen: set[fx.Node] = set()
    left = [node]
    while left:
        new = {i for i in left.pop().all_input_nodes if is_live(i)} - seen
        seen |= new
        left += new
    inputs = [n for n in seen if n.op == "placeholder"]
    return inputs[0] if len(inputs) == 1 else None


def _measured(graph: fx.Graph) -> set[fx.Node]:
    """What is made of floating numbers, element by element."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        made = kind(node) in ON_NUMBERS and any(i in found for i in tensor_inputs(node))
        if is_live(node) and (is_float(node) or made):
            found.add(node)
    return found


def _chosen(graph: fx.Graph) -> dict[fx.Node, None]:
    """The floating tensors that ids alone choose, from what depends on no input."""
    numbers: set[fx.Node] = set()
    chosen: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if not is_live(node) or not is_tensor(node):
            continue
        live = [i for i in tensor_inputs(node) if is_live(i)]
        if are_whole(node) or (kind(node) in ON_NUMBERS and all(i in numbers for i in live)):
            numbers.add(node)
        if is_float(node) and _is_choice(node, numbers, chosen):
            chosen[node] = None
            numbers.discard(node)
    return chosen


def _is_choice(node: fx.Node, numbers: set[fx.Node], chosen: Iterable[fx.Node]) -> bool:
    """Whether a call chooses by ids, hides what was chosen, or puts choices together."""
    what, given = kind(node), tensor_inputs(node)
    parts = [i for i in given if i in chosen and len(i.users) == 1]
    ids = [i for i in given if i in numbers]
    still = [i for i in given if not is_live(i) and is_float(i)]
    if what in LOOKUPS:
        return still == [operand(node)] and not parts and bool(ids)
    if what is Kind.LINEAR:
        return operand(node) in ids and len(still) == len(given) - 1
    if what in (Kind.SUM, Kind.JOIN):
        return len(set(parts)) == len(given) > 1
    if what is Kind.TOTAL and parts and kind(parts[0]) is Kind.JOIN:
        return dims_of(node) == [arguments(parts[0])[1]]
    if what is Kind.RESHAPE:
        return bool(parts) and only_ones(node)
    by_ids = len(given) == len(parts) + len(still) + 1 and len(ids) == 1
    return by_ids and (what is Kind.CHOICE or (what is Kind.PRODUCT and len(given) == 2))


def _is_hidden(node: fx.Node, chosen: Iterable[fx.Node], constants: Constants) -> bool:
    """Whether a choice is one that a number hides in some places: a lookup and a mask."""
    given = tensor_inputs(node)
    parts = [i for i in given if i in chosen]
    values = [i for i in given if is_float(i) and constants.number(i) is None]
    return kind(node) in (Kind.CHOICE, Kind.PRODUCT) and bool(parts) and len(values) < 2
