"""What a library's preprocessing made, as a model takes it: tensors by the names of its
``forward``, one row per sample, padded to one length."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from relprop.errors import InputError
from relprop.opening.wrapped import base_model
from relprop.tracer.offloaded import home_of

Rows = dict[str, Tensor]
#: Something of a library that need not be there: a pipeline, a config, a processor, a tokenizer.
Foreign = Any


def for_model(made: Foreign, model: nn.Module) -> Rows:
    """Those tensors of ``made`` that the model's ``forward`` has an argument for, one row per
    sample, where its parameters are."""
    names = inspect.signature(base_model(model).forward).parameters
    found = {name: t for name, t in _tensors(made) if name in names}
    count = max((len(t) for t in found.values()), default=0)
    device, dtype = home_of(model)
    for name, t in found.items():
        half = t.is_floating_point() and dtype.itemsize == 2
        t = t.expand(count, *t.shape[1:]) if len(t) == 1 else t  # one image, several texts
        found[name] = t.to(device, dtype if half else t.dtype)
    return found


def _tensors(made: Foreign) -> Iterator[tuple[str, Tensor]]:
    for name, value in made.items():
        if isinstance(value, Tensor) and value.dim():
            yield name, value
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(part, Mapping):
                yield from _tensors(part)


def joined(samples: list[Rows], tokenizer: Foreign) -> Rows:
    """Samples as one batch. Ids of several lengths are padded as the tokenizer pads them;
    everything else must agree in shape."""
    lengths = [s["input_ids"].shape[1] if "input_ids" in s else 0 for s in samples]
    missing = [max(lengths) - n for n in lengths]
    pads = tokenizer is not None and tokenizer.pad_token_id is not None
    if any(missing) and not (pads and "attention_mask" in samples[0]):
        raise InputError(
            f"the samples have {', '.join(map(str, sorted(set(lengths))))} tokens, "
            "and the tokenizer does not pad",
            then=["tokenizer.pad_token = tokenizer.eos_token", "or explain them one by one"],
        )
    batch = {}
    for name in samples[0]:
        rows = [s[name] for s in samples]
        if any(missing) and all(map(_is_per_token, rows, lengths)):
            fill = tokenizer.pad_token_id if name == "input_ids" else 0
            left = tokenizer.padding_side == "left"
            sides = [(n, 0) if left else (0, n) for n in missing]
            rows = [pad(r, side, value=fill) for r, side in zip(rows, sides, strict=True)]
        shapes = sorted({tuple(r.shape[1:]) for r in rows})
        if len(shapes) > 1:
            raise InputError(
                f"the samples differ in the shape of {name!r}: {', '.join(map(str, shapes))}",
                then=["explain them one by one"],
            )
        batch[name] = torch.cat(rows)
    return batch


def _is_per_token(row: Tensor, length: int) -> bool:
    """Whether a sample's tensor has an integer for each of its tokens."""
    return not row.is_floating_point() and row.dim() == 2 and row.shape[1] == length


@contextmanager
def refusing(fact: str, then: str) -> Iterator[None]:
    """An error of somebody else's code becomes an ``InputError`` that begins with a fact."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        line = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), "no message"
        )
        raise InputError(f"{fact}: {type(error).__name__}: {line[:300]}", then=[then]) from error
