"""How much memory an answer takes beside the loaded model, worked out from the graph before
anything runs; and where the graph is cut so that it takes less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from relprop.errors import OptionError, message
from relprop.runner.needs import Needs
from relprop.tracer.chunked import CHUNK_BYTES
from relprop.tracer.queries import map_bytes
from relprop.tracer.segments import Lives

#: Of the memory that is free, the part that an answer may take where nobody says how much.
SHARE = 0.5
#: What one chunk of attention maps takes: all that rules and gradients make of it.
CHUNK = 8 * CHUNK_BYTES
#: Where a container says how much memory it may have, and how much it has.
LIMIT, USED = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))


def checked_memory(memory: object) -> int | str | None:
    """``memory=`` as it may be given. Raises ``OptionError`` for anything else."""
    number = isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0
    if number or memory is None or memory == "auto":
        return memory  # type: ignore[return-value]
    raise OptionError(
        f"memory={memory!r}: 'auto', a number of bytes, or None (as much as it takes)"
    )


def free_memory(device: torch.device) -> int:
    """How many bytes a device has left for this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        return min(free, int(LIMIT.read_text()) - int(USED.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return free


def fitted(
    make: Callable[[int | None], Needs],
    batch: int,
    memory: int | str | None,
    device: torch.device,
) -> Needs:
    """What a question needs, with the graph cut into segments if it takes more than ``memory`` in
    one piece. ``make``: needs in which no attention map of more than so many bytes is whole.

    Raises:
        OptionError: if attention maps that must be whole take more than ``memory`` by themselves.
    """
    needs = make(None)
    if memory is None:
        return _told(needs, batch)
    budget = int(SHARE * free_memory(device)) if isinstance(memory, str) else memory
    if taken(needs, batch) <= budget:
        return _told(needs, batch)
    _refuse_maps(needs, batch, budget if memory == budget else 2 * budget)
    small = make(0)
    if why := _why_in_one_piece(small):
        return _told(needs, batch, not_cut=why)
    lives = Lives(small.program, small.read_at)
    cuts = lives.within((budget - CHUNK) // batch)
    segments = lives.segments(cuts) if len(cuts.at) > 2 else ()
    return _told(replace(small, segments=tuple(segments)), batch)


def taken(needs: Needs, batch: int) -> int:
    """About how many bytes an answer takes beside the model and the inputs, at the most at one
    time."""
    lives = Lives(needs.program, needs.read_at)
    if needs.segments:
        entering = {n for s in needs.segments for n in s.entering} | needs.held
        own = dict(zip(lives.order, lives.sizes, strict=True))
        largest = max(sum(own[n] for n in s.nodes) for s in needs.segments)
        return batch * (sum(map(lives.bytes_of, entering)) + largest) + CHUNK
    kept = sum(map(lives.bytes_of, needs.keep))
    every = sum(lives.sizes) if "gradient" in needs.question.needs else 0
    return batch * (max(kept, every) + _maps(needs)) + (CHUNK if needs.in_chunks else 0)


def _maps(needs: Needs) -> int:
    """What gradients and relevances of the maps that are whole take, for one sample."""
    each = len(needs.question.needs & {"gradient", "relevance"})
    return sum(each * map_bytes(s) for s in needs.chosen if s.contraction not in needs.in_chunks)


def _refuse_maps(needs: Needs, batch: int, budget: int) -> None:
    """Refuse what cannot fit, however the graph is cut."""
    each = 1 + len(needs.question.needs & {"gradient", "relevance"})
    whole = [s for s in needs.chosen if s.contraction not in needs.in_chunks]
    size = batch * sum(each * map_bytes(s) for s in whole if map_bytes(s) > CHUNK_BYTES)
    if size <= budget:
        return
    reasons = needs.facts["whole_maps"]
    assert isinstance(reasons, list)
    raise OptionError(
        message(
            f"method {needs.question.method!r} keeps {len(whole)} attention maps whole, "
            f"{size / 1e9:.3g} GB for {batch} samples; memory= allows {budget / 1e9:.3g} GB",
            at=reasons[0],
            then=[
                "a smaller batch_size=, a shorter input, or a method whose maps are made a few "
                "queries at a time (docs/scale.md)",
                "memory=None tries it all the same",
            ],
        )
    )


def _why_in_one_piece(needs: Needs) -> str:
    """Why a graph cannot be cut for a question, or ""."""
    if needs.question.hooks:
        return "there are hooks"
    if whole := needs.facts["whole_maps"]:
        assert isinstance(whole, list)
        return f"an attention map is whole ({whole[0]})"
    return ""


def _told(needs: Needs, batch: int, **more: object) -> Needs:
    """The needs, with what is known of their memory among the facts."""
    facts: Mapping[str, object] = {
        "segments": max(1, len(needs.segments)),
        "memory": taken(needs, batch),
        **more,
    }
    return replace(needs, facts={**needs.facts, **facts})
