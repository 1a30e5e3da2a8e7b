"""What of a generated token's explanation lands on tokens that were generated before it, sent on to
what these rest on themselves: from an answer through its reasoning to the prompt."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.explanation.generation import Generation


def sent_on(generation: Generation, hops: int) -> Generation:
    """The generation whose scores on generated tokens are sent on ``hops`` times. Raises
    ``OptionError``."""
    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 1:
        raise OptionError(f"hops={hops!r}: a positive number of times")
    if generation.stream not in generation.streams:
        raise OptionError(
            f"hops={hops}: what is sent on lands on the output, and {generation.stream!r} is none "
            f"of the explained inputs ({', '.join(generation.streams)})"
        )
    scores = {name: generation[name].scores.double() for name in generation.streams}
    amounts = _sent(scores, generation, hops)
    steps = []
    for k, step in enumerate(generation.steps):
        streams = {}
        for name, stream in step.streams.items():
            moved = amounts[name][:, k].to(stream.scores)
            streams[name] = replace(stream, scores=moved, row=moved + stream.identity)
        steps.append(replace(step, streams=streams, facts={**step.facts, "hops": hops}))
    return replace(generation, steps=tuple(steps))


def _sent(scores: dict[str, Tensor], generation: Generation, hops: int) -> dict[str, Tensor]:
    """By input (batch, steps, positions): each hop takes what lies on a generated token and lays it
    where that token's own explanation lies, in its shares."""
    first, name = generation.prompt, generation.stream
    count = scores[name].shape[2] - first
    whole = torch.stack([s.abs().sum(2) for s in scores.values()]).sum(0)[:, :count, None]
    shares = {n: (s[:, :count] / whole).where(whole > 0, 0.0) for n, s in scores.items()}
    # a token that rests on nothing keeps what lies on it
    keeps = (whole[..., 0] == 0).to(whole)
    for _ in range(hops):
        landed = scores[name][:, :, first:]
        kept = landed * keeps[:, None]
        scores = {n: s + (landed - kept) @ shares[n] for n, s in scores.items()}
        scores[name] = torch.cat(
            [scores[name][:, :, :first], scores[name][:, :, first:] - landed + kept], 2
        )
    return scores
