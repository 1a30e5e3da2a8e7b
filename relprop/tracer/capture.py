"""From the user's model and one sample to an fx graph of ATen ops: ``torch.export`` first, a
concrete trace where that refuses.

Both front ends return the same thing: a graph whose placeholders are the input tensors in order,
whose ``get_attr`` nodes name parameters and buffers, and whose nodes carry ``val`` (a meta tensor),
``place`` and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import MappingProxyType

import torch
from torch import Tensor, fx, nn
from torch._guards import _TLS, TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from relprop.errors import CaptureError, MemoryWarning, first_line, message, warn
from relprop.operations import Kind, is_inplace, kind
from relprop.tracer.binding import Inputs
from relprop.tracer.draws import Draws, fix_draws
from relprop.tracer.facts import Facts, know, place
from relprop.tracer.flat import Flat, memory, run_eager
from relprop.tracer.guards import Guards, Noticed, choices, deciding_nodes
from relprop.tracer.offloaded import in_outline, is_offloaded, loaded
from relprop.tracer.program import Captured, FrontEnd, OutputTree
from relprop.tracer.recorded import (
    no_view,
    of_one_thread,
    record_alike,
    recorded_place,
    recorded_value,
    without_leftovers,
    without_values,
)
from relprop.tracer.side_effects import restored
from relprop.tracer.surroundings import (
    as_python,
    same_chance,
    unlogged,
    unwarned,
    with_experts_seen,
)
from relprop.tracer.transforms import seen_through
from relprop.tracer.undoing import cleanup_steps, replaced

#: What is said where values must be there for a graph to be recorded.
ALL_LOADED = (
    "all offloaded weights are loaded at once while the graph is captured, since torch.export "
    "refuses this model: {}"
)


@dataclass(frozen=True, eq=False)
class Capture(Captured):
    """A raw graph, and what the model itself returned, ``eager``; what ``torch.export`` said where
    it ``refused``."""

    eager: list[Tensor] = field(default_factory=list)
    refused: str = ""


@dataclass(frozen=True)
class _Recorded:
    """What a front end recorded, the nodes at which values decided it, and tensors that it
    ``baked`` in, described."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    front_end: FrontEnd
    deciding: tuple[fx.Node, ...]
    baked: tuple[str, ...] = ()

    @property
    def decisions(self) -> tuple[str, ...]:
        """Where it depends on values."""
        return (*(str(place(n)) for n in self.deciding), *self.baked)

    def captured(
        self, outputs: OutputTree, inputs: Inputs, eager: list[Tensor], draws: Draws, refused: str
    ) -> Capture:
        """The same, its random numbers fixed, with what the model returned."""
        graph, constants, decisions = self.graph, self.constants, self.decisions
        guarded = self.deciding and not (self.baked or draws.drawn)
        guards = Guards.of(graph, constants, self.deciding, inputs.tensors) if guarded else None
        drawn = fix_draws(graph, constants, draws)
        chosen = choices(graph, constants) if decisions else ()
        known = decisions, drawn, chosen, guards
        given = graph, constants, outputs, self.front_end
        return Capture(*given, *known, eager=eager, refused=refused)


def capture(model: nn.Module, inputs: Inputs, refused: str = "") -> Capture:
    """Capture ``model`` on ``inputs`` (one sample), hooks included; where ``torch.export`` has
    ``refused`` inputs like these it is not asked again. Raises ``CaptureError`` when neither front
    end can."""
    flat = Flat(model, inputs)
    with torch.no_grad(), as_python(model), without_leftovers(), restored(model) as take_back:
        with same_chance(model), Draws() as draws:
            eager = run_eager(flat, inputs, model)
        outputs = flat.outputs
        assert outputs is not None
        take_back()
        if not refused:
            try:
                with (
                    same_chance(model),
                    seen_through(),
                    with_experts_seen(model),
                    in_outline(model),
                ):
                    recorded = _export(flat, inputs)
                return recorded.captured(outputs, inputs, eager, draws, "")
            except Exception as error:  # torch.export raises many types, some of them internal
                refused = first_line(error)
                take_back()
        if is_offloaded(model):
            warn(MemoryWarning(ALL_LOADED.format(refused)))
        try:
            with seen_through(), with_experts_seen(model), loaded(model):
                recorded = _concrete(Flat(model, inputs), inputs, take_back)
        except Exception as failed:
            raise _neither(model, refused, failed) from failed
        return recorded.captured(outputs, inputs, eager, draws, refused)


def _neither(model: nn.Module, refused: str, failed: Exception) -> CaptureError:
    """What to say when both front ends refuse."""
    then = (
        "relprop.trace(model, inputs) repeats this; make the part of the "
        "model named above free of Python side effects"
    )
    if integers := _weights_of_integers(model):
        then = (
            f"{integers}: explain the model before quantisation, or with weights "
            "that are tensors to PyTorch (torchao, weights only)"
        )
    fact = (
        f"the model could not be captured: torch.export said {refused}; the concrete trace said "
        f"{first_line(failed)}"
    )
    return CaptureError(message(fact, then=[then]))


def _weights_of_integers(model: nn.Module) -> str:
    """The first module whose parameter holds integers: weights that its library alone can read."""
    for path, module in model.named_modules():
        for p in module._parameters.values():
            if p is not None and not p.is_floating_point():
                kinds = f"{type(p).__name__} of {str(p.dtype).removeprefix('torch.')}"
                return f"module {path!r} ({type(module).__name__}) keeps its weights as {kinds}"
    return ""


@contextlib.contextmanager
def _tracing(flat: Flat) -> Iterator[None]:
    """Tracers warn and log when they refuse; the fallback reports instead. They write Python code
    for every graph on their way, none of which is ever run: a fifth of the time of a capture. What
    they switch in PyTorch is switched back also where they are interrupted in the middle of it."""
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    with (
        cleanup_steps() as steps,
        torch._C._ForceDispatchKeyGuard(included, excluded),
        unwarned(),
        unlogged(),
        of_one_thread(),
        _use_lazy_graph_module(True),
    ):
        replaced(steps, flat, "traced", True)
        yield


def _export(flat: Flat, inputs: Inputs) -> _Recorded:
    """What ``torch.export`` records, functions called as a whole taken apart."""
    with _tracing(flat):
        exported = torch.export.export(flat, tuple(map(no_view, inputs.tensors)), strict=False)
        if any(
            isinstance(n.target, torch._ops.HigherOrderOperator)
            and not str(n.target.name()).startswith("wrap_with")
            for n in exported.graph.nodes
        ):
            exported = exported.run_decompositions({})  # flat_apply becomes what it applies
            module, held = exported.module(check_guards=False), dict[str, object]()
        else:
            module, held = _with_parameters(exported)
    _refuse_writes(module, flat, held)
    graph, constants = import_graph(module, flat, held)
    deciding = tuple(n for n in graph.nodes if kind(n) is Kind.READ)
    return _Recorded(graph, constants, "export", deciding)


def _with_parameters(exported: ExportedProgram) -> tuple[fx.GraphModule, dict[str, object]]:
    """``exported.module()`` without the copies and the Python code that it makes, where nothing is
    decomposed: what the graph takes as inputs beside the user's is an attribute by its name. And
    these by name: PyTorch may keep the module, and with it what it holds."""
    module: fx.GraphModule = exported.graph_module
    inputs = exported.graph_signature.input_specs
    for node, given in zip(module.graph.find_nodes(op="placeholder"), inputs, strict=True):
        if given.kind is not InputKind.USER_INPUT and given.target is not None:
            with module.graph.inserting_after(node):
                own = module.graph.create_node("get_attr", given.target)
            record_alike(own, node)
            node.replace_all_uses_with(own)
            module.graph.erase_node(node)
    return module, {**exported.state_dict, **exported.constants}


def _refuse_writes(module: fx.GraphModule, flat: Flat, held: Mapping[str, object]) -> None:
    """Raise ``CaptureError`` where the model writes into a tensor that no later run would have."""
    for node in module.graph.nodes:
        base = node.args[0] if node.op == "call_function" and is_inplace(node) else None
        if (
            isinstance(base, fx.Node)
            and base.op == "get_attr"
            and flat.name_of(_attribute(module, str(base.target), held), str(base.target)) is None
        ):
            raise CaptureError(
                f"the model writes into {str(base.target).removeprefix('model.')!r}, "
                "which is no parameter or buffer"
            )


def _concrete(flat: Flat, inputs: Inputs, take_back: Callable[[], None]) -> _Recorded:
    """A concrete trace of the model on its own inputs, of which values may decide the graph."""

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = flat(*tensors)
        return made

    call._orig_mod = flat  # type: ignore[attr-defined]  # gives every node its module path
    # the shape of each value is noted in a mode, which PyTorch would else make anew for each
    mode = FakeTensorMode(allow_fallback_kernels=True, shape_env=ShapeEnv())
    before = TracingContext.try_get()
    with (
        cleanup_steps() as steps,
        _tracing(flat),
        torch.random.fork_rng([]),
        Noticed(),
        tracing(TracingContext(mode)),
    ):
        steps.append(partial(setattr, _TLS, "tracing_context", before))
        module = make_fx(
            call,
            tracing_mode="real",
            pre_dispatch=True,
            _error_on_data_dependent_ops=False,
            record_module_stack=True,
        )(*inputs.tensors)
    take_back()  # before the values of what the graph holds are copied
    graph, constants = import_graph(module, flat)
    unknown = {n for n in constants if memory(attrgetter(n)(module)) not in flat.attributes}
    baked = tuple(
        f"a tensor made outside the graph, for {place(next(iter(n.users)))}"
        for n in graph.nodes
        if str(n.target) in unknown and n.users
    )
    return _Recorded(graph, constants, "concrete", deciding_nodes(graph, constants), baked)


def import_graph(
    module: fx.GraphModule,
    flat: Flat | None,
    attributes: Mapping[str, object] = MappingProxyType({}),
) -> tuple[fx.Graph, dict[str, Tensor]]:
    """A copy of the graph that holds no tensor of the user's: values as meta tensors, parameters by
    name; the rest as constants. ``attributes``: those of the module that it does not hold
    itself."""
    graph, constants = fx.Graph(), dict[str, Tensor]()
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":  # the guards function of export
            continue
        new = graph.node_copy(node, lambda n: copied[n])
        own = node.op == "get_attr"
        held = _attribute(module, str(node.target), attributes) if own else None
        if isinstance(held, Tensor):
            name = flat.name_of(held, str(node.target)) if flat is not None else None
            new.target = name or str(node.target)
            if name is None:
                constants[new.target] = held.detach().clone()
        value = recorded_value(node) if node.op != "get_attr" else without_values(held)
        body = held if isinstance(held, nn.Module) else None
        know(new, Facts(None if body is not None else value, recorded_place(node), body=body))
        copied[node] = new
    return graph, constants


def _attribute(module: nn.Module, target: str, held: Mapping[str, object]) -> object:
    return held[target] if target in held else attrgetter(target)(module)
