"""Names for the nodes of a program, by their place in the user's model, and by the modules that
return them: each tensor that a forward hook would see.

A graph knows in which module's call a value is made, and not which of these the module returns:
that is told by running the model once more, on a few samples, and comparing. Which axis of a named
value holds tokens, heads or features is told here, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor, fx, nn

from relprop.errors import CaptureError, OptionError, message
from relprop.operations import ELEMENTWISE, Kind, kind, name_of
from relprop.tracer.atoms import is_token
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.calls import Values
from relprop.tracer.draws import numbers_of
from relprop.tracer.editing import made_after, shape_of, tensor_inputs, val
from relprop.tracer.follow import depending
from relprop.tracer.model_comparison import watched_run
from relprop.tracer.program import Program, is_floating, place, role
from relprop.tracer.run import execute

#: How far a value may be from what the module returns, relative to its largest.
EQUAL = 1e-4
EQUAL_HALVES = 2e-2
#: On how many samples values are compared, at the most; of a model that draws numbers on one.
SAMPLES = 8


def heads_of(program: Program) -> dict[str, fx.Node]:
    """By the name of each attention module's call, ``module:heads``, what its heads have gathered,
    (tokens, heads, width), before the heads are joined and projected; numbered where it repeats."""
    found: dict[str, fx.Node] = {}
    for site in program.sites:
        node: fx.Node | None = site.contraction
        while node is not None and not _tokens_then_heads(program, node):
            moves = (n for n in node.users if kind(n) in (Kind.PERMUTE, Kind.RESHAPE))
            node = next(moves, None)
        if node is not None:
            name = f"{place(node).call}:heads"
            count = sum(n == name or n.startswith(f"{name}#") for n in found)
            found[f"{name}#{count}" if count else name] = node
    return found


def _tokens_then_heads(program: Program, node: fx.Node) -> bool:
    """Whether its last axes are tokens, heads and features of a head."""
    axes = program.axes.get(node, ())
    return len(axes) > 3 and [is_token(axis) for axis in axes[-3:]] == [True, False, False]


def named(program: Program, model: nn.Module, inputs: Inputs) -> Program:
    """The program with ``labels``: every floating node by name, ``module:op``, numbered where it
    repeats, what a module returns by the module's (see ``_returned``), and ``module:heads``. Worked
    out once per program."""
    if program.labels:
        return program
    return program.memo.cache(
        "named", lambda: replace(program, labels=_labels(program, model, inputs))
    )


def _labels(program: Program, model: nn.Module, inputs: Inputs) -> dict[str, fx.Node]:
    inner, repeated = dict[str, fx.Node](), Counter[str]()
    for node in program.graph.nodes:
        if not _is_named(node):
            continue
        base = f"{place(node).call}:{name_of(node).removeprefix('_safe_').removeprefix('_')}"
        inner[f"{base}#{repeated[base]}" if repeated[base] else base] = node
        repeated[base] += 1
    found = _returned(program, model, inputs) | inner | heads_of(program)
    return dict(sorted(found.items(), key=itemgetter(1)))


def _is_named(node: fx.Node) -> bool:
    return node.op == "call_function" and is_floating(node) and role(node) == "activation"


def _returned(program: Program, model: nn.Module, inputs: Inputs) -> dict[str, fx.Node]:
    """By each module's call (``blocks.2.attn``, ``@1`` behind it for the second) the first tensor
    that it returns, and as ``call[1]`` or ``call[key]`` the others. What is no value of the program
    has no name; of a module that no hook sees it is the last value of its call."""
    made, count = _made_in(program), 1 if program.draws else min(inputs.batch, SAMPLES)
    some = inputs.select(0, count)
    values = execute(program, model, some, {n for nodes in made.values() for n in nodes})
    found, seen = dict[str, fx.Node](), Counter[str]()

    def see(path: str, output: object) -> None:
        call = f"{path}@{seen[path]}" if seen[path] else path
        seen[path] += 1
        for name, tensor in _named(output):
            node = _same(tensor, made.get(call, ()), values)
            if node is not None:
                found[call + name] = node

    watched_run(model, some, see, numbers_of(program.constants))
    unseen = {call: nodes[0] for call, nodes in made.items() if call.split("@")[0] not in seen}
    return unseen | found


def _made_in(program: Program) -> Mapping[str, list[fx.Node]]:
    """By each module's call the values that it could return, the last first: of the last ones of
    calls, and those that are read outside of one, all that are made in it."""
    found = defaultdict[str, list[fx.Node]](list)
    around = {
        node: {path for path, _ in place(node).modules if path} for node in program.graph.nodes
    }
    for node in reversed(program.graph.nodes):
        if not _is_named(node):
            continue
        calls = around[node]
        outside = any(calls - around[user] for user in node.users)
        if outside or any(call not in found for call in calls):
            for call in calls:
                found[call].append(node)
    return found


def _named(output: object) -> list[tuple[str, Tensor]]:
    """The floating tensors of what a module returns, with what stands behind the module's name."""
    try:
        tensors, tree = flatten_output(output)
    except CaptureError:  # it returns no tensor
        return []
    names = (n if n.startswith("[") else f"[{n}]" for n in tree.names)
    both = [("" if i == 0 else n, t) for i, (n, t) in enumerate(zip(names, tensors, strict=True))]
    return [(n, t) for n, t in both if t.is_floating_point()]


def _same(tensor: Tensor, nodes: Sequence[fx.Node], values: Values) -> fx.Node | None:
    """Which of some nodes has a tensor's values, in its order: the nearest, of equal ones the first
    of ``nodes``, if it is the same but for rounding."""
    theirs = tensor.double()
    finite = theirs[theirs.isfinite()].abs()
    near = EQUAL_HALVES if torch.finfo(tensor.dtype).bits < 32 else EQUAL
    best, least = None, near * (float(finite.max()) if finite.numel() else 0.0)
    for node in nodes:
        value = values[node]
        if value.numel() != tensor.numel():
            continue
        mine = value.reshape(tensor.shape).to(tensor.device).double()
        apart = torch.where(mine == theirs, 0.0, (mine - theirs).abs()).max().item()
        if apart < least or (best is None and apart == least):
            best, least = node, apart
    return best


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
