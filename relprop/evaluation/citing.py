"""Whether citations are right, by what the model itself says without the passages: the drop without
the best ones, and how well sums of scores foretell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from relprop.api.explain import explain
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.evaluation.base import needed, ranked, rankings
from relprop.explanation import Citations
from relprop.targets import span

AT_ONCE = 16  # texts beside each other


@guarded
@dataclass(frozen=True)
class TopKDrop:
    """How much the mean log-probability of a sentence of the answer falls without the ``k``
    passages of the largest scores. The tokens are deleted, and the rest moves up.

    Calling it with a model and what ``cite`` gave gives (sentences,), float64, for ``bootstrap``.
    """

    k: int = 1

    source: ClassVar[str] = "Cohen-Wang et al., NeurIPS 2024, Eq. 3"
    protocol: ClassVar[str] = "paper"
    higher_is_better: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper takes the log-probability of the whole statement; here it is the mean over its "
        "tokens, so that long sentences do not count more.",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise OptionError(f"TopKDrop(k={self.k!r}): a positive number of passages")

    @property
    def name(self) -> str:
        """With the number of passages."""
        return f"top-{self.k} drop"

    def __call__(self, model: nn.Module, citations: Citations) -> Tensor:
        """The drop of every sentence, (sentences,), float64."""
        count = len(citations.passages)
        if self.k > count:
            raise OptionError(f"{self.name}: there are {count} passages")
        best = [ranked(row)[: self.k].tolist() for row in citations.scores]
        found = [drops(model, citations, i, [gone]) for i, gone in enumerate(best)]
        there = rankings(self.name, citations.scores)
        return torch.cat(found).masked_fill(~there, torch.nan)


@guarded
@dataclass(frozen=True)
class LinearDatamodelingScore:
    """How well sums of scores foretell what the model says of other subsets of the passages:
    Spearman's rank correlation, over ``subsets`` drawn by ``seed``, of the sum of the scores of
    what is left with the mean log-probability of the sentence then. Each passage is left with
    probability ``left``.

    Calling it with a model and what ``cite`` gave gives (sentences,), float64, each in [−1, 1].
    Needs ``relprop[evaluation]``.
    """

    subsets: int = 32
    left: float = 0.5
    seed: int = 0

    name: ClassVar[str] = "linear datamodeling score"
    source: ClassVar[str] = "Cohen-Wang et al., NeurIPS 2024, Eq. 4; Park et al., ICML 2023"
    protocol: ClassVar[str] = "paper"
    higher_is_better: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper takes the logit of the statement's probability; ranks are the same for "
        "log-probabilities of one statement, of which here the mean over tokens is taken.",
    )

    def __post_init__(self) -> None:
        if not isinstance(self.subsets, int) or self.subsets < 3 or not 0 < self.left < 1:
            given = f"subsets={self.subsets!r}, left={self.left!r}"
            raise OptionError(f"LinearDatamodelingScore({given}): at least 3, and between 0 and 1")

    def __call__(self, model: nn.Module, citations: Citations) -> Tensor:
        """The correlation of every sentence, (sentences,), float64; 0 where all sums or all
        log-probabilities are the same."""
        gone = self._drawn(len(citations.passages))
        lists = [row.nonzero().flatten().tolist() for row in gone]
        found = []
        for i, row in enumerate(citations.scores.double().cpu()):
            foretold = -(gone.double() @ row)
            measured = -drops(model, citations, i, lists)
            same = foretold.unique().numel() < 2 or measured.unique().numel() < 2
            rank = 0.0 if same else needed("scipy.stats").spearmanr(foretold, measured).statistic
            found.append(float(rank))
        return torch.tensor(found, dtype=torch.float64)

    def _drawn(self, passages: int) -> Tensor:
        """(subsets, passages), bool: what is gone."""
        if passages < 2:
            raise OptionError(f"{self.name}: subsets of {passages} passage")
        source = torch.Generator().manual_seed(self.seed)
        return torch.rand(self.subsets, passages, generator=source) >= self.left


def drops(
    model: nn.Module, citations: Citations, sentence: int, gone: Sequence[Sequence[int]]
) -> Tensor:
    """(subsets,), float64: how much the mean log-probability of a sentence falls without each
    subset of the passages."""
    said, stream, found = citations.sentences[sentence], citations.stream, list[Tensor]()
    for first in range(0, len(gone), AT_ONCE):
        some = gone[first : first + AT_ONCE]
        groups = [
            [sorted(p for k in lacking for p in citations.passages[k].positions)] if lacking else []
            for lacking in some
        ]
        inputs = {n: _repeated(v, len(some)) for n, v in citations.inputs.items()}
        of, without = span(said.first, said.last), {stream: groups}
        e = explain(model, inputs, of, method="leave_one_out", groups=without)
        found.append(e[stream].scores.double().cpu().sum(1))
    return torch.cat(found)


def _repeated(value: Any, count: int) -> Any:
    """One text's inputs for several."""
    if not isinstance(value, Tensor):
        return value
    if value.shape[:1] != (1,):
        raise InputError(f"an input of one text has shape {list(value.shape)}: its first axis is 1")
    return value.expand(count, *value.shape[1:])
