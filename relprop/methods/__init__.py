"""The methods by name. At the attention level one gives Eq. 13's matrix at every attention site, and the roll-up (Eq. 14) is the same for
all; at the input level one gives a number per pixel or per feature of an embedding, of any model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, fx

from relprop.errors import OptionError, message
from relprop.methods.base import InputValues, Level, Method, SiteValues, chosen_layers
from relprop.methods.inputs import gradient_x_input, input_gradient, integrated_gradients, lrp
from relprop.methods.perturbed import deeplift, occlusion
from relprop.methods.positions import positions, windows
from relprop.methods.sampled import gradient_shap, random, smoothgrad


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


GRADIENT, RELEVANCE = frozenset({"gradient"}), frozenset({"relevance"})

METHODS = {
    "transformer_attribution": Method("transformer_attribution", transformer_attribution, GRADIENT | RELEVANCE, True),
    "rollout": Method("rollout", rollout, frozenset(), False),
    "lrp": Method("lrp", lrp, RELEVANCE, True, "input", rules="lrp"),
    "input_gradient": Method("input_gradient", input_gradient, GRADIENT, True, "input"),
    "gradient_x_input": Method("gradient_x_input", gradient_x_input, GRADIENT, True, "input"),
    "integrated_gradients": Method("integrated_gradients", integrated_gradients, frozenset(), True, "input"),
    "smoothgrad": Method("smoothgrad", smoothgrad, frozenset(), True, "input"),
    "gradient_shap": Method("gradient_shap", gradient_shap, frozenset(), True, "input", whole=frozenset({"baselines"})),
    "deeplift": Method("deeplift", deeplift, frozenset(), True, "input"),
    "occlusion": Method("occlusion", occlusion, frozenset(), True, "input"),
    "random": Method("random", random, frozenset(), False, "input"),
}

#: What to use for a model without token attention.
INPUT_LEVEL = tuple(name for name, method in METHODS.items() if method.level == "input")


def method_named(name: str, level: Level | None = "attention") -> Method:
    """A method by its name; an unknown one is answered with the list, and one of another level than ``level`` (``None``: any) is refused."""
    if name not in METHODS:
        raise OptionError(f"method={name!r} is no method; there are {', '.join(sorted(METHODS))}")
    if level is not None and METHODS[name].level != level:
        raise OptionError(message(
            f"method {name!r} works at the {METHODS[name].level}; here a method at the {level} is wanted: "
            f"{', '.join(n for n, m in sorted(METHODS.items()) if m.level == level)}",
            then=[f"relprop.explain(model, inputs, target, method={name!r})"],
        ))
    return METHODS[name]


__all__ = ["INPUT_LEVEL", "METHODS", "InputValues", "Method", "SiteValues", "chosen_layers", "method_named", "positions", "windows"]
