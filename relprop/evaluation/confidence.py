"""Confidence: do the explanations of two classes differ? Kendall's τ between a class's scores and
those of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import InputError, UndefinedValueWarning, warn
from relprop.evaluation.base import bools, chosen, finite, in_range, labels_for, needed, ranked

PROTOCOLS = ("corrected", "paper", "paper-code")


@guarded
@dataclass(frozen=True)
class KendallConfidence:
    """Kendall's τ between the scores for a class and those for each other class, meaned over the
    other classes (AttCAT, Eq. 15). Lower is better.

    ``corrected``: τ-b of the tokens' scores. ``paper`` and ``paper-code``: τ-b of the two *lists of
    token indices* in order of falling score, which is not a rank correlation of the tokens: it says
    how alike the lists rise and fall as lists of positions.

    >>> import torch
    >>> KendallConfidence()(torch.tensor([[[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]]]), [0], content=[[1, 1, 1]])
    tensor([-1.], dtype=torch.float64)
    """  # noqa: E501

    protocol: str = "corrected"

    name: ClassVar[str] = "Kendall-τ confidence"
    higher_is_better: ClassVar[bool] = False
    source: ClassVar[str] = "Qiang et al., NeurIPS 2022 (AttCAT), Eq. 15; scipy.stats.kendalltau"
    deviations: ClassVar[tuple[str, ...]] = (
        "Paper and notebook correlate lists of token indices in order of falling score "
        "(paper, paper-code: the same here); corrected, the default, the tokens' scores.",
        "Of equal scores the earlier token comes first in those lists; the notebook "
        "leaves it to its sort.",
        "Special tokens and padding are left out.",
        "Where a class gives all tokens one score τ is not defined: the sample's value "
        "is NaN, and a warning says so.",
    )

    def __post_init__(self) -> None:
        chosen("protocol", self.protocol, PROTOCOLS)

    def __call__(self, scores: Tensor, target: Any, *, content: Any) -> Tensor:
        """(batch,), float64, in [−1, 1]: the mean τ of each sample.

        ``scores`` (batch, classes, tokens): one explanation per class. ``target`` (batch,): the
        class compared with the others, usually the predicted one. ``content`` (batch, tokens):
        which tokens count. Raises ``InputError``.
        """
        values = finite("scores", scores, "batch, classes, tokens").cpu()
        count, classes, tokens = values.shape
        if classes < 2:
            wanted = "at least 2 are needed, the target's and another's"
            raise InputError(f"scores: {classes} class; {wanted}")
        labels, kept = labels_for(target, count), bools("content", content, (count, tokens))
        in_range(labels, classes)
        if (few := kept.sum(1) < 2).any():
            sample = int(few.int().argmax())
            raise InputError(f"content: sample {sample} has fewer than 2 content tokens")
        pairs = zip(values, kept, labels.tolist(), strict=True)
        taus = [self._tau(sample[:, own], label) for sample, own, label in pairs]
        found = torch.tensor(taus, dtype=torch.float64)
        if undefined := int(found.isnan().sum()):
            fact = f"Kendall's τ is not defined for {undefined} of {count} samples"
            reason = "a class gives all their tokens one score; their value is NaN"
            warn(UndefinedValueWarning(f"{fact}: {reason}"))
        return found

    def _tau(self, rows: Tensor, label: int) -> float:
        """The mean τ of one sample's scores (classes, tokens) with the other classes'."""
        if (rows == rows[:, :1]).all(1).any():
            return float("nan")
        lists = (rows if self.protocol == "corrected" else ranked(rows)).numpy()
        tau, others = needed("scipy.stats").kendalltau, [c for c in range(len(rows)) if c != label]
        return sum(float(tau(lists[label], lists[c]).statistic) for c in others) / len(others)
