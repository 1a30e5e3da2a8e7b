"""What every metric says of itself, and what all of them check and share: rankings, the model's
answer, the bootstrap.

A metric is a frozen object; calling it never changes it. Where the paper and the published code of
a metric differ, ``protocol`` chooses and ``deviations`` says how. Every metric gives one value per
sample (or a table of sums, for segmentation), so that ``bootstrap`` applies to all of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError, UndefinedValueWarning, warn
from relprop.tracer.offloaded import home_of
from relprop.tracer.surroundings import evaluating


@runtime_checkable
class Metric(Protocol):
    """What a table needs to know of a metric beside its numbers.

    ``name``: the field's name of it, with the options that change its meaning; ``protocol``: which
    of the published procedures it follows; ``source``: where that is written; ``deviations``: one
    sentence for each place where paper, published code and this differ.
    """

    @property
    def name(self) -> str: ...
    @property
    def higher_is_better(self) -> bool: ...
    @property
    def protocol(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def deviations(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Interval:
    """A statistic of ``samples`` samples, and its 95 % bootstrap interval from ``low`` to
    ``high``."""

    mean: float
    low: float
    high: float
    samples: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}], n = {self.samples}"


@guarded
def bootstrap(
    values: Any,
    draws: int = 2000,
    seed: int = 0,
    *,
    statistic: Callable[[Tensor], float] | None = None,
) -> Interval:
    """The mean over samples and its 95 % percentile interval over ``draws`` resamplings (Efron
    1979; ``scipy.stats.bootstrap``).

    ``values``: (samples,) numbers. For a statistic that is no mean, such as an IoU of sums over
    images: (samples, columns) and ``statistic``, which makes one number of such a table. The same
    seed gives the same interval. Raises ``InputError`` for NaN or fewer than 2 samples. Needs
    ``relprop[evaluation]``.
    """
    try:
        table = torch.as_tensor(values).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        fact = f"bootstrap: values is {type(values).__name__}: numbers, (samples,), are needed"
        raise InputError(fact) from error
    if table.dim() != (1 if statistic is None else 2) or len(table) < 2:
        axes = "(samples,)" if statistic is None else "(samples, columns)"
        given = f"bootstrap: values of shape {list(table.shape)}"
        raise InputError(f"{given}; at least 2 samples are needed, {axes}")
    if bad := int((~table.isfinite()).sum()):
        then = "values[values.isfinite()]   # to leave those samples out, and say so"
        raise InputError(f"bootstrap: {bad} values are NaN or infinite", then=[then])
    if draws < 1:
        raise OptionError(f"bootstrap(draws={draws}): at least 1")
    drawn: Any = table.numpy() if statistic is None else np.arange(len(table))
    of: Any = np.mean if statistic is None else lambda at: statistic(table[at])
    found = needed("scipy.stats").bootstrap(
        (drawn,),
        of,
        vectorized=statistic is None,
        n_resamples=draws,
        method="percentile",
        batch=max(1, 2_000_000 // len(table)),
        rng=np.random.default_rng(seed),
    )
    interval = found.confidence_interval
    one = float(table.mean()) if statistic is None else float(statistic(table))
    return Interval(one, float(interval.low), float(interval.high), len(table))


def needed(module: str) -> Any:
    """A module of the extra ``evaluation``. Raises ``OptionError`` naming the extra where it is not
    installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        missing = module.split(".")[0]
        fact = f'relprop.evaluation needs {missing}: pip install "relprop[evaluation]"'
        raise OptionError(fact) from None


def chosen(name: str, value: Any, known: Sequence[Any]) -> None:
    """Raises ``OptionError`` unless ``value`` is one of ``known``."""
    if value not in known:
        raise OptionError(f"{name}={value!r}: one of {', '.join(map(repr, known))}")


def finite(name: str, values: Tensor, axes: str) -> Tensor:
    """``values`` as floating point, detached, of at least float32; ``axes`` names what they must
    have, as in ``"batch, H, W"``. Raises ``InputError``."""
    values = values.detach()
    if values.dim() != len(axes.split(",")):
        raise InputError(f"{name}: shape {list(values.shape)}, ({axes}) is needed")
    if not len(values):
        raise InputError(f"{name}: no samples")
    bad = ~values.isfinite()
    if bad.any():
        first = int(bad.reshape(len(bad), -1).any(1).int().argmax())
        fact = f"{name}: {int(bad.sum())} values are NaN or infinite"
        raise InputError(f"{fact}, the first of them in sample {first}")
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def ranked(scores: Tensor) -> Tensor:
    """Indices along the last axis in order of falling score; of equal scores the earlier comes
    first, so that no answer depends on a batch or a device."""
    return scores.sort(dim=-1, descending=True, stable=True).indices


def rankings(name: str, samples: Iterable[Tensor]) -> Tensor:
    """(samples,), bool: whose scores, (positions,), tell a first from a last. Warns of those whose
    scores are all equal, for which the metric ``name`` is not defined."""
    found = torch.tensor([len(s) < 2 or bool(s.min() < s.max()) for s in samples])
    warn_of_nan(name, ~found, "all their scores are equal, which is no ranking")
    return found


def warn_of_nan(name: str, undefined: Tensor, reason: str) -> None:
    """Warns of the samples, (samples,), for which the metric ``name`` is ``undefined``."""
    if count := int(undefined.sum()):
        fact = f"{name} is not defined for {count} of {len(undefined)} samples"
        warn(UndefinedValueWarning(f"{fact}: {reason}; their value is NaN"))


def bools(name: str, values: Any, shape: Sequence[int]) -> Tensor:
    """``values`` as a bool tensor of a shape, on the CPU. Raises ``InputError``."""
    found = torch.as_tensor(values).detach().cpu()
    if list(found.shape) != list(shape) or not ((found == 0) | (found == 1)).all():
        given = f"{name}: shape {list(found.shape)}, {found.dtype}"
        raise InputError(f"{given}; {list(shape)} of 0s and 1s (or bool) is needed")
    return found.bool()


def place_of(model: Any, otherwise: Tensor) -> tuple[torch.device, torch.dtype | None]:
    """The model's device, and the floating-point type of its parameters if it has any."""
    own = model.parameters() if isinstance(model, nn.Module) else ()
    return home_of(model) if any(map(torch.is_floating_point, own)) else (otherwise.device, None)


@contextmanager
def answering(model: Any) -> Iterator[None]:
    """Without gradients; a module as in ``eval()``."""
    with torch.no_grad(), evaluating(model) if isinstance(model, nn.Module) else nullcontext():
        yield


def logits_of(model: Any, *inputs: Any, **named: Any) -> Tensor:
    """(batch, classes) in float32 or wider, on the CPU: what the model returns, its ``logits``, or
    the only such tensor by name. Raises ``InputError``."""
    found = model(*inputs, **named)
    found = getattr(found, "logits", found)
    if isinstance(found, Mapping):
        every = [v for v in found.values() if isinstance(v, Tensor) and v.dim() == 2]
        found = found.get("logits", every[0] if len(every) == 1 else None)
    if not isinstance(found, Tensor) or found.dim() != 2:
        tensor = isinstance(found, Tensor)
        what = f"shape {list(found.shape)}" if tensor else "no tensor and no .logits"
        fact = f"the model's output has {what}; logits (batch, classes) are needed"
        then = "lambda *x, **k: model(*x, **k)[...]   # a function in the model's place"
        raise InputError(fact, then=[then])
    found = found.detach().cpu()
    return found if found.dtype == torch.float64 else found.float()


def labels_for(labels: Any, count: int) -> Tensor:
    """Class numbers (batch,), on the CPU. Raises ``InputError``."""
    found = torch.as_tensor(labels).detach().cpu()
    if found.is_floating_point() or found.dtype == torch.bool or list(found.shape) != [count]:
        given = f"labels: shape {list(found.shape)}, {found.dtype}"
        raise InputError(f"{given}; {count} class numbers are needed, one per sample")
    return found.long()


def in_range(labels: Tensor, classes: int) -> None:
    """Raises ``InputError`` for a label that the model has no class for."""
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        at = int(bad.int().argmax())
        fact = f"labels: {int(labels[at])} of sample {at} is out of range"
        raise InputError(f"{fact}, the model has {classes} classes")


def without(logits: Tensor, others: Sequence[Sequence[int]]) -> Tensor:
    """Logits (batch, classes) in which each sample's ``others`` cannot be chosen: further classes
    that are true of it."""
    if not any(others):
        return logits
    kept = logits.clone()
    for row, classes in zip(kept, others, strict=True):
        in_range(torch.tensor(list(classes), dtype=torch.long), len(row))
        row[list(classes)] = -torch.inf
    return kept
