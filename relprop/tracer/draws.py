"""Random numbers that a model draws: every later run sees those that its own run drew, however it
draws and seeds them.

A model may seed the generator itself before it draws (hashing, masks of noise). Seeding is no
operation of a graph, so the numbers are: they are recorded while the model runs, and the graph's
draws are replaced by them, but for those that are worked out of an input's values.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from relprop.operations import Args, Kind, Kwargs, Operator, argument, is_inplace, kind, packet
from relprop.tracer.editing import aten, tensor_inputs, val
from relprop.tracer.facts import facts_of, know, place

DRAWN = "drawn_"  # how the constants are named
SHAPED_LIKE = frozenset({aten.rand_like, aten.randn_like, aten.randint_like})
ELSEWHERE = "numpy.random or random"


class Draws(TorchDispatchMode):
    """What is drawn while this is active, in order: the operator and the numbers. ``elsewhere``:
    whether Python or numpy drew, from when this was made."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: list[tuple[Operator, Tensor | None]] = []
        self._before = _states()

    def __exit__(self, *error: object) -> None:
        self.elsewhere = self._before != _states()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run the operator, and keep what it drew."""
        made = func(*args, **(kwargs or {}))
        if kind(func) is Kind.RANDOM:
            self.drawn.append((func, made.detach().clone() if isinstance(made, Tensor) else None))
        return made


def _states() -> object:
    name, numbers, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(numbers).tobytes(), rest


class Replayed(TorchDispatchMode):
    """While this is active, what is drawn is what an earlier run drew (``numbers_of``), as far as
    it has the shape."""

    def __init__(self, numbers: Mapping[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers, self._count = numbers, 0

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run the operator; the numbers drawn then are the next ones."""
        made = func(*args, **(kwargs or {}))
        if kind(func) is Kind.RANDOM:
            drawn = self._numbers.get(self._count)
            self._count += 1
            if drawn is not None and drawn.shape == made.shape:
                made.copy_(drawn)
        return made


def numbers_of(constants: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """The numbers that a graph's ``constants`` hold, by which draw of the model they are."""
    return {int(n.removeprefix(DRAWN)): t for n, t in constants.items() if n.startswith(DRAWN)}


def fix_draws(graph: fx.Graph, constants: dict[str, Tensor], draws: Draws) -> tuple[str, ...]:
    """Put the numbers drawn into the graph in place of its draws, as ``constants``; where all are.
    Draws that are not those of the run, or that read an input's values, stay as they are."""
    places = tuple(str(place(n)) for n in graph.nodes if is_random_call(n))
    places += (ELSEWHERE,) * draws.elsewhere
    nodes = [n for n in graph.nodes if kind(n) is Kind.RANDOM]
    if [n.target for n in nodes] != [func for func, _ in draws.drawn]:
        return places
    live = _of_inputs(graph)
    for i, (node, (_, numbers)) in enumerate(zip(nodes, draws.drawn, strict=True)):
        if numbers is None or val(node).shape != numbers.shape or node in live:
            continue
        constants[f"{DRAWN}{i}"] = numbers
        with graph.inserting_before(node):
            fixed = graph.create_node("get_attr", f"{DRAWN}{i}")
        know(fixed, facts_of(node))
        if is_inplace(node):
            node.target, node.args, node.kwargs = aten.copy_.default, (node.args[0], fixed), {}
        else:
            node.replace_all_uses_with(fixed)
            graph.erase_node(node)
    return places


def _of_inputs(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose values, not only their shapes, are worked out of an input's."""
    live = set(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        shaped = packet(node) in SHAPED_LIKE or (kind(node) is Kind.RANDOM and is_inplace(node))
        read = () if kind(node) is Kind.FACTORY else tensor_inputs(node)[shaped:]
        if not live.isdisjoint(read):
            live.add(node)
    return live


def is_random_call(node: fx.Node) -> bool:
    """Whether a call draws numbers: of itself, or as a dropout that is switched on (a recurrent
    layer has one, too)."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return kind(node) is Kind.RANDOM
    is_on = all(argument(node, name) is not False for name in ("train", "training"))
    is_zero = any(argument(node, name) == 0 for name in ("p", "dropout", "dropout_p"))
    return kind(node) is Kind.RANDOM or (is_on and not is_zero)
