"""What an explanation holds of one input: its tokens' scores, their names, and where in the input
each token comes from; and what it may keep of each attention site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from relprop.adapters import Original
from relprop.adapters.texts import Text

#: What a block holds of its attention site.
MAPS = ("attention", "gradient", "relevance")
#: In a whole answer's ``facts``: what share of each sample's |score| is on the answer's words.
ON_THE_ANSWER = "on_the_answer"


class Prediction(NamedTuple):
    """What the model itself says of a sample: the class, or a text's next token, with the largest
    output; what it is called, and its probability, where these are known."""

    target: int
    label: str | None
    output: float
    probability: float | None


@dataclass(frozen=True)
class Block:
    """One attention site: its module path, and attention A, gradient ∇A and relevance R, each
    (batch, heads, queries, keys)."""

    path: str
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenNames:
    """What the tokens of one input are, for every sample of a batch.

    ``content`` (batch, tokens), bool: which tokens are patches or words, and not class tokens,
    separators or padding. ``padding`` (batch, tokens), bool: which are padding; ``None`` where none
    is known to be. ``tokens``: a label for each token, for text. ``words``: for each sample
    its words, each with the tokens it is made of. ``texts``: each sample's text, the characters of
    each token in it, and where the turns of a chat stand.
    """

    content: Tensor
    padding: Tensor | None = None
    tokens: list[list[str]] | None = None
    words: list[list[tuple[str, list[int]]]] | None = None
    texts: list[Text] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenPlaces:
    """Where in one input its tokens come from; the same for every sample of a batch.

    ``source`` (tokens,): each token's place, −1 for none: its position in a sequence, its patch of
    ``grid`` counted row by row. ``grid`` (h, w) patches and ``image`` (H, W) pixels, for images;
    (t, h, w) and (T, H, W) for videos, (time, mel) for spectrograms.

    ``spans`` (tokens, axes, 2): along each of the input's axes of positions, the first one and the
    one after the last that a token was made from before any attention (0 and 0 for the model's
    own); beyond the input where the model pads it. ``extent``: how long those axes are. ``clock``:
    which of them is time, and the seconds a step of it takes. ``originals``: the picture each
    sample was made from. Of several pictures in a sample ``grid`` is (pictures, h, w), the smaller
    ones filled up below and to the right, ``image`` (pictures, H, W); ``pictures``: the original of
    each, for every sample.
    """

    source: Tensor
    grid: tuple[int, ...] | None = None
    image: tuple[int, ...] | None = None
    spans: Tensor | None = None
    extent: tuple[int, ...] = ()
    clock: tuple[int, float] | None = None
    originals: tuple[Original, ...] | None = None
    pictures: tuple[tuple[Original, ...], ...] | None = None


@dataclass(frozen=True, eq=False)
class TokenScores(TokenPlaces, TokenNames):
    """The scores of one input's tokens, for every sample of a batch.

    ``scores`` (batch, tokens): one per input token in input order, prefix and special tokens
    included. A score is what attention carried to the token: ``row`` − ``identity``. ``row`` is the
    row of the matrix C (Eq. 14) that the model's head reads, ``identity`` the part of it that skip
    connections alone leave. ``matrix`` (C itself, (batch, s, s)), ``input`` (the relevance at the
    embedding or the pixels) and ``layers`` (the scores' parts by layer, (batch, layers, tokens))
    are there if ``keep=`` named them.
    """

    name: str
    scores: Tensor
    row: Tensor
    identity: Tensor
    matrix: Tensor | None = None
    input: Tensor | None = None
    layers: Tensor | None = None

    def __repr__(self) -> str:
        if self.grid:
            return f"{self.name!r}: {'×'.join(map(str, self.grid))} patches"
        return f"{self.name!r}: {self.scores.shape[1]} tokens"
