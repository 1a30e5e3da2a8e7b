"""The model as a function of a flat list of tensors to a flat tuple of tensors, which is what a
tracer takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from relprop.errors import CaptureError, InputError, first_line
from relprop.tracer.binding import Inputs, flatten_output, wrapped
from relprop.tracer.modules import modules_of, safe_getattr, setting
from relprop.tracer.program import OutputTree

OTHER_ARGUMENTS = re.compile("unexpected keyword|positional argument")


class Flat(nn.Module):
    """The model as a function of a flat list of tensors to a flat tuple of tensors. ``tensors``:
    those it has before it runs, by name; ``attributes``: others it holds."""

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.model = model
        self._rebuild = inputs.rebuild
        self.outputs: OutputTree | None = None
        self.tensors = {f"model.{name}": t for name, t in _named_tensors(model)}
        self.attributes = {
            memory(t) for m in model.modules() for t in vars(m).values() if isinstance(t, Tensor)
        }
        self.traced = False
        self._names: dict[object, str] = {}
        for name, t in self.tensors.items():
            self._names.setdefault(id(t), name)
            if (own := memory(t)) is not None:
                self._names.setdefault(own, name)

    def name_of(self, tensor: object, name: str) -> str | None:
        """What the model calls a tensor that a graph holds as ``name``; ``None``: it is none of the
        model's."""
        own = name if name in self.tensors else self._names.get(id(tensor))
        return own or self._names.get(memory(tensor))

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self._rebuild(tensors)
        try:
            flat, self.outputs = flatten_output(self.model(*args, **kwargs))
        except RuntimeError as error:
            if self.traced:  # export prints the whole graph if it gets one of these
                raise Refused(*error.args) from error
            raise
        return tuple(flat)


class Refused(Exception):
    """What the model's code cannot do while it is traced."""


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers under all their names, and the tensors that a quantised one is made
    of."""
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            yield name, tensor
            if hasattr(tensor, "__tensor_flatten__"):
                parts, _ = tensor.__tensor_flatten__()
                yield from ((f"{name}.{part}", getattr(tensor, part)) for part in parts)


def memory(tensor: object) -> tuple[object, ...] | None:
    """Where an ordinary tensor's values are: the same for two that are one, seen twice."""
    if (
        not isinstance(tensor, Tensor)
        or type(tensor) not in (Tensor, nn.Parameter)
        or tensor.layout != torch.strided
        or not tensor.numel()
        or not tensor.data_ptr()
    ):
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def run_eager(
    run: Callable[..., Sequence[Tensor]], inputs: Inputs, model: nn.Module
) -> list[Tensor]:
    """The model's own outputs; its own error is passed on with the shapes it was called with."""
    try:
        return [t.detach() for t in run(*inputs.tensors)]
    except CaptureError:
        raise
    except Exception as error:
        shapes = ", ".join(
            f"{n} {str(t.dtype).removeprefix('torch.')} {list(t.shape)} on {t.device}"
            for n, t in zip(inputs.names, inputs.tensors, strict=True)
        )
        kind = type(error).__name__
        fact = f"the model itself fails on these inputs: {kind}: {first_line(error)}"
        then = _otherwise(model, inputs) if OTHER_ARGUMENTS.search(str(error)) else []
        then = then or [
            *_beyond(run, model, inputs),
            "call model(...) on the same inputs and mend that first",
        ]
        raise InputError(fact, at=f"called with {shapes}", then=then) from error


def _otherwise(model: nn.Module, inputs: Inputs) -> list[str]:
    """How to call a forward that asks for one thing, which is none of several tensors, by its name:
    a dict or a list of them."""
    takes = inspect.signature(model.forward).parameters.values()
    required = [p.name for p in takes if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(required) != 1 or required[0] in inputs.names:
        return []
    if re.fullmatch(r"input_\d+", inputs.names[0]):
        alike = len({t.shape for t in inputs.tensors}) == 1 < len(inputs.tensors)
        return wrapped("tensors", "list(tensors)", "torch.stack(inputs)") if alike else []
    first, *lines = wrapped("**tensors", "tensors", "inputs")
    if len(inputs.names) > 1:
        return [first, *lines]
    call = f"inputs = {{{required[0]!r}: inputs[{inputs.names[0]!r}]}}"
    return [call, f"or, if it takes a dict, {first}", *lines]


class _Lookups(TorchDispatchMode):
    """Remembers what a run looks up beyond the rows of a table."""

    def __init__(self, names: Mapping[object, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names, self.beyond = names, list[str]()

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if op is torch.ops.aten.embedding.default and args[1].numel():
            table, least, most = args[0], int(args[1].min()), int(args[1].max())
            if least < 0 or most >= len(table):
                name = self.names.get(memory(table), "a table")
                self.beyond.append(
                    f"give ids that it has rows for: {least} to {most} are looked up in {name!r}, "
                    f"which has {len(table)}"
                )
        return op(*args, **(kwargs or {}))


def _beyond(
    run: Callable[..., Sequence[Tensor]], model: nn.Module, inputs: Inputs
) -> Iterator[str]:
    """What may be wrong with inputs of integers: a table has no row for them, or the model reads
    shorter texts."""
    lookups = _Lookups({memory(t): name for name, t in _named_tensors(model)})
    with suppress(Exception), lookups:
        run(*inputs.tensors)
    length = max((t.shape[1] for t in inputs.tensors if _is_ids(t)), default=0)
    configs = (setting(module, "config") for module in modules_of(model))
    most = [safe_getattr(config, "max_position_embeddings") for config in configs]
    limits = [n for n in most if isinstance(n, int) and 0 < n < length]
    if limits:
        yield (
            f"cut the text, it has {length} tokens, and the model reads {min(limits)}: processor="
            f"tokenizer, truncation=True, max_length={min(limits)}"
        )
    yield from lookups.beyond[:1]


def _is_ids(t: Tensor) -> bool:
    return t.dim() == 2 and not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool)
