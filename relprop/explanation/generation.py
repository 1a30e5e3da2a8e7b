"""What ``explain_generation`` gives: an explanation for every token that a model generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import counted
from relprop.explanation.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@guarded
@dataclass(frozen=True, eq=False)
class Generation:
    """What a model looked at for each token it generated, for every sample of a batch.

    ``steps``: one ``Explanation`` per generated token, in order; all are over the same positions,
    the prompt and the output before the last token. ``ids`` (batch, steps): the tokens, −1 after a
    sample's end, where everything is 0. ``labels``: the tokens as text. ``stream``: the input that
    the output continues, after ``prompt`` of its positions. With several explained inputs (a
    decoder's and its encoder's) ``generation["input_ids"]`` is the generation restricted to one.
    """

    steps: tuple[Explanation, ...]
    ids: Tensor
    labels: list[list[str]]
    stream: str
    prompt: int

    @property
    def scores(self) -> Tensor:
        """(batch, steps, positions): row i has the scores of step i; 0 from the token on that it
        predicts."""
        return torch.stack([e.scores for e in self.steps], 1)

    @property
    def row(self) -> Tensor:
        """(batch, steps, positions): the rows of C that the steps read."""
        return torch.stack([e.row for e in self.steps], 1)

    @property
    def output(self) -> Tensor:
        """(batch, steps): the logits of the generated tokens."""
        return torch.stack([e.output for e in self.steps], 1)

    @property
    def tokens(self) -> list[list[str]] | None:
        """Labels of each sample's positions, the columns of ``scores``."""
        return self.steps[0].tokens

    @property
    def content(self) -> Tensor:
        """(batch, positions), bool: neither special tokens nor padding."""
        return self.steps[0].content

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of the explained inputs."""
        return tuple(self.steps[0].streams)

    def segments(self, by: str | Sequence[Any]) -> Explanation:
        """Which parts of the prompt the whole answer rests on: one explanation per sample, whose
        scores are the sums of the steps', and whose words are segments of the prompt as it was
        typed. ``by`` and errors as of ``Explanation.segments``, which each of ``steps`` has, too.

        ``top``, ``words``, ``plot``, ``show`` and so on speak of these. What lies on the answer's
        own words counts as 0; ``concerns`` says so where it is much, and ``sent_on`` lays it on
        the prompt. ``output`` is the sum of the logits.

        >>> import relprop
        >>> from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
        >>> model, tokenizer = lookup_model(), lookup_tokenizer()
        >>> text = "Anna likes amber kites.\\n\\nBoris paints silver rivers.\\n\\nAnna likes what?"
        >>> prompt = tokenizer.apply_chat_template(
        ...     [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        ... )
        >>> g = relprop.explain_generation(model, prompt, processor=tokenizer, max_new_tokens=5)
        >>> g.segments("paragraphs").top(1)[0][0]
        'Anna likes amber kites.'
        """
        from relprop.explanation.whole import whole

        return whole(self).segments(by)

    def summary(self, sample: int = 0, *, k: int = 5) -> str:
        """One sentence for people: the whole answer, and the ``k`` words of the prompt that it
        rests on most; then a line for each concern, as of ``Explanation.summary``."""
        from relprop.explanation.whole import whole

        return whole(self).summary(sample, k=k)

    def sent_on(self, hops: int = 1) -> Generation:
        """The same, with what lies on generated tokens sent on to what these rest on, in the shares
        of their own scores, ``hops`` times: from an answer through its reasoning to the prompt
        (FlashTrace, 2026). A step's absolute scores sum to no more than before, and of scores that
        are never negative the sum stays."""
        from relprop.explanation.hops import sent_on

        return sent_on(self, hops)

    def __getitem__(self, name: str) -> Generation:
        """The generation restricted to one input. Raises ``OptionError`` naming the inputs there
        are."""
        return replace(self, steps=tuple(e[name] for e in self.steps))

    def __len__(self) -> int:
        return len(self.ids)

    def to_dataframe(self) -> Any:
        """A pandas ``DataFrame``, a row per sample, step, input and token. Raises ``OptionError``
        without pandas (``relprop[pandas]``)."""
        from relprop.views.generations import to_dataframe

        return to_dataframe(self)

    def to_json(self, *, indent: int | None = None) -> str:
        """Every sample's generated tokens with their logits, and the scores of the tokens before
        them, as JSON."""
        from relprop.views.generations import to_json

        return to_json(self, indent=indent)

    def show(self, sample: int = 0, *, k: int = 5) -> None:
        """Print each generated token of a sample with the ``k`` tokens before it that it rests on
        most."""
        from relprop.views.generations import terminal
        from relprop.views.terminal import print_text

        print_text(terminal(self, sample, k=k))

    def plot(self, *, sample: int = 0) -> Figure:
        """A matplotlib figure of one sample: a row per generated token, a column per token before
        it, each row on a scale of its own."""
        from relprop.views.generations import plot

        return plot(self, sample)

    def to_html(self, path: str | Path, *, title: str | None = None) -> Path:
        """Write one HTML file without any network: whichever part of the answer is chosen, the
        sentences and words of the prompt that it rests on. ``relprop.card`` adds what else the
        model might have said, and how far to trust it."""
        from relprop.cards.answer_data import card_of_generation

        return card_of_generation(self, title).to_html(path)

    def _repr_html_(self) -> str:
        from relprop.cards.answer_data import card_of_generation

        return card_of_generation(self, None)._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Write everything to one safetensors file with a JSON header; ``relprop.load`` reads it
        back."""
        from relprop.storage import save_generation

        return save_generation(self, path)

    def __repr__(self) -> str:
        from relprop.explanation.whole import answer_text

        first, text = self.steps[0], answer_text(self, 0)
        streams = "; ".join(map(repr, first.streams.values()))
        return (
            f"Generation({counted(len(self), 'sample')}, "
            f"{counted(len(self.steps), 'step')}, {streams}, output {text!r}"
            f"{', ...' if len(self) > 1 else ''}, method {first.method!r}, rules {first.rules!r})"
        )
