"""What the model says when some attention heads no longer tell one query from another: the
strongest of a head view, beside as many drawn by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relprop.api.instrument import Instrument
from relprop.cards.chances import chance_named, chance_of
from relprop.cards.trials import Comparison
from relprop.errors import OptionError
from relprop.explanation import Block, Explanation
from relprop.progress import with_progress
from relprop.runner.describe import names_of
from relprop.targets.outputs import class_output

DRAWS, AT_ONCE, ENOUGH = 20, 5, 15  # of fewer than 15 heads a quarter is taken away at once


def ablated(
    probe: Instrument, explanation: Explanation, shares: Sequence[Tensor], processor: Any = None
) -> Comparison:
    """Take heads away in a run under observation, for the target that was explained. ``shares``:
    for each block (heads,); ``processor``: what read the input, if
    anything did. Raises ``OptionError`` where a head's attention map cannot be set."""
    names = _set_evenly(probe, explanation.blocks or ())
    flat, sizes = torch.cat(list(shares)), [len(s) for s in shares]
    count = AT_ONCE if len(flat) >= ENOUGH else max(1, len(flat) // 4)
    if len(flat) < 2:
        raise OptionError("the model has 1 attention head, and no other to compare it with")
    order, draw = flat.argsort(descending=True, stable=True), torch.Generator().manual_seed(0)
    others = order[count:]
    some = [others[torch.randperm(len(others), generator=draw)[:count]] for _ in range(DRAWS)]
    what, answer = _answer(probe, explanation, processor)

    def without(heads: Tensor) -> float:
        chosen = torch.zeros(len(flat), dtype=torch.bool).index_fill(0, heads, True)
        masks = dict(zip(names, chosen.split(sizes), strict=True))
        tensors = list(probe.inputs.tensors)
        for i, name in enumerate(probe.inputs.names):
            if name in masks:  # of the maps, (1, *heads, queries, keys)
                own = masks[name].view(1, *tensors[i].shape[1:-2], 1, 1).to(tensors[i].device)
                tensors[i] = own.expand(tensors[i].shape)
        probe.inputs = replace(probe.inputs, tensors=tuple(tensors))
        probe._forget()
        return answer()

    every = [order[:0], order[:count], *some]
    said = [without(heads) for heads in with_progress(every, "taking heads away", len(every))]
    return compared(count, said, what)


def compared(count: int, found: Sequence[float], what: str) -> Comparison:
    """What taking the ``count`` strongest heads away does, beside as many of the others. ``found``:
    what the model says with all heads, without the strongest, and without each draw."""
    one = count == 1
    some = "one head" if one else f"{count} heads"
    verdicts = (
        f"That is more than {some} drawn by chance.",
        f"That is no more than {some} drawn by chance.",
        f"That is less than {some} drawn by chance: others matter more here.",
    )
    done = f"Taking the {'strongest head' if one else f'{count} strongest heads'} away"
    beside = f"{some} drawn by chance among the others"
    return Comparison(found[0], found[1], tuple(found[2:]), what, done, beside, verdicts)


def _set_evenly(probe: Instrument, blocks: Sequence[Block]) -> list[str]:
    """Let every block's map be even wherever an input says so that this adds; the names of these
    inputs. Nothing is guessed: a block is the site of its path whose map has its numbers."""
    program, left = probe.session.program, list(probe.session.program.sites)
    labels = {node: name for name, node in program.labels.items() if ":" in name}
    names = dict[str, bool]()
    for block in blocks:
        site = next((s for s in left if s.path == block.path), None)
        name = labels.get(site.attention, "") if site else ""
        found = probe.value(name)[name] if name else None
        if not site or found is None or not _same(found.mT if site.transposed else found, block):
            raise OptionError(f"the attention map of {block.path!r} cannot be set")
        left.remove(site)
        names[name] = site.transposed
    for name, transposed in names.items():
        probe.set(name, (lambda maps: _even(maps.mT).mT) if transposed else _even, samples=0)
    return [f"where {name} is set" for name in names]


def _same(found: Tensor, block: Block) -> bool:
    return found.shape == block.attention.shape and torch.allclose(
        found.to(block.attention), block.attention, rtol=1e-3, atol=1e-5
    )


def _even(maps: Tensor) -> Tensor:
    """Every query gets the mean over the queries, (..., queries, keys), of the keys that it may
    attend to."""
    mixture = maps.mean(-2, keepdim=True) * (maps > 0).to(maps.dtype)
    return mixture / mixture.sum(-1, keepdim=True).clamp(min=1e-30)


def _answer(
    probe: Instrument, explanation: Explanation, processor: Any
) -> tuple[str, Callable[[], float]]:
    """What the numbers are, and the one of the run as it is now: a probability where that can be
    known, else y_t."""
    known, chance = explanation.probability, chance_of(explanation)
    if known is None and chance is None:
        what = "explained value (of which no probability is known)"
        return what, lambda: float(probe.output()[0])

    def probability() -> float:
        program, outputs = probe.session.program, probe._forward()[0].outputs(probe.session.program)
        if known is None and chance is not None:
            logits: Any = outputs[class_output(program).node]
            return float(chance(logits.detach().reshape(1, -1))[0])
        found: Any = names_of(probe.session, outputs, explanation.target, processor).probability
        return float(found[0])

    return chance_named(explanation), probability
