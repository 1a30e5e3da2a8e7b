"""How much memory an answer takes beside the loaded model, worked out from the graph before
anything runs; and where the graph is cut so that it takes less."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from torch import fx

from relprop.errors import OptionError
from relprop.runner.conditions import Memory
from relprop.runner.needs import Needs
from relprop.tracer.chunked import CHUNK_BYTES
from relprop.tracer.editing import val
from relprop.tracer.facts import is_batched, is_floating
from relprop.tracer.program import Program
from relprop.tracer.queries import map_bytes
from relprop.tracer.segments import Lives
from relprop.tracer.weights import fetched

#: Needs in which no attention map of more than so many bytes is whole (``None``: of a chunk).
Make = Callable[[int | None], Needs]
#: Of the memory that is free, the part that an answer may take where nobody says how much.
SHARE = 0.5
#: What takes no more bytes is not asked whether it fits: to know what is free takes the system
#: as long as a small model.
LITTLE = 2**24
#: How often a chunk of attention maps is there at once: all that rules and gradients make of it.
MAPS = 8
#: How often the values of a segment are there at once: as they are, as gradients, in rules.
TIMES = 2
#: From how many targets relevance is walked side by side, at the most: what they share, which is
#: half of one walk, is then an eighth of that for each.
ABREAST = 8
#: How many bytes of chunks are kept from one target to the next, at the most.
KEPT = 2**29
#: How often the largest value is there at once for each of them: relevance on its way, in rules.
ON_THE_WAY = 4
#: Where a container says how much memory it may have, and how much it has.
CONTAINER = Path("/sys/fs/cgroup")


def checked_memory(memory: Memory) -> Memory:
    """``memory=`` as it may be given. Raises ``OptionError`` for anything else."""
    if memory is None or memory == "auto":
        return memory
    if isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
        return memory
    raise OptionError(f"memory={memory!r}: 'auto', a number of bytes, or None (no limit)")


def free_memory(device: torch.device) -> int:
    """How many bytes a device has left for this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = min([int(psutil.virtual_memory().available), *_left_by_limits()])
    try:
        limit, used = (int((CONTAINER / f"memory.{n}").read_text()) for n in ("max", "current"))
        counts = dict(line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(counts["inactive_file"]))  # files are let go
    except (OSError, ValueError, KeyError):  # no container, or one without a limit
        return free


def _left_by_limits() -> Iterator[int]:
    """What the limits of this process (``ulimit -v`` and ``-d``) leave it of addresses and data,
    where the system has such limits."""
    this = psutil.Process()
    if not hasattr(this, "rlimit"):
        return
    taken = this.memory_info()
    for kind, used in ((psutil.RLIMIT_AS, taken.vms), (psutil.RLIMIT_DATA, taken.data)):
        limit = this.rlimit(kind)[0]
        if limit != psutil.RLIM_INFINITY:
            yield max(0, int(limit - used))


def fitted(make: Make, batch: int, memory: Memory, device: torch.device) -> Needs:
    """What a question needs, with the graph cut into segments if it takes more than ``memory`` in
    one piece.

    Raises:
        OptionError: if attention maps that must be whole take more than that by themselves.
    """
    needs = make(None)
    if memory is None:
        return _side_by_side(needs, ABREAST, KEPT)
    if not isinstance(memory, str):
        budget = memory
    elif _at_most(needs, batch) <= LITTLE:
        budget = LITTLE
    else:
        budget = int(SHARE * free_memory(device))
    for bound in (_at_most, taken):
        if (bytes_ := bound(needs, batch)) <= budget:
            left = (budget - bytes_) // 2
            return _side_by_side(needs, _abreast(needs, batch, left), min(left, KEPT))
    _refuse_maps(needs, batch, int(budget / SHARE) if isinstance(memory, str) else budget)
    small = make(0)
    if why := _why_in_one_piece(small):
        return replace(needs, facts={**needs.facts, "not_cut": why})
    return in_segments(small, batch, budget)


def _side_by_side(needs: Needs, abreast: int, spare: int) -> Needs:
    return replace(needs, backward=replace(needs.backward, abreast=abreast, spare=spare))


def _abreast(needs: Needs, batch: int, left: int) -> int:
    """From how many places relevance can be walked side by side if so many bytes are left. What is
    run sample by sample may be what ``vmap`` cannot run."""
    if needs.backward.plan is None or needs.program.input_specialised:
        return 1
    sizes = _sizes(needs.program)
    found = sum(sizes[n] for n in needs.backward.plan.wanted)
    one = batch * (found + ON_THE_WAY * max(sizes.values()))
    return max(1, min(ABREAST, 1 + left // max(1, one)))


def _sizes(program: Program) -> dict[fx.Node, int]:
    """How many bytes each value of one sample takes, worked out once."""

    def made() -> dict[fx.Node, int]:
        lives = Lives(program, lambda node: node.all_input_nodes)
        return {n: lives.bytes_of(n) for n in program.graph.nodes}

    return program.memo.cache(("sizes",), made)


def in_segments(needs: Needs, batch: int, budget: int) -> Needs:
    """The same in segments that take no more than ``budget``, or as little as can be."""
    lives = _lives(needs, batch)
    held = sum(map(lives.bytes_of, needs.held | needs.backward.outputs))
    boundaries = lives.within(budget - _of_chunks(needs, batch) - held, _times(needs.program))
    if len(boundaries) < 3:
        return needs
    backward = replace(needs.backward, segments=lives.segments(boundaries))
    found = replace(needs, backward=backward)
    facts = {"segments": len(backward.segments), "memory": taken(found, batch)}
    return replace(found, facts={**needs.facts, **facts})


def taken(needs: Needs, batch: int, longer: int = 1) -> int:
    """About how many bytes an answer takes beside the model and the inputs, at the most at one
    time; if there were ``longer`` times as many tokens."""
    lives = _lives(needs, batch, longer)
    chunk = _of_chunks(needs, batch, longer)
    kept = sum(map(lives.bytes_of, needs.keep | needs.backward.outputs))
    if needs.backward.segments:
        own = dict(zip(lives.order, lives.sizes, strict=True))
        largest = max(sum(own[n] for n in s.nodes) for s in needs.backward.segments)
        return kept + _times(needs.program) * largest + chunk
    maps = _beside_map(needs) * sum(map(map_bytes, needs.whole))
    every = sum(lives.sizes) if needs.differentiates else 0
    return max(kept, every) + batch * longer**2 * maps + chunk


def estimated(make: Make, batch: int, lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """About how many bytes an answer takes, in one piece and in segments, if there were so many
    times as many tokens."""
    small = make(0)
    parts = None if _why_in_one_piece(small) else in_segments(small, batch, 0)
    for longer in lengths:
        needs = make(CHUNK_BYTES // longer**2)
        whole = taken(needs, batch, longer)
        yield longer, whole, min(whole, taken(parts or needs, batch, longer))


def _lives(needs: Needs, batch: int, longer: int = 1) -> Lives:
    """How many bytes each value takes, and when it is there: worked out once for each way in which
    a plan passes the graph."""
    way, weights = needs.backward, fetched(needs.program, needs.session.model)
    holder = way.plan or way.rollup or needs.program
    ends = frozenset(way.heads.readings), frozenset(way.heads.indices)
    read = frozenset(way.read), frozenset(way.in_chunks)
    key = "lives", id(way.rollup), read, ends, batch, longer

    def made() -> Lives:
        return Lives(needs.program, way.read_at, longer, batch, weights)

    return holder.memo.cache((*key, frozenset(weights.items())), made)


def _at_most(needs: Needs, batch: int) -> int:
    """What no answer takes more than: every value of the graph, twice, all weights that are not in
    memory, and as many maps as there are of a chunk."""
    program = needs.program

    def of_one() -> int:
        maps = max((map_bytes(s) for s in program.sites), default=0)
        return _times(program) * sum(_sizes(program).values()) + MAPS * maps

    weights = sum(fetched(program, needs.session.model).values())
    return batch * program.memo.cache(("bytes",), of_one) + TIMES * weights


def _times(program: Program) -> int:
    """How often the values of a segment are there at once: to those of half precision rules and
    relevance are twice as wide."""

    def made() -> bool:
        floating = (val(n).dtype for n in program.graph.nodes if is_batched(n) and is_floating(n))
        return program.dtype is None and any(d.itemsize < torch.float32.itemsize for d in floating)

    return 2 * TIMES if program.memo.cache(("half",), made) else TIMES


def _of_chunks(needs: Needs, batch: int, longer: int = 1) -> int:
    """What one chunk takes of the largest map that is never whole."""
    largest = max((map_bytes(a.site) for a in needs.backward.in_chunks.values()), default=0)
    return MAPS * min(CHUNK_BYTES, batch * longer**2 * largest)


def _beside_map(needs: Needs) -> int:
    """How many tensors as large as a whole map are held beside it: gradient, relevance."""
    return len(needs.question.needs & {"gradient", "relevance"})


def _refuse_maps(needs: Needs, batch: int, budget: int) -> None:
    """Refuse what cannot fit, however the graph is cut."""
    whole = needs.whole
    large = sum(b for b in map(map_bytes, whole) if b > CHUNK_BYTES)
    size = batch * (1 + _beside_map(needs)) * large
    if size <= budget:
        return
    reasons = needs.facts["whole_maps"]
    assert isinstance(reasons, list)
    raise OptionError(
        f"method {needs.question.method!r} keeps {len(whole)} attention maps whole, "
        f"{size / 1e9:.3g} GB for {batch} samples; memory= allows {budget / 1e9:.3g} GB",
        at=reasons[0],
        then=[
            "a smaller batch_size=, a shorter input, or a method whose maps are made a few "
            "queries at a time (docs/scale.md)",
            "memory=None tries it all the same",
        ],
    )


def _why_in_one_piece(needs: Needs) -> str:
    """Why a graph cannot be cut for a question, or ""."""
    if needs.question.hooks:
        return "there are hooks"
    if whole := needs.facts["whole_maps"]:
        assert isinstance(whole, list)
        return f"an attention map is whole ({whole[0]})"
    return ""
