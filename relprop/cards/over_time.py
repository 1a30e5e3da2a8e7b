"""Of the inputs of a model: what of them are recordings, their scores over time, and how they are
drawn and silenced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from relprop.cards.recording import HIGH, WIDE, Recording, Sound
from relprop.errors import RelpropError
from relprop.explanation import Explanation, TokenScores
from relprop.views.overlay import turned
from relprop.views.regions import is_recording
from relprop.views.shown import only
from relprop.views.token_maps import Maps, maps_of, pictures_of

COLUMNS = 1024  # of a map, at most
SILENT = 0.8  # silence behind this share of a recording is not shown


def mapped(explanation: Explanation) -> list[Explanation]:
    """Every picture and then every recording of an explanation, each as one of its own."""
    heard = [name for name, stream in explanation.streams.items() if is_recording(stream)]
    seen = [name for name in explanation.streams if name not in heard]
    pictures = [picture for name in seen for picture in pictures_of(explanation[name])]
    return [*pictures, *(explanation[name] for name in heard)]


def maps_with(
    steps: Sequence[Explanation], sample: int, inputs: Mapping[str, Tensor] | None = None
) -> tuple[Maps, ...]:
    """The maps of what is ``mapped``, a map for each step. ``inputs``: by name, (batch, ...), of
    which recordings are drawn."""
    first, own = steps[0].streams, inputs or {}
    heard = [name for name in first if is_recording(first[name])]
    pictures = maps_of(steps, sample, [name for name in first if name not in heard])
    recorded = (_recording([s[name] for s in steps], sample, own.get(name)) for name in heard)
    return (*pictures, *recorded)


def _recording(parts: Sequence[Explanation], sample: int, given: Tensor | None) -> Recording:
    stream = only(parts[0], "card()")
    time, second = stream.clock or (0, 1.0)
    every = np.stack([over_time(part, sample).numpy() for part in parts])
    strongest = np.abs(every).max((1, 2), keepdims=True)
    every = every / np.where(strongest > 0, strongest, 1.0)  # each step has its own scale
    length, shown, drawn, banded = stream.extent[time] * second, 1.0, None, False
    if given is not None:
        plane = given[sample].detach().float().cpu().movedim(time_axis(given, stream) - 1, -1)
        plane = plane.flatten(0, -2) if plane.dim() > 1 else plane[None]
        banded = len(plane) > 2
        moving = (plane != plane[:, -1:]).any(0).nonzero()
        end = (int(moving[-1]) + 1) / plane.shape[1] if len(moving) else 1.0
        shown = end if end < SILENT and stream.clock else 1.0
        drawn = heard(plane[:, : max(1, round(shown * plane.shape[1]))])
    shares = every[..., : max(1, round(shown * every.shape[-1]))]
    hidden = 1 - shares.clip(0).sum() / (every.clip(0).sum() or 1.0)
    kind, unit = (Sound, "s") if stream.clock else (Recording, "steps")
    return kind(stream.name, shares, drawn, shown * length, length, unit, float(hidden), banded)


def over_time(explanation: Explanation, sample: int) -> Tensor:
    """A recording's scores (rows, columns), float64: one row, or of a spectrogram its bands, the
    lowest below."""
    stream = only(explanation, "card()")
    if stream.grid is not None:
        return turned(explanation.heatmap(stream.grid)[sample], stream).detach().double().cpu()
    scores = stream.scores[sample].detach().double().cpu()[stream.source.cpu() >= 0]
    return F.adaptive_avg_pool1d(scores[None], min(len(scores), COLUMNS))


def time_axis(given: Tensor, stream: TokenScores) -> int:
    """Which axis of an input (batch, ...) is time: the first one of the recording's length."""
    length = stream.extent[stream.clock[0] if stream.clock else 0]
    return min(k for k in range(1, given.dim()) if given.shape[k] == length)


def heard(plane: Tensor) -> np.ndarray:
    """A recording (channels, time) as a picture, bytes (H, W, 3): a waveform between its least and
    its most, of two channels their mean; of more a row each, dark where it is loud, the first one
    below."""
    if len(plane) > 2:
        low, high = plane.aminmax()
        shares = (high - plane.flip(0)) / (high - low).clamp(min=1e-12)
        pooled = F.adaptive_avg_pool2d(shares[None], (HIGH, min(WIDE, plane.shape[1])))[0]
    else:
        plane = plane.mean(0, keepdim=True)
        size = plane.abs().max().clamp(min=1e-12)
        columns = min(WIDE, plane.shape[1])
        most, least = (F.adaptive_max_pool1d(s * plane / size, columns)[0] for s in (1, -1))
        rows = torch.linspace(1, -1, HIGH)[:, None]
        line = 1 / HIGH  # as thin as a row
        pooled = ((rows > most + line) | (rows < -least - line)).float() * 0.6 + 0.4
    grey: np.ndarray = (255 * pooled).round().byte().numpy()
    return grey[..., None].repeat(3, -1)


def silenced(given: Tensor, axis: int, gone: Tensor) -> Tensor:
    """A sample's recording (1, ...) with its mean over time in the stretches of time that are
    ``gone`` (runs, stretches), bool; (runs, ...). Raises ``RelpropError`` for whole numbers."""
    if not given.is_floating_point():
        raise RelpropError("what stands at a time has no mean")
    steps = F.interpolate(gone[:, None].double(), given.shape[axis])[:, 0].bool().to(given.device)
    shape = [len(gone), *(1 for _ in given.shape[1:])]
    shape[axis] = given.shape[axis]
    return torch.where(steps.view(shape), given.mean(axis, keepdim=True), given)
