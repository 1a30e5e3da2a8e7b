"""Relevance rules: what they are told (``Call``), what they return (``Split``), the families, and
the presets by name.

Principle: an op whose every output element depends on ONE input element hands relevance on
unchanged; an op that *sums many* inputs splits it by Eq. 5; an op that *mixes two activations*
splits it by Eq. 6 and then normalises by Lemma 2; a value used k times receives the sum of k
relevances.
"""

from relprop.rules.call import Call, Operand, Split, Total
from relprop.rules.factories import alpha_beta, epsilon, flat, gamma, w_squared, z_box
from relprop.rules.families import carry, move
from relprop.rules.presets import (
    ATTNLRP,
    ATTNLRP_IDENTITY,
    CP_LRP,
    EPSILON,
    LIBRA,
    LRP,
    LRP_GAMMA,
    PAPER,
    PRESETS,
    REFERENCE,
    REFERENCE_LRP,
    STABLE,
    add,
    conv2d,
    generic,
    linear,
    lrp_gamma,
    matmul,
    product,
    share,
    stop,
)
from relprop.rules.rule import Rule, rule
from relprop.rules.ruleset import RuleSet, register_rule

__all__ = [
    "ATTNLRP",
    "ATTNLRP_IDENTITY",
    "CP_LRP",
    "EPSILON",
    "LIBRA",
    "LRP",
    "LRP_GAMMA",
    "PAPER",
    "PRESETS",
    "REFERENCE",
    "REFERENCE_LRP",
    "STABLE",
    "Call",
    "Operand",
    "Rule",
    "RuleSet",
    "Split",
    "Total",
    "add",
    "alpha_beta",
    "carry",
    "conv2d",
    "epsilon",
    "flat",
    "gamma",
    "generic",
    "linear",
    "lrp_gamma",
    "matmul",
    "move",
    "product",
    "register_rule",
    "rule",
    "share",
    "stop",
    "w_squared",
    "z_box",
]


def __dir__() -> list[str]:
    return __all__
