"""‖f(x_j)‖: the size of what each head would move from each key, after the value and the output
projection (Kobayashi et al. 2020); and the norm of all that one token puts into another (2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from relprop.errors import OptionError
from relprop.operations import MOVES, Kind, argument, is_call, kind
from relprop.rollup import skip_of, token_axes, tokens_of
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.method import Options
from relprop.runner.session import Session
from relprop.runner.values import SiteValues
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.program import Site, role


def read_by_projections(
    session: Session, sites: tuple[Site, ...], options: Options
) -> set[fx.Node]:
    """The nodes whose values ``projected_norms`` and ``sum_norms`` look at."""
    found: set[fx.Node] = set()
    for site in sites:
        end = output_projection(session, site)
        found |= {site.values, *session.replay(site.contraction, end).extra}
        if options.get("variant") == "2021":
            residual = residual_of(session, site)
            found |= {residual.merge, *residual.skips}
            found |= set() if residual.norm is None else set(residual.norm.all_input_nodes)
    return found


def output_projection(session: Session, site: Site) -> fx.Node:
    """The linear map that the results of all heads go through, scaled by what no input reaches or
    as they are. Raises ``OptionError`` if something else comes first."""
    node = site.contraction
    while True:
        users = [u for u in node.users if u in session.flow.members]
        if len(users) != 1:
            break
        node = users[0]
        others = [i for i in tensor_inputs(node) if role(i) == "activation"]
        if kind(node) is Kind.LINEAR and len(others) == 1:
            return node
        scaled = kind(node) in (Kind.PRODUCT, Kind.QUOTIENT) and others == [node.args[0]]
        if kind(node) not in MOVES and not scaled:
            break
    raise OptionError(
        "attention_norm: no linear map takes the heads' results of the attention at "
        f"{site.path!r} as they are, so there is no f(x) to measure"
    )


def projected(at: AttentionStudy, values: SiteValues) -> Tensor:
    """f(x_j) of each head, (heads, batch, windows, keys, features)."""
    site, maps = values.site, values.attention
    moved, end = at.of_each(site.values), output_projection(at.session, site)
    shape = list(val(site.contraction).shape)
    query, feature = (-1, -2) if site.transposed else (-2, -1)
    keys, queries = moved.shape[query], shape[query]
    windows = math.prod(maps.shape[1:-2]) // math.prod(maps.shape[i] for i in at.head_axes(values))
    if math.prod(tokens_of(at.program, end)) != windows * queries:
        raise OptionError(
            f"attention_norm: the output projection after the attention at {site.path!r} "
            "does not hold its queries one for one"
        )
    shape[query], shape[feature] = keys, moved.shape[feature]
    wide, apart = moved.expand(len(moved), *shape), _one_head_each(at, values)
    parts = []
    for some in wide.split(queries, query):  # as many keys at a time as there are places
        missing = (0,) * (-2 * query - 1) + (queries - some.shape[query],)
        made = at.replay(site.contraction, end, F.pad(some, missing).unsqueeze(0) * apart)
        made = _by_token(at, end, made[:-1] - made[-1:], windows)  # without the bias
        parts.append(made[..., : some.shape[query], :])
    return torch.cat(parts, 3)


def _one_head_each(at: AttentionStudy, values: SiteValues) -> Tensor:
    """Factors that leave one head, for each of them, and last none: (heads + 1, 1, *axes of a
    map)."""
    maps, axes = values.attention, at.head_axes(values)
    heads = math.prod(maps.shape[i] for i in axes)
    apart = torch.eye(heads, dtype=at.value(values.site.values).dtype, device=maps.device)
    apart = torch.cat([apart, torch.zeros_like(apart[:1])])
    sizes = (maps.shape[i] if i in axes else 1 for i in range(1, maps.dim()))
    return apart.reshape(heads + 1, 1, *sizes)


def _by_token(at: AttentionStudy, end: fx.Node, made: Tensor, windows: int) -> Tensor:
    """What stands at ``end``, (heads, batch, *its shape), as (heads, batch, windows, tokens,
    features)."""
    tokens = [i + 2 for i in token_axes(at.program, end)]
    rest = [i for i in range(2, made.dim()) if i not in tokens]
    count = math.prod(made.shape[i] for i in tokens) // windows
    return made.permute(0, 1, *tokens, *rest).reshape(*made.shape[:2], windows, count, -1)


def projected_norms(at: AttentionStudy, values: SiteValues) -> Tensor:
    """‖f(x_j)‖, (batch, ..., heads, keys), its axes those of the map without the queries."""
    maps, heads = values.attention, list(at.head_axes(values))
    norms = projected(at, values).square().sum(4).sqrt().permute(1, 2, 0, 3)
    tokens = [i for i in range(1, maps.dim() - 2) if i not in heads]
    sizes = [maps.shape[i] for i in (*tokens, *heads)]  # (batch, windows, heads, keys), unfolded
    norms = norms.reshape(len(norms), *sizes, norms.shape[3])
    places = [1 + [*tokens, *heads].index(i) for i in range(1, maps.dim() - 2)]
    return norms.permute(0, *places, norms.dim() - 1)


@dataclass(frozen=True)
class Residual:
    """The sum ``merge`` at which a site's branch meets its skip connection, the operands ``skips``
    that are no branch, and the layer norm behind it, if it is all that reads the sum."""

    merge: fx.Node
    skips: tuple[fx.Node, ...]
    norm: fx.Node | None


def residual_of(session: Session, site: Site) -> Residual:
    """Where a site's branch meets its skip connection. Raises ``OptionError`` where there is no
    such sum, or something else than a layer norm stands behind it."""
    merge = skip_of(session.flow, site)
    if merge is None or kind(merge) is not Kind.SUM:
        raise OptionError(
            f"attention_norm: no sum with a skip connection follows the attention at {site.path!r}"
        )
    flow = session.flow
    users = [u for u in merge.users if u in flow.members]
    norm = users[0] if len(users) == 1 else None
    if norm is not None and not is_call(norm, torch.ops.aten.layer_norm):
        raise OptionError(
            f"attention_norm: the sum after the attention at {site.path!r} is read by "
            f"{norm.target} alone, which is no layer norm"
        )
    inside = [o for o in tensor_inputs(merge) if o in flow.members]
    skips = tuple(o for o in inside if not flow.reaches(site.contraction, o))
    return Residual(merge, skips, norm)


def sum_norms(at: AttentionStudy, values: SiteValues) -> Tensor:
    """‖Σ_h α_ij f(x_j) + δ_ij x_i‖ (Kobayashi et al. 2021), after the layer norm behind the sum
    with the whole sum's statistics, less the I that the roll-up adds: (batch, queries, keys)."""
    site = values.site
    residual, vectors = residual_of(at.session, site), projected(at, values)
    maps = values.attention.mT if site.transposed else values.attention
    heads, batch, windows, keys, _ = vectors.shape
    merged = math.prod(val(residual.merge).shape[:-1])
    if windows != 1 or {maps.shape[-2], merged} != {keys} or len(residual.skips) != 1:
        raise OptionError(
            "attention_norm, variant 2021: the queries and keys of the attention at "
            f"{site.path!r} are not the tokens of its residual stream"
        )
    maps = maps.reshape(batch, heads, keys, keys)
    x, whole = (at.value(n).reshape(batch, keys, -1) for n in (residual.skips[0], residual.merge))
    rows = []
    for i in range(keys):
        moved = torch.einsum("bhk,hbkd->bkd", maps[:, :, i], vectors[:, :, 0])
        moved[:, i] += x[:, i]
        if residual.norm is not None:
            moved = _normalised(at, residual.norm, moved, whole[:, i])
        rows.append(moved.norm(dim=-1))
    matrix = torch.stack(rows, 1)
    return matrix - torch.eye(keys, dtype=matrix.dtype, device=matrix.device)


def _normalised(at: AttentionStudy, norm: fx.Node, parts: Tensor, whole: Tensor) -> Tensor:
    """Parts of a sum, (batch, keys, features), as the layer norm of the whole sum scales them."""
    scale = (whole.var(-1, correction=0) + float(argument(norm, "eps"))).sqrt()
    weight = argument(norm, "weight")
    centred = (parts - parts.mean(-1, keepdim=True)) / scale[:, None, None]
    return centred * (1.0 if weight is None else at.value(weight))
