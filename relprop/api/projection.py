"""‖f(x_j)‖: the size of what each head would move from each key, after the value and the output
projection (Kobayashi et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, fx

from relprop.api.session import Session
from relprop.errors import OptionError
from relprop.methods import SiteValues
from relprop.operations import MOVES, Kind, argument, is_call, kind
from relprop.rollup import token_axes, tokens_of
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.program import Site

Replay = Callable[[fx.Node, fx.Node, Tensor], Tensor]


def output_projection(session: Session, site: Site) -> fx.Node:
    """The linear map that the results of all heads go through, scaled by what no input reaches or
    as they are. Raises ``OptionError`` if something else comes first."""
    node = site.contraction
    while True:
        users = [u for u in node.users if u in session.flow.members]
        if len(users) != 1:
            break
        node = users[0]
        others = [i for i in tensor_inputs(node) if i.meta["role"] == "activation"]
        if kind(node) is Kind.LINEAR and len(others) == 1:
            return node
        scaled = kind(node) in (Kind.PRODUCT, Kind.QUOTIENT) and others == [node.args[0]]
        if kind(node) not in MOVES and not scaled:
            break
    raise OptionError(
        "attention_norm: no linear map takes the heads' results of the attention at "
        f"{site.path!r} as they are, so there is no f(x) to measure"
    )


def projected(
    session: Session, values: SiteValues, head_axes: tuple[int, ...], replay: Replay, moved: Tensor
) -> Tensor:
    """f(x_j) of each head, (heads, batch, windows, keys, features). ``moved``: V, batch first."""
    site = values.site
    end = output_projection(session, site)
    maps, shape = values.attention, list(val(site.contraction).shape)
    query, feature = (-1, -2) if site.transposed else (-2, -1)
    keys, queries = moved.shape[query], shape[query]
    heads = math.prod(maps.shape[i] for i in head_axes)
    windows = math.prod(maps.shape[i] for i in range(1, maps.dim() - 2) if i not in head_axes)
    end_tokens = token_axes(session.program, end)
    if math.prod(tokens_of(session.program, end)) != windows * queries:
        raise OptionError(
            f"attention_norm: the output projection after the attention at {site.path!r} "
            "does not hold its queries one for one"
        )
    wide = moved.expand(
        len(moved),
        *[
            s if i not in (len(shape) + query, len(shape) + feature) else moved.shape[i + 1]
            for i, s in enumerate(shape)
        ],
    )
    apart = torch.eye(heads, dtype=wide.dtype, device=wide.device)
    apart = torch.cat([apart, torch.zeros_like(apart[:1])]).reshape(
        heads + 1, 1, *(maps.shape[i] if i in head_axes else 1 for i in range(1, maps.dim()))
    )
    parts = []
    for first in range(0, keys, queries):
        some = wide.narrow(query, first, min(queries, keys - first))
        missing = queries - some.shape[query]
        if missing:
            some = torch.cat(
                [
                    some,
                    torch.zeros_like(some.narrow(query, 0, 1)).expand(
                        *(
                            missing if i == some.dim() + query else s
                            for i, s in enumerate(some.shape)
                        )
                    ),
                ],
                query,
            )
        made = replay(site.contraction, end, some.unsqueeze(0) * apart)
        made = made[:-1] - made[-1:]  # without the bias
        tokens = [i + 2 for i in end_tokens]
        made = made.permute(
            0, 1, *tokens, *(i for i in range(2, made.dim()) if i not in tokens)
        ).reshape(heads, len(moved), windows, queries, -1)
        parts.append(made[..., : queries - missing, :])
    return torch.cat(parts, 3)


def projected_norms(
    session: Session, values: SiteValues, head_axes: tuple[int, ...], replay: Replay, moved: Tensor
) -> Tensor:
    """‖f(x_j)‖, (batch, ..., heads, keys), its axes those of the map without the queries.
    ``moved``: V, batch first."""
    maps = values.attention
    found = (
        projected(session, values, head_axes, replay, moved)
        .square()
        .sum(4)
        .sqrt()
        .permute(1, 2, 0, 3)
    )  # (batch, windows, heads, keys)
    tokens = [i for i in range(1, maps.dim() - 2) if i not in head_axes]
    found = found.reshape(
        len(moved),
        *(maps.shape[i] for i in tokens),
        *(maps.shape[i] for i in head_axes),
        found.shape[3],
    )
    order = [
        0,
        *(1 + [*tokens, *head_axes].index(i) for i in range(1, maps.dim() - 2)),
        found.dim() - 1,
    ]
    return found.permute(order)


def residual_of(
    session: Session, site: Site
) -> tuple[fx.Node, tuple[fx.Node, ...], fx.Node | None]:
    """The sum at which a site's branch meets its skip connection, the operands that are no branch,
    and the layer norm behind it, if it is all that reads the sum.

    Raises ``OptionError`` where there is no such sum, or something else stands behind it.
    """
    merge = session.merges.identity_of(site.contraction)
    if merge is None or kind(merge) is not Kind.SUM:
        raise OptionError(
            f"attention_norm: no sum with a skip connection follows the attention at {site.path!r}"
        )
    users = [u for u in merge.users if u in session.flow.members]
    norm = users[0] if len(users) == 1 else None
    if norm is not None and not is_call(norm, torch.ops.aten.layer_norm):
        raise OptionError(
            f"attention_norm: the sum after the attention at {site.path!r} is read by "
            f"{norm.target} alone, which is no layer norm"
        )
    return (
        merge,
        tuple(
            o
            for o in tensor_inputs(merge)
            if o in session.flow.members and not session.flow.reaches(site.contraction, o)
        ),
        norm,
    )


def sum_norms(
    session: Session,
    values: SiteValues,
    head_axes: tuple[int, ...],
    replay: Replay,
    kept: Mapping[fx.Node, Tensor],
) -> Tensor:
    """‖Σ_h α_ij f(x_j) + δ_ij x_i‖ (Kobayashi et al. 2021), after the layer norm behind the sum
    with the whole sum's statistics: (batch, queries, keys)."""
    site = values.site
    merge, skips, norm = residual_of(session, site)
    vectors = projected(session, values, head_axes, replay, kept[site.values])
    maps = values.attention.mT if site.transposed else values.attention
    heads, batch, windows, keys, _ = vectors.shape
    if (
        windows != 1
        or maps.shape[-2] != keys
        or math.prod(val(merge).shape[:-1]) != keys
        or len(skips) != 1
    ):
        raise OptionError(
            "attention_norm, variant 2021: the queries and keys of the attention at "
            f"{site.path!r} are not the tokens of its residual stream"
        )
    maps = maps.reshape(batch, heads, keys, keys)
    x, whole = (kept[n].reshape(batch, keys, -1) for n in (skips[0], merge))
    weight = None if norm is None else argument(norm, "weight")
    rows = []
    for i in range(keys):
        moved = torch.einsum("bhk,hbkd->bkd", maps[:, :, i], vectors[:, :, 0])
        moved[:, i] += x[:, i]
        if norm is not None:
            scale = (whole[:, i].var(-1, correction=0) + float(argument(norm, "eps"))).sqrt()
            moved = (
                (moved - moved.mean(-1, keepdim=True))
                / scale[:, None, None]
                * (1.0 if weight is None else kept[weight])
            )
        rows.append(moved.norm(dim=-1))
    return torch.stack(rows, 1)
