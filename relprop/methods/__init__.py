"""The methods by name. A method gives Eq. 13's matrix at every attention site; the roll-up (Eq. 14) is the same for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, fx

from relprop.errors import OptionError
from relprop.methods.base import Method, SiteValues, chosen_layers


def transformer_attribution(sites: Sequence[SiteValues], *, use_gradient: bool = True) -> Mapping[fx.Node, Tensor]:
    """Chefer et al. 2021, Eq. 13: (∇A ⊙ R)⁺ per head, clamped before the mean over heads. ``use_gradient=False``: A in place of ∇A (Table 3, i)."""
    found = {}
    for values in sites:
        assert values.relevance is not None
        factor = values.gradient if use_gradient else values.attention
        assert factor is not None
        found[values.site.contraction] = (factor.to(values.relevance.dtype) * values.relevance).clamp(min=0)
    return found


def rollout(sites: Sequence[SiteValues]) -> Mapping[fx.Node, Tensor]:
    """Abnar & Zuidema 2020, as Chefer et al. 2021, Eq. 15–16: A itself. Not class-specific."""
    return {values.site.contraction: values.attention for values in sites}


METHODS = {
    "transformer_attribution": Method("transformer_attribution", transformer_attribution, frozenset({"gradient", "relevance"}), True),
    "rollout": Method("rollout", rollout, frozenset(), False),
}


def method_named(name: str) -> Method:
    """A method by its name; an unknown one is answered with the list."""
    if name not in METHODS:
        raise OptionError(f"method={name!r} is no method; there are {', '.join(sorted(METHODS))}")
    return METHODS[name]


__all__ = ["METHODS", "Method", "SiteValues", "chosen_layers", "method_named"]
