"""The user's inputs and outputs as flat lists of tensors, and back. Knows containers, knows no
model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from relprop.errors import CaptureError, InputError
from relprop.operations import Args, Kwargs
from relprop.tracer.advice import made_of
from relprop.tracer.program import OutputTree


@dataclass(frozen=True)
class Inputs:
    """A call's inputs: its tensors by name, how to put them back into ``(args, kwargs)``, and which
    of them are per sample. ``moved``: values that stand at nodes of the captured graph in place of
    what is made of these, the batch first."""

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    rebuild: Callable[[tuple[Tensor, ...]], tuple[Args, Kwargs]]
    batched: tuple[bool, ...]
    batch: int
    static: str = ""
    moved: Mapping[fx.Node, Tensor] = field(default_factory=dict)

    def samples(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """The tensors of samples ``start:stop``; what is shared by all samples stays whole. No two
        are one object: ``torch.export`` takes such inputs for one."""
        return tuple(
            t[start:stop] if b else t[...] for t, b in zip(self.tensors, self.batched, strict=True)
        )

    def select(self, start: int, stop: int) -> Inputs:
        """The same call for samples ``start:stop``."""
        moved = {n: v[start:stop] for n, v in self.moved.items()}
        tensors = self.samples(start, stop)
        return dataclasses.replace(self, tensors=tensors, batch=stop - start, moved=moved)

    def stacked(self) -> tuple[Tensor, ...]:
        """The tensors as the interpreter takes them: the batch first, then what one sample's call
        was given (a batch of 1, or the shared tensor)."""
        return tuple(
            t.unsqueeze(1) if b else t.unsqueeze(0).expand(self.batch, *t.shape)
            for t, b in zip(self.tensors, self.batched, strict=True)
        )

    def is_same(self, other: Inputs) -> bool:
        """Whether two calls are given the same."""
        return (
            self.signature == other.signature
            and not (self.moved or other.moved)
            and all(torch.equal(a, b) for a, b in zip(self.tensors, other.tensors, strict=True))
        )

    @property
    def could_be_shared(self) -> bool:
        """Whether an input has no entry per sample, or as many entries as samples along a second
        axis, too: a mask between positions may look like it."""
        return any(
            t.dim() > 0 and ((not b and t.shape[0] != 1) or (b and self.batch in t.shape[1:]))
            for t, b in zip(self.tensors[1:], self.batched[1:], strict=True)
        )

    def sharing(self, names: tuple[str, ...]) -> Inputs:
        """The same call, with some inputs given whole to every sample."""
        batched = tuple(b and n not in names for n, b in zip(self.names, self.batched, strict=True))
        return dataclasses.replace(self, batched=batched)

    @property
    def signature(self) -> tuple[Hashable, ...]:
        """What a captured graph depends on: names, per-sample shapes, dtypes, devices and the
        values that are not tensors."""
        kinds = tuple(
            (tuple(t.shape[1:] if b else t.shape), b, t.dtype, t.device)
            for t, b in zip(self.tensors, self.batched, strict=True)
        )
        return self.names, kinds, self.static

    @property
    def family(self) -> tuple[Hashable, ...]:
        """What two calls share that differ in the lengths of their inputs alone."""
        kinds = tuple(
            (t.dim(), b, t.dtype, t.device) for t, b in zip(self.tensors, self.batched, strict=True)
        )
        return self.names, kinds, self.static


def bind(inputs: Any) -> Inputs:
    """The user's ``inputs`` (a tensor, a tuple of positional arguments, or a mapping of keyword
    arguments), batch first."""
    given: dict[int | str, Any]
    if isinstance(inputs, Tensor):
        given = {0: inputs}
    elif isinstance(inputs, (tuple, list)):
        given = dict(enumerate(inputs))
    elif isinstance(inputs, Mapping) or hasattr(inputs, "keys"):
        given = {str(k): inputs[k] for k in list(inputs.keys())}
    else:
        then = "give a tensor, a tuple of positional arguments, or a dict of keyword arguments"
        fact = f"inputs is {type(inputs).__name__}"
        raise InputError(fact, then=[*made_of(inputs), f"{then}, batch first"])
    keys = [key for key, value in given.items() if isinstance(value, Tensor)]
    tensors = tuple(given[key] for key in keys)
    names = tuple(key if isinstance(key, str) else f"input_{key}" for key in keys)
    _refuse_bad(names, tensors, given)
    if not tensors:
        held = ", ".join(sorted({type(value).__name__ for value in given.values()}))
        fact = "inputs holds no tensor" + (f" but {held}" if held else "")
        raise InputError(fact, then=made_of(inputs))

    def rebuild(replaced: tuple[Tensor, ...]) -> tuple[Args, Kwargs]:
        made = given | dict(zip(keys, replaced, strict=True))
        args = tuple(value for key, value in made.items() if isinstance(key, int))
        return args, {key: value for key, value in made.items() if isinstance(key, str)}

    batch = tensors[0].shape[0]
    batched = tuple(t.dim() > 0 and t.shape[0] == batch for t in tensors)
    static = repr([(key, v) for key, v in given.items() if not isinstance(v, Tensor)])
    return Inputs(names, tensors, rebuild, batched, batch, static)


def refuse_unlike(inputs: Inputs) -> None:
    """Refuse inputs that have another number of samples than the first: without the model's own
    run, nothing says that such a tensor belongs to all samples."""
    for name, t, b in zip(inputs.names, inputs.tensors, inputs.batched, strict=True):
        if not b and t.dim() > 0 and t.shape[0] != 1:
            raise InputError(
                f"input {name!r} has {t.shape[0]} samples {list(t.shape)}, the first "
                f"input {inputs.names[0]!r} has {inputs.batch}: batch comes first in every input"
            )


def wrapped(takes: str, gives: str, inputs: str) -> list[str]:
    """The lines that put a model into one that ``takes`` tensors as inputs of their own."""
    return [
        "put the model into one that takes tensors themselves:",
        "class Plain(torch.nn.Module):",
        "    def __init__(self, model):",
        "        super().__init__()",
        "        self.model = model",
        f"    def forward(self, {takes}):",
        f"        return self.model({gives})",
        f"relprop.explain(Plain(model), {inputs})",
    ]


def _refuse_bad(
    names: tuple[str, ...], tensors: tuple[Tensor, ...], given: Mapping[int | str, object]
) -> None:
    for key, value in given.items():
        if isinstance(value, (list, dict)) and any(
            isinstance(v, Tensor) for v in (value.values() if isinstance(value, dict) else value)
        ):
            name = f"{key}=" if isinstance(key, str) else ""
            if isinstance(value, dict):
                then = wrapped("**tensors", f"{name}tensors", f"inputs[{key!r}]")
            else:
                then = wrapped("tensors", f"{name}list(tensors)", f"torch.stack(inputs[{key!r}])")
            fact = f"input {key!r} is a {type(value).__name__} of tensors; give each tensor "
            raise InputError(fact + "as an input of its own", then=then)
    for name, tensor in zip(names, tensors, strict=True):
        for fact, *then in _faults(name, tensor, tensors):
            raise InputError(f"input {name!r} {fact}", then=then)


def _faults(name: str, tensor: Tensor, tensors: tuple[Tensor, ...]) -> Iterator[tuple[str, ...]]:
    """What is wrong with one of the inputs, and what to do."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        fact = "is inside of torch.vmap or torch.func: it has no values of its own"
        yield fact, "explain outside of it; a batch is explained at once"
    layout = str(tensor.layout).removeprefix("torch.")
    for kind, there, call in (
        ("quantized", tensor.is_quantized, "dequantize()"),
        ("nested", tensor.is_nested, "to_padded_tensor(0)"),
        (layout, tensor.layout != torch.strided, "to_dense()"),
    ):
        if there:
            yield f"is a {kind} tensor; dense ones are needed", f"{name}.{call}"
    shape = list(tensor.shape)
    if tensor.dim() == 0 and tensor is tensors[0]:
        yield ("has no batch axis (its shape is [])",)
    if tensor.dim() and shape[0] == 0:
        yield (f"is an empty batch, shape {shape}",)
    if tensor.numel() == 0:
        yield (f"is empty, shape {shape}: there is nothing to explain",)
    if tensor.device.type == "meta":
        yield ("is on the meta device: it has no values",)
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        others = torch.isnan(tensor) | (tensor == float("inf"))  # than what masks scores
        if bool(others.any()) or len(tensors) == 1:
            yield (f"holds {bad} values that are NaN or infinite, of {tensor.numel()}",)


def flatten_output(output: object) -> tuple[list[Tensor], OutputTree]:
    """The tensors in what a model returns (tensor, tuple, list, mapping, dataclass, an object's own
    attributes; None and other objects are dropped), and the way back."""
    found: list[tuple[str, Tensor]] = []
    rebuild = _walked(output, "", found)
    if not found:
        raise CaptureError(f"the model returned {type(output).__name__} without a tensor in it")
    names, tensors = zip(*found, strict=True)
    return list(tensors), OutputTree(names, rebuild)


def _walked(
    value: object, name: str, found: list[tuple[str, Tensor]]
) -> Callable[[Iterator[Tensor]], object]:
    """The way back to ``value``; its tensors are ``found``, by name. (No function that holds
    itself: what it holds, tensors among it, would stay until the garbage is collected.)"""
    if isinstance(value, Tensor):
        found.append((name or "output", value))
        return next
    if isinstance(value, Mapping):
        under = {k: f"{name}.{k}" if name else str(k) for k in value}
        parts = {k: _walked(v, under[k], found) for k, v in value.items()}
        kind = type(value)
        return lambda it: _remake(kind, {k: p(it) for k, p in parts.items()})
    if (named := _named(value, whole=not name)) is not None:
        before = f"{name}." if name else ""
        fields = {k: _walked(v, before + k, found) for k, v in named.items()}
        remade = _refilled(value)
        return lambda it: remade({k: p(it) for k, p in fields.items()})
    if isinstance(value, (tuple, list)):
        items = [_walked(v, f"{name}[{i}]", found) for i, v in enumerate(value)]
        make = type(value)
        return lambda it: make(p(it) for p in items)
    return lambda it: None


def _named(value: object, *, whole: bool) -> dict[str, object] | None:
    """What an object holds, by the names of its fields: a dataclass, a named tuple, or, as the
    ``whole`` output, one of the user's own with tensors among its attributes."""
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)) is not None:
        return dict(zip(names, value, strict=True))
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    held = dict(getattr(value, "__dict__", {}) if whole else {})
    return held if any(isinstance(v, Tensor) for v in held.values()) else None


def _refilled(value: object) -> Callable[[dict[str, object]], object]:
    """What makes an object like ``value`` of other fields."""
    if dataclasses.is_dataclass(value) or isinstance(value, tuple):
        make: Callable[..., object] = type(value)
        return lambda fields: make(**fields)

    def refilled(fields: dict[str, object]) -> object:
        like = copy.copy(value)
        vars(like).update(fields)
        return like

    return refilled


def _remake(kind: type, fields: dict[str, object]) -> object:
    """A mapping of ``kind`` from its fields; ``ModelOutput`` classes take them as keywords."""
    try:
        return kind(**fields)
    except TypeError:
        return dict(fields)
