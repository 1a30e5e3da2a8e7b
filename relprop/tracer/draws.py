"""Random numbers that a model draws from nothing but a shape: every later run sees those that its
own run drew, whichever way it seeds them.

A model may seed the generator itself before it draws (hashing, masks of noise). Seeding is no
operation of a graph, so the numbers are: they are recorded while the model runs, and the graph's
draws are replaced by them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from relprop.operations import Args, Kind, Kwargs, Operator, is_call, kind, packet
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.facts import facts_of, know, place

DRAWN = "drawn_"  # how the constants are named
SHAPED_LIKE = frozenset({aten.rand_like, aten.randn_like, aten.randint_like})


class Draws(TorchDispatchMode):
    """What is drawn while this is active, in order: the operator and the numbers."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[tuple[Operator, Tensor]] = []

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run the operator, and keep what it drew."""
        made = func(*args, **(kwargs or {}))
        if _from_a_shape(func, args):
            self.drawn.append((func, made.detach().clone()))
        return made


class Replayed(TorchDispatchMode):
    """While this is active, what is drawn is what an earlier run drew, as far as it has the
    shape."""

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = iter(numbers)

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run the operator; the numbers drawn then are the next ones."""
        made = func(*args, **(kwargs or {}))
        if _from_a_shape(func, args):
            drawn = next(self._left, made)
            return drawn.to(made.device).clone() if drawn.shape == made.shape else made
        return made


def _from_a_shape(func: Operator, args: Args) -> bool:
    """Whether an operator draws numbers, and reads nothing but a shape: places that are equally
    likely are drawn from how many there are."""
    if not _is_random(func):
        return False
    even = packet(func) is aten.multinomial and bool((args[0] == 1).all())  # type: ignore[attr-defined]
    return even or packet(func) in SHAPED_LIKE or not any(isinstance(a, Tensor) for a in args)


def fix_draws(
    graph: fx.Graph, constants: dict[str, Tensor], drawn: list[tuple[Operator, Tensor]]
) -> tuple[str, ...]:
    """Put the numbers drawn into the graph in place of its draws, as ``constants``; where each is.
    Draws that are not those of the run stay as they are."""
    nodes = [
        n
        for n in graph.nodes
        if n.op == "call_function"
        and _is_random(n.target)
        and (packet(n) in SHAPED_LIKE or all(map(_is_ones, tensor_inputs(n))))
    ]
    if [n.target for n in nodes] != [func for func, _ in drawn] or any(
        val(n).shape != t.shape for n, (_, t) in zip(nodes, drawn, strict=True)
    ):
        return ()
    for i, (node, (_, numbers)) in enumerate(zip(nodes, drawn, strict=True)):
        constants[f"{DRAWN}{i}"] = numbers
        with graph.inserting_before(node):
            fixed = graph.create_node("get_attr", f"{DRAWN}{i}")
        know(fixed, facts_of(node))
        node.replace_all_uses_with(fixed)
        graph.erase_node(node)
    return tuple(str(place(n)) for n in nodes)


def _is_ones(node: fx.Node) -> bool:
    while kind(node) is Kind.CAST:
        node = tensor_inputs(node)[0]
    return is_call(node, aten.ones)


def _is_random(operator: object) -> bool:
    return (
        isinstance(operator, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in operator.tags
    )


def is_random_call(node: fx.Node) -> bool:
    """Whether a call draws numbers: of itself, or as a dropout that is switched on."""
    return kind(node) is Kind.RANDOM or (_is_random(node.target) and True in node.args)
