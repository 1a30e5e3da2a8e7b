"""From the user's model and one sample to an fx graph of ATen ops: ``torch.export`` first, a
concrete trace where that refuses.

Both front ends return the same thing: a graph whose placeholders are the input tensors in order,
whose ``get_attr`` nodes name parameters and buffers, and whose nodes carry ``val`` (a meta tensor),
``place`` and nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer as Tracer
from torch.fx.experimental.proxy_tensor import make_fx

from relprop.errors import CaptureError, first_line, message
from relprop.operations import Kind, is_inplace, kind
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.chance import Draws, fix_draws
from relprop.tracer.facts import Facts, know, place
from relprop.tracer.leftovers import taken_back
from relprop.tracer.program import FrontEnd, OutputTree
from relprop.tracer.reads import Noticed, choices, reads
from relprop.tracer.recorded import recorded_place, recorded_value, without_values
from relprop.tracer.surroundings import as_python, unlogged, unwarned
from relprop.tracer.transforms import seen_through


@dataclass
class Capture:
    """A raw graph, where its constants are, and how the model's outputs are put together."""

    graph: fx.Graph
    constants: dict[str, Tensor]
    outputs: OutputTree
    front_end: FrontEnd
    decisions: tuple[str, ...] = ()
    eager: list[Tensor] = field(default_factory=list)
    draws: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


class _Flat(nn.Module):
    """The model as a function of a flat list of tensors to a flat tuple of tensors. ``tensors``:
    those it has before it runs, by name; ``attributes``: others it holds."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self._rebuild = inputs.rebuild
        self.outputs: OutputTree | None = None
        self.tensors = {f"model.{name}": t for name, t in _named_tensors(model)}
        self.attributes = {
            _memory(t) for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor)
        }
        self.traced = False
        self._names: dict[Any, str] = {}
        for name, t in self.tensors.items():
            self._names.setdefault(id(t), name)
            if (memory := _memory(t)) is not None:
                self._names.setdefault(memory, name)

    def name_of(self, tensor: Tensor, name: str) -> str | None:
        """What the model calls a tensor that a graph holds as ``name``; ``None``: it is none of the
        model's."""
        return (
            name
            if name in self.tensors
            else self._names.get(id(tensor)) or self._names.get(_memory(tensor))
        )

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self._rebuild(tensors)
        try:
            flat, self.outputs = flatten_output(self.model(*args, **kwargs))
        except RuntimeError as error:
            if self.traced:  # export prints the whole graph if it gets one of these
                raise _Refused(*error.args) from error
            raise
        return tuple(flat)


class _Refused(Exception):
    """What the model's code cannot do while it is traced."""


@contextlib.contextmanager
def _of_one_thread() -> Iterator[None]:
    """A tracer puts its own ``__call__`` and ``__getattr__`` into ``nn.Module``, for every thread:
    the modules that others call meanwhile are none of its."""
    mine, call, get = threading.get_ident(), Tracer.call_module, Tracer.getattr

    def call_module(self: Any, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != mine:
            return forward(*args, **kwargs)
        return call(self, m, forward, args, kwargs)

    def getattr_(self: Any, name: str, value: Any, proxies: Any) -> Any:
        return value if threading.get_ident() != mine else get(self, name, value, proxies)

    try:
        Tracer.call_module = call_module  # type: ignore[method-assign]
        Tracer.getattr = getattr_  # type: ignore[assignment, method-assign]
        yield
    finally:
        Tracer.call_module, Tracer.getattr = call, get  # type: ignore[method-assign]


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all their names, and the tensors that a quantised one is made
    of."""
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        yield name, tensor
        if hasattr(tensor, "__tensor_flatten__"):
            yield from (
                (f"{name}.{part}", getattr(tensor, part)) for part in tensor.__tensor_flatten__()[0]
            )


def _memory(tensor: Tensor) -> Any:
    """Where an ordinary tensor's values are: the same for two that are one, seen twice."""
    if (
        type(tensor) not in (Tensor, nn.Parameter)
        or tensor.layout != torch.strided
        or not tensor.numel()
        or not tensor.data_ptr()
    ):
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def capture(model: nn.Module, inputs: Inputs) -> Capture:
    """Capture ``model`` on ``inputs`` (one sample), hooks included. Raises ``CaptureError`` when
    neither front end can."""
    flat = _Flat(model, inputs)
    with torch.no_grad(), as_python(model), taken_back(model) as take_back:
        with Draws() as draws:
            eager = run_eager(flat, inputs)
        outputs = flat.outputs
        assert outputs is not None
        take_back()
        try:
            with seen_through():
                graph, constants = _export(flat, inputs)
            decisions = tuple(str(place(n)) for n in graph.nodes if kind(n) is Kind.READ)
            return Capture(
                graph,
                constants,
                outputs,
                "export",
                decisions,
                eager,
                fix_draws(graph, constants, draws.drawn),
                choices(graph, constants) if decisions else (),
            )
        except Exception as refused:  # torch.export raises many types, some of them internal
            take_back()
            try:
                with seen_through():
                    graph, constants, decisions = _concrete(flat, inputs, take_back)
            except Exception as failed:
                then = [
                    (
                        "relprop.trace(model, inputs) repeats this; make the part of the "
                        "model named above free of Python side effects"
                    )
                ]
                if kept := _kept_as_integers(model):
                    then = [
                        (
                            f"{kept}: explain the model before quantisation, or with weights "
                            "that are tensors to PyTorch (torchao, weights only)"
                        )
                    ]
                raise CaptureError(
                    message(
                        (
                            "the model could not be captured: torch.export said "
                            f"{first_line(refused)}; the concrete trace said {first_line(failed)}"
                        ),
                        then=then,
                    )
                ) from failed
            return Capture(
                graph,
                constants,
                outputs,
                "concrete",
                decisions,
                eager,
                fix_draws(graph, constants, draws.drawn),
                choices(graph, constants) if decisions else (),
            )


def _kept_as_integers(model: nn.Module) -> str:
    """The first module whose parameter holds integers: weights that its library alone can read."""
    return next(
        (
            (
                f"module {path!r} ({type(m).__name__}) keeps its weights as "
                f"{type(p).__name__} of {str(p.dtype).removeprefix('torch.')}"
            )
            for path, m in model.named_modules()
            for p in m._parameters.values()
            if p is not None and not p.is_floating_point()
        ),
        "",
    )


def run_eager(flat: Callable[..., Any], inputs: Inputs) -> list[Tensor]:
    """The model's own outputs; its own error is passed on with the shapes it was called with."""
    try:
        return [t.detach() for t in flat(*inputs.tensors)]
    except CaptureError:
        raise
    except Exception as error:
        from relprop.errors import InputError

        shapes = ", ".join(
            f"{n} {str(t.dtype).removeprefix('torch.')} {list(t.shape)} on {t.device}"
            for n, t in zip(inputs.names, inputs.tensors, strict=True)
        )
        raise InputError(
            message(
                (
                    f"the model itself fails on these inputs: {type(error).__name__}: "
                    f"{first_line(error)}"
                ),
                at=f"called with {shapes}",
                then=["call model(...) on the same inputs and mend that first"],
            )
        ) from error


@contextlib.contextmanager
def _tracing(flat: _Flat) -> Iterator[None]:
    """Tracers warn and log when they refuse; the fallback reports instead."""
    flat.traced = True
    try:
        with unwarned(), unlogged(), _of_one_thread():
            yield
    finally:
        flat.traced = False


def _export(flat: _Flat, inputs: Inputs) -> tuple[fx.Graph, dict[str, Tensor]]:
    with _tracing(flat):
        exported = torch.export.export(flat, inputs.tensors, strict=False)
        if any(
            isinstance(n.target, torch._ops.HigherOrderOperator)
            and not str(n.target.name()).startswith("wrap_with")
            for n in exported.graph.nodes
        ):
            exported = exported.run_decompositions(
                {}
            )  # functions called as a whole (flat_apply) become their operations
        module = exported.module(check_guards=False)
    for node in module.graph.nodes:
        base = node.args[0] if node.op == "call_function" and is_inplace(node) else None
        if (
            isinstance(base, fx.Node)
            and base.op == "get_attr"
            and flat.name_of(_attribute(module, str(base.target)), str(base.target)) is None
        ):
            raise CaptureError(
                f"the model writes into {str(base.target).removeprefix('model.')!r}, "
                "which is no parameter or buffer"
            )
    return import_graph(module, flat)


def _concrete(
    flat: _Flat, inputs: Inputs, take_back: Callable[[], None]
) -> tuple[fx.Graph, dict[str, Tensor], tuple[str, ...]]:
    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = flat(*tensors)
        return made

    call._orig_mod = flat  # type: ignore[attr-defined]  # gives every node its module path
    with _tracing(flat), torch.random.fork_rng([]), Noticed():
        module = make_fx(
            call,
            tracing_mode="real",
            pre_dispatch=True,
            _error_on_data_dependent_ops=False,
            record_module_stack=True,
        )(*inputs.tensors)
    take_back()  # before the values of what the graph holds are copied
    graph, constants = import_graph(module, flat)
    unknown = {
        name for name in constants if _memory(_attribute(module, name)) not in flat.attributes
    }
    baked = (
        f"a tensor made outside the graph, for {place(next(iter(n.users)))}"
        for n in graph.nodes
        if str(n.target) in unknown and n.users
    )
    decisions = (*reads(graph, constants), *baked)
    return graph, constants, decisions


def import_graph(module: fx.GraphModule, flat: _Flat | None) -> tuple[fx.Graph, dict[str, Tensor]]:
    """A copy of the graph that holds no tensor of the user's: values as meta tensors, parameters by
    name; the rest as constants."""
    graph, constants = fx.Graph(), {}
    copied: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "call_module":  # the guards function of export
            continue
        new = graph.node_copy(node, lambda n: copied[n])
        held = _attribute(module, str(node.target)) if node.op == "get_attr" else None
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


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value
