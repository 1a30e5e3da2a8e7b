"""Every method over attention: the authors' numbers, the formula by hand, the options they share,
and the way in for a user's own."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import OptionError
from relprop.methods import METHODS, TokenMap, available, register, remove
from tests.common.models import made_once
from tests.common.rows import only
from tests.parity import test_goldens
from tests.parity.test_goldens import EXACT, INPUT_AND_TARGET, TOGETHER, TOLERANCE, explained, met
from tests.rollup.hand import SAMPLES, Attention, Layer, agree, normal
from tests.rollup.structures import TOKENS, WIDTH
from tests.rollup.test_streams import CoAttention, EncoderDecoder, S, T, both, ids
from tools.sweep.subjects import build as build_subject
from tools.sweep.subjects import subjects

OVER_ATTENTION = sorted(
    name for name, m in METHODS.items() if m.level == "attention" and name != "vit_cx"
)  # that one is for images
ROUNDED_LITTLE = [
    "attention_flow",
    "attention_grad",
    "attention_times_grad",
    "gae",
    "raw_attention",
    "rollout",
]


# -- the authors' numbers
# --------------------------------------------------------------------------------------------------


@TOGETHER
@INPUT_AND_TARGET
def test_vit_raw_attention_and_its_gradient(i, k, together):
    f = explained("vit", i, k, together, method="raw_attention")
    met(f.explanation.scores[f.at][1:], f.golden("last_layer_attn"), EXACT)
    f = explained("vit", i, k, together, method="attention_grad")
    met(f.explanation.scores[f.at], f.golden("attn_grad")[-1, :, 0].mean(0), EXACT)
    f = explained("vit", i, k, together, method="attention_times_grad")
    met(
        f.explanation.scores[f.at],
        (f.goldens[f"{f.of_input}.attn"] * f.golden("attn_grad"))
        .clamp(min=0)[:, :, 0]
        .mean(1)
        .sum(0),
        EXACT,
    )


@TOGETHER
@INPUT_AND_TARGET
def test_bert_raw_attention_and_its_gradient(i, k, together):
    f = explained("bert", i, k, together, method="raw_attention")
    golden = f.golden("attn_last_layer")[0]
    met(without_cls(f.explanation.scores[f.at], golden), golden, EXACT)
    text = f.explanation.scores[f.at][: len(golden)] > 0  # theirs has scores at padding, too
    f = explained("bert", i, k, together, method="attention_grad")
    golden = f.golden("attn_grad")[-1, :, 0].mean(0)
    met(f.explanation.scores[f.at][: len(golden)], golden * text, EXACT)


def without_cls(row, golden):
    """As their BERT code: what a batch padded cut off, and the [CLS] score 0."""
    return torch.cat([torch.zeros_like(row[:1]), row[1 : len(golden)]])


@TOGETHER
@INPUT_AND_TARGET
def test_vit_gradcam(i, k, together):
    f = explained("vit", i, k, together, method="gradcam")
    met(f.explanation.scores[f.at][1:], f.golden("attn_gradcam").flatten(), EXACT)
    assert f.explanation.scores[f.at][0] == 0


@TOGETHER
@INPUT_AND_TARGET
def test_bert_gradcam(i, k, together):
    """Their min–max is over the whole map, and ours over the row's content tokens: the same up to
    scale and offset. Not for a text that the batch pads: their weights are means over the whole
    map, padding included."""
    f = explained("bert", i, k, together and i == 1, method="gradcam", weights="map")
    here = f.explanation.content[f.at].clone()
    mine, golden = f.explanation.scores[f.at], f.golden("attn_gradcam")[0]
    assert (
        here.sum() > 10 and mine[here].min() == 0 and mine.max() == 1 and (mine[~here] == 0).all()
    )
    here[0] = False  # they set the [CLS] score to 0
    met(unit(mine[None, here]), unit(golden[None, here]), EXACT)


@TOGETHER
@INPUT_AND_TARGET
@pytest.mark.parametrize("rules", ["reference", "reference_lrp", "paper"])
def test_partial_lrp(i, k, together, rules):
    f = explained("vit", i, k, together, method="partial_lrp", rules=rules)
    met(f.explanation.scores[f.at][1:], f.golden("last_layer", rules), TOLERANCE[rules])
    f = explained("bert", i, k, together, method="partial_lrp", rules=rules)
    golden = f.golden("partial_lrp", rules)[0]
    met(without_cls(f.explanation.scores[f.at], golden), golden, TOLERANCE[rules])


def test_partial_lrp_takes_the_rules_of_the_authors_baseline():
    assert explained("vit", 0, 0, False, method="partial_lrp").explanation.rules == "reference_lrp"


@TOGETHER
@INPUT_AND_TARGET
@pytest.mark.parametrize("rules", ["reference", "reference_lrp"])
def test_vit_full_lrp_is_a_method(i, k, together, rules):
    f = explained("vit", i, k, together, method="lrp", rules=rules)
    met(f.explanation.heatmap()[f.at][None], f.golden("full", rules), TOLERANCE[rules])


@pytest.fixture
def own_methods():
    """Takes away whatever a test registers."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    test_goldens._explain.cache_clear()  # it knows methods by name


@TOGETHER
@INPUT_AND_TARGET
@pytest.mark.parametrize("rules", ["reference", "reference_lrp", "paper"])
def test_their_rollout_of_relevance_as_a_users_method(i, k, together, rules, own_methods):
    def of_relevance(at):
        """I + E_h R⁺, rolled up (their code's method "rollout")."""
        return {v.site.contraction: v.relevance.clamp(min=0) for v in at.sites}

    register("rollout_of_relevance", of_relevance, needs=["relevance"], shared=["layers"])
    for quantity, layers in (("rollout", (0, 1, 2)), ("rollout_start1", (1, 2))):
        f = explained(
            "vit", i, k, together, method="rollout_of_relevance", rules=rules, layers=layers
        )
        met(f.explanation.scores[f.at][None, 1:], f.golden(quantity, rules), TOLERANCE[rules])


# -- formulas by hand, A and its gradient without the library
# ----------------------------------------------------------------------------


class Plain(nn.Module):
    """Blocks without norms and MLPs whose attention maps are kept where autograd can see them."""

    def __init__(self, blocks=1, heads=1, read=lambda x: x[:, 0]):
        super().__init__()
        self.embed, self.head, self.heads, self.read = (
            nn.Linear(3, WIDTH),
            nn.Linear(WIDTH, 4),
            heads,
            read,
        )
        self.q, self.k, self.v, self.out = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(blocks)) for _ in range(4)
        )

    def forward(self, x, kept=None):
        x = self.embed(x)
        for q, k, v, out in zip(self.q, self.k, self.v, self.out, strict=True):
            q, k, v = (m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (q, k, v))
            a = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
            if kept is not None:
                kept.append(a)
            x = x + out((a @ v).transpose(1, 2).flatten(2))
        return self.head(self.read(x))


@made_once
def plain(blocks=1, heads=1, **options):
    model, x = Plain(blocks, heads, **options).double().eval(), normal(SAMPLES, TOKENS, 3)
    kept = []
    y = model(x, kept)[:, 2]
    gradients = torch.autograd.grad(y.sum(), kept)
    return model, x, [a.detach() for a in kept], list(gradients)


def scores(model, x, method, **options):
    return relprop.explain(model, x, 2, method=method, **options).scores


def unit(m):
    least, most = m.amin(1, keepdim=True), m.amax(1, keepdim=True)
    return (m - least) / (most - least)


EYE = torch.eye(TOKENS, dtype=torch.float64)
ONE_HEAD = {
    "rollout": lambda a, g: (EYE + a)[:, 0] - EYE[0],
    "raw_attention": lambda a, g: a[:, 0],
    "attention_grad": lambda a, g: g[:, 0],
    "attention_times_grad": lambda a, g: (a * g).clamp(min=0)[:, 0],
    "gae": lambda a, g: (EYE + (a * g).clamp(min=0))[:, 0] - EYE[0],
    "gradcam": lambda a, g: unit((g[:, 0].mean(1, keepdim=True) * a[:, 0]).clamp(min=0)),
}


@pytest.mark.parametrize("method", ONE_HEAD)
def test_one_block_of_one_head(method):
    torch.manual_seed(2)
    model, x, [a], [g] = plain()
    assert g[:, 0].mean(1).max() > 0
    by_hand = ONE_HEAD[method](a[:, 0], g[:, 0])
    agree(scores(model, x, method).nan_to_num(), torch.where(by_hand.isnan(), 0.0, by_hand))


FUSED = {
    "mean": lambda m, g: m.mean(1),
    "max": lambda m, g: m.amax(1),
    "min": lambda m, g: m.amin(1),
    "gradient": lambda m, g: (
        (m * (w := g.clamp(min=0).mean((2, 3)))[:, :, None, None]).sum(1) / w.sum(1)[:, None, None]
    ),
}


@pytest.mark.parametrize("fusion", FUSED)
@pytest.mark.parametrize("method", ["rollout", "raw_attention", "attention_times_grad", "gae"])
def test_head_fusion(method, fusion):
    model, x, attention, gradients = plain(blocks=2, heads=4)
    of = {"rollout": lambda a, g: a, "raw_attention": lambda a, g: a}.get(
        method, lambda a, g: (a * g).clamp(min=0)
    )
    first, second = (FUSED[fusion](of(a, g), g) for a, g in zip(attention, gradients, strict=True))
    by_hand = {
        "raw_attention": lambda: second[:, 0],
        "attention_times_grad": lambda: first[:, 0] + second[:, 0],
    }.get(method, lambda: ((EYE + second) @ (EYE + first))[:, 0] - EYE[0])
    agree(scores(model, x, method, head_fusion=fusion), by_hand())


@pytest.mark.parametrize(("ratio", "fusion"), [(0.3, "mean"), (0.79, "max")])
def test_discard_ratio_drops_the_smallest_entries_of_each_map(ratio, fusion):
    model, x, attention, _ = plain(blocks=2, heads=4)
    kept = []
    for a in attention:
        m = FUSED[fusion](a, a).clone()
        for one in m:
            smallest = sorted(
                (float(v), i, j) for i, row in enumerate(one.tolist()) for j, v in enumerate(row)
            )[: int(ratio * TOKENS * TOKENS)]
            for _, i, j in smallest:
                one[i, j] = 0
        kept.append(m)
    agree(
        scores(model, x, "rollout", discard_ratio=ratio, head_fusion=fusion),
        ((EYE + kept[1]) @ (EYE + kept[0]))[:, 0] - EYE[0],
    )


def test_rows_normalised_with_fused_heads():
    model, x, attention, _ = plain(blocks=2, heads=4)
    first, second = ((EYE + a.amax(1)) / (EYE + a.amax(1)).sum(-1, keepdim=True) for a in attention)
    e = relprop.explain(model, x, 2, method="rollout", head_fusion="max", normalize_rows=True)
    agree(e.row, (second @ first)[:, 0])


def test_a_pooled_head_reads_the_mean_of_the_rows():
    model, x, attention, gradients = plain(blocks=2, heads=2, read=lambda x: x.mean(1))
    agree(scores(model, x, "raw_attention"), attention[1].mean((1, 2)))
    agree(scores(model, x, "attention_grad", layers=[0]), gradients[0].mean((1, 2)))


def test_gradcam_by_hand_with_weights_of_row_or_map():
    model, x, attention, gradients = plain(blocks=2, heads=4)
    for layers, at in ((None, 1), ([0], 0)):
        a, g = attention[at], gradients[at]
        for weights, w in (("row", g[:, :, 0].mean(-1)), ("map", g.mean((2, 3)))):
            agree(
                scores(model, x, "gradcam", weights=weights, layers=layers),
                unit((w[..., None] * a[:, :, 0]).mean(1).clamp(min=0)),
            )


# -- by layer
# --------------------------------------------------------------------------------------------------


def by_layer(e):
    [stream] = e.streams.values()
    return stream.layers


@pytest.mark.parametrize(
    "method", ["raw_attention", "attention_grad", "attention_times_grad", "partial_lrp"]
)
def test_scores_by_layer(method):
    model, x, attention, gradients = plain(blocks=3, heads=2)
    e = relprop.explain(model, x, 2, method=method, keep="layers")
    assert by_layer(e).shape == (SAMPLES, 3, TOKENS)
    found = by_layer(e)
    if method != "partial_lrp":
        parts = {
            "raw_attention": lambda a, g: a,
            "attention_grad": lambda a, g: g,
            "attention_times_grad": lambda a, g: (a * g).clamp(min=0),
        }[method]
        agree(
            found,
            torch.stack(
                [parts(a, g).mean(1)[:, 0] for a, g in zip(attention, gradients, strict=True)], 1
            ),
        )
    agree(e.scores, found.sum(1) if method == "attention_times_grad" else found[:, -1])
    some = relprop.explain(model, x, 2, method=method, layers=[0, 2], keep="layers")
    agree(by_layer(some), found[:, [0, 2]])
    agree(
        some.scores,
        found[:, [0, 2]].sum(1) if method == "attention_times_grad" else found[:, [0, 2]].mean(1),
    )


@pytest.mark.parametrize("method", ["rollout", "transformer_attribution", "gradcam", "gae"])
def test_methods_without_scores_by_layer_say_so(method):
    model, x, *_ = plain()
    with pytest.raises(OptionError, match="has no scores by layer"):
        relprop.explain(model, x, 2, method=method, keep="layers")


@pytest.mark.parametrize(
    ("name", "site"), only([("plain", 0)], [("plain", 0), ("CoaT", 2), ("CoaT", 11), ("CoaT", 13)])
)
def test_a_site_alone_is_the_roll_up_with_all_other_maps_0(name, site, own_methods):
    """Also where its values have other readers, whose field is in several parts (CoaT's)."""

    def alone(at):
        return {v.site.contraction: v.attention * (i == site) for i, v in enumerate(at.sites)}

    register("alone", alone, class_specific=False)
    if name == "plain":
        given = *plain(blocks=2, heads=2)[:2], 2
    else:
        found = next(s for s in subjects("timm") if s.name == "timm/coat/coat_mini")
        case = build_subject(found, batch=1)
        given = case.model, case.inputs, case.target
    rolled, read = (
        relprop.explain(*given, verify=False, **options).scores
        for options in ({"method": "alone"}, {"method": "raw_attention", "layers": [site]})
    )
    assert rolled.abs().max() > 0
    torch.testing.assert_close(read, rolled)


def test_a_matrix_is_for_methods_that_multiply():
    model, x, *_ = plain()
    with pytest.raises(OptionError, match="multiplies no matrices"):
        relprop.explain(model, x, 2, method="raw_attention", keep="matrix")


# -- several inputs
# --------------------------------------------------------------------------------------------------


@made_once
def encoder_decoder(post=False):
    return EncoderDecoder(post).double().eval()


def test_an_encoders_tokens_are_read_off_the_last_cross_attention():
    for post in (False, True):
        e = relprop.explain(encoder_decoder(post), both(), 1, method="raw_attention", keep="blocks")
        own, cross = (b.attention.mean(1)[:, -1] for b in e.blocks[-2:])
        assert [b.path for b in e.blocks[-2:]] == ["decoder.1.own", "decoder.1.cross"]
        agree(e["source"].scores, cross)
        agree(e["target"].scores, own)


def test_each_stream_of_co_attention_has_the_last_site_that_reads_it():
    model = CoAttention(False, lambda m, x, y: m.head(x[:, 1])).double().eval()
    e = relprop.explain(
        model,
        {"words": ids(S), "boxes": normal(SAMPLES, T, 3)},
        1,
        method="raw_attention",
        keep="blocks",
    )
    found = {b.path: b.attention.mean(1)[:, 1] for b in e.blocks}
    agree(e["words"].scores, found["layers.1.own1"])
    agree(e["boxes"].scores, found["layers.1.there"])


@pytest.mark.parametrize("method", ["attention_times_grad", "gradcam", "attention_grad"])
def test_a_decoders_methods_by_input(method):
    torch.manual_seed(0)
    e = relprop.explain(encoder_decoder(), both(), 1, method=method, keep="blocks")
    a, g = ([getattr(b, which)[:, :, -1] for b in e.blocks] for which in ("attention", "gradient"))
    hand = {
        "attention_grad": lambda some: g[some[-1]].mean(1),
        "attention_times_grad": lambda some: sum((a[i] * g[i]).clamp(min=0).mean(1) for i in some),
        "gradcam": lambda some: unit(
            (g[some[-1]].mean(-1, keepdim=True) * a[some[-1]]).mean(1).clamp(min=0)
        ).nan_to_num(),
    }[method]
    agree(e["source"].scores, hand([3, 5]))
    agree(e["target"].scores, hand([2, 4]))


# -- laws of every method
# --------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = (
            nn.Linear(3, WIDTH),
            nn.ModuleList(Layer(Attention) for _ in range(2)),
            nn.Linear(WIDTH, 4),
        )
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), F.gelu(self.embed(x))], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


@made_once
def classifier(dtype=torch.float64):
    return Classifier().to(dtype).eval()


@pytest.mark.parametrize("method", OVER_ATTENTION)
def test_class_specific_or_not_as_it_says(method):
    model, x = classifier(), normal(8, TOKENS, 3)
    one, other = relprop.explain_many(model, x, [0, 1], method=method)
    assert one.scores.any()
    assert torch.equal(one.scores, other.scores) != METHODS[method].class_specific


@pytest.mark.parametrize("method", OVER_ATTENTION)
def test_a_batch_is_its_samples_one_by_one(method):
    model, x = classifier(), normal(3, TOKENS, 3)
    together = relprop.explain(model, x, [0, 1, 2], method=method)
    agree(
        together.scores,
        torch.cat(
            [relprop.explain(model, x[i : i + 1], [i], method=method).scores for i in range(3)]
        ),
    )


@pytest.mark.parametrize("method", OVER_ATTENTION)
def test_a_model_in_half_precision(method):
    """Its maps are widened before anything is multiplied; what is left is what the model itself
    rounded."""
    torch.manual_seed(2)
    model, x = classifier(torch.bfloat16), torch.randn(4, TOKENS, 3).to(torch.bfloat16)
    e = relprop.explain(model, x, 1, method=method)
    exact = relprop.explain(model, x, 1, method=method, precision="float32")
    assert e.scores.dtype == torch.float32 and bool(e.scores.any()) == bool(exact.scores.any())
    if method in ROUNDED_LITTLE:
        assert (
            torch.corrcoef(torch.stack([e.scores.flatten(), exact.scores.flatten()]))[0, 1] > 0.95
        )


@pytest.mark.parametrize("method", OVER_ATTENTION)
def test_only_signed_methods_have_negative_scores(method):
    torch.manual_seed(1)
    model, x = classifier(), normal(8, TOKENS, 3)
    e = relprop.explain(model, x, 1, method=method)
    assert bool((e.scores < 0).any()) == METHODS[method].signed
    agree(e.row, e.scores + e.identity)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_an_unknown_option_is_answered_with_the_list(method):
    known = {*METHODS[method].options(), "average"}
    said = re.escape(f"method {method!r} has no option 'heads'; it has {', '.join(sorted(known))}")
    with pytest.raises(OptionError, match=said):
        relprop.explain(
            classifier(torch.float32), torch.randn(1, TOKENS, 3), 0, method=method, heads=2
        )


BAD = {
    "a fusion": (
        {"method": "gae", "head_fusion": "sum"},
        r"head_fusion='sum': there are 'mean', 'max', 'min', 'gradient'",
    ),
    "a ratio": ({"method": "rollout", "discard_ratio": 1.0}, r"discard_ratio=1\.0: the part"),
    "weights": ({"method": "gradcam", "weights": "column"}, r"weights='column': 'row' or 'map'"),
    "a layer": (
        {"method": "raw_attention", "layers": [2]},
        r"2 is out of range for 2 attention sites",
    ),
    "a word for layers": (
        {"method": "gae", "layers": "last"},
        r"layers='last': give a slice or a list",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(name):
    options, said = BAD[name]
    with pytest.raises(OptionError, match=said):
        relprop.explain(classifier(torch.float32), torch.randn(1, TOKENS, 3), 0, **options)


def test_the_page_on_methods_over_attention_runs(capsys):
    text = (Path(__file__).parents[2] / "docs/methods-attention.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(block, "methods-attention.md", "exec"), {})
    assert "attention_flow" in capsys.readouterr().out
    headings = set(
        re.findall(
            r"`(\w+)`", " ".join(line for line in text.splitlines() if line.startswith("### "))
        )
    )
    assert headings == {name for name, m in METHODS.items() if m.level == "attention"}


# -- a user's own
# --------------------------------------------------------------------------------------------------


def test_a_users_method_of_matrices(own_methods):
    def mine(at, *, power=1.0):
        """A to a power (mine)."""
        return {v.site.contraction: v.attention**power for v in at.sites}

    made = register(
        "mine",
        mine,
        class_specific=False,
        shared=["layers", "head_fusion"],
        cost="2",
        source="a test",
    )
    assert (
        made.description == "A to a power"
        and "mine" in {m.name for m in available()}
        and "a test" in str(available())
    )
    model, x = classifier(), normal(2, TOKENS, 3)
    agree(scores(model, x, "mine", layers=[-1]), scores(model, x, "rollout", layers=[-1]))
    agree(
        scores(model, x, "mine", power=2.0, layers=[-1], head_fusion="max"),
        scores(model, x, "rollout", layers=[-1], head_fusion="max") ** 2,
    )
    remove("mine")
    with pytest.raises(
        OptionError, match=r"method='mine' is no method; there are .*attention_flow, "
    ):
        scores(model, x, "mine")
    with pytest.raises(OptionError, match="is no method"):
        remove("mine")


def test_a_users_method_of_token_scores(own_methods):
    def mine(at):
        """The last site's gradient, signs and all, and what skip connections leave."""
        rows = at.rows({v.site.contraction: v.gradient for v in at.sites})
        identity = at.identity()
        return {name: TokenMap(r[:, at.last[name]], r, identity[name]) for name, r in rows.items()}

    register("mine", mine, needs=["gradient"], signed=True)
    model, x = classifier(), normal(2, TOKENS, 3)
    e = relprop.explain(model, x, 2, method="mine", keep="layers")
    agree(e.scores, scores(model, x, "attention_grad"))
    assert e.identity.tolist() == [[1.0, *[0.0] * TOKENS]] * 2 and by_layer(e).shape == (
        2,
        2,
        TOKENS + 1,
    )
    agree(e.row, e.scores + e.identity)


def test_a_users_method_at_the_input(own_methods):
    def mine(at, *, times=1):
        """x ⊙ ∂y_t/∂x, so many times."""
        return {name: times * at.values[name] * g for name, g in at.gradients.items()}

    register("mine", mine, needs=["gradient"], level="input", signed=True)
    model, x = classifier(), normal(2, TOKENS, 3)
    agree(scores(model, x, "mine", times=3), 3 * scores(model, x, "gradient_x_input"))
    with pytest.raises(OptionError, match="follows no relevance rules"):
        scores(model, x, "mine", rules="paper")


WRONG = {
    "a name that is taken": (
        {"name": "rollout"},
        r"'rollout' is there already: relprop\.methods\.remove\('rollout'\) first",
    ),
    "needs": (
        {"needs": ["jacobian"]},
        r"needs=\['jacobian'\]: there are .*gradient, hidden, .*relevance, .*values",
    ),
    "shared": (
        {"shared": ["layer"]},
        r"shared=\['layer'\]: there are discard_ratio, gradient, head_fusion, layers",
    ),
    "level": ({"level": "output"}, r"level='output': 'attention' or 'input'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_registered(name, own_methods):
    options, said = WRONG[name]
    with pytest.raises(OptionError, match=said):
        register(**{"name": "mine", "function": lambda at: {}, **options})
    assert "mine" not in METHODS


TAKE_LAYERS = [n for n in METHODS if "layers" in METHODS[n].options()]


@pytest.mark.parametrize("layers", [[], (), slice(9, None), slice(1, 1)], ids=str)
@pytest.mark.parametrize("method", TAKE_LAYERS)
def test_a_choice_of_no_layers_is_refused(method, layers):
    model, x, _, _ = plain(blocks=2, heads=2)
    with pytest.raises(OptionError, match=r"chooses none of the 2 attention sites(?s:.*)then"):
        relprop.explain(model, x, 2, method=method, layers=layers)


@pytest.mark.parametrize("method", [n for n in METHODS if "target_layers" in METHODS[n].options()])
@pytest.mark.parametrize("layers", [[], ()], ids=str)
def test_a_choice_of_no_modules_is_refused(method, layers):
    model, x, _, _ = plain(blocks=2, heads=2)
    with pytest.raises(OptionError, match=r"target_layers=.* names no module"):
        relprop.explain(model, x, 2, method=method, target_layers=layers)
