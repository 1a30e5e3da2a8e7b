"""‖f(x_j)‖: the size of what each head would move from each key, after the value and the output projection (Kobayashi et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, fx

from relprop.api.session import Session
from relprop.errors import OptionError
from relprop.interpreter.replay import Segment
from relprop.methods import SiteValues
from relprop.rules import operations as ops
from relprop.tracer.axes import is_token
from relprop.tracer.editing import tensor_inputs, val
from relprop.tracer.program import Site, packet

Replay = Callable[[fx.Node, fx.Node, Tensor], Tensor]
MOVES = frozenset((*ops.RESHAPE, *ops.PERMUTE, *ops.TRANSPOSE, *ops.MOVE))


def output_projection(session: Session, site: Site) -> fx.Node:
    """The linear map that the results of all heads go through. Raises ``OptionError`` if something else comes first."""
    node = site.contraction
    while True:
        users = [u for u in node.users if u in session.flow.members]
        if len(users) != 1:
            break
        node = users[0]
        others = [i for i in tensor_inputs(node) if i.meta["role"] == "activation"]
        if packet(node) in ops.LINEAR and len(others) == 1:
            return node
        if packet(node) not in MOVES:
            break
    raise OptionError(f"attention_norm: no linear map takes the heads' results of the attention at {site.path!r} as they are, so there is no f(x) to measure")


def projection_segment(session: Session, site: Site) -> Segment:
    """What runs from a contraction to its output projection."""
    return Segment.between(session.program, session.flow, site.contraction, output_projection(session, site))


def projected_norms(session: Session, values: SiteValues, head_axes: tuple[int, ...], replay: Replay, moved: Tensor) -> Tensor:
    """‖f(x_j)‖, (batch, ..., heads, keys), its axes those of the map without the queries. ``moved``: V, batch first."""
    site = values.site
    end = output_projection(session, site)
    maps, shape = values.attention, list(val(site.contraction).shape)
    query, feature = (-1, -2) if site.transposed else (-2, -1)
    keys, queries = moved.shape[query], shape[query]
    heads = math.prod(maps.shape[i] for i in head_axes)
    tokens = [i for i in range(1, maps.dim() - 2) if i not in head_axes]
    windows = math.prod(maps.shape[i] for i in tokens)
    end_tokens = [i for i, axis in enumerate(session.program.axes[end]) if is_token(axis)]
    if math.prod(val(end).shape[i] for i in end_tokens) != windows * queries:
        raise OptionError(f"attention_norm: the output projection after the attention at {site.path!r} does not hold its queries one for one")
    wide = moved.expand(len(moved), *[s if i not in (len(shape) + query, len(shape) + feature) else moved.shape[i + 1] for i, s in enumerate(shape)])
    apart = torch.eye(heads, dtype=wide.dtype, device=wide.device)
    apart = torch.cat([apart, torch.zeros_like(apart[:1])]).reshape(heads + 1, 1, *(maps.shape[i] if i in head_axes else 1 for i in range(1, maps.dim())))
    norms = []
    for first in range(0, keys, queries):
        some = wide.narrow(query, first, min(queries, keys - first))
        missing = queries - some.shape[query]
        if missing:
            some = torch.cat([some, torch.zeros_like(some.narrow(query, 0, 1)).expand(*(missing if i == some.dim() + query else s for i, s in enumerate(some.shape)))], query)
        made = replay(site.contraction, end, some.unsqueeze(0) * apart)
        made = made[:-1] - made[-1:]  # without the bias
        features = [i + 2 for i in range(made.dim() - 2) if i not in end_tokens]
        norms.append(made.square().sum(features).sqrt().reshape(heads, len(moved), windows, queries)[..., :queries - missing])
    found = torch.cat(norms, -1).permute(1, 2, 0, 3)  # (batch, windows, heads, keys)
    found = found.reshape(len(moved), *(maps.shape[i] for i in tokens), *(maps.shape[i] for i in head_axes), keys)
    order = [0, *(1 + [*tokens, *head_axes].index(i) for i in range(1, maps.dim() - 2)), found.dim() - 1]
    return found.permute(order)
