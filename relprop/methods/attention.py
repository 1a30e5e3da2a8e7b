"""Methods that give a matrix per attention site, which the roll-up multiplies (Eq. 14): Ā = I + E_h
M, one site after the other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx

from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import row_wise
from relprop.runner.values import Matrix, SiteValues


@row_wise()
def transformer_attribution(
    at: AttentionStudy, *, use_gradient: bool = True
) -> Mapping[fx.Node, Matrix]:
    """(∇A ⊙ R)⁺ per head, clamped before the mean over heads, rolled up (Chefer, Gur & Wolf, CVPR
    2021, Eq. 13–14).

    ``use_gradient=False``: A in place of ∇A (their Table 3, i).
    """

    def excess(values: SiteValues) -> Tensor:
        factor = values.gradient if use_gradient else values.attention
        return (factor.to(values.relevance.dtype) * values.relevance).clamp(min=0)

    return at.matrices(excess)


@row_wise()
def rollout(at: AttentionStudy) -> Mapping[fx.Node, Matrix]:
    """A itself, rolled up (Abnar & Zuidema 2020, as in Chefer et al. 2021, Eq. 15–16). Not
    class-specific."""
    return at.matrices(lambda values: values.attention)
