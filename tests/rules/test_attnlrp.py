"""AttnLRP and CP-LRP: every rule against its formula on numbers, whole models against input ×
gradient with other local derivatives.

The second oracle (``tests/common/local_gradients.py``) runs the user's eager model and knows
nothing of graphs, plans or rules.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import RelpropWarning
from relprop.methods import METHODS
from relprop.plan.gates import gate_notes
from relprop.rules import ATTNLRP, ATTNLRP_IDENTITY, CP_LRP, PRESETS
from relprop.rules.attnlrp import EPSILON, attnlrp_lines
from relprop.rules.notes import Constants
from relprop.rules.presets import variant
from tests.common.calls import amounts, make_call
from tests.common.local_gradients import contributions
from tests.common.models import build, closeness, randomise, recipes, sample, shared

aten = torch.ops.aten
EXACT = 1e-9
FEW = settings(max_examples=max(settings().max_examples // 3, 1))
TINY = 1e-14  # where ε is to be out of the way
ALL_CONSTANTS = ("constant", "attention", "gate")
LIMITS = {
    "attnlrp": variant("attnlrp, ε → 0", *attnlrp_lines(TINY)),
    "attnlrp_identity": variant("attnlrp_identity, ε → 0", *attnlrp_lines(TINY, norms=False)),
    "cp_lrp": variant("cp_lrp, ε → 0", *attnlrp_lines(TINY, constants=ALL_CONSTANTS)),
}
LOCAL = {"attnlrp": {}, "attnlrp_identity": {"norm": "identity"}, "cp_lrp": {"constants": True}}


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def split(rules, relevance, call):
    """What the rule set's own rule says, and that its books balance."""
    found = rules.for_op(call.op)(relevance, call)
    gap = relevance.sum() - sum(amounts(found)) - sum(found.lost.values())
    assert abs(float(gap)) <= 1e-12 * float(
        relevance.abs().sum() + sum(s.abs().sum() for s in found.shares if s is not None)
    )
    return found


def stabilised(z, epsilon=EPSILON):
    return z + epsilon * torch.where(z < 0, -1.0, 1.0)


# ---- each rule on numbers


def test_the_softmax_is_taylors_first_order():
    """R_i = x_i·(R'_i − s_i·Σ R'_j), element by element."""
    x, relevance = drawn(2, 3, 4), drawn(2, 3, 4, seed=1)
    for dim in (-1, 1):
        call = make_call(aten.softmax.int, x, dim)
        (share,) = split(ATTNLRP, relevance, call).shares
        expected = torch.zeros_like(x)
        s = call.output
        for index in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
            row = list(index)
            row[dim] = slice(None)
            expected[tuple(index)] = x[tuple(index)] * (
                relevance[tuple(index)] - s[tuple(index)] * relevance[tuple(row)].sum()
            )
        assert closeness(share, expected) <= EXACT


@pytest.mark.parametrize(
    "op", [aten.softmax.int, aten._softmax.default, aten._safe_softmax.default], ids=str
)
@pytest.mark.parametrize("mask", [-math.inf, torch.finfo(torch.float64).min])
def test_masked_scores_take_no_relevance(op, mask):
    """Nor does a row of nothing but masked scores; the others get what they would get alone."""
    x, whole = drawn(2, 4), op is aten._safe_softmax.default or mask > -math.inf
    x[0, 2:] = mask
    if whole:
        x[1] = mask
    extra = (False,) if op is aten._softmax.default else ()
    relevance = drawn(2, 4, seed=1) * (x > -1e300)
    (share,) = split(ATTNLRP, relevance, make_call(op, x, -1, *extra)).shares
    (alone,) = split(ATTNLRP, relevance[:1, :2], make_call(op, x[:1, :2], -1, *extra)).shares
    assert closeness(share[:1, :2], alone) <= EXACT
    assert (
        (share[0, 2:] == 0).all()
        and (not whole or (share[1] == 0).all())
        and share.isfinite().all()
    )
    added = split(
        ATTNLRP,
        relevance,
        make_call(
            aten.add.Tensor,
            drawn(2, 4, seed=2),
            torch.where(x > -1e300, torch.zeros_like(x), mask),
            roles="ac",
        ),
    )
    assert closeness(added.shares[0], relevance) <= 1e-6 and (added.shares[1] == 0).all()


def test_a_product_of_matrices_is_halved():
    """R_u = u·∂(uv)·R/(2·uv + ε'), ε' = 2ε; likewise v."""
    u, v, relevance = drawn(2, 3, 4), drawn(2, 4, 5, seed=1), drawn(2, 3, 5, seed=2)
    ru, rv = split(ATTNLRP, relevance, make_call(aten.matmul.default, u, v)).shares
    terms = u[:, :, :, None] * v[:, None]
    weighed = terms * (relevance / (2 * stabilised(u @ v)))[:, :, None]
    assert closeness(ru, weighed.sum(-1)) <= EXACT and closeness(rv, weighed.sum(1)) <= EXACT
    assert closeness(ru.sum(), relevance.sum() / 2) <= 1e-6


def test_attention_maps_are_constants_in_cp_lrp():
    a, v, relevance = drawn(2, 3, 4).softmax(-1), drawn(2, 4, 5, seed=1), drawn(2, 3, 5, seed=2)
    for left, right, at in ((a, v, 0), (v.mT, a.mT, 1)):
        r = relevance if at == 0 else relevance.mT
        call = replace(make_call(aten.matmul.default, left, right), note=Constants(attention=at))
        shares = split(CP_LRP, r, call).shares
        assert shares[at] is None
        expected = v * (a.mT @ (relevance / stabilised(a @ v)))
        assert closeness(shares[1 - at] if at == 0 else shares[0].mT, expected) <= EXACT
        halves = split(ATTNLRP, r, call).shares
        assert closeness(halves[1 - at], shares[1 - at] / 2) <= EXACT


def test_gates_are_halved_or_constant():
    u, v, relevance = drawn(2, 3), drawn(2, 3, seed=1), drawn(2, 3, seed=2)
    call = make_call(aten.mul.Tensor, u, v)
    kept = relevance * u * v / stabilised(u * v)
    assert all(
        closeness(share, kept / 2) <= EXACT for share in split(ATTNLRP, relevance, call).shares
    )
    assert all(
        closeness(share, kept / 2) <= EXACT for share in split(CP_LRP, relevance, call).shares
    )
    gated = replace(call, note=Constants(gate=0))
    assert all(
        closeness(share, kept / 2) <= EXACT for share in split(ATTNLRP, relevance, gated).shares
    )
    assert (
        split(CP_LRP, relevance, gated).shares[0] is None
        and closeness(split(CP_LRP, relevance, gated).shares[1], kept) <= EXACT
    )
    for rules in (ATTNLRP, CP_LRP):
        shares = split(rules, relevance, replace(call, note=Constants(constant=1))).shares
        assert shares[1] is None and closeness(shares[0], kept) <= EXACT
    shares = split(ATTNLRP, relevance, make_call(aten.div.Tensor, u, v)).shares
    assert shares[1] is None and closeness(shares[0], relevance) <= EXACT


def test_linear_layers_and_convolutions_by_the_epsilon_rule():
    """R_i = Σ_j x_i·w_ij·R_j/(z_j + ε·sgn z_j); the bias absorbs its share."""
    x, w, b, relevance = (
        drawn(2, 3, 4),
        drawn(5, 4, seed=1),
        drawn(5, seed=2),
        drawn(2, 3, 5, seed=3),
    )
    rx, rw, rb = split(
        ATTNLRP, relevance, make_call(aten.linear.default, x, w, b, roles="app")
    ).shares
    s = relevance / stabilised(x @ w.T + b)
    assert rw is None and closeness(rb, (s * b).sum((0, 1))) <= EXACT
    assert (
        closeness(
            rx,
            torch.stack(
                [
                    torch.stack(
                        [sum(x[n, t, i] * w[j, i] * s[n, t, j] for j in range(5)) for i in range(4)]
                    )
                    for n in range(2)
                    for t in range(3)
                ]
            ).reshape(2, 3, 4),
        )
        <= EXACT
    )
    pixels, kernel = drawn(1, 2, 4, 4), drawn(3, 2, 2, 2, seed=1)
    call = make_call(aten.conv2d.default, pixels, kernel, drawn(3, seed=2), [2, 2], roles="app")
    (share, _, bias) = split(ATTNLRP, drawn(1, 3, 2, 2, seed=3), call).shares
    s = drawn(1, 3, 2, 2, seed=3) / stabilised(call.output)
    assert closeness(share, pixels * F.conv_transpose2d(s, kernel, stride=2)) <= EXACT
    assert closeness(bias, drawn(3, seed=2) * s.sum((0, 2, 3))) <= EXACT


@pytest.mark.parametrize(("op", "sign"), [(aten.add.Tensor, 1), (aten.sub.Tensor, -1)], ids=str)
def test_sums_by_the_epsilon_rule(op, sign):
    u, v, relevance = drawn(2, 3), drawn(3, seed=1), drawn(2, 3, seed=2)
    ru, rv = split(ATTNLRP, relevance, make_call(op, u, v)).shares
    s = relevance / stabilised(u + sign * v)
    assert closeness(ru, u * s) <= EXACT and closeness(rv, (sign * v * s).sum(0)) <= EXACT


@pytest.mark.parametrize(
    ("op", "linear", "number"),
    [(aten.add.Tensor, 1, 0.7), (aten.sub.Tensor, 1, -0.7), (aten.rsub.Scalar, -1, 0.7)],
    ids=str,
)
def test_a_number_absorbs_its_share(op, linear, number):
    x, relevance = drawn(2, 3), drawn(2, 3, seed=1)
    found = split(ATTNLRP, relevance, make_call(op, x, 0.7))
    s = relevance / stabilised(linear * x + number)
    assert closeness(found.shares[0], linear * x * s) <= EXACT
    assert closeness(found.lost["a number added"], (number * s).sum()) <= EXACT


def affine(function, x, deviations):
    """The matrix of a norm whose deviations are held at those of ``x``, found by probing: columns
    are its answers to one-hots, less that to 0."""
    nothing = function(torch.zeros_like(x), deviations)
    columns = [
        (function(hot.reshape(x.shape), deviations) - nothing).flatten()
        for hot in torch.eye(x.numel(), dtype=x.dtype)
    ]
    return torch.stack(columns, 1)


GAMMA, BETA, MEAN, VARIANCE = (
    1 + 0.3 * drawn(4, seed=5),
    drawn(4, seed=6),
    drawn(4, seed=7),
    drawn(4, seed=8).exp(),
)
NORMS = {
    "layer": (aten.layer_norm.default, (2, 3, 4), ([4], GAMMA, BETA), (-1,), lambda x: x),
    "layer over two axes": (
        aten.layer_norm.default,
        (2, 3, 4),
        ([3, 4], GAMMA.expand(3, 4), BETA.expand(3, 4)),
        (-2, -1),
        lambda x: x,
    ),
    "group": (aten.group_norm.default, (2, 4, 3), (2, GAMMA, BETA), None, lambda x: x[:, None]),
    "instance": (
        aten.instance_norm.default,
        (2, 4, 3),
        (GAMMA, BETA, None, None, True, 0.1, 1e-5, False),
        (-1,),
        lambda x: x[:, None],
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_with_a_constant_deviation(name):
    op, shape, args, dims, along = NORMS[name]
    x, relevance = drawn(*shape), drawn(*shape, seed=1)
    call = make_call(op, x, *args, roles="app")

    def grouped(y):
        return y.reshape(2, 2, -1) if name == "group" else y

    def function(y, deviations):
        over = dims or (-1,)
        centred = ((grouped(y) - grouped(y).mean(over, keepdim=True)) / deviations).reshape(shape)
        return centred * along(args[-2] if name.startswith("layer") else GAMMA) + along(
            args[-1] if name.startswith("layer") else BETA
        )

    deviations = (grouped(x).var(dims or (-1,), unbiased=False, keepdim=True) + 1e-5).sqrt()
    assert closeness(function(x, deviations), call.output) <= EXACT
    s = relevance / stabilised(call.output)
    expected = x * (affine(function, x, deviations).T @ s.flatten()).reshape(shape)
    for rules in (ATTNLRP, CP_LRP):
        share, weight, bias = split(rules, relevance, call).shares
        assert weight is None and closeness(share, expected) <= EXACT
        assert (
            closeness(bias.sum(), (s * along(args[-1] if name.startswith("layer") else BETA)).sum())
            <= EXACT
        )
    assert closeness(split(ATTNLRP_IDENTITY, relevance, call).shares[0], relevance) <= EXACT


def test_a_batch_norm_is_affine():
    x, relevance = drawn(2, 4, 3), drawn(2, 4, 3, seed=1)
    call = make_call(
        aten.batch_norm.default,
        x,
        GAMMA,
        BETA,
        MEAN,
        VARIANCE,
        False,
        0.1,
        1e-5,
        False,
        roles="apppp",
    )
    share, _, bias, mean, _ = split(ATTNLRP, relevance, call).shares
    slope, s = (GAMMA / (VARIANCE + 1e-5).sqrt())[:, None], relevance / stabilised(call.output)
    assert (
        closeness(share, x * slope * s) <= EXACT
        and closeness(bias, (BETA[:, None] * s).sum((0, 2))) <= EXACT
    )
    assert closeness(mean, (-MEAN[:, None] * slope * s).sum((0, 2))) <= EXACT


def test_values_read_between_positions():
    x, where, relevance = (
        drawn(1, 2, 3, 3),
        drawn(1, 2, 2, 2, seed=1).clamp(-0.9, 0.9),
        drawn(1, 2, 2, 2, seed=2),
    )
    call = make_call(aten.grid_sampler.default, x, where, 0, 0, False)
    share, positions = split(ATTNLRP, relevance, call).shares
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(
        aten.grid_sampler(leaf, where, 0, 0, False), leaf, relevance / stabilised(call.output)
    )
    assert positions is None and closeness(share, x * expected) <= EXACT
    assert split(
        ATTNLRP, relevance, make_call(aten.grid_sampler.default, x, where, 0, 0, False, roles="ca")
    ).shares == (None, None)


# ---- whole models


def logit(target):
    return lambda model, x: model(x)[:, target]


@FEW
@given(recipes(ids=False), st.sampled_from(sorted(LIMITS)))
def test_random_transformers_equal_input_times_local_gradients(recipe, rules):
    model, x = shared(recipe), sample(recipe, 2)
    e = relprop.explain(model, x, 1, method="attnlrp", rules=LIMITS[rules], keep="input")
    expected = contributions(model, x, logit(1), **LOCAL[rules])
    allowed = (
        1e-6 if rules == "attnlrp_identity" else EXACT
    )  # there β/x grows without bound where x is near 0
    assert closeness(e.input, expected) <= allowed
    shipped = relprop.explain(model, x, 1, method="attnlrp", rules=rules, keep="input")
    assert rules == "attnlrp_identity" or closeness(shipped.input, expected) <= 1e-5


def llama():
    config = transformers.LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        vocab_size=30,
        attn_implementation="eager",
    )
    return randomise(transformers.LlamaForCausalLM(config).double().eval(), 2)


def vit():
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=16,
        patch_size=4,
        num_labels=5,
        attn_implementation="eager",
    )
    return randomise(transformers.ViTForImageClassification(config).double().eval(), 3)


@pytest.mark.parametrize("rules", sorted(LIMITS))
def test_a_llama_equals_input_times_local_gradients(rules):
    """RoPE, RMSNorm, SwiGLU, grouped queries, a causal mask; the scored input is the embedding that
    ids feed."""
    model, ids = llama(), torch.randint(0, 30, (2, 7), generator=torch.Generator().manual_seed(4))
    embeddings = model.get_input_embeddings()(ids).detach()
    expected = contributions(
        model, embeddings, lambda m, x: m(inputs_embeds=x).logits[:, -1, 5], **LOCAL[rules]
    )
    e = relprop.explain(
        model,
        {"input_ids": ids},
        (6, 5),
        method="attnlrp",
        rules=LIMITS[rules],
        precision="float64",
        keep="input",
    )
    assert closeness(e.input, expected) <= EXACT and closeness(e.scores, expected.sum(-1)) <= EXACT
    shipped = relprop.explain(
        model, {"input_ids": ids}, (6, 5), method="attnlrp", rules=rules, precision="float64"
    )
    assert closeness(shipped.scores, expected.sum(-1)) <= 1e-6


def test_padded_tokens_of_a_llama_score_nothing():
    model, ids = llama(), torch.randint(0, 30, (2, 7), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for method in ("attnlrp", "cp_lrp", "epsilon_lrp"):
        e = relprop.explain(
            model,
            {"input_ids": ids, "attention_mask": mask},
            (6, 5),
            method=method,
            precision="float64",
        )
        assert (
            torch.isfinite(e.scores).all()
            and (e.scores[1, :3] == 0).all()
            and (e.scores[1, 3:] != 0).all()
        )


@pytest.mark.parametrize("rules", ["attnlrp", "cp_lrp"])
def test_a_vit_equals_input_times_local_gradients(rules):
    model, x = vit(), drawn(2, 3, 16, 16)
    expected = contributions(model, x, lambda m, x: m(x).logits[:, 2], **LOCAL[rules])
    e = relprop.explain(
        model, x, 2, method="attnlrp", rules=LIMITS[rules], precision="float64", keep="input"
    )
    assert closeness(e.input, expected) <= EXACT and e.heatmap().shape == (2, 16, 16)
    assert (
        closeness(
            relprop.explain(model, x, 2, method=rules, precision="float64", keep="input").input,
            expected,
        )
        <= 1e-5
    )


# ---- norms, gates and maps as people write them


class Written(nn.Module):
    """A layer norm in one of the ways it is written, over the last axis or over channels, before a
    linear head."""

    def __init__(self, how):
        super().__init__()
        self.how, self.norm, self.head = how, nn.LayerNorm(6).double(), nn.Linear(6, 3).double()
        with torch.no_grad():
            self.norm.weight.copy_(1 + 0.3 * drawn(6, seed=5))
            self.norm.bias.copy_(drawn(6, seed=6))

    def forward(self, x):
        x = x + x.tanh()
        g, b = self.norm.weight, self.norm.bias
        if self.how == "module":
            y = self.norm(x)
        elif self.how == "quotient":
            y = (x - x.mean(-1, keepdim=True)) / (
                x.var(-1, unbiased=False, keepdim=True) + 1e-5
            ).sqrt() * g + b
        elif self.how == "factor":
            centred = x - x.mean(-1, keepdim=True)
            y = g * (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)) + b
        elif self.how == "power":
            y = (x - x.mean(-1, keepdim=True)) * (
                x.var(-1, unbiased=False, keepdim=True) + 1e-5
            ) ** -0.5 * g + b
        else:
            z = x.transpose(1, 2)
            centred = z - z.mean(1, keepdim=True)
            deviation = centred.pow(2).mean(1, keepdim=True) + 1e-5
            z = (
                centred / torch.sqrt(deviation)
                if self.how == "channels, quotient"
                else centred * torch.rsqrt(deviation)
            )
            y = (z * g[:, None] + b[:, None]).transpose(1, 2)
        return self.head(y).tanh().mean(1)


@pytest.mark.parametrize("rules", ["attnlrp", "cp_lrp"])
@pytest.mark.parametrize(
    "how", ["quotient", "factor", "power", "channels, quotient", "channels, factor"]
)
def test_norms_written_out_equal_the_module(how, rules):
    torch.manual_seed(0)
    x, model, other = drawn(2, 4, 6), Written("module"), Written(how)
    other.load_state_dict(model.state_dict())
    options = {"method": "attnlrp", "rules": LIMITS[rules], "keep": "input"}
    expected = relprop.explain(model, x, 1, **options)
    for ledger in (None, True):
        e = relprop.explain(other, x, 1, ledger=ledger, **options)
        assert closeness(e.input, expected.input) <= EXACT
    assert e.ledger.worst() <= 1e-12
    assert closeness(e.input, contributions(model, x, logit(1))) <= EXACT


class Gates(nn.Module):
    """A product of two branches of x, each behind an activation or none."""

    def __init__(self, first, second):
        super().__init__()
        self.a, self.b, self.c, self.first, self.second = (
            nn.Linear(5, 6),
            nn.Linear(5, 6),
            nn.Linear(6, 3),
            first,
            second,
        )

    def forward(self, x):
        return self.c(self.first(self.a(x)) * self.second(self.b(x)))


def same(x):
    return x


def written_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))


GATES = {
    "silu gates a line": (F.silu, same, 0),
    "a line is gated by gelu": (same, F.gelu, 1),
    "gelu written out": (written_gelu, same, 0),
    "sigmoid before tanh": (torch.tanh, torch.sigmoid, 1),
    "tanh before relu": (torch.relu, torch.tanh, 1),
    "softmax before silu": (partial(F.softmax, dim=-1), F.silu, 0),
    "two lines": (same, same, None),
    "two sigmoids": (torch.sigmoid, torch.sigmoid, None),
    "through moves and numbers": (lambda x: 2 * x.sigmoid().flip(-1) + 1, same, 0),
    "one over a line": (lambda x: 1 / (x * x + 1), same, None),
}


@pytest.mark.parametrize("name", GATES)
def test_the_gate_is_what_passed_an_activation_last(name):
    """In ``cp_lrp`` the gate's branch gets nothing: its weights might as well be constants;
    undecided, both get half."""
    first, second, at = GATES[name]
    torch.manual_seed(0)
    model, x = Gates(first, second).double(), drawn(2, 5)
    if name == "one over a line":
        e = relprop.explain(model, x, 1, method="attnlrp", rules=LIMITS["attnlrp"], keep="input")
        constant = 1 / (model.a(x) ** 2 + 1)
        values = contributions(model, x, lambda m, y: m.c(constant.detach() * m.b(y))[:, 1])
        assert closeness(e.input, values) <= EXACT
        return
    program = relprop.trace(model, x)
    e = relprop.explain(model, x, 1, method="cp_lrp", rules=LIMITS["cp_lrp"], keep="input")
    if at is None:
        expected = relprop.explain(
            model, x, 1, method="cp_lrp", rules=LIMITS["attnlrp"], keep="input"
        ).input
        assert not gate_notes(relprop.plan.flowing(program, CP_LRP), program.sites)
    else:
        gate = (first(model.a(x)), second(model.b(x)))[at].detach()
        kept = second if at == 0 else first
        line = model.b if at == 0 else model.a
        expected = contributions(model, x, lambda m, y: m.c(gate * kept(line(y)))[:, 1])
    assert closeness(e.input, expected) <= EXACT


def test_attention_maps_hand_nothing_to_queries_and_keys_in_cp_lrp():
    """Also where the map is reshaped, renormalised and mixed over heads before it meets the
    values."""

    class Talking(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.mix, self.head = (
                nn.Linear(*s).double() for s in ((5, 8), (5, 8), (5, 8), (2, 2), (8, 3))
            )

        def values(self, a, x):
            return self.head((a @ self.heads(self.v(x))).transpose(1, 2).flatten(2)).mean(1)

        def heads(self, x):
            return x.unflatten(-1, (2, 4)).transpose(1, 2)

        def map(self, x):
            a = (self.heads(self.q(x)) @ self.heads(self.k(x)).mT).softmax(-1)
            a = self.mix(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            return a / (a.abs().sum(-1, keepdim=True) + 1)

        def forward(self, x):
            return self.values(self.map(x), x)

    torch.manual_seed(0)
    model, x = Talking(), drawn(2, 4, 5)
    a = model.map(x).detach()
    e = relprop.explain(model, x, 1, method="cp_lrp", rules=LIMITS["cp_lrp"], keep="input")
    assert closeness(e.input, contributions(model, x, lambda m, y: m.values(a, y)[:, 1])) <= EXACT
    assert (
        closeness(relprop.explain(model, x, 1, method="attnlrp", keep="input").input, e.input)
        > 1e-2
    )


def test_probabilities_as_outputs_are_expanded_in_both():
    """A softmax that is no attention is never a constant: else nothing would arrive."""
    model, x = nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1)).double(), drawn(2, 5)
    expected = contributions(model, x, logit(1))
    for rules in ("attnlrp", "cp_lrp"):
        with pytest.warns(RelpropWarning, match="probabilit"):
            e = relprop.explain(model, x, 1, method=rules, rules=LIMITS[rules], keep="input")
        assert closeness(e.input, expected) <= EXACT


# ---- what relevance starts with, and where it goes


TARGETS = {
    "an element": (2, lambda y: y[:, 2]),
    "a difference": (lambda y: y[0, 1] - y[0, 2], lambda y: y[:, 1] - y[:, 2]),
    "a scaled element": (lambda y: -3 * y[0, 1], lambda y: -3 * y[:, 1]),
    "a probability": (lambda y: y.softmax(-1)[0, 1], lambda y: y.softmax(-1)[:, 1]),
    "a mean and a number": (lambda y: y.mean() - 2, lambda y: y.mean(-1) - 2),
}


@pytest.mark.parametrize("name", TARGETS)
def test_relevance_starts_with_the_targets_own_value(name):
    """So that a positive score raised y_t, also where y_t is negative."""
    target, scalar = TARGETS[name]
    model, x = build(), sample()
    options = {"method": "attnlrp", "rules": LIMITS["attnlrp"], "keep": "input"}
    for ledger in (None, True):
        e = relprop.explain(model, x, target, ledger=ledger, **options)
        assert closeness(e.input, contributions(model, x, lambda m, y: scalar(m(y)))) <= EXACT
    y = scalar(model(x)).detach()
    assert closeness(e.output, y) <= EXACT
    if name in (
        "an element",
        "a difference",
        "a scaled element",
    ):  # of the others a constant term is left behind at the target itself
        assert closeness(e.ledger.totals()["started"], y) <= EXACT


@FEW
@given(
    recipes(),
    st.sampled_from(["attnlrp", "attnlrp_identity", "cp_lrp", "epsilon"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_books_balance_at_every_node_and_end_to_end(recipe, rules, dtype):
    model, x = shared(recipe, dtype), sample(recipe, dtype=dtype)
    e = relprop.explain(model, x, method="attnlrp", rules=rules, ledger=True)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert (
        torch.isfinite(e.scores).all()
        and e.ledger.worst() <= tolerance
        and len(e.ledger.accounts) > 8 * recipe.depth
    )
    totals = e.ledger.totals()
    explained = sum(totals[name] for name in ("reached", "absorbed", "lost", "unread", "residual"))
    largest = torch.stack([a.absolute for a in e.ledger.accounts]).amax(0)
    assert (
        (totals["started"] - explained).abs() <= tolerance * len(e.ledger.accounts) * largest
    ).all()
    assert (totals["reached"] - e.scores.sum(1)).abs().max() <= tolerance * len(
        e.ledger.accounts
    ) * largest.max()
    assert closeness(totals["started"].to(dtype), e.output) <= 1e-6
    assert ("constant term of the softmax" in e.ledger.lost()) == (
        rules in ("attnlrp", "attnlrp_identity")
    )


@FEW
@given(recipes(), st.sampled_from(["attnlrp", "cp_lrp", "epsilon_lrp"]))
def test_a_batch_equals_its_samples_one_by_one(recipe, method):
    model, x = shared(recipe), sample(recipe)
    e = relprop.explain(model, x, method=method)
    assert e.rules == METHODS[method].rules and e.method == method
    for i in range(3):
        assert (
            closeness(
                e.scores[i : i + 1], relprop.explain(model, x[i : i + 1], method=method).scores
            )
            <= EXACT
        )


def test_epsilon_lrp_is_the_epsilon_rule_set_started_with_y():
    model, x = build(), sample()
    e, one = (
        relprop.explain(model, x, 1, method=m, rules="epsilon") for m in ("epsilon_lrp", "lrp")
    )
    assert closeness(e.scores, one.scores * model(x)[:, 1:2].detach()) <= EXACT


def test_an_affine_model_gives_its_terms():
    model, x = nn.Linear(5, 3).double(), drawn(4, 5)
    for method in ("attnlrp", "cp_lrp", "epsilon_lrp"):
        e = relprop.explain(model, x, 1, method=method, keep="input", ledger=True)
        assert closeness(e.input, x * model.weight[1].detach()) <= 1e-4
        assert closeness(e.ledger.absorbed()["bias"], model.bias[1].detach().expand(4)) <= 1e-4


def test_roll_ups_take_these_rule_sets_too():
    model, x = build(), sample()
    e = relprop.explain(model, x, 1, rules="attnlrp", keep="blocks")
    assert all(bool(block.relevance.any()) for block in e.blocks) and bool(e.scores.any())
    with pytest.warns(RelpropWarning, match="all scores of 3 of 3 samples are 0"):
        relprop.explain(model, x, 1, rules="cp_lrp")


def test_the_presets_are_named_after_themselves():
    assert all(PRESETS[rules.name] is rules for rules in (ATTNLRP, ATTNLRP_IDENTITY, CP_LRP))
