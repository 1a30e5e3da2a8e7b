"""``trace_program``: the captured graph with its roles, leaves, axes and sites, checked against the
model itself, and cached."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as _modules

from relprop.errors import CaptureError, InputError, message
from relprop.tracer.atoms import Axes
from relprop.tracer.attention import attend_to_constants, find_sites
from relprop.tracer.axes import axes_below
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, capture
from relprop.tracer.chance import by_chance
from relprop.tracer.constants import Constants
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.facts import (
    Role,
    booked_as,
    decide_books,
    decide_role,
    facts_of,
    is_batched,
    role,
)
from relprop.tracer.follow import depending
from relprop.tracer.heads import split_heads
from relprop.tracer.judge import UNSTEADY, difference, tolerance, unsteady
from relprop.tracer.leaves import (
    ADDED,
    NOT_CHOSEN,
    USUAL,
    candidates,
    hold_still,
    only_added,
    side_inputs,
    with_tokens,
)
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import Program, Site, describe, is_floating
from relprop.tracer.run import execute
from relprop.tracer.shadow import shadow_of
from relprop.tracer.surroundings import TRACING, UNSHADOWED, undisturbed

_cache: weakref.WeakKeyDictionary[nn.Module, dict[Any, Program]] = weakref.WeakKeyDictionary()
_KEPT = 16


def trace_program(
    model: nn.Module, inputs: Inputs, token_inputs: tuple[str, ...] | None = None
) -> Program:
    """The model as a ``Program`` for inputs of these shapes.

    ``token_inputs`` names the inputs to explain (default: all floating ones, and integer ones that
    feed an embedding, but for embeddings that are only added to another input's: segments, places).
    The graph is compared with the model on the first sample, once, and a mismatch raises
    ``CaptureError``. Programs are cached per model and input shapes, until the model's structure
    changes; one that holds for its own input only is not cached. Threads may call this at once: one
    captures at a time, on a shadow of the model.
    """
    key = (inputs.signature, structure(model), token_inputs)
    cached = _cache.setdefault(model, {})
    if key in cached:
        return cached[key]
    with TRACING, undisturbed(model):
        if key in cached:  # by another thread, meanwhile
            return cached[key]
        sample = inputs.select(0, 1)
        raw = _captured(model, sample)
        chance = tuple(describe(n) for n in raw.graph.nodes if by_chance(n))
        places = {f"model.{k}": t for k, t in model.named_buffers() if is_places(t)}
        canonicalise(raw.graph, sample.tensors[0].device, raw.constants, places)
        program = assemble(raw, sample.names, token_inputs, model)
        if still := _without_tokens(program, raw.constants):
            hold_still(raw.graph, still)
            canonicalise(raw.graph, sample.tensors[0].device, raw.constants, places, again=True)
            settled = assemble(raw, sample.names, tuple(program.leaves), model)
            program = replace(settled, constant_inputs=program.constant_inputs)
        verify(program, model, sample, raw, chance)
    if not program.input_specialised:
        if len(cached) >= _KEPT:
            cached.pop(next(iter(cached)))
        cached[key] = program
    return program


def _captured(model: nn.Module, sample: Inputs) -> Capture:
    """The model's graph, of its shadow; where the shadow does not run (its code knows the modules
    by what no shadow has), of the model's own modules, which no other thread may then read."""
    if model not in UNSHADOWED:
        with contextlib.suppress(InputError):
            return capture(shadow_of(model), sample)
        UNSHADOWED.add(model)
        try:
            return capture(model, sample)
        except InputError:  # the model itself fails
            UNSHADOWED.discard(model)
            raise
    return capture(model, sample)


def is_places(buffer: Tensor) -> bool:
    """Whether a buffer holds whole numbers of an axis, such as positions: read as constants."""
    return buffer.dim() > 0 and not (buffer.is_floating_point() or buffer.is_complex())


def forget(model: nn.Module) -> None:
    """Capture the model anew when it is next traced."""
    _cache.pop(model, None)


def structure(model: nn.Module) -> tuple[Any, ...]:
    """What changes when the model's structure does: modules, their settings (those of a config
    object too), hooks, the shapes of their tensors, and buffers that hold places."""
    parts: list[Any] = []
    seen: dict[int, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        settings = tuple(
            (k, _setting(v, seen))
            for k, v in vars(module).items()
            if k != "training" and k not in _OF_EVERY_MODULE
        )
        tensors = tuple(
            (k, tuple(t.shape), t.dtype, t.device, _setting(t, seen) if is_places(t) else None)
            for k, t in (*module._parameters.items(), *module._buffers.items())
            if t is not None
        )
        hooks = tuple(
            (k, _Same(f))
            for k, f in (*module._forward_hooks.items(), *module._forward_pre_hooks.items())
        )
        attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
        parts.append(
            (name, _Same(module), _Same(type(module)), settings, tensors, hooks, attention)
        )
    everywhere = (_modules._global_forward_hooks, _modules._global_forward_pre_hooks)
    return (*parts, *((k, _Same(f)) for hooks in everywhere for k, f in hooks.items()))


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class _Same:
    """An object as a part of a key: equal to itself alone, never to another that was given its
    address when it was gone."""

    __slots__ = ("number", "reference")

    def __init__(self, thing: Any) -> None:
        self.number = id(thing)
        try:
            self.reference: Callable[[], Any] = weakref.ref(thing)
        except TypeError:  # what cannot be referred to weakly is of a built-in kind
            self.reference = lambda: None

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Same)
            and self.number == other.number
            and self.reference() is other.reference()
        )


def _setting(value: Any, seen: dict[int, Any], depth: int = 3) -> Any:
    """A setting as something that compares: numbers and text, containers of them, and objects that
    hold them; functions and tensors as themselves."""
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return value
    if isinstance(value, Tensor):  # an attribute that is no buffer is a constant of the graph
        return _Same(value), 0 if value.is_inference() else value._version
    if isinstance(value, nn.Module) or depth == 0:
        return type(value).__name__
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return _Same(value)
    if id(value) not in seen:
        seen[id(value)] = "..."
        if isinstance(value, (list, tuple)):
            seen[id(value)] = tuple(_setting(v, seen, depth - 1) for v in value)
        else:
            items = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            kind = _Same(value) if callable(value) else type(value).__name__
            seen[id(value)] = (
                kind,
                tuple((str(k), _setting(v, seen, depth - 1)) for k, v in items.items()),
            )
    return seen[id(value)]


def assemble(
    raw: Capture,
    names: tuple[str, ...],
    token_inputs: tuple[str, ...] | None = None,
    model: nn.Module | None = None,
) -> Program:
    """A ``Program`` from a canonical graph whose placeholders are ``names``: roles, leaves, axes
    and sites worked out."""
    graph = raw.graph
    constants = Constants(raw.constants)
    placeholders = dict(zip(names, (n for n in graph.nodes if n.op == "placeholder"), strict=True))
    able, constant = candidates(placeholders)
    added = only_added(placeholders, able)
    leaves = {n: leaf for n, leaf in able.items() if n in (token_inputs or able.keys() - added)}
    constant |= {n: ADDED if token_inputs is None else NOT_CHOSEN for n in able if n not in leaves}
    axes, sites, without = _structure_from(graph, leaves, constants)
    for reason, kept in USUAL.items() if token_inputs is None else ():
        some = kept(leaves, (axes, sites))
        if some and len(some) < len(leaves):
            constant |= {n: reason for n in leaves if n not in some}
            leaves = some
            axes, sites, without = _structure_from(graph, leaves, constants)
    if token_inputs is not None and len(with_tokens(leaves, (axes, sites))) < len(leaves):
        roots = {n: able[n] for n in able if n not in added} | leaves
        axes, sites, without = _structure_from(graph, leaves, constants, roots)
    beside = side_inputs({n: placeholders[n] for n in constant if n not in added}, sites)
    _write_books(graph, {node: name for name, node in beside.items()})
    by_module: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False) if model is not None else ():
        by_module.setdefault(id(module), []).append(path)
    aliases = {path: tuple(paths) for paths in by_module.values() for path in paths}
    return Program(
        graph,
        names,
        raw.outputs,
        raw.constants,
        leaves,
        sites,
        without,
        axes,
        {node: facts_of(node) for node in graph.nodes},
        raw.front_end,
        raw.decisions,
        raw.choices,
        raw.draws,
        aliases=aliases,
        constant_inputs={n: constant[n] for n in names if n in constant},
    )


def _without_tokens(program: Program, constants: Mapping[str, Tensor]) -> list[fx.Node]:
    """The side inputs that have no tokens, those included that could not be explained."""
    inputs = zip(program.inputs, program.placeholders, strict=True)
    sides = {name: node for name, node in inputs if facts_of(node).side}
    if not sides:
        return []
    roots = {**program.leaves, **sides}
    axes, sites, _ = _structure_from(program.graph, program.leaves, Constants(constants), roots)
    some = with_tokens(sides, (axes, sites))
    return [node for name, node in sides.items() if name not in some]


def _structure_from(
    graph: fx.Graph,
    leaves: Mapping[str, fx.Node],
    constants: Constants,
    roots: Mapping[str, fx.Node] | None = None,
) -> tuple[dict[fx.Node, Axes], tuple[Site, ...], tuple[tuple[fx.Node, str], ...]]:
    """Every node's role as seen from ``leaves``; the axes and the attention sites that follow.
    ``roots``: from where axes are followed, if it is not from the leaves alone."""
    below = depending(graph.nodes, leaves.values())
    batched = depending(graph.nodes, graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        inputs = node.all_input_nodes
        weights = node.op == "get_attr" or any(role(i) == "parameter" for i in inputs)
        still: Role = "parameter" if weights and node not in batched else "constant"
        decide_role(node, "activation" if node in below else still, node in batched)
    axes = axes_below(graph, (roots or leaves).values(), constants)
    sites, without = find_sites(graph, axes, constants)
    if attend_to_constants(graph, axes, {softmax for softmax, _ in without}):
        return _structure_from(graph, leaves, constants, roots)
    if split_heads(graph, axes, sites, constants):
        return _structure_from(graph, leaves, constants, roots)
    return axes, tuple(s for s in sites if s.contraction in below), without


def _write_books(graph: fx.Graph, beside: Mapping[fx.Node, str]) -> None:
    """Under which name the ledger books what each node absorbs: of what is made of inputs
    ``beside`` the explained ones, theirs."""
    entering: dict[fx.Node, tuple[str, ...]] = {}
    for node in graph.nodes:
        above = [n for i in tensor_inputs(node) for n in entering[i]]
        names = [beside[node]] if node in beside else above if _is_still(node) else []
        entering[node] = tuple(dict.fromkeys(names))
        booked = f"input {', '.join(entering[node])}" if names else _books(node)
        decide_books(node, booked, node in beside)


def _is_still(node: fx.Node) -> bool:
    return role(node) != "activation"


def _books(node: fx.Node) -> str:
    """The name under which the ledger books what this node absorbs: its parameters', else its
    input's."""
    if node.op == "get_attr":
        return str(node.target).removeprefix("model.")
    if node.op == "placeholder":
        return f"input {node.name}"
    names = [booked_as(i) for i in tensor_inputs(node) if _is_still(i)]
    named = [n for n in names if n and not n.startswith("input ")] or [n for n in names if n]
    return named[0] if named else ""


def verify(
    program: Program,
    model: nn.Module,
    inputs: Inputs,
    raw: Capture,
    chance: tuple[str, ...] = (),
) -> None:
    """The canonical graph's outputs against the model's own, on the captured sample.
    ``chance``: where the model draws numbers that the graph does not hold."""
    values = execute(program, model, inputs, keep=set(program.output_nodes))
    for name, node, eager in zip(
        program.outputs.names, program.output_nodes, raw.eager, strict=True
    ):
        mine = values[node][0] if is_batched(node) else values[node]
        error, scale = difference(mine, eager)
        if not error <= tolerance(program, eager.dtype) * scale:
            if chance:
                raise CaptureError(
                    message(
                        "the model draws by chance in eval mode, and draws anew in every run",
                        at=chance[0],
                        then=[
                            "switch it off: training=self.training for a dropout",
                            "or draw from a shape alone (torch.rand, torch.rand_like): the numbers "
                            "of the model's own run are kept",
                        ],
                    )
                )
            draws = [t for n, t in raw.constants.items() if n.startswith("drawn_")]
            if unsteady(model, inputs, raw.eager, draws):
                raise CaptureError(
                    message(
                        UNSTEADY, then=["make it a function of its inputs while it is explained"]
                    )
                )
            if (rounded := next((n for n in program.graph.nodes if _rounds(n)), None)) is not None:
                raise CaptureError(
                    message(
                        (
                            f"{rounded.target} rounds activations to small integers: that "
                            "has no relevance, and no two runs round alike"
                        ),
                        at=describe(rounded),
                        then=[
                            "explain the model before quantisation",
                            "or quantise weights only, so that activations stay as they are",
                        ],
                    )
                )
            raise CaptureError(
                message(
                    (
                        f"the captured graph differs from the model: output {name!r} by "
                        f"{error:.2e} where its largest value is {scale:.2e}"
                    ),
                    at=describe(node),
                    then=["report this model: a captured graph must equal the model it came from"],
                )
            )


def _rounds(node: fx.Node) -> bool:
    """Whether a call turns activations into integers of one byte."""
    made = [
        v
        for v in (val(node) if isinstance(val(node), (tuple, list)) else [val(node)])
        if isinstance(v, Tensor)
    ]
    small = any(v.dtype in (torch.int8, torch.uint8) for v in made)
    return (
        small
        and node.op == "call_function"
        and any(is_floating(i) and role(i) == "activation" for i in tensor_inputs(node))
    )
