"""Which axes of an explained input are positions (pixels, time steps, tokens), one score each; the others are features, summed over.

Worked out from the graph: a convolution says which axes it slides over, attention which are its tokens. Where neither does, the
convention of PyTorch's layers holds: (batch, channels, height, width), (batch, time, features), (batch, samples).
"""

from __future__ import annotations

from torch import fx

from relprop.tracer.axes import Axis, Group, is_token
from relprop.tracer.editing import name_of, val
from relprop.tracer.program import Program

CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})


def positions(program: Program, leaf: fx.Node) -> tuple[int, ...]:
    """The position axes of one sample's value at ``leaf``, in order. Axis 0 is one only where a sample holds several rows (choices of an answer)."""
    axes, rank = program.axes[leaf], val(leaf).dim()
    if leaf.op != "placeholder":
        found = set(range(rank - 1))
    elif (slid := _slid_over(program, leaf)) is not None:
        over, channels = slid
        found = (_conventional(rank) | over) - channels
    elif any(map(is_token, axes)):
        found = {i for i, axis in enumerate(axes) if is_token(axis)}
    else:
        found = _conventional(rank)
    return tuple(i for i in sorted(found) if i > 0 or val(leaf).shape[0] > 1)


def _conventional(rank: int) -> set[int]:
    """(1, N), (1, T, F), (1, C, ...)."""
    return {1} & set(range(rank)) if rank <= 3 else set(range(2, rank))


def _slid_over(program: Program, leaf: fx.Node) -> tuple[set[int], set[int]] | None:
    """The leaf's axes that its first convolution slides over (or treats as a batch), and those it takes for channels; ``None`` without one."""
    own = [_groups(axis) for axis in program.axes[leaf]]
    for node in program.graph.nodes:
        axes = program.axes.get(node.args[0], ()) if name_of(node) in CONVOLUTIONS else ()
        entering = [_groups(axis) for axis in axes]
        if not any(mine & theirs for mine in own for theirs in entering):
            continue
        slid = {i for i, mine in enumerate(own) for k, theirs in enumerate(entering) if k != 1 and mine & theirs}
        return slid, {i for i, mine in enumerate(own) if mine & entering[1]} - slid
    return None


def _groups(axis: Axis) -> set[Group]:
    return {atom.group.root() for atom in axis}
