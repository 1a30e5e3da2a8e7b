"""What running a model leaves behind in Python, taken back: attributes its code sets, lists its
hooks append to, buffers it counts in.

A forward pass may keep what it sees, and a tensor kept while a graph is captured has no values. So
everything that the model's modules and hooks can reach (settings, containers, what a hook closes
over) is written down before and put back after. Tensors that are neither buffers nor attributes of
a module are left alone.
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from relprop.tracer.modules import modules_of
from relprop.tracer.surroundings import is_evaluated
from relprop.tracer.undoing import cleanup_steps

DEPTHS = 4, 6  # how far from a module's attributes, and from a hook
WIDTH = 10_000  # larger containers are put back, but what is in them is not looked into
CONTAINERS = frozenset({dict, OrderedDict, defaultdict, Counter, list, deque, set, types.CellType})
OFTEN = frozenset({str, int, float, bool, type(None), Tensor, nn.Parameter})
PLAIN = (str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, Tensor)


@contextmanager
def restored(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Put back, at the end and whenever the function it gives is called, what running ``model``
    changed in Python, and the values of its buffers."""
    modules = modules_of(model)
    found, empty = _containers(modules)
    held = [(container, _held(container)) for container in found]
    values = [_values_restored(t) for t in _tensors(modules)]
    ours = [m for m in modules if is_evaluated(m)]

    def put_back() -> None:
        for container in filter(None, empty):
            _restore(container, ())
        for container, before in held:
            if not _same(container, before):
                _restore(container, before)
        for one in values:
            one()
        for module in ours:  # an interrupt may have ended what set the flag
            if module.training == is_evaluated(module):
                module.training = not is_evaluated(module)

    with cleanup_steps() as steps:
        steps.append(put_back)
        yield put_back


def _containers(modules: list[nn.Module]) -> tuple[list[object], list[object]]:
    """Every mutable container near a module's attributes, a hook or a patched forward: those that
    hold something, each once, and those that are empty, as most of a module's are."""
    hooks: list[object] = [vars(m).get("forward") for m in modules]
    for m in modules:
        hooks += (*m._forward_hooks.values(), *m._forward_pre_hooks.values())
    found: dict[int, object] = {}
    empty: list[object] = []
    roots: tuple[list[object], list[object]] = [vars(m) for m in modules], hooks
    for level, depth in zip(roots, DEPTHS, strict=True):
        reached = {id(m) for m in modules}
        for _ in range(depth):
            once: dict[int, object] = {}
            for v in level:
                if type(v) in CONTAINERS and not v:
                    empty.append(v)
                elif type(v) not in OFTEN:
                    once[id(v)] = v
            new = [v for i, v in once.items() if i not in reached and not isinstance(v, PLAIN)]
            reached.update(map(id, new))
            found.update((id(v), v) for v in new if type(v) in CONTAINERS)
            level = [part for v in new for part in _parts(v)]
    return list(found.values()), empty


def _parts(value: object) -> Iterable[object]:
    """What ``value`` holds or closes over."""
    if isinstance(value, (dict, list, tuple, set, frozenset, deque)):
        if len(value) > WIDTH:
            return ()
        return list(value.values() if isinstance(value, dict) else value)
    if isinstance(value, types.CellType):
        return [c] if (c := _content(value)) is not None else ()
    if isinstance(value, types.FunctionType):
        read = (value.__globals__.get(name) for name in value.__code__.co_names)
        return [
            *(value.__closure__ or ()),
            value.__defaults__,
            *(r for r in read if isinstance(r, (dict, list, set, deque))),
        ]
    if isinstance(value, types.MethodType):
        return [value.__func__, *_parts(value.__self__)]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    try:
        return [object.__getattribute__(value, "__dict__")]
    except AttributeError:
        return ()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not assigned yet
        return None


def _held(container: Any) -> Collection[object]:
    """What ``container`` holds now, in order: of a mapping the keys and the values."""
    if isinstance(container, types.CellType):
        return (_content(container),)
    return dict(container) if isinstance(container, dict) else tuple(container)


def _same(container: object, before: Collection[object]) -> bool:
    """Whether it holds the same objects as ``before``."""
    now: Any = container if isinstance(container, dict) else _held(container)
    if len(now) != len(before) or not all(map(is_, now, before)):
        return False
    if isinstance(now, dict) and isinstance(before, dict):
        return all(map(is_, now.values(), before.values()))
    return True


def _restore(container: Any, before: Collection[object]) -> None:
    """Make ``container`` hold what it held before."""
    if isinstance(container, types.CellType):
        (container.cell_contents,) = before
        return
    container.clear()
    add = container.extend if isinstance(container, (list, deque)) else container.update
    add(before)


def _tensors(modules: list[nn.Module]) -> Iterator[Tensor]:
    """Buffers, and tensors that are attributes of a module."""
    tables = [table for m in modules for table in (m._buffers, vars(m))]
    held = [v for table in tables for v in table.values() if isinstance(v, Tensor)]
    return (t for t in held if not t.is_inference() and t.device.type != "meta")


def _values_restored(tensor: Tensor) -> Callable[[], None]:
    version, before = tensor._version, tensor.detach().clone()
    attached = tensor.requires_grad

    def put_back() -> None:
        if tensor._version != version:
            with torch.no_grad():
                (tensor if attached else tensor.detach_()).copy_(before)

    return put_back
