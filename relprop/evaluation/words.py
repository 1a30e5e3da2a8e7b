"""Rankings against people's: how well the top words cover a rationale (ERASER's token-F1), and how
many answer tokens are among the top ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.evaluation.base import bools, finite, ranked, rankings
from relprop.evaluation.texts import scores_and_content, word_scores
from relprop.explanation import Explanation


@guarded
@dataclass(frozen=True)
class TokenF1:
    """F1 of the top-k words against the human rationale (ERASER Movie Reviews; DeYoung et al. 2020;
    Chefer et al. 2021, Fig. 4).

    Of each document the k words of highest score are the rationale found; precision and recall are
    over words, F1 is per document, and the number of a data set is its mean over documents. A
    document with fewer than k words has all of them marked.

    >>> import torch
    >>> TokenF1(k=(1, 2))([torch.tensor([0.1, 0.9, 0.5])], [[0, 1, 0]])
    tensor([[1.0000, 0.6667]], dtype=torch.float64)
    """

    k: tuple[int, ...] = tuple(range(10, 81, 10))

    name: ClassVar[str] = "token-F1"
    higher_is_better: ClassVar[bool] = True
    protocol: ClassVar[str] = "paper"
    source: ClassVar[str] = (
        "Chefer, Gur & Wolf, CVPR 2021, Fig. 4; DeYoung et al., ACL 2020 (ERASER)"
    )
    deviations: ClassVar[tuple[str, ...]] = (
        "The published code sets negative scores to 0 before it ranks, which makes ties "
        "of them; here they keep their order (the paper's own method has none).",
        "The published code also runs k = 5, 15, ..., 75 and fails on a document of "
        "fewer than k words; here all its words are marked.",
        "Evidence beyond where a document was cut off counts as missed, as in the "
        "published code; so does a document without evidence: its F1 is 0.",
        "The published code skips [UNK] with the special tokens; here an unknown word is a word.",
    )

    def __post_init__(self) -> None:
        if not self.k or min(self.k) < 1:
            raise OptionError(f"k={self.k!r}: numbers of words, at least 1 each")

    def __call__(self, scores: Explanation | Sequence[Tensor], rationales: Sequence[Any]) -> Tensor:
        """(documents, len(k)), float64: the F1 of every document at every k.

        ``scores``: an explanation that knows its words, or for each document its words' scores,
        (words,) (``word_scores``). ``rationales``: for each document (words,) 0s and 1s; longer
        than its scores where the document was cut off. NaN where all scores are equal. Raises
        ``InputError``.
        """
        documents = word_scores(scores) if isinstance(scores, Explanation) else scores
        if len(documents) != len(rationales) or not len(documents):
            given = f"scores of {len(documents)} documents, rationales of {len(rationales)}"
            raise InputError(given)
        table = torch.zeros(len(documents), len(self.k), dtype=torch.float64)
        for i, (values, rationale) in enumerate(zip(documents, rationales, strict=True)):
            if not len(values):
                raise InputError(f"scores of document {i}: no words")
            order = ranked(finite(f"scores of document {i}", values, "words").cpu())
            if len(order) > (size := len(rationale)):
                raise InputError(f"rationale of document {i}: {size} words, scores of {len(order)}")
            truth = bools(f"rationale of document {i}", rationale, [size])
            marked = torch.tensor([min(k, len(order)) for k in self.k])
            hits = truth[order].cumsum(0)[marked - 1]
            table[i] = 2 * hits.double() / (marked + truth.sum())
        table[~rankings(self.name, documents)] = torch.nan
        return table


@guarded
@dataclass(frozen=True)
class PrecisionAtK:
    """The number of answer tokens among the K tokens of highest score (AttCAT's Precision@K, on
    SQuAD): a count, not a fraction.

    >>> import torch
    >>> PrecisionAtK(k=2)(torch.tensor([[0.1, 0.9, 0.5, 0.7]]), [[0, 1, 1, 0]], content=[[1, 1, 1, 1]])
    tensor([1.], dtype=torch.float64)
    """  # noqa: E501

    k: int = 20

    higher_is_better: ClassVar[bool] = True
    protocol: ClassVar[str] = "paper"
    source: ClassVar[str] = "Qiang et al., NeurIPS 2022 (AttCAT), Fig. 3"
    deviations: ClassVar[tuple[str, ...]] = (
        "A count of tokens, as in the paper, not divided by K: answers of few tokens "
        "cannot reach K.",
        "Special tokens and padding are not ranked; the paper does not say.",
    )

    def __post_init__(self) -> None:
        if self.k < 1:
            raise OptionError(f"k={self.k}: a number of tokens, at least 1")

    @property
    def name(self) -> str:
        """With its K."""
        return f"Precision@{self.k}"

    def __call__(self, scores: Explanation | Tensor, answer: Any, *, content: Any = None) -> Tensor:
        """(batch,), float64: the count of each sample. ``scores``, ``answer`` and ``content``
        (batch, tokens); an explanation knows ``content``. NaN where all scores are equal. Raises
        ``InputError``."""
        values, kept = scores_and_content(scores, content)
        truth = bools("answer", answer, values.shape)
        order = ranked(values.masked_fill(~kept, -torch.inf))[:, : self.k]
        found = (truth & kept).gather(1, order).sum(1).double()
        found[~rankings(self.name, (v[k] for v, k in zip(values, kept, strict=True)))] = torch.nan
        return found
