"""Gradients of a balanced model (LibraGrad): beside models whose operations are changed by hand,
in PyTorch alone, and by the laws that hold for every rule set with gradient forms."""

import itertools
import warnings

import pytest
import timm
import torch
import transformers as hf
from torch import nn
from torch.overrides import TorchFunctionMode

import relprop
from relprop.errors import CompletenessWarning, OptionError
from relprop.rules import LIBRA
from tests.common import paths
from tests.common.models import closeness
from tests.common.rows import only
from tests.methods.table import MODELS, SMALL

EXACT = 1e-12
WITH_FORMS = ["libra", "cp_lrp", "attnlrp", "attnlrp_identity", "lrp_gamma"]
pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")


# -- by hand: the same values, other derivatives

SECANTS = (torch.nn.functional.gelu, torch.nn.functional.silu, torch.tanh, torch.nn.functional.relu)
PRODUCTS = (torch.Tensor.mul, torch.Tensor.__mul__, torch.mul)


class Balanced(TorchFunctionMode):
    """Deviations are constant, a function of a number is the number times a constant, of two
    factors each is half responsible, and attention maps are constant once their gradient is
    read."""

    def __init__(self):
        super().__init__()
        self.maps = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.softmax or func is torch.Tensor.softmax:
            self.maps.append(func(*args, **kwargs).detach().requires_grad_())
            return self.maps[-1]
        if func is nn.functional.layer_norm:
            return self.norm(*args, **kwargs)
        if func is torch.rsqrt:
            return func(*args, **kwargs).detach()
        if func in SECANTS:
            x = args[0]
            return x * (func(x, *args[1:], **kwargs) / x).detach()
        if func in PRODUCTS and all(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            whole = args[0] * args[1].detach() + args[0].detach() * args[1]
            return 0.5 * whole
        return func(*args, **kwargs)

    @staticmethod
    def norm(x, shape, weight=None, bias=None, eps=1e-5):
        deviation = (x.var(-1, unbiased=False, keepdim=True) + eps).sqrt().detach()
        made = (x - x.mean(-1, keepdim=True)) / deviation
        made = made if weight is None else made * weight.detach()
        return made if bias is None else made + bias.detach()


def ids():
    return {"input_ids": torch.randint(5, 50, (2, 6))}


def of_timm(name, **options):
    made = timm.create_model(name, depth=2, embed_dim=16, num_heads=2, img_size=16, **options)
    return made, {"x": torch.randn(2, 3, 16, 16)}


TEXT = {"vocab_size": 50, "num_labels": 3, "pad_token_id": 0, **SMALL}
SIX = {
    "ViT": lambda: MODELS["ViT"]()[:2],
    "DeiT III": lambda: of_timm("deit3_small_patch16_224", patch_size=4, num_classes=3),
    "Swin": lambda: MODELS["Swin"]()[:2],
    "BERT": lambda: MODELS["BERT"]()[:2],
    "Llama": lambda: (hf.LlamaForSequenceClassification(hf.LlamaConfig(**TEXT)), ids()),
    "Qwen3": lambda: (
        hf.Qwen3ForSequenceClassification(
            hf.Qwen3Config(**TEXT, head_dim=8, num_key_value_heads=1)
        ),
        ids(),
    ),
}


def built(name):
    torch.manual_seed(0)
    model, inputs = SIX[name]()
    model = model.eval().double().requires_grad_(False)
    if hasattr(model, "config"):
        model.config._attn_implementation = "eager"
    for block in getattr(model, "blocks", ()):
        block.attn.fused_attn = False
    double = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    return model, double


def by_hand(model, inputs):
    """The embeddings (or pixels), their gradient, and those of the attention maps."""
    held = []
    leaf = inputs.get("pixel_values", inputs.get("x"))
    if leaf is not None:
        leaf.requires_grad_()
    else:
        table = model.get_input_embeddings()
        table.register_forward_hook(
            lambda *a: held.append(a[2].detach().requires_grad_()) or held[0]
        )
    with Balanced() as balanced:
        made = model(**inputs)
        y = (made if isinstance(made, torch.Tensor) else made.logits)[:, 1].sum()
    leaf = held[0] if held else leaf
    found = torch.autograd.grad(y, [leaf, *balanced.maps], allow_unused=True)
    return leaf, found[0], [g for g in found[1:] if g is not None]


@pytest.mark.parametrize("name", only(("ViT", "Llama"), SIX))
def test_models_changed_by_hand(name):
    model, inputs = built(name)
    e = relprop.explain(model, inputs, 1, method="gradient_x_input", gradient="balanced")
    blocks = relprop.explain(model, inputs, 1, method="gae", gradient="balanced", keep="blocks")
    leaf, gradient, maps = by_hand(model, {n: t.clone() for n, t in inputs.items()})
    product = (leaf * gradient).detach()
    product = product.sum(1).flatten(1) if product.dim() == 4 else product.sum(-1)
    assert closeness(e.scores, product) <= (1e-6 if name in ("Llama", "Qwen3") else 1e-10)
    assert len(blocks.blocks) == len(maps)
    for block, own in zip(blocks.blocks, maps, strict=True):
        assert closeness(block.gradient.reshape(own.shape), own) <= 1e-6


# -- laws


@pytest.mark.parametrize(
    ("name", "rules"),
    only(
        [("ViT", "libra"), ("BERT", "lrp_gamma"), ("Llama", "attnlrp"), ("Swin", "cp_lrp")],
        itertools.product(MODELS, WITH_FORMS),
    ),
)
def test_gradient_x_input_balanced_by_rules_is_their_relevance(name, rules):
    torch.manual_seed(0)
    model, inputs, target = MODELS[name]()
    model = model.double().eval()

    def scores(**options):
        e = relprop.explain(model, inputs, target, **options)
        return torch.cat([s.scores.flatten(1) for s in e.streams.values()], 1)

    balanced = scores(method="gradient_x_input", gradient=rules)
    assert closeness(balanced, scores(method="attnlrp", rules=rules)) <= EXACT
    walked = scores(method="attnlrp", rules=rules, ledger=True)  # by rules that have an ε
    assert closeness(balanced, walked) <= 1e-6


@pytest.mark.parametrize("name", only(["ViT", "Llama"], ["ViT", "BERT", "Llama", "Qwen3"]))
def test_all_of_y_is_shared_out(name):
    model, inputs = built(name)
    books = relprop.explain(model, inputs, 1, method="attnlrp", rules=LIBRA, ledger=True).ledger
    lost = {n: float(v.abs().max()) for n, v in books.lost().items()}
    assert max(lost.values(), default=0.0) <= 1e-9 * float(books.accounts[0].absolute.max())
    e = relprop.explain(model, inputs, 1, method="gradient_x_input", gradient="balanced")
    whole = e.scores.sum(1) + sum(books.absorbed().values())
    far = (whole - e.output).abs() / books.accounts[0].absolute
    assert far.max() <= (1e-6 if name in ("Llama", "Qwen3") else 1e-10)


def test_of_gates_libra_takes_half_and_cp_lrp_nothing():
    def both(name):
        model, inputs = built(name)
        return (
            relprop.explain(model, inputs, 1, method="gradient_x_input", gradient=g).scores
            for g in ("libra", "cp_lrp")
        )

    halves, constant = both("Llama")
    assert closeness(halves, constant) > 1e-3
    halves, constant = both("ViT")
    assert closeness(halves, constant) <= 1e-8


class Bare(nn.Module):
    """Attention, and nothing else that a balanced gradient is another of."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(8, n) for n in (8, 8, 8, 3))

    def forward(self, x):
        maps = (self.q(x) @ self.k(x).mT).softmax(-1)
        return self.head(x + maps @ self.v(x)).mean(1)


def test_gae_of_a_model_without_norms_and_gates_is_the_same():
    torch.manual_seed(0)
    model, x = Bare().double().eval(), torch.randn(2, 5, 8).double()
    plain, balanced = (
        relprop.explain(model, x, 1, method="gae", gradient=g) for g in ("model", "balanced")
    )
    assert closeness(plain.scores, balanced.scores) <= EXACT


@pytest.mark.parametrize(
    ("method", "rules"),
    only(
        [("gae", "balanced"), ("integrated_gradients", "attnlrp")],
        itertools.product(
            (
                "gae",
                "attcat",
                "attention_grad",
                "transformer_attribution",
                "integrated_gradients",
            ),
            ("balanced", "attnlrp"),
        ),
    ),
)
def test_whole_in_chunks_in_segments_and_alone(method, rules):
    model, inputs = built("Llama")
    few = {"n_steps": 2} if method == "integrated_gradients" else {}

    def scores(inputs):
        return relprop.explain(
            model, inputs, 1, method=method, gradient=rules, verify=False, **few
        ).scores

    whole = scores(inputs)
    with paths.in_chunks(3):
        assert closeness(scores(inputs), whole) <= EXACT
    with paths.in_segments():
        assert closeness(scores(inputs), whole) <= EXACT
    alone = scores({n: t[1:] for n, t in inputs.items()})
    assert closeness(alone, whole[1:]) <= EXACT


def test_a_probe_reads_the_same_gradients():
    model, inputs = built("ViT")
    blocks = relprop.explain(model, inputs, 1, method="gae", gradient="balanced", keep="blocks")
    with relprop.instrument(model, inputs, 1) as probe:
        found = probe.gradient("*:softmax", gradient="balanced")
        plain = probe.gradient("*:softmax")
        with pytest.raises(OptionError, match="no gradient form"):
            probe.gradient("*:softmax", gradient="paper")
    assert len(found) == len(blocks.blocks) == 2
    for block, own in zip(blocks.blocks, found.values(), strict=True):
        assert closeness(own.reshape(block.gradient.shape), block.gradient) <= 1e-6
    first, same = (next(iter(g.values())) for g in (found, plain))
    assert closeness(first, same) > 1e-3


class Routed(nn.Module):
    """Experts of which each token takes two, by their shares."""

    def __init__(self, score):
        super().__init__()
        self.router, self.score = nn.Linear(8, 4), score
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        best, which = self.score(self.router(x)).topk(2, -1)
        shares = torch.zeros_like(self.router(x)).scatter(-1, which, best / best.sum(-1, True))
        made = torch.stack([e(x) for e in self.experts], -1)
        return self.head((made * shares[..., None, :]).sum(-1)).mean(1)


@pytest.mark.parametrize("score", [lambda t: t.softmax(-1), torch.sigmoid])
def test_routers_shares_are_constants(score):
    torch.manual_seed(0)
    model, x = Routed(score).double().eval(), torch.randn(2, 5, 8).double()
    e = relprop.explain(model, x, 1, method="gradient_x_input", gradient="balanced")
    held = x.clone().requires_grad_()
    plain = model.router.forward
    model.router.forward = lambda t: plain(t).detach()
    (gradient,) = torch.autograd.grad(model(held)[:, 1].sum(), held)
    assert closeness(e.scores, (x * gradient).sum(-1)) <= 1e-10


# -- what is refused


@pytest.mark.parametrize("rules", ["paper", "stable", "reference", "lrp"])
def test_rules_without_gradient_forms_are_refused_by_name(rules):
    model, inputs = built("ViT")
    with pytest.raises(OptionError, match=f"gradient='{rules}'.*(no gradient form|of its own)"):
        relprop.explain(model, inputs, 1, method="gae", gradient=rules)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"gradient": "balance"}, "'balanced'"),
        ({"gradient": None}, "a rule set or one of"),
        ({"gradient": "balanced", "use_gradient": False}, "no gradient is read"),
        ({"gradient": "balanced", "method": "rollout"}, "has no option 'gradient'"),
    ],
)
def test_what_is_no_gradient(options, says):
    model, inputs = built("ViT")
    with pytest.raises(OptionError, match=says):
        relprop.explain(model, inputs, 1, **options)


class AtZero(Bare):
    """A function that is not 0 at 0, given a 0."""

    def forward(self, x):
        return super().forward(x) + x.exp().mean((1, 2))[:, None]


def test_a_form_without_a_value_is_refused_and_never_nan():
    torch.manual_seed(0)
    model, x = AtZero().double().eval(), torch.randn(2, 5, 8).double()
    x[0, 0, 0] = 0
    with pytest.raises(OptionError, match="no finite number"):
        relprop.explain(model, x, 1, method="gradient_x_input", gradient="balanced", verify=False)


def test_the_integral_of_a_balanced_gradient_has_no_sum():
    model, inputs = built("ViT")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompletenessWarning)
        relprop.explain(
            model, inputs, 1, method="integrated_gradients", gradient="balanced", n_steps=3
        )


def test_the_explanation_says_which_gradient_it_is():
    model, inputs = built("ViT")
    e = relprop.explain(model, inputs, 1, method="gae", gradient="balanced")
    assert e.facts["gradient"] == "libra" and e.facts["options"]["gradient"] == "balanced"
    plain = relprop.explain(model, inputs, 1, method="gae")
    assert "gradient" not in plain.facts and closeness(e.scores, plain.scores) > 1e-3


@pytest.mark.parametrize("rules", only(["libra"], ["libra", "attnlrp"]))
def test_a_callable_that_multiplies_outputs_is_balanced_too(rules):
    """Of a product of two logits each is half responsible, as in the model itself: gradient times
    input is what the walk gives from the callable's scalar."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=4)
    model, x = model.eval(), torch.randn(2, 3, 32, 32)

    def product(y):
        return y[0, 1] * y[0, 2] + y[0, 3]

    exact = {"libra": LIBRA, "attnlrp": relprop.rules.ATTNLRP}[rules]
    how = {"precision": "float64"}
    found = relprop.explain(model, x, product, method="gradient_x_input", gradient=exact, **how)
    walked = relprop.explain(model, x, product, method="attnlrp", rules=exact, ledger=True, **how)
    assert closeness(found.scores, walked.scores) <= 1e-9
    plain = relprop.explain(model, x, product, method="gradient_x_input", **how)
    assert closeness(found.scores, plain.scores) > 1e-2

    def chosen(y):  # is no graph
        return y[0, 1] * y[0, int(y[0].argmax())]

    with pytest.raises(OptionError, match="the target callable cannot be followed"):
        relprop.explain(model, x, chosen, method="gradient_x_input", gradient=rules)
    relprop.explain(model, x, chosen, method="gradient_x_input")
