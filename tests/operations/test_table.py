"""The table of operations says what PyTorch's operators do, all of them, and nobody decides by a
name."""

import ast
from pathlib import Path

import pytest
import torch

import relprop
from relprop.operations import ELEMENTWISE, MOVES, Kind, kind
from relprop.operations.table import TABLE

aten = torch.ops.aten
PACKAGE = Path(relprop.__file__).parent
OUTSIDE = [p for p in sorted(PACKAGE.rglob("*.py")) if "operations" not in p.parts]
#: Lines for what a graph of Python calls may hold.
ELSEWHERE: set[str] = set()
#: What PyTorch calls pointwise and is more than that, or less.
MORE = {Kind.FACTORY, Kind.RANDOM, Kind.WRITE, Kind.COMPLEX, Kind.COUNT, Kind.READ}


def overloads():
    for name in sorted(dir(aten)):
        packet = getattr(aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for o in packet.overloads():
            yield getattr(packet, o)


POINTWISE = [
    o
    for o in overloads()
    if torch.Tag.pointwise in o.tags and not o._schema.is_mutable and "out" not in o._overloadname
]
VIEWS = [o for o in overloads() if o.is_view and not o._schema.is_mutable]


def test_every_line_names_an_operator():
    elsewhere = {n for n in TABLE if not hasattr(aten, n.split(".")[0])}
    assert elsewhere == ELSEWHERE


@pytest.mark.parametrize("op", POINTWISE, ids=str)
def test_pointwise_operators_are_elementwise(op):
    assert kind(op) in ELEMENTWISE | MORE | {Kind.LARGEST, Kind.UNKNOWN}, kind(op)


@pytest.mark.parametrize("op", VIEWS, ids=str)
def test_views_change_places(op):
    assert kind(op) in MOVES | {Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.COMPLEX}, kind(op)


def called(op):
    """The operator on numbers between 0 and 1, as a function of its first tensor; ``None`` where
    its arguments are of another kind."""
    given = []
    for a in op._schema.arguments:
        if a.has_default_value():
            break
        if str(a.type) == "Tensor":
            given.append(torch.linspace(0.2, 0.8, 12, dtype=torch.float64).reshape(3, 4))
        elif str(a.type) in ("number", "float"):
            given.append(0.5)
        else:
            return None
    first = next((i for i, g in enumerate(given) if isinstance(g, torch.Tensor)), None)
    if first is None:
        return None
    return (lambda x: op(*given[:first], x, *given[first + 1 :])), given[first]


@pytest.mark.parametrize("op", POINTWISE, ids=str)
def test_one_element_is_read_by_one_element(op):
    """By numbers, whatever the tags say: who is elementwise in the table reads no neighbour."""
    made = called(op)
    if kind(op) not in ELEMENTWISE or made is None:
        return
    function, x = made
    try:
        y = function(x)
    except (RuntimeError, TypeError, NotImplementedError):
        return  # for whole numbers only, or for complex ones
    if isinstance(y, tuple):
        return  # frexp: two results, each read for itself
    assert y.shape == x.shape
    changed = x.clone()
    changed[1, 2] += 0.07
    differs = function(changed).nan_to_num() != y.nan_to_num()
    differs[1, 2] = False
    assert not differs.any()


def test_enough_operators_are_tried():
    tried = 0
    for op in POINTWISE:
        made = called(op)
        if made is not None and kind(op) in ELEMENTWISE:
            try:
                made[0](made[1])
                tried += 1
            except (RuntimeError, TypeError, NotImplementedError):
                pass
    assert tried > 80


def decisions(path):
    """Where a name of an operator is compared, looked up or looked for."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            parts = node.args
        for part in parts:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "name_of":
                    yield f"{path.name}:{inner.lineno}"
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if text.startswith(("aten.", "aten::")) and text[6:].replace("_", "").isalnum():
                yield f"{path.name}:{node.lineno} {text}"


def test_nobody_decides_by_an_operators_name():
    assert [where for path in OUTSIDE for where in decisions(path)] == []
