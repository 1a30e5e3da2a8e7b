"""What goes through each attention head: the scores taken apart by heads, and each part as people
look at it, patch by patch or word by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from relprop.cards.answer import percent
from relprop.errors import OptionError, counted, message
from relprop.explanation import Explanation
from relprop.views.escape import visible
from relprop.views.heat import patches
from relprop.views.shown import named, only, units

OFF = 1e-4  # of the largest score, which the heads' parts may miss
STRIP = 24  # words in a row of a small map
MOST = 0.8  # the share that the sentence is about


def head_vectors(explanation: Explanation) -> tuple[Tensor, ...]:
    """What of the scores of the first sample goes through each head, for each block (heads,
    tokens), float64.

    With u the row of (I + A_L)···(I + A_b+1) that the model's head reads, it is u (∇A ⊙ R)⁺ / H for
    a head of the block b, H its number of heads. u begins with what skip connections alone leave,
    the explanation's ``identity``: a class token, or the mean over tokens; a block of fewer
    queries, which pools the tokens, is read evenly. Nothing says that a model is built so: that
    the parts add up to the scores does. Raises ``OptionError`` where they do not.
    """
    if len(explanation.streams) > 1:
        names = ", ".join(map(repr, explanation.streams))
        raise _refused(f"the scores are of {len(explanation.streams)} inputs ({names})")
    stream, blocks = only(explanation, "head_view()"), explanation.blocks or ()
    read, found = stream.identity[0].detach().cpu().double(), list[Tensor]()
    for block in reversed(blocks):
        gradient, relevance = block.gradient, block.relevance
        assert gradient is not None and relevance is not None
        maps = (gradient[0].cpu().double() * relevance[0].cpu().double()).clamp(min=0)
        maps = maps.flatten(0, -3) if maps.dim() > 2 else maps[None]
        heads, queries, keys = maps.shape
        if keys != len(read):
            fact = f"{block.path!r} attends over {keys} tokens, and the scores are of {len(read)}"
            raise _refused(fact)
        at = read if queries == keys else torch.full((queries,), 1 / queries).double()
        found.insert(0, at @ maps / heads)
        read = read + found[0].sum(0)
    scores = stream.scores[0].detach().cpu().double()
    total = torch.stack([vectors.sum(0) for vectors in found]).sum(0)
    worst = int((total - scores).abs().argmax())
    if not float((total - scores).abs()[worst]) <= OFF * float(scores.abs().max()):
        place = f"at token {worst}, whose score is {scores[worst]:.6g}"
        raise _refused(f"the parts of all heads add up to {total[worst]:.6g} {place}")
    if not float(total.sum()) > 0:
        fact = "the scores are all 0, so that no head has a share of them"
        raise OptionError(message(fact, then=["explain another target", "print(explanation)"]))
    return tuple(found)


def _refused(fact: str) -> OptionError:
    why = "the layers do not follow one another on one sequence, or options change the roll-up"
    then = [
        "relprop.plot.heads(relprop.explain(..., keep='blocks'), block=-1, kind='relevance')",
        "explanation.blocks[...] of it has the attention, gradient and relevance of each head",
    ]
    return OptionError(message(f"{fact}: {why}", then=then))


@dataclass(frozen=True)
class Parts:
    """What goes through one head (or all): ``cells`` (rows, columns), ≥ 0, the patches of a picture
    or the words of a text from left to right, 0 behind the last one; ``names`` of the words;
    ``rest``: what is on other tokens (class tokens, separators)."""

    cells: np.ndarray
    names: tuple[str, ...] | None
    rest: float


def parts_of(explanation: Explanation, vectors: Sequence[Tensor]) -> list[Parts]:
    """Some vectors (tokens,) as parts of the input."""
    stream, made = only(explanation, "head_view()"), []
    for vector in vectors:
        alone = replace(stream, scores=vector[None])
        if stream.grid is not None:
            cells, names = patches(alone, 0), None
            cells = cells.reshape(-1, cells.shape[-1])
        else:
            found = units(replace(explanation, streams={stream.name: alone}), 0).inside()
            names = tuple(visible(named(name), 60) for name, _ in found)
            columns = min(STRIP, len(found)) or 1
            cells = np.zeros((-(-len(found) // columns) or 1, columns))
            cells.flat[: len(found)] = [score for _, score in found]
        made.append(Parts(cells, names, max(0.0, float(vector.sum()) - float(cells.sum()))))
    return made


def shares_of(vectors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Each head's share of the whole, for each block (heads,)."""
    total = sum(float(vector.sum()) for vector in vectors)
    return tuple(vector.sum(1) / total for vector in vectors)


def in_one_sentence(shares: tuple[Tensor, ...]) -> str:
    """How few heads carry most of the map, and which is the strongest."""
    flat = torch.cat(shares)
    few = int((flat.sort(descending=True).values.cumsum(0) < MOST - 1e-9).sum()) + 1
    layer = max(range(len(shares)), key=lambda i: float(shares[i].max()))
    head, share = int(shares[layer].argmax()), float(shares[layer].max())
    return (
        f"{few} of {counted(len(flat), 'attention head')} carr{'ies' if few == 1 else 'y'} "
        f"{percent(MOST)} of the relevance map; the strongest is head {head} of layer {layer} "
        f"({percent(share)})."
    )
