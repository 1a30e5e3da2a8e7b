"""The result of a call, and everything a person does with it next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from relprop.error_boundary import guarded
from relprop.errors import OptionError, counted
from relprop.explanation.one_input import OneInput
from relprop.explanation.tokens import Block, Prediction, TokenScores
from relprop.interpreter.ledger import Ledger

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from relprop.explanation.sinks import Sinks


#: Scores that sum to so many times what relevance started with say little.
EXPLODED = 1e4


@guarded
@dataclass(frozen=True, eq=False)
class Explanation(OneInput):
    """The result of ``explain``: what the model looked at, a score per token of every sample.

    ``streams``: the scores of each explained input, by the model's own name of it. With one input
    its fields (``scores``, ``row``, ``identity``, ``content``, ``source``, ``tokens``, ``grid``,
    ``image``, ``matrix``, ``input``, ``spans``: see ``TokenScores``) are this object's, too; with
    several, ``explanation["input_ids"]`` is the explanation restricted to one, and plain ``scores``
    raises an ``OptionError`` that names them. ``target`` names what was explained in each sample,
    ``output`` (batch,) its value y_t. ``ledger`` has the relevance's books (``None`` where no
    relevance was walked, or no books were kept). ``blocks`` are there if ``keep=`` named them.
    ``started`` (batch,): the sum of the absolute terms of y_t with which relevance started, where
    it did. ``facts`` says how it was made: front end, generic ops, options. ``labels`` and
    ``probability`` (batch,): what each explained class is called and how likely the model finds it,
    where the model's config says so.
    ``predictions``: what the model itself says of each sample, of targets that are one class, or
    one next token, each; ``None`` of others, and of models whose labels are true side by side.

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
    predictions: tuple[Prediction, ...] | None = None
    started: Tensor | None = None

    def __len__(self) -> int:
        return len(self.target)

    @property
    def exploded(self) -> list[str]:
        """For each sample what is to be said of scores that sum, in size, to more than 10⁴ times
        what relevance started with; empty of others."""
        if self.started is None:
            return [""] * len(self)
        sizes = [s.scores.detach().double().abs().sum(1) for s in self.streams.values()]
        totals = torch.stack(sizes).sum(0).tolist()
        return [
            f"the scores' sizes sum to {total:.2g}, where relevance started with {begun:.2g}: by "
            f"rules {self.rules!r} it explodes in this model, and the map says little"
            if total > EXPLODED * begun
            else ""
            for total, begun in zip(totals, self.started.tolist(), strict=True)
        ]

    def __iter__(self) -> Iterator[Explanation]:
        """The samples, each as an explanation of its own."""
        return (self[i] for i in range(len(self)))

    def __getitem__(self, name: str | int | slice) -> Explanation:
        """The explanation of one input, by its name; or of one sample, by its number, or some.
        Raises ``OptionError`` naming the inputs there are, or how many samples."""
        if isinstance(name, (int, slice)):
            from relprop.explanation.joining import part

            return part(self, name)
        if name not in self.streams:
            known = ", ".join(map(repr, self.streams))
            then: list[str] = []
            fact = f"explanation[{name!r}]: the explained inputs are {known}"
            if name in self.facts.get("inputs_without_attention", ()):
                fact += "; this one feeds the target past all attention"
                then = ["method='lrp' and the others at the input explain it, too"]
            raise OptionError(fact, then=then)
        return replace(self, streams={name: self.streams[name]})

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

    def picture(self, number: int) -> Explanation:
        """The explanation of one of several pictures that each sample holds, counted from 0: its
        tokens alone, with heat maps, lists and plots as of any picture; of a video, of one time.

        Raises ``OptionError`` for one that is not there."""
        from relprop.explanation.one_picture import one_picture

        stream = self._only("picture()")
        return replace(self, streams={stream.name: one_picture(stream, number)})

    def words(self, sample: int = 0, *, share: bool = False) -> list[tuple[str, float]]:
        """The words of one sample, in order, each with the sum of its tokens' scores; special
        tokens and padding are no words. ``share``: of all words' |score| in place of the score.

        Raises ``OptionError`` where they are not known: they come with ``inputs=tokenizer(...)`` of
        a fast tokenizer, and with ``processor=tokenizer``."""
        from relprop.views.listed import words

        return words(self._only("words()"), sample, share=share)

    def segments(self, by: str | Sequence[Any]) -> Explanation:
        """The same explanation whose words are segments of its texts: ``top``, ``words``, ``plot``,
        ``show``, ``to_json`` and reports then speak of these. A segment scores the sum of its
        tokens; special tokens and padding belong to none.

        ``by``: ``"sentences"``, ``"lines"``, ``"paragraphs"`` (which empty lines part), ``"turns"``
        of a chat as the tokenizer's template writes it, or pairs (first character, one after the
        last) of the text, for all samples or a list for each. Raises ``OptionError`` where the text
        is not known: it comes with ``processor=``.

        >>> import relprop
        >>> from relprop.demo.review_model import review_model, review_tokenizer
        >>> text = "The plot was thrilling. The film was boring."
        >>> e = relprop.explain(review_model(), text, "negative", processor=review_tokenizer())
        >>> e.segments("sentences").top(1)[0][0]
        'The film was boring.'
        """
        from relprop.explanation.segments import segmented

        return segmented(self, by)

    def top(
        self, k: int = 5, sample: int = 0, *, by: str | None = None, share: bool = False
    ) -> list[tuple[Any, float]]:
        """The ``k`` parts of one sample with the largest scores, largest first: words (else
        tokens), or patches, each by its (row, column).

        ``by``: ``"words"``, ``"tokens"`` or ``"patches"``. ``share``: of the |score| of all such
        parts in place of the score. Special tokens and padding are none.
        Raises ``OptionError`` where there are no such parts."""
        from relprop.views.listed import top

        return top(self, k, sample, by=by, share=share)

    def sinks(self) -> Sinks:
        """The shares of the scores, of each site's attention and relevance (``keep="blocks"``), and
        of what parameters absorbed, on the first token, on special ones, on content: docs/sinks.md.
        """
        from relprop.explanation.sinks import sinks_of

        return sinks_of(self)

    def summary(self, sample: int = 0, *, k: int = 5) -> str:
        """One sentence for people: what was explained, and the ``k`` parts it rests on most; then a
        line for each of ``concerns``."""
        from relprop.views.audit import summary

        return summary(self, sample, k=k)

    def concerns(self, sample: int = 0) -> list[str]:
        """Why not to rest on this map: all zero, or many times what relevance started with, much of
        it lost, few or special tokens hold most of it. The limits are in ``views.audit``."""
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
        from relprop.views.terminal import print_text

        print_text(self.terminal(sample))

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

    def plot(self, image: Any = None, *, sample: int = 0) -> Figure:
        """A matplotlib figure of one sample: the heat map over ``image`` (a PIL picture, an array
        or a tensor, as ``relprop.plot.heatmap`` takes it; ``None``: the picture that was kept;
        ``False``: none), a text's words shaded, or scores along a recording."""
        from relprop.views.plot import plot_explanation

        return plot_explanation(self, image, sample=sample)

    def to_html(
        self,
        path: str | Path,
        *,
        model: nn.Module | None = None,
        pictures: Any = None,
        title: str | None = None,
        names: Sequence[str] | None = None,
        code: str | None = None,
        megabytes: float = 5.0,
        progress: bool | None = None,
    ) -> Path:
        """Write one HTML file to look into this explanation with, without any network: see
        ``relprop.report``. Needs ``relprop[report]``."""
        from relprop.reporting import report

        return report(
            self,
            path,
            model=model,
            pictures=pictures,
            title=title,
            names=names,
            code=code,
            megabytes=megabytes,
            progress=progress,
        )

    def _named_target(self) -> str:
        """The first sample's target, with its label."""
        label = None if self.labels is None else self.labels[0]
        named = repr(self.target[0]) + ("" if label is None else f" {label!r}")
        named = label if label is not None and isinstance(self.target[0], tuple) else named
        return named + (", ..." if len(self.target) > 1 else "")

    def __repr__(self) -> str:
        several = f"{counted(len(self), 'sample')}, {'; '.join(map(repr, self.streams.values()))}"
        return (
            f"Explanation({several}, target {self._named_target()}, method "
            f"{self.method!r}, rules {self.rules!r})"
        )
