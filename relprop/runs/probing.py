"""What a model computes of fixed numbers, as a part of a run's identity: an attribute, a hook or a
``forward`` of the user's own decides the numbers of a run, and shows in no weight and no config.

In float64, from one sample: threads, devices and machines differ there by rounding alone, which is
far below any change that a map could show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from relprop.errors import RelpropError
from relprop.rules import PAPER
from relprop.runner.conditions import Conditions
from relprop.runner.session import open_session
from relprop.tracer.binding import bind
from relprop.tracer.facts import is_batched
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed

Probe = Mapping[str, list[float]]  # of each output its norm, and sums of its values times cosines
SUMS = 8
TRIED = 8  # samples, of which the first that can be read is taken
#: How far two probes of one model may be apart, relative to the output's norm: in float64, and on
#: devices that have no more than float32.
ALLOWED, ALLOWED_NARROW = 1e-6, 1e-3


def probe(model: nn.Module, samples: int, inputs: Callable[[int], Any]) -> Probe | None:
    """What the model computes of the first sample that can be read, ``inputs(i)``, pictures
    replaced by fixed numbers (not all machines read a file alike).

    ``None`` where the call itself will tell why: no sample can be read, the model cannot be
    captured, or it draws random numbers.
    """
    for index in range(min(samples, TRIED)):
        try:
            return _computed(model, _fixed(inputs(index)))
        except RelpropError:
            continue
    return None


def _computed(model: nn.Module, inputs: Any) -> Probe | None:
    with undisturbed(model), torch.no_grad():
        one = bind(inputs).select(0, 1)
        narrow = any(t.device.type == "mps" for t in one.tensors)
        how = Conditions(precision="float32" if narrow else "float64")
        program = open_session(model, one, PAPER, how).program
        if program.draws:
            return None
        values = execute(program, model, one, set(program.output_nodes))
    named = zip(program.outputs.names, program.output_nodes, strict=True)
    found = ((name, values[n][0] if is_batched(n) else values[n]) for name, n in named)
    return {name: [float(narrow), *_sums(value)] for name, value in found}


def _fixed(inputs: Any) -> Any:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return inputs
    drawn = torch.rand(
        inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32
    )
    return drawn.to(inputs.device, inputs.dtype)


def _sums(value: Tensor) -> Iterator[float]:
    """The norm, and sums in which every element has a part, none the same part in all."""
    flat = value.detach().cpu().double().nan_to_num(0.0, 0.0, 0.0).reshape(-1)
    yield float(flat.norm())
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    yield from (float(flat @ (places * k).cos()) for k in range(1, SUMS + 1))


def apart(mine: Probe | None, now: Probe | None) -> str:
    """What two probes differ in, in words; nothing where they are of one model, or one of them is
    not known."""
    if mine is None or now is None:
        return ""
    if mine.keys() != now.keys():
        return f"its outputs were {', '.join(mine)} and are {', '.join(now)}"
    for name, (narrow, norm, *sums) in mine.items():
        other, length, *others = now[name]
        allowed = ALLOWED_NARROW if narrow or other else ALLOWED
        scale = max(norm, length)
        gap = max(abs(a - b) for a, b in zip((norm, *sums), (length, *others), strict=True))
        if not gap <= allowed * scale:
            return (
                f"its output {name!r} is off by {gap / scale:.2g} of its norm "
                f"(rounding: at most {allowed:g})"
            )
    return ""
