"""Attention flow (Abnar & Zuidema 2020, §3): attention maps as the capacities of a network of
pipes, and how much each input token can send through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from relprop.errors import OptionError
from relprop.methods.whose import whose_tokens
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.values import SiteValues, TokenMap

SCALE = 1 << 20
NEEDS = "attention_flow needs one input whose tokens all attend to each other in layer after layer"


def attention_flow(at: AttentionStudy) -> Mapping[str, TokenMap]:
    """Maximum flow from each input token to what the head reads, edges of capacity ½E_h A + ½I per
    layer (Abnar & Zuidema, ACL 2020, §3). Not class-specific.

    The sink is the tokens that skip connections lead to the head: a class token, or several behind
    one more edge each, whose capacity is the token's weight divided by the largest weight (all 1
    for a mean over tokens). A score is at most the number of tokens so read; the flow is exact up
    to 2⁻²¹ per edge that binds, as capacities are rounded to multiples of 2⁻²⁰. Cost: s maximum
    flows per sample over L·s² edges, on one core.

    Raises:
        OptionError: SciPy is missing, or the model is not a plain sequence of layers in which one
            input's tokens all attend to each other.
    """
    name, layers = _plain(at)
    weights = at.identity()[name]
    dense = [at.dense(v, v.attention) for v in layers]
    if odd := [v for v, m in zip(layers, dense, strict=True) if m.shape[-2] != m.shape[-1]]:
        raise OptionError(f"{NEEDS}; at {odd[0].site.path!r} heads are queries of one map")
    maps = 0.5 * torch.stack(dense, 1)
    maps = maps + 0.5 * torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
    if not bool((weights > 0).any(1).all()):
        raise OptionError(
            "attention_flow: the head reads none of the tokens through skip connections "
            "alone, so that there is no sink to flow to"
        )
    found = [
        flows(one, read)
        for one, read in zip(maps.double().cpu(), weights.double().cpu(), strict=True)
    ]
    return {name: TokenMap(torch.stack(found).to(weights.device, weights.dtype))}


def flows(maps: Tensor, read: Tensor) -> Tensor:
    """The maximum flow from each token, (s,), through capacities (layers, s, s), from the input up,
    into the tokens that ``read`` (s,) weighs."""
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise OptionError(
            'method attention_flow needs SciPy: pip install "relprop[flow]"'
        ) from None
    count, s = maps.shape[:2]
    sink = (count + 1) * s
    tails, heads, sizes = [], [], []
    for layer, a in enumerate((maps * SCALE).round().int()):
        i, j = a.nonzero(as_tuple=True)  # query i takes from key j: from j below to i above
        tails.append(layer * s + j)
        heads.append((layer + 1) * s + i)
        sizes.append(a[i, j])
    top = (read.clamp(min=0) / read.max() * SCALE).round().int()
    ends = top.nonzero()[:, 0]
    tails.append(count * s + ends)
    heads.append(torch.full_like(ends, sink))
    sizes.append(top[ends])
    graph = csr_matrix(
        (torch.cat(sizes).numpy(), (torch.cat(tails).numpy(), torch.cat(heads).numpy())),
        shape=(sink + 1, sink + 1),
    )
    return torch.tensor(
        [maximum_flow(graph, j, sink).flow_value / SCALE for j in range(s)], dtype=torch.float64
    )


def _plain(at: AttentionStudy) -> tuple[str, Sequence[SiteValues]]:
    """The one input, and the sites as its layers. Raises ``OptionError``."""
    if len(at.content) != 1:
        raise OptionError(
            f"{NEEDS}; the target depends on {len(at.content)} inputs: "
            f"{', '.join(map(repr, at.content))}"
        )
    if not at.sites:
        raise OptionError(f"{NEEDS}; layers= leaves none")
    reaches, whose = at.session.flow.reaches, whose_tokens(at)
    for values in at.sites:
        if not all(tokens.exactly for tokens in whose[values.site.contraction]):
            raise OptionError(
                f"{NEEDS}; at {values.site.path!r} queries or keys are not all of its "
                "tokens in order"
            )
    for below, above in zip(at.sites, at.sites[1:], strict=False):
        if not reaches(below.site.contraction, above.site.values):
            raise OptionError(
                f"{NEEDS}; {below.site.path!r} and {above.site.path!r} are beside each other"
            )
    return next(iter(at.content)), at.sites
