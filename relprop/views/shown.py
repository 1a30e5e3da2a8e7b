"""What of an explanation is shown of one sample: its words, its tokens or its patches, each with
its score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relprop.errors import OptionError
from relprop.views.escape import visible

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

BY = ("words", "tokens", "patches")
Name = str | int | tuple[int, ...] | None
"""What a part is called: a word or token, a position, a patch's place in its grid; ``None`` for a token of the model's own."""  # noqa: E501


@dataclass(frozen=True)
class Units:
    """One sample's parts in order. ``kind``: one of ``BY``, or ``"positions"``; ``content``: which
    are words or patches, not special tokens or padding."""

    kind: str
    names: tuple[Name, ...]
    scores: tuple[float, ...]
    content: tuple[bool, ...]

    @property
    def strongest(self) -> float:
        """The largest |score| of content, 1 if all are 0."""
        return max((abs(score) for _, score in self.inside()), default=0.0) or 1.0

    def inside(self) -> list[tuple[Name, float]]:
        """The parts that are content, each with its score."""
        parts = zip(self.names, self.scores, self.content, strict=True)
        return [(name, score) for name, score, content in parts if content]

    def in_words(self) -> Units:
        """The same with every part that is several words, as a sentence is, written word by word,
        each with the whole part's score: for lines that break."""
        parts = [
            (word, score, content)
            for name, score, content in zip(self.names, self.scores, self.content, strict=True)
            for word in ((name.split() or [name]) if isinstance(name, str) else [name])
        ]
        names, scores, contents = zip(*parts, strict=True) if parts else ((), (), ())
        return Units(self.kind, names, scores, contents)

    def relative(self) -> list[float]:
        """The scores as shares of the strongest, in [−1, 1]."""
        return [max(-1.0, min(1.0, s / self.strongest)) for s in self.scores]


def only(explanation: Explanation, what: str) -> TokenScores:
    """The one explained input. Raises ``OptionError`` that says how to choose one of several."""
    if not hasattr(explanation, "streams"):
        raise OptionError(f"{what}: {type(explanation).__name__} is no explanation")
    if len(explanation.streams) == 1:
        return next(iter(explanation.streams.values()))
    raise OptionError(
        (
            f"{what}: {len(explanation.streams)} inputs are explained: "
            f"{', '.join(map(repr, explanation.streams))}"
        ),
        then=[f"explanation[{name!r}], and the same call with it" for name in explanation.streams],
    )


def pairs_of(explanations: Any, what: str, needed: str) -> list[tuple[Any, Any]]:
    """Explanations as they are given (a mapping, a ``Comparison``, a list), each with the name it
    has in a mapping. Raises ``OptionError`` for what is none of these."""
    given = getattr(explanations, "explanations", explanations)  # a Comparison's
    if isinstance(given, Mapping):
        return list(given.items())
    if not isinstance(given, Iterable):
        raise OptionError(f"{what}: {type(given).__name__} is given; {needed} is needed")
    return [(None, explanation) for explanation in given]


def checked(explanation: Explanation, sample: int) -> int:
    """``sample``, counted from 0. Raises ``OptionError`` for one that is not there."""
    if not hasattr(explanation, "streams"):
        what = f"{type(explanation).__name__} is given: an explanation is needed"
        raise OptionError(what, then=["relprop.explain(model, inputs)"])
    if (
        not isinstance(sample, int)
        or isinstance(sample, bool)
        or not -len(explanation) <= sample < len(explanation)
    ):
        raise OptionError(f"sample={sample!r}: the explanation has {len(explanation)} samples")
    return sample % len(explanation)


def units(
    explanation: Explanation, sample: int, by: str | None = None, *, what: str = "this"
) -> Units:
    """The parts of one sample: ``by`` words, tokens or patches; ``None``: patches of an image,
    words where they are known, else tokens or positions.

    Raises ``OptionError`` where the explanation has no such parts.
    """
    sample, stream = checked(explanation, sample), only(explanation, what)
    if by not in (None, *BY):
        raise OptionError(f"by={by!r}: one of {', '.join(map(repr, BY))}")
    by = by or _usual(stream)
    if by == "words":
        found = explanation.words(sample)
        names, sums = tuple(name for name, _ in found), tuple(score for _, score in found)
        return Units("words", names, sums, (True,) * len(found))
    if by == "patches":
        kind, parts = _patches(stream, what)
    else:
        kind, parts = _tokens(stream, sample, what)
    scores, content = stream.scores[sample].tolist(), stream.content[sample].tolist()
    return Units(kind, parts, tuple(scores), tuple(content))


def _usual(stream: TokenScores) -> str:
    """The parts that a person would look at first."""
    if stream.grid is not None:
        return "patches"
    return "tokens" if stream.words is None else "words"


def _patches(stream: TokenScores, what: str) -> tuple[str, tuple[Name, ...]]:
    if stream.grid is None:
        raise OptionError(
            f"{what}: by='patches' is for images; this explanation has "
            f"{'words and ' if stream.words is not None else ''}tokens"
        )
    grid = stream.grid
    return "patches", tuple(place_of(i, grid) for i in stream.source.tolist())


def _tokens(stream: TokenScores, sample: int, what: str) -> tuple[str, tuple[Name, ...]]:
    """Tokens by their labels, or, where there are none, by their positions."""
    if stream.grid is not None:
        raise OptionError(
            f"{what}: this explanation is of an image; by='patches', or "
            "relprop.plot.heatmap(explanation)"
        )
    if stream.tokens is not None:
        return "tokens", tuple(stream.tokens[sample])
    return "positions", tuple(stream.source.tolist())


def place_of(source: int, grid: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where in the grid a patch is, counted from 0: (row, column), of a video (time, row, column);
    ``None`` for the model's own tokens."""
    if source < 0:
        return None
    place = []
    for length in reversed(grid):
        source, here = divmod(source, length)
        place.append(here)
    return tuple(reversed(place))


def named(name: Name) -> str:
    """A part as text: a word or token as it is, a patch by its row and column."""
    if isinstance(name, str):
        return name
    if isinstance(name, tuple):
        return f"patch ({', '.join(map(str, name))})"
    return "the model's own token" if name is None or name == -1 else f"position {name}"


def text_only(explanation: Explanation, what: str) -> TokenScores:
    """The one explained input, if it is text. Raises ``OptionError`` otherwise."""
    stream = only(explanation, what)
    if stream.grid is not None:
        raise OptionError(
            f"{what} is for texts: this explanation is of an image",
            then=["relprop.plot.heatmap(explanation, image)"],
        )
    if stream.tokens is None and stream.words is None:
        raise OptionError(
            f"{what} is for texts: this explanation's tokens have no labels",
            then=["relprop.explain(model, inputs, processor=tokenizer)", "explanation.plot()"],
        )
    return stream


def target_of(explanation: Explanation, sample: int) -> str:
    """What was explained in a sample, fit to be shown: the class's label where the model knows it,
    else the index or the target's own name."""
    label = None if explanation.labels is None else explanation.labels[sample]
    return visible(str(explanation.target[sample]) if label is None else label, 60)
