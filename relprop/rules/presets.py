"""The rule sets by name. Each is a table over the kinds of operations, and differs from ``paper``
in few lines.

- ``paper``: Chefer, Gur & Wolf 2021. Eq. 5 on linear operations, Eq. 6 with Lemma 2 on sums and
  products.
- ``stable``: ``paper`` with a relative, sign-aware stabiliser on sums (ε = 1e-3), reproducible in
  float32.
- ``reference``: the method as the authors' code computes it, with their ``b + 1e-9`` and their
  z-rule on pools and on the image.
- ``reference_lrp``: the rules of their LRP baseline, both halves of a linear operation normalised
  apart, sums un-normalised.
- ``lrp``: Eq. 4 (z⁺) on linear operations, Eq. 6 un-normalised on sums, ½ on products.
- ``epsilon``: LRP-ε on linear operations (the bias absorbs its part), Eq. 6 with ε on sums, ½ on
  products.
- ``attnlrp``: Achtibat et al. 2024. LRP-ε, the softmax to first order, products of activations
  halved, the deviation of a norm constant.
- ``attnlrp_identity``: ``attnlrp`` with every norm as the identity, β included.
- ``cp_lrp``: Ali et al. 2022. ``attnlrp`` with attention maps and gating activations as constants.
- ``libra``: the model that LibraGrad differentiates (Mehri et al. 2025). ``attnlrp`` with attention
  maps and routers' shares as constants; gates and values get half each.
- ``lrp_gamma``: ``attnlrp`` with LRP-γ on linear and convolution layers, γ = 0.25; the function of
  that name takes another γ.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from relprop.numerics import AuthorsStabiliser, Epsilon
from relprop.operations import FILLS, MOVES, STOPS, Kind, Value
from relprop.rules import moves
from relprop.rules.attnlrp import SUMMED, attnlrp_lines
from relprop.rules.authors import InputConv2d, OrigLinear, indexed, joined, stabilised_sum
from relprop.rules.baselines import GAMMA, EpsilonLinear, Gamma, ZPlus
from relprop.rules.call import Call
from relprop.rules.closed import Conv2d, Linear, Matmul, Product
from relprop.rules.factories import at_least_zero
from relprop.rules.families import Generic, Sample, Share, carry, either, fill, move, route
from relprop.rules.gradient_form import Damped, carried, halved, own
from relprop.rules.large_linear import LargeLinear
from relprop.rules.rule import Rule
from relprop.rules.ruleset import Entry, Key, RuleSet
from relprop.rules.sums import Add

INPUTS = frozenset({"inputs"})
BOTH = frozenset({"inputs", "output"})
aten = torch.ops.aten


def _stop(relevance: Tensor, call: Call) -> tuple[None, ...]:
    """Nothing goes on to any operand, as behind ``detach()``: all that arrives ends here."""
    return (None,) * len(call.operands)


_balance = partial(Rule, family="balance", reads=INPUTS, row_wise=True)
stop = Rule(_stop, "stop", "stop", frozenset())
_large = Rule(LargeLinear(), "linear: Eq. 5", "share", BOTH)
linear = Rule(Linear(), "linear: Eq. 5", "share", INPUTS, large=_large)
conv2d = Rule(Conv2d(), "conv: Eq. 5", "share", INPUTS)
share = Rule(Share(), "share: Eq. 5", "share", INPUTS)
gathered_sum = Rule(Share(weighted=False), "sum by index: Eq. 5", "share", INPUTS)
sample = Rule(Sample(), "sample: Eq. 5", "balance", INPUTS)
matmul = either(share, _balance(Matmul(), "matmul: Eq. 6, Lemma 2", reads=BOTH, gradient=halved))
product = either(carry, _balance(Product(), "product: Eq. 6, Lemma 2", reads=BOTH, gradient=halved))
add = Rule(Add(), "add: Eq. 6, Lemma 2", "balance", INPUTS)
_alone = Rule(Generic(), "generic: Eq. 2", "generic", BOTH, gradient=own)
generic = Rule(Generic(), "generic: Eq. 2", "generic", BOTH, lone=_alone)


def table(lines: Iterable[tuple[Iterable[Key], Rule]]) -> tuple[Entry, ...]:
    """Entries from (kinds and operators, rule) lines."""
    return tuple(Entry(key, rule) for keys, rule in lines for key in keys)


#: One element of one operand is read for each element of the result, or it is made comparable.
CARRIED = (
    *(Kind.IDENTITY, Kind.DETACH, Kind.CAST, Kind.AFFINE, Kind.FUNCTION),
    *(Kind.SOFTMAX, Kind.LOG_SOFTMAX, Kind.NORM, Kind.BATCH_NORM),
)
PRODUCTS = (Kind.PRODUCT, Kind.QUOTIENT)
ROUTED = (Kind.EXTREMUM, Kind.LARGEST, Kind.MAX_POOL, Kind.PICK)

PAPER = RuleSet(
    "paper",
    table(
        (
            (STOPS, stop),
            (CARRIED, carry),
            (PRODUCTS, product),
            ((Kind.MATMUL,), matmul),
            ((Kind.SUM,), add),
            ((Kind.LINEAR,), linear),
            ((aten.conv2d,), conv2d),
            (SUMMED, share),
            ((Kind.RESHAPE,), moves.reshape),
            ((aten.permute,), moves.permute),
            ((Kind.EXPAND,), moves.expand),
            ((Kind.SELECT,), moves.select),
            ((aten.slice,), moves.slice_),
            ((aten.cat,), moves.cat),
            ((aten.masked_fill,), moves.masked_fill),
            ((*FILLS, Kind.WRITE), fill),
            (MOVES, move),
            (ROUTED, route),
            ((Kind.INDEXED_SUM,), gathered_sum),
            ((Kind.SAMPLE,), sample),
        )
    ),
    generic,
)


Lines = tuple[tuple[tuple[Key, ...], Rule], ...]


def gamma_lines(lines: Lines, gamma: float, conv_gamma: float) -> Lines:
    """``lines`` with LRP-γ on linear layers and on convolutions."""
    both = next(rule for keys, rule in lines if Kind.MATMUL in keys)
    layer, window = (
        Rule(g, f"LRP-γ, γ = {g.gamma:g}", "share", INPUTS, gradient=g.form)
        for g in map(Gamma, (gamma, conv_gamma))
    )
    first: Lines = (
        ((Kind.LINEAR,), layer),
        ((Kind.MATMUL,), either(layer, both)),
        ((Kind.CONVOLUTION,), window),
    )
    return (*first, *lines)


def variant(name: str, *lines: tuple[Iterable[Key], Rule], **changes: Any) -> RuleSet:
    """``paper`` with other rules on some operations."""
    entries = (*table(lines), *PAPER.entries)
    return RuleSet(name, entries, changes.pop("generic", generic), **changes)


STABLE = variant(
    "stable",
    ((Kind.SUM,), Rule(Add(relative=1e-3), "add: Eq. 6, Lemma 2, stabilised", "balance", INPUTS)),
)

_theirs = AuthorsStabiliser()
_zrule = Rule(Generic(_theirs, normalise=False), "z-rule, authors'", "generic", BOTH)
_authors_product = _balance(Product(_theirs), "product, authors'", reads=BOTH)
_authors_matmul = _balance(Matmul(_theirs), "matmul, authors'", reads=BOTH)
_authors_conv2d = Rule(InputConv2d(_theirs), "conv: z^B on 3 channels, authors'", "share", INPUTS)


def _as_published(name: str, linear: Rule, add: Rule) -> RuleSet:
    """What the authors' code does, with these rules on linear operations and on sums."""
    return variant(
        name,
        ((Kind.LINEAR,), linear),
        ((Kind.SUM,), add),
        ((Kind.SELECT,), indexed),
        ((aten.cat,), joined),
        (PRODUCTS, either(carry, _authors_product)),
        ((Kind.MATMUL,), either(_zrule, _authors_matmul)),
        ((Kind.TOTAL, Kind.SCAN, Kind.INDEXED_SUM), _zrule),
        ((Kind.AVERAGE_POOL, Kind.MAX_POOL), _zrule),
        ((aten.conv2d,), _authors_conv2d),
        generic=_zrule,
        fan_out=stabilised_sum,
    )


REFERENCE = _as_published(
    "reference",
    Rule(Linear(_theirs), "linear: Eq. 5, authors'", "share", INPUTS),
    Rule(Add(_theirs), "add: Eq. 6, Lemma 2, authors'", "balance", INPUTS),
)
REFERENCE_LRP = _as_published(
    "reference_lrp",
    Rule(OrigLinear(_theirs), "linear: halves apart, authors'", "share", INPUTS),
    _balance(Add(_theirs, normalise=False), "add: Eq. 6, authors'"),
)

_zplus = Rule(ZPlus(), "z⁺: Eq. 4", "share", INPUTS)
LRP = variant(
    "lrp",
    ((Kind.LINEAR, *SUMMED), _zplus),
    ((Kind.MATMUL,), either(_zplus, matmul)),
    ((Kind.SUM,), _balance(Add(normalise=False), "add: Eq. 6")),
)

_damped = Damped(Epsilon().epsilon)


def _sum_form(call: Call) -> Value:
    return carried(call) if len(call.operands) == 1 else _damped(call)


_epsilon = Rule(EpsilonLinear(Epsilon()), "LRP-ε", "share", BOTH, gradient=_damped)
_sum = _balance(Add(Epsilon(), normalise=False), "add: Eq. 6, ε", gradient=_sum_form)
EPSILON = variant(
    "epsilon",
    ((Kind.LINEAR, *SUMMED), _epsilon),
    ((Kind.MATMUL,), either(_epsilon, matmul)),
    ((Kind.SUM,), _sum),
)

ATTNLRP = variant("attnlrp", *attnlrp_lines())
ATTNLRP_IDENTITY = variant("attnlrp_identity", *attnlrp_lines(norms=False))
CP_LRP = variant("cp_lrp", *attnlrp_lines(constants=("constant", "attention", "gate")))
LIBRA_CONSTANTS = ("constant", "attention", "routing")
LIBRA = variant("libra", *attnlrp_lines(constants=LIBRA_CONSTANTS))


def lrp_gamma(gamma: float = GAMMA, conv_gamma: float | None = None) -> RuleSet:
    """``attnlrp`` with LRP-γ on linear layers and, by ``conv_gamma`` if it is given, on
    convolutions. Raises ``OptionError`` for what is no finite number ≥ 0."""
    gammas = {"gamma": gamma, "conv_gamma": gamma if conv_gamma is None else conv_gamma}
    return _lrp_gamma(*(at_least_zero(name, value) for name, value in gammas.items()))


@cache
def _lrp_gamma(gamma: float, conv_gamma: float) -> RuleSet:
    usual = gamma == conv_gamma == GAMMA
    name = "lrp_gamma" if usual else f"lrp_gamma({gamma:g}, {conv_gamma:g})"
    return variant(name, *gamma_lines(attnlrp_lines(), gamma, conv_gamma))


LRP_GAMMA = lrp_gamma()

PRESETS = {
    rules.name: rules
    for rules in (
        PAPER,
        STABLE,
        REFERENCE,
        REFERENCE_LRP,
        LRP,
        EPSILON,
        ATTNLRP,
        ATTNLRP_IDENTITY,
        CP_LRP,
        LIBRA,
        LRP_GAMMA,
    )
}


def gradient_name(rules: RuleSet) -> str:
    """What ``gradient=`` calls a rule set."""
    return "balanced" if rules.name == LIBRA.name else rules.name
