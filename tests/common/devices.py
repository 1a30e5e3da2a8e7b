"""Devices for a machine that has none: tensors that say where they are, hold their numbers in
memory, and refuse to be used together with a tensor that is elsewhere."""

import contextlib
import dataclasses

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from relprop.tracer.facts import facts_of, know, place

aten = torch.ops.aten
#: What may be given tensors on several devices: copies, and an index that lies in memory.
MOVES = (
    aten._to_copy.default,
    aten.copy_.default,
    aten.index.Tensor,
    aten.index_put_.default,
)
#: What is asked of the numbers in memory.
READS = (
    torch.Tensor.tolist,
    torch.Tensor.numpy,
    torch.Tensor.__array__,
    torch.Tensor.untyped_storage,
)
INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
ONE, TWO = torch.device("lazy:0"), torch.device("lazy:1")


class ZeroPadded(torch.Tensor):
    """A tensor on one of the devices; ``inner`` has its numbers."""

    @staticmethod
    def __new__(cls, inner, device):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )

    def __init__(self, inner, device):
        self.inner = inner

    def __repr__(self):
        return f"ZeroPadded({self.inner}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


def _run(func, args, kwargs):
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    places = {t.device for t in given if t.dim() or t.device.type == ONE.type}
    wanted = kwargs.get("device")
    if len(places) > 1 and func not in MOVES:
        raise RuntimeError(f"tensors on {sorted(map(str, places))} in {func}")
    where = torch.device(wanted) if wanted is not None else next(iter(places), None)
    where = args[0].device if func in MOVES and wanted is None else where
    if wanted is not None:
        kwargs = {**kwargs, "device": "cpu"}
    made = func(*_inner(args), **_inner(kwargs))
    known = {id(t.inner): t for t in given if isinstance(t, ZeroPadded)}
    if where is None or where.type != ONE.type:
        return made
    return tree_map_only(
        torch.Tensor, lambda t: known.get(id(t)) if id(t) in known else ZeroPadded(t, where), made
    )


def _inner(values):
    return tree_map_only(ZeroPadded, lambda t: t.inner, values)


class Devices(TorchDispatchMode):
    """What is made from nothing on such a device is made there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        if wanted is not None and torch.device(wanted).type == ONE.type:
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


class Written(TorchFunctionMode):
    """Numbers that Python gives to such a device, or takes from it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        wanted = kwargs.get("device")
        if func is torch.tensor and wanted is not None and torch.device(wanted).type == ONE.type:
            return put(func(*args, **{**kwargs, "device": "cpu"}), wanted)
        if func in INDEXED:
            given = args[1] if isinstance(args[1], tuple) else (args[1],)
            index = tuple(torch.tensor(i) if isinstance(i, list) else i for i in given)
            args = args[0], index, *args[2:]
        if func in READS:
            return func(*_inner(args), **kwargs)
        return func(*args, **kwargs)


@contextlib.contextmanager
def devices():
    """While they are there."""
    with Devices(), Written():
        yield


def put(tensor, device):
    """A tensor on one of the devices."""
    return ZeroPadded(tensor.detach().clone(), device)


def put_module(module, device):
    """A module's own weights on one of the devices."""
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, held in table.items():
                if held is not None and not isinstance(held, ZeroPadded):
                    placed = put(held, device)
                    own = nn.Parameter(placed, False) if isinstance(held, nn.Parameter) else placed
                    table[name] = own


def placed(program, where):
    """A program whose calls are placed; ``where``: the device of a node."""
    for node in program.graph.nodes:
        here = dataclasses.replace(place(node), device=where(node))
        know(node, dataclasses.replace(facts_of(node), place=here))
    return dataclasses.replace(program)
