"""Generic attention explainability (Chefer, Gur & Wolf, ICCV 2021): A in place of relevance, and
for several inputs that attend to each other one matrix R_xy for each pair of them, updated site by
site in forward order (their Eq. 5–11)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.methods.whose import Tokens, whose_tokens
from relprop.numerics import safe_divide
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import row_wise
from relprop.runner.values import Matrix, SiteValues, TokenMap

Pairs = dict[tuple[str, str], Tensor]


@row_wise(inputs=1)
def gae(
    at: AttentionStudy, *, normalize_rows: bool = False
) -> Mapping[fx.Node, Matrix] | Mapping[str, TokenMap]:
    """Ā = E_h (∂y_t/∂A ⊙ A)⁺, R ← R + Ā·R, several inputs by their bi-modal rules (Chefer, Gur &
    Wolf, ICCV 2021, Eq. 5–11).

    One explained input, or several that never attend to one another (two towers, one joint
    sequence): the matrices are rolled up, and ``row`` is the row of R that the head reads;
    ``normalize_rows`` divides the rows of I + Ā by their sums. Several that do (encoder and
    decoder, co-attention): each site sees the updates of the sites upstream of it. Queries that a
    model has learned (DETR) are no input: with one input all is rolled up. Where a row of R̂ is
    empty, 0/0 is 0 in Eq. 9 (their code drops the whole update).

    Raises:
        OptionError: with several inputs that attend to each other, a site whose queries or keys are
            not exactly the tokens of one of them.
    """
    matrices = at.matrices(updates)
    if len(at.streams) == 1:
        return matrices
    reads = whose_tokens(at)
    if all(queries.names == keys.names for queries, keys in reads.values()):
        return matrices
    if normalize_rows:
        raise OptionError(
            "normalize_rows: where inputs attend to each other gae normalises by its own "
            "Eq. 8–9; leave it out"
        )
    return _bimodal(at, {n: m for n, m in matrices.items() if isinstance(m, Tensor)}, reads)


def updates(values: SiteValues) -> Tensor:
    """(∂y_t/∂A ⊙ A)⁺ of every head, clamped before the mean (Eq. 5)."""
    return (values.gradient * values.attention).clamp(min=0)


def normalised(excess: Tensor) -> Tensor:
    """R̄ = R̂ / rowsum(R̂) + I, of R̂ = R − I (Eq. 8–9), (..., n, n); a row of zeros stays zeros,
    plus I."""
    return safe_divide(excess, excess.sum(-1, keepdim=True)) + torch.eye(
        excess.shape[-1], dtype=excess.dtype, device=excess.device
    )


def self_attention(a: Tensor, row: Mapping[str, Tensor], own: str) -> dict[str, Tensor]:
    """What self-attention adds to R_sq for every q (Eq. 6–7). ``row``: R_sq by q, for q = s without
    I; what is 0 may be left out."""
    return {name: a @ r for name, r in row.items()} | {own: a + a @ row[own] if own in row else a}


def attention_to(a: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """What attention of s to q adds to R_sq: R̄_ssᵀ Ā R̄_qq (Eq. 10). ``own``, ``other``: R̂_ss and
    R̂_qq."""
    return normalised(own).mT @ a @ normalised(other)


def _bimodal(
    at: AttentionStudy,
    matrices: Mapping[fx.Node, Tensor],
    reads: Mapping[fx.Node, tuple[Tokens, Tokens]],
) -> dict[str, TokenMap]:
    """Every R_xy, in forward order, and its rows as the head reads them. All matrices here are
    without I, so that a small score is not lost beside it."""
    flow = at.session.flow
    changes: list[tuple[fx.Node, Pairs]] = []
    for values in at.sites:
        site = values.site
        s, q = (
            _one(site.path, what, tokens)
            for what, tokens in zip(("queries", "keys"), reads[site.contraction], strict=True)
        )
        a = at.dense(values, matrices[site.contraction])
        ends = (site.attention, site.values)
        r = _sum([c for node, c in changes if any(flow.reaches(node, end) for end in ends)])
        if s == q:
            change = self_attention(a, {y: m for (x, y), m in r.items() if x == s}, s)
        else:
            sizes = ((s, a.shape[1]), (q, a.shape[2]))
            nothing = {name: a.new_zeros(len(a), n, n) for name, n in sizes}
            change = {y: a @ m for (x, y), m in r.items() if x == q != y}  # Eq. 11, for y = s
            change[q] = attention_to(a, r.get((s, s), nothing[s]), r.get((q, q), nothing[q]))
        changes.append((site.contraction, {(s, y): m for y, m in change.items()}))
    total, identity = _sum([c for _, c in changes]), at.identity()
    found = {}
    for y, mine in identity.items():
        rows = [(identity[x].to(m.dtype), m) for (x, other), m in total.items() if other == y]
        parts = [(row[:, None] @ m)[:, 0] for row, m in rows]
        scores = sum(parts[1:], parts[0]) if parts else torch.zeros_like(mine)
        found[y] = TokenMap(scores, identity=mine)
    return found


def _sum(changes: list[Pairs]) -> Pairs:
    total: Pairs = {}
    for change in changes:
        for pair, m in change.items():
            total[pair] = total[pair] + m if pair in total else m
    return total


def _one(path: str, what: str, tokens: Tokens) -> str:
    """The input whose tokens, all and in order, these are. Raises ``OptionError``."""
    if not tokens.exactly:
        whose = " and ".join(map(repr, tokens.names)) or "no explained input"
        merged = len(tokens.names) == 1
        how = "merged, moved or only some of them" if merged else "not those of one input"
        raise OptionError(
            f"gae with inputs that attend to each other needs whole streams: the {what} "
            f"at {path!r} are tokens of {whose}, {how}"
        )
    return tokens.names[0]
