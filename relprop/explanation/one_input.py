"""The fields of an explanation's one input, as fields of the explanation itself: most models read
one input, and nobody should have to name it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import OptionError
from relprop.explanation.tokens import TokenScores


@guarded
class OneInput:
    """What ``TokenScores`` holds, of an explanation with one explained input. With several, each of
    these raises an ``OptionError`` that says how to choose one."""

    streams: Mapping[str, TokenScores]

    def _only(self, what: str) -> TokenScores:
        """The one explained input, or an error that says how to choose."""
        if len(self.streams) == 1:
            return next(iter(self.streams.values()))
        raise OptionError(
            f"{len(self.streams)} inputs are explained: "
            f"{', '.join(map(repr, self.streams))}; {what} belongs to one of them",
            then=[f"explanation[{name!r}].{what}" for name in self.streams],
        )

    @property
    def stream(self) -> str:
        """The name of the explained input."""
        return self._only("stream").name

    @property
    def scores(self) -> Tensor:
        """(batch, tokens): see ``TokenScores``."""
        return self._only("scores").scores

    @property
    def row(self) -> Tensor:
        """(batch, tokens): the row of C that the head reads."""
        return self._only("row").row

    @property
    def identity(self) -> Tensor:
        """(batch, tokens): what skip connections alone leave of ``row``."""
        return self._only("identity").identity

    @property
    def content(self) -> Tensor:
        """(batch, tokens), bool: patches and words."""
        return self._only("content").content

    @property
    def source(self) -> Tensor:
        """(tokens,): the input position each token came from; −1: none."""
        return self._only("source").source

    @property
    def tokens(self) -> list[list[str]] | None:
        """Labels of each sample's tokens, for text."""
        return self._only("tokens").tokens

    @property
    def grid(self) -> tuple[int, ...] | None:
        """(h, w) of the patches of an image; (t, h, w) of a video's."""
        return self._only("grid").grid

    @property
    def image(self) -> tuple[int, ...] | None:
        """(H, W) of an image in pixels; (T, H, W) of a video."""
        return self._only("image").image

    @property
    def matrix(self) -> Tensor | None:
        """C, (batch, s, s), if kept."""
        return self._only("matrix").matrix

    @property
    def input(self) -> Tensor | None:
        """Relevance at the embedding or pixels, if kept."""
        return self._only("input").input

    @property
    def magnitude(self) -> Tensor:
        """(batch, tokens): |scores|, how much each token weighs, whichever way."""
        return self._only("magnitude").scores.abs()

    @property
    def direction(self) -> Tensor:
        """(batch, tokens): the sign of each score, +1 for the target, −1 against it, 0 where the
        score is 0 (AttCAT, Eq. 12)."""
        return self._only("direction").scores.sign()

    @property
    def layers(self) -> Tensor | None:
        """The scores' parts by layer, (batch, layers, tokens), if kept."""
        return self._only("layers").layers

    @property
    def spans(self) -> Tensor | None:
        """(tokens, axes, 2): from which positions of the input each token was made."""
        return self._only("spans").spans
