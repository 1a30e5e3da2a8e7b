"""Every kind of operation that has a rule, with a strategy for its calls and its oracle under each
preset: the table the laws run over."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from tests.common import oracles
from tests.common.calls import Hole, Spec
from tests.common.tensors import KINDS, broadcastable, shapes, sizes

aten = torch.ops.aten
PRESETS = ("paper", "stable", "lrp", "epsilon")


@dataclass(frozen=True)
class Subject:
    """``specs`` draws calls without tensors; ``oracle(preset, relevance, call)`` answers in NumPy;
    ``linear``: whether the rule is linear in R."""

    name: str
    specs: st.SearchStrategy
    oracle: Callable[[str, Any, Any], oracles.Answer]
    kinds: tuple[str, ...] = KINDS
    linear: bool = True


def arrays(call):
    return [x.numpy() for x in call.inputs]


# ---- operations that sum: Eq. 5, Eq. 4 or LRP-ε


def summing(terms, preset, relevance, call):
    """The oracle of a weighted sum, from its terms."""
    x = arrays(call)[0]
    bias = next((o.value.numpy() for o in call.operands if o.argument == "bias"), None)
    rules = {
        "lrp": oracles.eq4,
        "epsilon": partial(
            oracles.lrp_epsilon, bias=bias, bias_axis=1 if "conv" in str(call.op) else -1
        ),
    }
    return rules.get(preset, oracles.eq5)(relevance, x, terms(call))


@st.composite
def linear_specs(draw):
    lead, n, m = draw(shapes(0, 2, 2)), draw(sizes(1, 4)), draw(sizes())
    bias = (Hole((m,)),) if draw(st.booleans()) else ()
    return Spec(
        aten.linear.default, (Hole((*lead, n)), Hole((m, n)), *bias), "app"[: 2 + len(bias)]
    )


def linear_terms(call):
    return oracles.linear_terms(*arrays(call)[:2])


@st.composite
def conv2d_specs(draw):
    groups, per_group, outputs = draw(sizes(1, 2)), draw(sizes(1, 2)), draw(sizes(1, 2))
    window, stride, padding, dilation = (
        draw(st.tuples(sizes(*r), sizes(*r))) for r in ((1, 2), (1, 2), (0, 1), (1, 2))
    )
    x, weight = Hole((1, groups * per_group, 3, 4)), Hole((outputs * groups, per_group, *window))
    bias = Hole((outputs * groups,)) if draw(st.booleans()) else None
    return Spec(
        aten.conv2d.default,
        (x, weight, bias, list(stride), list(padding), list(dilation), groups),
        "app" if bias else "ap",
    )


def conv2d_terms(call):
    return oracles.conv2d_terms(*arrays(call)[:2], *call.args[3:])


@st.composite
def reduction_specs(draw):
    shape = draw(shapes(1, 3))
    dims = draw(
        st.lists(
            st.integers(-len(shape), len(shape) - 1),
            min_size=1,
            max_size=len(shape),
            unique_by=lambda d: d % len(shape),
        )
    )
    return Spec(
        draw(st.sampled_from([aten.mean.dim, aten.sum.dim_IntList])),
        (Hole(shape), dims, draw(st.booleans())),
        "a",
    )


def reduction_terms(call):
    x, (_, dims, keepdim) = arrays(call)[0], call.args
    count = torch.Size([x.shape[d] for d in dims]).numel()
    return oracles.reduced_terms(x, dims, keepdim, 1 / count if call.op is aten.mean.dim else 1.0)


@st.composite
def pool_specs(draw):
    window = draw(sizes(1, 2))
    return Spec(
        aten.avg_pool2d.default,
        (Hole((1, draw(sizes(1, 2)), draw(sizes(2, 4)), draw(sizes(2, 4)))), [window, window]),
        "a",
    )


def pool_terms(call):
    return oracles.pooled_terms(arrays(call)[0], call.args[1][0])


def weighted_matmul_terms(call):
    """A matmul whose other operand is a parameter or a constant is a weighted sum of the one
    activation."""
    at = call.activations[0]
    return [(i, (j, k)[at], value) for i, j, k, value in oracles.matmul_terms(*arrays(call))]


def weighted_matmul(preset, relevance, call):
    u, v = arrays(call)
    at, terms = call.activations[0], weighted_matmul_terms(call)
    rules = {"lrp": oracles.eq4, "epsilon": oracles.lrp_epsilon}
    return rules.get(preset, oracles.eq5)(relevance, (u, v)[at], terms)


def probed_terms(call):
    """Any other operation linear in its first operand: its weights read off by one-hots, its bias
    left out."""
    rest = [
        torch.zeros_like(o.value) if o.argument == "bias" else o.value for o in call.operands[1:]
    ]
    return oracles.probed_terms(
        arrays(call)[0], lambda hot: call.apply(torch.from_numpy(hot), *rest).numpy()
    )


SUMS = st.sampled_from(
    [
        Spec(aten.conv1d.default, (Hole((1, 2, 5)), Hole((2, 2, 3)), Hole((2,)), [2], [1]), "app"),
        Spec(aten.conv1d.default, (Hole((1, 2, 4)), Hole((2, 1, 2)), None, [1], [0], [1], 2), "ap"),
        Spec(aten.conv3d.default, (Hole((1, 1, 2, 2, 3)), Hole((2, 1, 2, 1, 2))), "ap"),
        Spec(
            aten.conv_transpose2d.input,
            (Hole((1, 2, 2, 2)), Hole((2, 1, 2, 2)), Hole((1,)), [2, 1]),
            "app",
        ),
        Spec(aten.conv_transpose1d.default, (Hole((1, 2, 3)), Hole((2, 2, 2)), None, [2]), "ap"),
        Spec(aten.cumsum.default, (Hole((2, 4)), -1), "a"),
        Spec(aten.col2im.default, (Hole((1, 4, 4)), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]), "a"),
        Spec(aten.sum.default, (Hole((2, 3)),), "a"),
        Spec(aten.mean.default, (Hole((2, 4)),), "a"),
        Spec(
            aten.avg_pool2d.default, (Hole((1, 1, 4, 4)), [3, 3], [2, 2], [1, 1], False, False), "a"
        ),
        Spec(aten.avg_pool1d.default, (Hole((1, 2, 5)), [2]), "a"),
        Spec(aten.adaptive_avg_pool1d.default, (Hole((1, 2, 5)), [2]), "a"),
        Spec(aten.adaptive_avg_pool2d.default, (Hole((1, 2, 4, 2)), [2, 1]), "a"),
        Spec(aten.upsample_nearest2d.vec, (Hole((1, 1, 2, 2)), [4, 4], None), "a"),
        Spec(aten.upsample_bilinear2d.vec, (Hole((1, 1, 2, 2)), [4, 4], False, None), "a"),
    ]
)


# ---- operations that mix two activations: Eq. 6 and Lemma 2


@st.composite
def matmul_specs(draw, roles=("aa",)):
    lead, r, k, c = draw(shapes(0, 2, 2)), draw(sizes(1, 3)), draw(sizes(1, 3)), draw(sizes(1, 3))
    other = draw(st.sampled_from([lead, (), tuple(1 for _ in lead)]))
    first, second = draw(st.permutations([lead, other]))
    left = draw(
        st.sampled_from([(*first, r, k), (k,)]) if draw(st.booleans()) else st.just((*first, r, k))
    )
    right = draw(
        st.sampled_from([(*second, k, c), (k,)])
        if draw(st.booleans())
        else st.just((*second, k, c))
    )
    return Spec(aten.matmul.default, (Hole(left), Hole(right)), draw(st.sampled_from(roles)))


def matmul(preset, relevance, call):
    return oracles.halves(relevance, *arrays(call), oracles.matmul_terms(*arrays(call)))


BMM = st.sampled_from(
    [
        Spec(aten.bmm.default, (Hole((2, 2, 3)), Hole((2, 3, 1))), "aa"),
        Spec(aten.mm.default, (Hole((2, 3)), Hole((3, 2))), "aa"),
        Spec(aten.mv.default, (Hole((2, 3)), Hole((3,))), "aa"),
        Spec(aten.dot.default, (Hole((3,)), Hole((3,))), "aa"),
    ]
)


@st.composite
def pointwise_specs(draw, op, roles, nonzero=False):
    left, right = draw(broadcastable())
    if draw(st.booleans()):
        left, right = right, left
    return Spec(op, (Hole(left), Hole(right, nonzero)), draw(st.sampled_from(roles)))


def product(preset, relevance, call):
    return oracles.product(relevance, *arrays(call))


def quotient(preset, relevance, call):
    return oracles.quotient(relevance, *arrays(call))


ADD_OPTIONS = {
    "paper": {},
    "stable": {"relative": 1e-3},
    "lrp": {"normalised": False},
    "epsilon": {"epsilon": 1e-6, "normalised": False},
}


def add(sign, preset, relevance, call):
    return oracles.add(relevance, *arrays(call), sign=sign, **ADD_OPTIONS[preset])


# ---- carry, move, generic


def carry(preset, relevance, call):
    return oracles.carry(relevance, call.inputs[call.activations[0]].numpy())


@st.composite
def carried_specs(draw):
    shape = draw(shapes(1, 3))
    last = list(shape[-1:])
    return draw(
        st.sampled_from(
            [
                Spec(aten.gelu.default, (Hole(shape),), "a"),
                Spec(aten.relu.default, (Hole(shape),), "a"),
                Spec(aten.silu.default, (Hole(shape),), "a"),
                Spec(aten.softmax.int, (Hole(shape), -1), "a"),
                Spec(
                    aten.layer_norm.default,
                    (Hole(shape), last, Hole(tuple(last)), Hole(tuple(last))),
                    "app",
                ),
                Spec(aten.pow.Tensor_Scalar, (Hole(shape), 2), "a"),
                Spec(aten.mul.Tensor, (Hole(shape), 3.0), "a"),
                Spec(aten.add.Tensor, (Hole(shape), 3.0), "a"),
            ]
        )
    )


def moved(preset, relevance, call):
    """One-hots in the floating operands; masks and indices stay."""
    at = [i for i, x in enumerate(call.inputs) if x.is_floating_point()]

    def function(*values):
        inputs = list(call.inputs)
        for i, value in zip(at, values, strict=True):
            inputs[i] = torch.from_numpy(value)
        return call.apply(*inputs).numpy()

    return oracles.moved(relevance, [call.inputs[i].numpy() for i in at], function)


INDEX = torch.tensor([2, 0, 2])
MASK = torch.tensor([[True, False, False], [False, True, False]])
MOVED = st.sampled_from(
    [
        Spec(aten.index_select.default, (Hole((2, 3)), 1, INDEX), "ac"),
        Spec(aten.index.Tensor, (Hole((3, 2)), [INDEX]), "ac"),
        Spec(aten.gather.default, (Hole((2, 3)), 1, torch.tensor([[0, 2], [1, 1]])), "ac"),
        Spec(aten.roll.default, (Hole((2, 3)), [1], [-1]), "a"),
        Spec(aten.flip.default, (Hole((2, 3)), [0, 1]), "a"),
        Spec(aten.stack.default, ([Hole((2, 2)), Hole((2, 2))], -1), "ap"),
        Spec(aten.repeat.default, (Hole((2, 2)), [2, 1, 2]), "a"),
        Spec(aten.repeat_interleave.self_int, (Hole((2, 2)), 2, 1), "a"),
        Spec(aten.pixel_shuffle.default, (Hole((1, 4, 1, 2)), 2), "a"),
        Spec(aten.unfold.default, (Hole((5,)), 0, 3, 1), "a"),
        Spec(aten.im2col.default, (Hole((1, 1, 2, 3)), [2, 2], [1, 1], [1, 1], [1, 1]), "a"),
        Spec(aten.scatter.value, (Hole((2, 2)), 1, torch.tensor([[0], [1]]), 3.0), "ac"),
        Spec(aten.scatter.src, (Hole((2, 2)), 1, torch.tensor([[0], [1]]), Hole((2, 1))), "aca"),
        Spec(aten.diagonal.default, (Hole((3, 3)), 1), "a"),
        Spec(aten.masked_fill.Scalar, (Hole((2, 3)), MASK, -5.0), "ac"),
        Spec(aten.masked_fill.Scalar, (Hole((2, 3)), MASK, float("-inf")), "ac"),
        Spec(aten.where.self, (MASK, Hole((2, 3)), Hole((1, 3))), "caa"),
        Spec(aten.where.self, (MASK, Hole((2, 3)), Hole(())), "cac"),
        Spec(aten.constant_pad_nd.default, (Hole((2, 2)), [1, 0, 0, 1], 2.0), "a"),
        Spec(aten.tril.default, (Hole((3, 3)),), "a"),
        Spec(aten.slice_scatter.default, (Hole((3, 2)), Hole((1, 2)), 0, 1, 2), "aa"),
    ]
)


def max_pooled(preset, relevance, call):
    return oracles.max_pooled(relevance, arrays(call)[0], call.args[1][0])


def generic(preset, relevance, call):
    jacobians = torch.func.jacrev(call.apply, argnums=tuple(range(len(call.inputs))))(*call.inputs)
    return oracles.generic(
        relevance, arrays(call), call.output.numpy(), [j.numpy() for j in jacobians]
    )


GENERIC = st.sampled_from(
    [
        Spec(aten.prod.dim_int, (Hole((2, 3)), -1), "a"),
        Spec(aten.logsumexp.default, (Hole((2, 3)), [-1]), "a"),
        Spec(aten.outer.default, (Hole((2,)), Hole((3,))), "aa"),
        Spec(aten.hypot.default, (Hole((2, 3), True), Hole((2, 3), True)), "aa"),
        Spec(aten.atan2.default, (Hole((4,), True), Hole((4,), True)), "aa"),
    ]
)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("linear", linear_specs(), partial(summing, linear_terms)),
        Subject("conv2d", conv2d_specs(), partial(summing, conv2d_terms)),
        Subject("sum and mean", reduction_specs(), partial(summing, reduction_terms)),
        Subject("average pooling", pool_specs(), partial(summing, pool_terms)),
        Subject("other weighted sums", SUMS, partial(summing, probed_terms)),
        Subject("matmul with a parameter", matmul_specs(("ap", "pa", "ac")), weighted_matmul),
        Subject("matmul", matmul_specs(), matmul),
        Subject("bmm, mm, mv, dot", BMM, matmul),
        Subject("product", pointwise_specs(aten.mul.Tensor, ("aa",)), product),
        Subject("quotient", pointwise_specs(aten.div.Tensor, ("aa",), nonzero=True), quotient),
        Subject(
            "add",
            pointwise_specs(aten.add.Tensor, ("aa", "ap", "pa")),
            partial(add, 1),
            linear=False,
        ),
        Subject(
            "sub",
            pointwise_specs(aten.sub.Tensor, ("aa", "ap", "pa")),
            partial(add, -1),
            linear=False,
        ),
        Subject("carry", carried_specs(), carry),
        Subject(
            "product with a parameter", pointwise_specs(aten.mul.Tensor, ("ap", "pa", "ac")), carry
        ),
        Subject("move", MOVED, moved),
        Subject(
            "max pooling",
            st.just(Spec(aten.max_pool2d.default, (Hole((1, 2, 4, 5)), [2, 2]), "a")),
            max_pooled,
        ),
        Subject("generic", GENERIC, generic, linear=False),
    )
}
