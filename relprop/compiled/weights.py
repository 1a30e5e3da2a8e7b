"""The tensors that a recorded graph holds: the model's own under their names, so that they are read
anew at every call, and the others as constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from torch import Tensor, fx, nn

from relprop.errors import CaptureError, InputError
from relprop.tracer.offloaded import tensor_of

#: Where the graph keeps what belongs to no module of the user's.
CONSTANTS = "constants"


def with_names(
    graph: fx.Graph, tensors: Mapping[str, Tensor], model: nn.Module
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The graph with its ``tensors`` under the model's names, and these names. Raises
    ``CaptureError`` for a tensor that shares its memory with a weight and is not that weight: a
    change of it would not be seen."""
    own = {id(t): name for name, t in _tensors(model)}
    memory = {t.untyped_storage().data_ptr(): name for name, t in _tensors(model) if t.numel()}
    held, used = dict[str, Tensor](), dict[str, None]()
    for node in graph.find_nodes(op="get_attr"):
        tensor = tensors[str(node.target)]
        name = own.get(id(tensor))
        if name is None:
            part = memory.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
            if part is not None:
                raise CaptureError(f"the graph holds a part of weight {part!r}")
            name = f"{CONSTANTS}.{node.target}"
        else:
            used[name] = None
        held[name] = tensor
        node.target = name
    return fx.GraphModule(held, graph), tuple(used)


def ties(model: nn.Module, names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The other names that the model's tensors of these names have, as pairs."""
    once = {id(t): name for name, t in _tensors(model)}
    every = (*model.named_parameters("", True, False), *model.named_buffers("", True, False))
    pairs = ((once[id(t)], name) for name, t in every)
    return tuple((first, name) for first, name in pairs if first in names and name != first)


def refuse_untied(model: nn.Module, tied: tuple[tuple[str, str], ...]) -> None:
    """Raise ``InputError`` where two names of one tensor are names of two by now: a program reads
    it by one of them."""
    for first, other in tied:
        if _named(model, first) is not _named(model, other):
            fact = f"{first!r} and {other!r} were one tensor when the program was recorded"
            raise InputError(fact, then=["call relprop.compile again"])


def _named(model: nn.Module, name: str) -> object:
    *path, last = name.split(".")
    return getattr(_inside(model, tuple(path)), last, None)


def read_anew(module: nn.Module, model: nn.Module, names: tuple[str, ...]) -> None:
    """Put the model's tensors of now in the place of those that were recorded, where they are
    others. Raises ``InputError`` where the model has none of that name, shape and type any more."""
    for path, own in _by_module(names).items():
        at, there = _inside(module, path), _inside(model, path)
        assert at is not None
        held = {**at._parameters, **at._buffers}
        known = {} if there is None else {**there._parameters, **there._buffers}
        for last, name in own:
            before, now = held[last], known.get(last)
            now = getattr(there, last, None) if now is None else now
            assert before is not None
            if now is not before or now.device.type == "meta":
                _put(at, last, name, before, None if now is None else tensor_of(model, name))


@cache
def _by_module(names: tuple[str, ...]) -> Mapping[tuple[str, ...], list[tuple[str, str]]]:
    """The modules that hold tensors of these names, by their paths: of each tensor the last part of
    its name, and all of it."""
    found: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for name in names:
        *path, last = name.split(".")
        found.setdefault(tuple(path), []).append((last, name))
    return found


def _put(at: nn.Module, last: str, name: str, held: Tensor, now: Tensor | None) -> None:
    if now is None or now.shape != held.shape or now.dtype != held.dtype:
        found = "has none now" if now is None else f"has one of {tuple(now.shape)}, {now.dtype}"
        fact = f"the program was recorded with {name!r}, {tuple(held.shape)}, {held.dtype}"
        raise InputError(f"{fact}: the model {found}", then=["call relprop.compile again"])
    if isinstance(now, nn.Parameter) or last in at._buffers:
        setattr(at, last, now)
    else:
        setattr(at, last, nn.Parameter(now, requires_grad=False))


def _inside(module: nn.Module | None, path: tuple[str, ...]) -> nn.Module | None:
    for part in path:
        module = None if module is None else module._modules.get(part)
    return module


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
