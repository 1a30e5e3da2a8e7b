"""Explanation: the result. One score per input token, and everything a person does with them next:
look, save, compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relprop.adapters import Original
from relprop.errors import OptionError, RelpropError, message
from relprop.interpreter.ledger import Ledger

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Block:
    """One attention site: its module path, and attention A, gradient ∇A and relevance R, each
    (batch, heads, queries, keys)."""

    path: str
    attention: Tensor
    gradient: Tensor | None
    relevance: Tensor | None


@dataclass(frozen=True, eq=False)
class TokenScores:
    """The scores of one input's tokens, for every sample of a batch.

    ``scores`` (batch, tokens): one per input token in input order, prefix and special tokens
    included: what attention carried, ``row`` − ``identity``. ``row`` is the row of C (Eq. 14) that
    the head reads, ``identity`` what skip connections alone leave. ``content`` (batch, tokens),
    bool: which are patches or words, not class tokens, separators or padding. ``source`` (tokens,):
    each token's place (−1: none): its position in a sequence, its patch of ``grid`` counted row by
    row. ``tokens``: labels, for text; ``grid`` (h, w) patches and ``image`` (H, W) pixels, for
    images; (t, h, w) and (T, H, W) for videos, (time, mel) for spectrograms. ``matrix`` (C, (batch,
    s, s)) and ``input`` (relevance at the embedding or pixels) are there if ``keep=`` named them.

    ``spans`` (tokens, axes, 2): along each of the input's axes of positions, the first one and the
    one after the last that a token was made from before any attention (0 and 0 for the model's
    own); beyond the input where the model pads it. ``extent``: how long those axes are. ``clock``:
    which of them is time, and the seconds a step of it takes. ``words``: for each sample its words,
    each with the tokens it is made of. ``originals``: the picture each sample was made from.
    ``layers``: the scores' parts by layer, (batch, layers, tokens), if ``keep=`` named them.
    """

    name: str
    scores: Tensor
    row: Tensor
    identity: Tensor
    content: Tensor
    source: Tensor
    tokens: list[list[str]] | None = None
    grid: tuple[int, ...] | None = None
    image: tuple[int, ...] | None = None
    matrix: Tensor | None = None
    input: Tensor | None = None
    spans: Tensor | None = None
    extent: tuple[int, ...] = ()
    words: list[list[tuple[str, list[int]]]] | None = None
    clock: tuple[int, float] | None = None
    originals: tuple[Original, ...] | None = None
    layers: Tensor | None = None

    def __repr__(self) -> str:
        return (
            f"{self.name!r}: "
            f"{'×'.join(map(str, self.grid)) + ' patches' if self.grid else f'{self.scores.shape[1]} tokens'}"  # noqa: E501
        )


@dataclass(frozen=True, eq=False)
class Explanation:
    """What the model looked at, for every sample of a batch.

    ``streams``: the scores of each explained input, by the model's own name of it. With one input
    its fields (``scores``, ``row``, ``identity``, ``content``, ``source``, ``tokens``, ``grid``,
    ``image``, ``matrix``, ``input``, ``spans``: see ``TokenScores``) are this object's, too; with
    several, ``explanation["input_ids"]`` is the explanation restricted to one, and plain ``scores``
    raises an ``OptionError`` that names them. ``target`` names what was explained in each sample,
    ``output`` (batch,) its value y_t. ``ledger`` has the relevance's books (``None`` for a method
    without relevance). ``blocks`` are there if ``keep=`` named them. ``facts`` says how it was
    made: front end, generic ops, options. ``labels`` and ``probability`` (batch,): what each
    explained class is called and how likely the model finds it, where the model's config says so.

    >>> import torch, relprop
    >>> from relprop.demo.model import digit_scene_model
    >>> e = relprop.explain(digit_scene_model(), torch.rand(2, 1, 32, 32), target=3)
    >>> list(e.streams), torch.equal(e["input_0"].scores, e.scores)
    (['input_0'], True)
    """

    streams: Mapping[str, TokenScores]
    target: tuple[Any, ...]
    output: Tensor
    method: str
    rules: str
    ledger: Ledger | None = None
    blocks: tuple[Block, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str | None, ...] | None = None
    probability: Tensor | None = None

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, name: str) -> Explanation:
        """The explanation of one input. Raises ``OptionError`` naming the inputs there are."""
        if name not in self.streams:
            apart = name in self.facts.get("inputs_without_attention", ())
            raise OptionError(
                message(
                    (
                        f"explanation[{name!r}]: the explained inputs are "
                        f"{', '.join(map(repr, self.streams))}"
                    )
                    + ("; this one feeds the target past all attention" if apart else ""),
                    then=["method='lrp' and the others at the input explain it, too"]
                    if apart
                    else [],
                )
            )
        return replace(self, streams={name: self.streams[name]})

    def _only(self, what: str) -> TokenScores:
        """The one explained input, or an error that says how to choose."""
        if len(self.streams) == 1:
            return next(iter(self.streams.values()))
        raise OptionError(
            message(
                (
                    f"{len(self.streams)} inputs are explained: "
                    f"{', '.join(map(repr, self.streams))}; {what} belongs to one of them"
                ),
                then=[f"explanation[{name!r}].{what}" for name in self.streams],
            )
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

    def heatmap(self, size: tuple[int, ...] | int | None = None) -> Tensor:
        """The patches' scores as an image, (batch, H, W), bilinear between the patches' middles;
        ``size`` defaults to the input image's.

        Of a video (batch, T, H, W), of a spectrogram (batch, time, mel). Raises ``OptionError`` for
        an explanation that is not of an image."""
        from relprop.views.heat import heatmap

        return heatmap(self._only("heatmap()"), size)

    def original_heatmap(self, sample: int = 0) -> Tensor:
        """One sample's heat map in the pixels of the picture it was made from, (H, W); 0 where
        processing cut the picture off.

        Raises ``OptionError`` if the picture is not known: ``explain`` knows pictures that it was
        given with ``processor=``."""
        from relprop.views.heat import original_heatmap

        return original_heatmap(self._only("original_heatmap()"), sample)

    def words(self, sample: int = 0) -> list[tuple[str, float]]:
        """The words of one sample, in order, each with the sum of its tokens' scores; special
        tokens and padding are no words.

        Raises ``OptionError`` where they are not known: they come with ``inputs=tokenizer(...)`` of
        a fast tokenizer, and with ``processor=tokenizer``."""
        from relprop.views.listed import words

        return words(self._only("words()"), sample)

    def top(self, k: int = 5, sample: int = 0, *, by: str | None = None) -> list[tuple[Any, float]]:
        """The ``k`` parts of one sample with the largest scores, largest first: words (else
        tokens), or patches, each by its (row, column).

        ``by``: ``"words"``, ``"tokens"`` or ``"patches"``. Special tokens and padding are none.
        Raises ``OptionError`` where there are no such parts."""
        from relprop.views.listed import top

        return top(self, k, sample, by=by)

    def summary(self, sample: int = 0, *, k: int = 5) -> str:
        """One sentence for people: what was explained, and the ``k`` parts it rests on most; then a
        line for each of ``concerns``."""
        from relprop.views.audit import summary

        return summary(self, sample, k=k)

    def concerns(self, sample: int = 0) -> list[str]:
        """Why not to rest on this map: all zero, much relevance lost, few or special tokens hold
        most of it. The limits are in ``views.audit``."""
        from relprop.views.audit import concerns

        return concerns(self, sample)

    def to_dataframe(self) -> Any:
        """A pandas ``DataFrame``, a row per sample, input and token. Raises ``OptionError`` without
        pandas (``relprop[pandas]``)."""
        from relprop.views.listed import to_dataframe

        return to_dataframe(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """Scores, tokens, words, target, labels, options and concerns of every sample as JSON; no
        tensors that ``keep=`` kept: those are ``save``'s."""
        from relprop.views.listed import to_json

        return to_json(self, indent=indent)

    def terminal(
        self, sample: int = 0, *, colour: bool | None = None, width: int | None = None
    ) -> str:
        """One sample for a terminal: shaded words or a map of blocks; without ``colour`` marks that
        still tell. ``None``: colours if the terminal has them."""
        from relprop.views.terminal import terminal

        return terminal(self, sample, colour=colour, width=width)

    def show(self, sample: int = 0) -> None:
        """Print ``terminal(sample)``."""
        from relprop.views.terminal import show

        show(self, sample)

    def seconds(self, rate: float | None = None) -> Tensor:
        """(tokens, 2): from when to when in the recording each token was made, before any
        attention; neighbours overlap where convolutions do.

        ``rate``: how many steps of the input there are per second (a waveform's samples, a
        spectrogram's frames); needed unless ``explain`` was given the feature extractor as
        ``processor=``. NaN for the model's own tokens. Raises ``OptionError`` if the rate is not
        known."""
        from relprop.views.listed import seconds

        return seconds(self._only("seconds()"), rate)

    def save(self, path: str | Path) -> Path:
        """Write everything to one safetensors file with a JSON header; ``relprop.load`` reads it
        back."""
        from relprop.storage import save

        return save(self, path)

    def _repr_html_(self) -> str:
        from relprop.views.page import page

        return page(self)

    def _repr_png_(self) -> bytes | None:
        from relprop.views.page import picture

        return picture(self)

    def plot(self, image: Tensor | None = None, *, sample: int = 0) -> Figure:
        """A matplotlib figure of one sample: the heat map over ``image`` (C, H, W in [0, 1]), or
        the tokens as bars. ``relprop.plot`` has more."""
        from relprop.views.plot import plot_explanation

        return plot_explanation(self, image, sample=sample)

    def to_html(
        self,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        pictures: Tensor | None = None,
        title: str | None = None,
        code: str | None = None,
        megabytes: float = 5.0,
    ) -> Path:
        """Write one HTML file to look into this explanation with, without any network: see
        ``relprop.report``. Needs ``relprop[report]``."""
        from relprop.reporting import report

        return report(
            self, path, model=model, pictures=pictures, title=title, code=code, megabytes=megabytes
        )

    def __repr__(self) -> str:
        several = f"{len(self)} samples, {'; '.join(map(repr, self.streams.values()))}"
        return (
            f"Explanation({several}, target "
            f"{self.target[0]!r}{', ...' if len(self.target) > 1 else ''}, method "
            f"{self.method!r}, rules {self.rules!r})"
        )


def join(parts: list[Explanation]) -> Explanation:
    """One explanation of a batch that was computed in parts."""
    from relprop.interpreter.ledger import join_ledgers

    first = parts[0]
    if len(parts) == 1:
        return first
    kinds = {
        (
            *((n, s.scores.shape[1:]) for n, s in p.streams.items()),
            *(b.path for b in p.blocks or ()),
        )
        for p in parts
    }
    same = all(
        torch.equal(s.source, first.streams[n].source)
        for p in parts
        for n, s in p.streams.items()
        if n in first.streams
    )
    if len(kinds) > 1 or not same:
        raise RelpropError(
            "samples took branches of the model with different tokens or attention "
            "sites: explain them one by one"
        )
    blocks = (
        None
        if first.blocks is None
        else tuple(_join_block(same) for same in zip(*(p.blocks or () for p in parts), strict=True))
    )
    ledger = (
        None
        if first.ledger is None
        else join_ledgers([p.ledger for p in parts if p.ledger is not None])
    )
    labels = (
        None
        if any(p.labels is None for p in parts)
        else tuple(label for p in parts for label in p.labels or ())
    )
    probability = (
        None if any(p.probability is None for p in parts) else _cat([p.probability for p in parts])
    )
    streams = {name: _join_stream([p.streams[name] for p in parts]) for name in first.streams}
    return replace(
        first,
        streams=streams,
        target=tuple(t for p in parts for t in p.target),
        output=torch.cat([p.output for p in parts]),
        ledger=ledger,
        blocks=blocks,
        labels=labels,
        probability=probability,
    )


def _join_stream(same: list[TokenScores]) -> TokenScores:
    joined = {
        n: _cat([getattr(s, n) for s in same])
        for n in ("scores", "row", "identity", "content", "matrix", "input", "layers")
    }
    lists: dict[str, Any] = {
        n: None if getattr(same[0], n) is None else [t for s in same for t in getattr(s, n) or ()]
        for n in ("tokens", "words", "originals")
    }
    return replace(
        same[0], **joined, **lists | {"originals": lists["originals"] and tuple(lists["originals"])}
    )


def _join_block(same: tuple[Block, ...]) -> Block:
    return Block(
        same[0].path,
        *(_cat([getattr(b, n) for b in same]) for n in ("attention", "gradient", "relevance")),
    )


def _cat(tensors: list[Any]) -> Any:
    return None if tensors[0] is None else torch.cat(tensors)
