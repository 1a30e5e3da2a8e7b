"""The rule sets by name. Each is a table over the lists in ``operations.py``, and differs from
``paper`` in few lines.

====================  ==============================================================================================
``paper``             Chefer, Gur & Wolf 2021: Eq. 5 on linear ops, Eq. 6 with Lemma 2 on adds and
products ``stable``            ``paper`` with a relative, sign-aware stabiliser on adds (ε = 1e-3):
reproducible in float32 ``reference``         the method as the authors' code computes it: their ``b
+ 1e-9``, their z-rule on pools and on the image ``reference_lrp``     the rules of their LRP
baseline: both halves of a linear op normalised apart, adds un-normalised ``lrp``               Eq.
4 (z⁺) on linear and conv, Eq. 6 un-normalised on adds, ½ on products ``epsilon``           LRP-ε on
linear and conv (the bias absorbs its part), Eq. 6 with ε on adds, ½ on products ``attnlrp``
Achtibat et al. 2024: LRP-ε, the softmax to first order, products of activations halved, σ of a norm
constant ``attnlrp_identity``  ``attnlrp`` with every norm as the identity, its centring and its β
included ``cp_lrp``            Ali et al. 2022: ``attnlrp`` with attention maps and gating
activations as constants
====================  ==============================================================================================
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relprop.numerics import AuthorsStabiliser, Epsilon
from relprop.rules import moves
from relprop.rules import operations as ops
from relprop.rules.attnlrp import attnlrp_lines, written_norm
from relprop.rules.authors import InputConv2d, OrigLinear, ZRule, indexed, joined, stabilised_sum
from relprop.rules.baselines import EpsilonLinear, ZPlus
from relprop.rules.closed import Conv2d, Linear, Matmul, Product
from relprop.rules.families import (
    Add,
    Generic,
    Sample,
    Share,
    Subtract,
    carry,
    either,
    fill,
    move,
    route,
)
from relprop.rules.rule import Rule
from relprop.rules.ruleset import Entry, RuleSet

INPUTS = frozenset({"inputs"})
BOTH = frozenset({"inputs", "output"})

stop = Rule(lambda relevance, call: (None,) * len(call.operands), "stop", "stop", frozenset())
linear = Rule(Linear(), "linear: Eq. 5", "share", INPUTS)
conv2d = Rule(Conv2d(), "conv: Eq. 5", "share", INPUTS)
share = Rule(Share(), "share: Eq. 5", "share", INPUTS)
gathered_sum = Rule(Share(weighted=False), "sum by index: Eq. 5", "share", INPUTS)
sample = Rule(Sample(), "sample: Eq. 5", "balance", INPUTS)
matmul = either(share, Rule(Matmul(), "matmul: Eq. 6, Lemma 2", "balance", BOTH))
product = either(carry, Rule(Product(), "product: Eq. 6, Lemma 2", "balance", BOTH))
add = Rule(Add(), "add: Eq. 6, Lemma 2", "balance", INPUTS)
subtract = Rule(Subtract(), "sub: Eq. 6, Lemma 2", "balance", INPUTS)
generic = Rule(Generic(), "generic: Eq. 2", "generic", BOTH)


def table(lines: Iterable[tuple[tuple[Any, ...], Rule]]) -> tuple[Entry, ...]:
    """Entries from (operators, rule) lines."""
    return tuple(Entry(op, rule) for operators, rule in lines for op in operators)


MOVE_LINES = (
    (ops.RESHAPE, moves.reshape),
    (ops.PERMUTE, moves.permute),
    (ops.TRANSPOSE, moves.transpose),
    (ops.EXPAND, moves.expand),
    (ops.SELECT, moves.select),
    (ops.SLICE, moves.slice_),
    (ops.CAT, moves.cat),
    (ops.MOVE, move),
    (ops.FILL, fill),
    (ops.ROUTE, route),
)

PAPER = RuleSet(
    "paper",
    table(
        (
            (ops.STOP, stop),
            (ops.CARRY, carry),
            (ops.PRODUCT, product),
            (ops.MATMUL, matmul),
            (ops.ADD, add),
            (ops.SUBTRACT, subtract),
            (ops.LINEAR, linear),
            (ops.CONV2D, conv2d),
            (ops.SHARE, share),
            *MOVE_LINES,
            (ops.GATHERED_SUM, gathered_sum),
            (ops.SAMPLE, sample),
        )
    ),
    generic,
)


def variant(name: str, *lines: tuple[tuple[Any, ...], Rule], **changes: Any) -> RuleSet:
    """``paper`` with other rules on some operators."""
    return RuleSet(
        name, (*table(lines), *PAPER.entries), changes.pop("generic", generic), **changes
    )


STABLE = variant(
    "stable",
    (ops.ADD, Rule(Add(relative=1e-3), "add: Eq. 6, Lemma 2, stabilised", "balance", INPUTS)),
    (
        ops.SUBTRACT,
        Rule(Subtract(relative=1e-3), "sub: Eq. 6, Lemma 2, stabilised", "balance", INPUTS),
    ),
)

_theirs = AuthorsStabiliser()
_zrule = Rule(ZRule(_theirs), "z-rule, authors'", "generic", BOTH)
_authors_moves = (
    (ops.SELECT, indexed),
    (ops.CAT, joined),
    (ops.PRODUCT, either(carry, Rule(Product(_theirs), "product, authors'", "balance", BOTH))),
    (ops.MATMUL, either(share, Rule(Matmul(_theirs), "matmul, authors'", "balance", BOTH))),
    (
        (
            *(op for op in ops.SHARE if "pool" in str(op)),
            *ops.packets("mean max_pool1d max_pool2d max_pool3d"),
        ),
        _zrule,
    ),
    (ops.CONV2D, Rule(InputConv2d(_theirs), "conv: z^B on 3 channels, authors'", "share", INPUTS)),
)

REFERENCE = variant(
    "reference",
    (ops.LINEAR, Rule(Linear(_theirs), "linear: Eq. 5, authors'", "share", INPUTS)),
    (ops.ADD, Rule(Add(_theirs), "add: Eq. 6, Lemma 2, authors'", "balance", INPUTS)),
    (ops.SUBTRACT, Rule(Subtract(_theirs), "sub: Eq. 6, Lemma 2, authors'", "balance", INPUTS)),
    *_authors_moves,
    generic=_zrule,
    fan_out=stabilised_sum,
)

REFERENCE_LRP = variant(
    "reference_lrp",
    (ops.LINEAR, Rule(OrigLinear(_theirs), "linear: halves apart, authors'", "share", INPUTS)),
    (ops.ADD, Rule(Add(_theirs, normalise=False), "add: Eq. 6, authors'", "balance", INPUTS)),
    (
        ops.SUBTRACT,
        Rule(Subtract(_theirs, normalise=False), "sub: Eq. 6, authors'", "balance", INPUTS),
    ),
    *_authors_moves,
    generic=_zrule,
    fan_out=stabilised_sum,
)

_zplus = Rule(ZPlus(), "z⁺: Eq. 4", "share", INPUTS)
LRP = variant(
    "lrp",
    (ops.LINEAR + ops.CONV2D + ops.SHARE, _zplus),
    (ops.MATMUL, either(_zplus, matmul)),
    (ops.ADD, Rule(Add(normalise=False), "add: Eq. 6", "balance", INPUTS)),
    (ops.SUBTRACT, Rule(Subtract(normalise=False), "sub: Eq. 6", "balance", INPUTS)),
)

_epsilon = Rule(EpsilonLinear(Epsilon()), "LRP-ε", "share", BOTH)
EPSILON = variant(
    "epsilon",
    (ops.LINEAR + ops.CONV2D + ops.SHARE, _epsilon),
    (ops.MATMUL, either(_epsilon, matmul)),
    (ops.ADD, Rule(Add(Epsilon(), normalise=False), "add: Eq. 6, ε", "balance", INPUTS)),
    (ops.SUBTRACT, Rule(Subtract(Epsilon(), normalise=False), "sub: Eq. 6, ε", "balance", INPUTS)),
)

ATTNLRP = variant("attnlrp", *attnlrp_lines(), norm=written_norm())
ATTNLRP_IDENTITY = variant("attnlrp_identity", *attnlrp_lines(norms=False))
CP_LRP = variant(
    "cp_lrp", *attnlrp_lines(constants=("constant", "attention", "gate")), norm=written_norm()
)

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
    )
}
