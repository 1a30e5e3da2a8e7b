"""Which axis of a node's value holds tokens, heads or features."""

from __future__ import annotations

from torch import fx

from relprop.errors import OptionError, message
from relprop.operations import ELEMENTWISE, Kind, kind
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import made_after, shape_of, tensor_inputs, val
from relprop.tracer.follow import depending
from relprop.tracer.program import Program


def axis_of(program: Program, name: str, part: str) -> int:
    """The axis of ``"positions"``, ``"heads"`` or ``"features"`` in a named node's value as it is
    shown, the batch being axis 0. Of an attention map positions are queries, and features keys.
    Raises ``OptionError`` where no one axis is that."""
    node = (program.changed or program).labels[name]
    shape, tokens = _shown(node), token_axes(program, name)
    rest = [i for i in range(1, len(shape) + 1) if i not in tokens]
    if len(rest) == 2 and not tokens:  # nothing says what is what, but how it was made
        rest = rest[::-1] if _channels_first(node) else rest
        rest, tokens = rest[1:], rest[:1]
    found: list[int] = []
    if is_map(program.changed or program, node):
        found = {"positions": tokens[-2:-1], "heads": rest, "features": tokens[-1:]}[part]
    elif part == "features":
        found = rest[-1:] if len(rest) < 3 else []
    elif part == "heads":
        found = rest[:1] if len(rest) == 2 and tokens else []
    elif len(tokens) == 1:
        found = tokens
    if len(found) != 1:
        size = " × ".join(map(str, shape))
        fact = f"{name!r} is {size} for one sample, of which no one axis holds {part}"
        raise OptionError(message(fact, then=["name the whole value"]))
    return found[0]


def token_axes(program: Program, name: str) -> list[int]:
    """The axes of tokens in a named node's value as it is shown; as captured, since behind a value
    that is set nothing depends on the input."""
    own = program.changed or program
    node = own.labels[name]
    moved = 1 + len(_shown(node)) - val(node).dim()
    axes = enumerate(own.axes.get(node, ()))
    return [i + moved for i, axis in axes if is_token(axis) and i + moved]


def _channels_first(node: fx.Node) -> bool:
    """Whether it is what a convolution made, or a function of each of its numbers."""
    while kind(node) in ELEMENTWISE | {Kind.BATCH_NORM} and tensor_inputs(node):
        node = tensor_inputs(node)[0]
    return kind(node) is Kind.CONVOLUTION


def _shown(node: fx.Node) -> list[int]:
    """One sample's value without a leading 1."""
    shape = shape_of(node)
    return shape[1:] if shape[:1] == [1] else shape


def is_map(program: Program, node: fx.Node) -> bool:
    """Whether it is an attention map, (heads, queries, keys)."""
    ways = ((s.softmax, made_after(s.softmax, s.attention)) for s in program.sites)
    return any(node in depending(sorted(way), [softmax]) for softmax, way in ways)
