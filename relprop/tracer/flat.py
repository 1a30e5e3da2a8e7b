"""The model as a function of a flat list of tensors to a flat tuple of tensors, which is what a
tracer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from relprop.errors import CaptureError, InputError, first_line, message
from relprop.tracer.binding import Inputs, flatten_output
from relprop.tracer.program import OutputTree


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
        return (
            name
            if name in self.tensors
            else self._names.get(id(tensor)) or self._names.get(memory(tensor))
        )

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
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        yield name, tensor
        if hasattr(tensor, "__tensor_flatten__"):
            yield from (
                (f"{name}.{part}", getattr(tensor, part)) for part in tensor.__tensor_flatten__()[0]
            )


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
        then = [*_beyond(model, inputs), "call model(...) on the same inputs and mend that first"]
        raise InputError(message(fact, at=f"called with {shapes}", then=then)) from error


def _beyond(model: nn.Module, inputs: Inputs) -> list[str]:
    """Of inputs of integers those that some embedding of the model has no rows for."""
    rows = {n: m.num_embeddings for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    found = []
    for name, t in zip(inputs.names, inputs.tensors, strict=True):
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or not t.numel():
            continue
        least, most = int(t.long().min()), int(t.long().max())
        few = [f"{n!r} has {count}" for n, count in rows.items() if least < 0 or most >= count]
        if few:
            ids = f"{name} holds ids from {least} to {most}"
            found.append(f"if they are looked up: {ids}, and the embedding {', '.join(few[:3])}")
    return found
