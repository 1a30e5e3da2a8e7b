"""Methods that read one site's maps, or a few added up, where the head reads them: no product over
layers.

For the row that the head reads, every other site is passed by its skip connection: in a Vision
Transformer that is the class token's row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.numerics import safe_divide
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import Layers, row_wise
from relprop.runner.values import Matrix, TokenMap


@row_wise()
def raw_attention(at: AttentionStudy, *, layers: Layers = None) -> Mapping[str, TokenMap]:
    """E_h A of the block nearest the output, the row the head reads (Chefer et al. 2021, §4). Not
    class-specific.

    ``layers``: another site, or several, whose rows are meaned.
    """
    return last_or_mean(at, at.matrices(lambda v: v.attention), layers)


@row_wise()
def attention_grad(at: AttentionStudy, *, layers: Layers = None) -> Mapping[str, TokenMap]:
    """E_h ∂y_t/∂A of the block nearest the output, the row the head reads (Grads; Qiang et al.
    2022, AttCAT, §4). Signed.

    The gradient at masked keys is not 0; where padding is masked everywhere, its scores are.
    """
    return last_or_mean(at, at.matrices(lambda v: v.gradient), layers)


@row_wise()
def attention_times_grad(at: AttentionStudy) -> Mapping[str, TokenMap]:
    """Σ over blocks of E_h (A ⊙ ∂y_t/∂A)⁺, the row the head reads (AttGrads; after Barkan et al.
    2021)."""
    matrices = at.matrices(lambda v: (v.attention * v.gradient).clamp(min=0))
    return {name: TokenMap(rows.sum(1), rows) for name, rows in at.rows(matrices).items()}


@row_wise()
def partial_lrp(at: AttentionStudy, *, layers: Layers = None) -> Mapping[str, TokenMap]:
    """E_h (R^(n_1))⁺ of the block nearest the output, the row the head reads (Voita et al. 2019, as
    in Chefer et al. 2021)."""
    return last_or_mean(at, at.matrices(lambda v: v.relevance.clamp(min=0)), layers)


def gradcam(
    at: AttentionStudy, *, layers: Layers = None, weights: str = "row"
) -> Mapping[str, TokenMap]:
    """(E_h w_h A_h)⁺ of the block nearest the output on content tokens, min–max to [0, 1]; w_h the
    mean of ∂y_t/∂A_h (Selvaraju et al. 2017, as in Chefer et al. 2021).

    ``weights``: the mean over the content keys of the row the head reads (``"row"``), or over the
    head's whole map (``"map"``, their BERT code: padding counts, so that a text alone and in a
    batch that pads it may differ).
    """
    if weights not in ("row", "map"):
        raise OptionError(f"weights={weights!r}: 'row' or 'map'")
    found = {}
    for name, content in at.content.items():
        if name not in at.last:
            found[name] = TokenMap(torch.zeros(content.shape, device=content.device))
            continue
        values, content = at.sites[at.last[name]], content.to(at.home)
        attention, gradient = (
            at.heads(values, v)[name] for v in (values.attention, values.gradient)
        )
        if weights == "row":
            w = (gradient * content[:, None]).sum(2) / content.sum(1, keepdim=True).clamp(min=1)
        else:
            w = at.head_means(values, values.gradient)
        found[name] = TokenMap(_unit((w[..., None] * attention).mean(1).clamp(min=0), content))
    return found


def _unit(scores: Tensor, content: Tensor) -> Tensor:
    """Min–max over each sample's content tokens; 0 elsewhere, and where all are the same."""
    least = scores.masked_fill(~content, torch.inf).amin(1, keepdim=True)
    most = scores.masked_fill(~content, -torch.inf).amax(1, keepdim=True)
    return torch.where(content, safe_divide(scores - least, most - least), 0.0)


def last_or_mean(
    at: AttentionStudy, matrices: Mapping[fx.Node, Matrix], layers: Layers
) -> Mapping[str, TokenMap]:
    """The row of each input's last site, or, with ``layers``, the mean of the chosen ones'."""
    found = at.rows(matrices)

    def of(name: str, rows: Tensor) -> Tensor:
        if layers is not None:
            return rows.mean(1)
        return rows[:, at.last[name]] if name in at.last else torch.zeros_like(rows[:, 0])

    return {name: TokenMap(of(name, rows), rows) for name, rows in found.items()}
