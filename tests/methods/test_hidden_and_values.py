"""Methods over hidden states and values, against the eager model: autograd at its layers' outputs,
hooks that zero its values, its own projections."""

import copy
import functools
from dataclasses import replace

import pytest
import torch
import transformers as hf
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import OptionError, UnexplainedPartWarning
from tests.common.models import build, closeness, sample
from tests.reference.calls import Masked
from tests.spellings.bases import EXPERTS, PLAIN, START
from tests.spellings.model import Model

EXACT = 1e-9
IDS = torch.arange(5, 17).reshape(2, 6)


@functools.cache
def bert(**settings):
    torch.manual_seed(0)
    fields = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "num_labels": 3,
        **settings,
    }
    return hf.BertForSequenceClassification(hf.BertConfig(**fields)).double().eval()


@functools.cache
def llama(**settings):
    """Its norms are PyTorch's: its own compute in float32 inside a float64 model, which a captured
    graph does but for the rounding."""
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            **settings,
        )
    )
    for layer in model.model.layers:
        layer.input_layernorm, layer.post_attention_layernorm = nn.RMSNorm(16), nn.RMSNorm(16)
    model.model.norm = nn.RMSNorm(16)
    return model.double().eval()


def vit():
    torch.manual_seed(0)
    return (
        hf.ViTForImageClassification(
            hf.ViTConfig(
                image_size=16,
                patch_size=4,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=24,
                num_labels=4,
            )
        )
        .double()
        .eval()
    )


def hidden_states(model, ids, logit):
    """Every layer's output and ∂logit/∂it, from the eager model."""
    out = model(input_ids=ids, output_hidden_states=True, output_attentions=True)
    states = out.hidden_states[1:]
    return states, torch.autograd.grad(logit(out), states), out.attentions


@pytest.mark.parametrize("method", ["cat", "attcat"])
def test_cat_is_gradient_times_hidden_state(method):
    model = bert(attn_implementation="eager")
    states, gradients, attentions = hidden_states(model, IDS, lambda out: out.logits[:, 1].sum())
    by_hand = [(g * h).sum(2) for h, g in zip(states, gradients, strict=True)]
    if method == "attcat":
        by_hand = [a.mean((1, 2)) * c for a, c in zip(attentions, by_hand, strict=True)]
    e = relprop.explain(model, {"input_ids": IDS}, 1, method=method, keep="layers")
    assert closeness(e.layers, torch.stack(by_hand, 1).detach()) <= EXACT
    assert closeness(e.scores, sum(by_hand).detach()) <= EXACT
    assert (e.scores < 0).any() and torch.equal(e.magnitude * e.direction, e.scores)
    one = relprop.explain(model, {"input_ids": IDS}, 1, method=method, layers=[1], keep="layers")
    assert closeness(one.scores, by_hand[1].detach()) <= EXACT and one.layers.shape[1] == 1


@pytest.mark.parametrize("method", ["attcat", "gradient_x_input"])
def test_what_speaks_for_the_target_and_what_against_it(method):
    model, x = build(), sample()
    whole = relprop.explain(model, x, 1, method=method)
    both = [
        relprop.explain(model, x, 1, method=method, part=p, keep="input")
        for p in ("positive", "negative")
    ]
    assert all(bool((e.scores >= 0).all() and e.scores.any()) for e in both)
    assert torch.equal(both[0].scores - both[1].scores, whole.scores)
    assert both[1].facts["part"] == "negative" and "part" not in whole.facts
    assert both[1].summary(0).startswith("against ") and " rests on" in both[0].summary(0)
    with pytest.raises(OptionError, match="part='both': 'positive', 'negative' or None"):
        relprop.explain(model, x, 1, method=method, part="both")
    with pytest.raises(OptionError, match="has no option 'part'"):
        relprop.explain(model, x, 1, method="gae", part="positive")


def test_cat_of_blocks_that_normalise_first():
    """The last layer's output is the sum before the final norm, as it is for the layers before
    it."""
    model, x, seen = build(), sample(), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, out: seen.append(out))
    x.requires_grad_()
    gradients = torch.autograd.grad(model(x)[:, 1].sum(), seen)
    by_hand = torch.stack(
        [(g * h).sum(2) for h, g in zip(seen, gradients, strict=True)], 1
    ).detach()
    e = relprop.explain(build(), sample(), 1, method="cat", keep="layers")
    assert float((e.layers - by_hand).abs().max()) <= EXACT * float(by_hand.abs().max())


def test_gradcam_on_a_feature_map():
    model, pixels = (
        vit(),
        torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64),
    )
    for path in (None, "vit.layers.0"):
        seen = []
        module = (
            dict(model.named_modules())[path]
            if path
            else next(m for n, m in model.named_modules() if n.endswith("1.layernorm_before"))
        )
        hook = module.register_forward_hook(
            lambda m, args, out, seen=seen: seen.append(out[0] if isinstance(out, tuple) else out)
        )
        logit = model(pixel_values=pixels.clone().requires_grad_()).logits[:, 2].sum()
        hook.remove()
        (gradient,) = torch.autograd.grad(logit, seen)
        features = seen[0].detach()
        weights = gradient[:, 1:].mean(1, keepdim=True)
        by_hand = F.pad((weights * features[:, 1:]).sum(2).clamp(min=0), (1, 0))
        e = relprop.explain(
            model, {"pixel_values": pixels}, 2, method="gradcam_features", target_layers=path
        )
        assert float((e.scores - by_hand).abs().max()) <= EXACT * float(by_hand.abs().max())
    with pytest.raises(
        OptionError, match=r"(?s)no module call 'nothing' is on the way.*one of vit"
    ):
        relprop.explain(
            model, {"pixel_values": pixels}, 2, method="gradcam_features", target_layers=["nothing"]
        )
    with pytest.raises(OptionError, match="'classifier' holds no tokens"):
        relprop.explain(
            model,
            {"pixel_values": pixels},
            2,
            method="gradcam_features",
            target_layers="classifier",
        )


def one_projection(at, x):
    """Each head's query, key and value lie side by side in what one map gives."""
    layers = (at.query, at.key, at.value)
    weight, bias = (
        torch.stack([getattr(layer, n).unflatten(0, (at.heads, -1)) for layer in layers], 1)
        for n in ("weight", "bias")
    )
    made = F.linear(x, weight.flatten(0, 2), bias.flatten()).unflatten(-1, (at.heads, -1))
    return [t.transpose(1, 2) for t in made.chunk(3, -1)]


def test_the_feature_map_is_the_norms_output_also_of_one_projection():
    (x,) = PLAIN.inputs()
    found = relprop.explain(
        Model(PLAIN, queries_keys_values=one_projection).eval(), x, 1, method="gradcam_features"
    )
    wanted = relprop.explain(Model(PLAIN).eval(), x, 1, method="gradcam_features")
    assert closeness(found.scores, wanted.scores) <= EXACT


def rolled(matrices, row):
    """The row of Π (I + M) by hand, and what of it is no skip connection."""
    one = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    c = one.expand_as(matrices[0])
    for m in matrices:
        c = (one + m) @ c
    return c[:, row] - one[row]


def test_value_zeroing_by_hook():
    model = bert()
    with torch.no_grad():
        layers = model.bert.encoder.layer
        base = model(input_ids=IDS, output_hidden_states=True).hidden_states
        matrices = []
        for number, layer in enumerate(layers):
            columns = []
            for j in range(IDS.shape[1]):

                def zero(module, args, out, j=j):
                    out = out.clone()
                    out[:, j] = 0
                    return out

                hook = layer.attention.self.value.register_forward_hook(zero)
                changed = layer(base[number])
                hook.remove()
                changed = changed[0] if isinstance(changed, tuple) else changed
                columns.append(1 - F.cosine_similarity(base[number + 1], changed, dim=-1))
            m = torch.stack(columns, 2)
            matrices.append(m / m.sum(2, keepdim=True))
    e = relprop.explain(model, {"input_ids": IDS}, 1, method="value_zeroing")
    assert (
        closeness(e.scores, rolled(matrices, 0)) <= 1e-7
    )  # 1 − cos of vectors that are nearly parallel
    assert torch.equal(
        e.scores, relprop.explain(model, {"input_ids": IDS}, 2, method="value_zeroing").scores
    )


def without_each_value(block, x, whole):
    """1 − cos of a block's output ``whole`` and of that without the values of each token."""
    columns = []
    for j in range(x.shape[1]):
        hook = block.attention.value.register_forward_hook(
            lambda module, args, out, j=j: out.index_fill(1, torch.tensor([j]), 0)
        )
        columns.append(1 - F.cosine_similarity(block(x, None), whole, dim=-1))
        hook.remove()
    m = torch.stack(columns, 2)
    return m / m.sum(2, keepdim=True)


def test_value_zeroing_chooses_experts_again():
    base = replace(START, experts=3)
    model, matrices, routes = Model(base).eval(), [], []
    for block in model.blocks:
        block.mlp.router.register_forward_hook(lambda m, a, out: routes.append(out.argmax(-1)))
    with torch.no_grad():
        x = model.position(model.start(model.embed(*base.inputs())))
        for block in model.blocks:
            whole = block(x, None)
            matrices.append(without_each_value(block, x, whole))
            x = whole
    count = x.shape[1] + 1
    assert any(not torch.equal(routes[i - i % count], r) for i, r in enumerate(routes))
    e = relprop.explain(Model(base).eval(), base.inputs(), 1, method="value_zeroing")
    assert closeness(e.scores, rolled(matrices, 0)) <= 1e-7


def test_value_zeroing_of_a_model_that_branches():
    """The graph holds for the experts that this input's tokens went to."""

    def one_by_one(at, x):
        own = [at.experts[int(s.argmax())](t) for t, s in zip(x[0], at.router(x)[0], strict=True)]
        return torch.stack(own)[None]

    model, x = Model(EXPERTS, experts=one_by_one).eval(), EXPERTS.inputs()[0][:1]
    with pytest.raises(OptionError, match=r"value_zeroing: the model branches on .*blocks\.0\.mlp"):
        relprop.explain(model, x, 1, method="value_zeroing")
    assert relprop.explain(model, x, 1, method="rollout").scores.shape == x.shape[:2]


def test_attention_norm_by_the_models_own_projections():
    model = bert(attn_implementation="eager")
    with torch.no_grad():
        out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        matrices = []
        for h, attention, layer in zip(
            out.hidden_states, out.attentions, model.bert.encoder.layer, strict=False
        ):
            values = layer.attention.self.value(h).unflatten(2, (2, 8))
            weight = layer.attention.output.dense.weight.unflatten(1, (2, 8))
            norms = torch.einsum("bkhd,ohd->bhko", values, weight).norm(dim=3)
            matrices.append((attention * norms[:, :, None]).mean(1))
    e = relprop.explain(model, {"input_ids": IDS}, 1, method="attention_norm")
    assert closeness(e.scores, rolled(matrices, 0)) <= EXACT


def test_attention_norm_with_residual_and_norm():
    """Kobayashi et al. 2021 on BERT: every token's part of LN(Σ_h A f(x) + x), the norm's
    statistics those of the whole."""
    model = bert(attn_implementation="eager")
    with torch.no_grad():
        out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        c = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
        for h, attention, layer in zip(
            out.hidden_states, out.attentions, model.bert.encoder.layer, strict=False
        ):
            dense, norm = layer.attention.output.dense, layer.attention.output.LayerNorm
            values = layer.attention.self.value(h).unflatten(2, (2, 8))
            parts = (
                torch.einsum(
                    "bhqk,bkhd,ohd->bqko", attention, values, dense.weight.unflatten(1, (2, 8))
                )
                + torch.eye(6)[None, :, :, None] * h[:, None]
            )
            whole = parts.sum(2) + dense.bias
            assert closeness(norm(whole), layer.attention(h)[0]) <= 1e-12
            parts = (
                (parts - parts.mean(3, keepdim=True))
                / (whole.var(2, correction=0) + norm.eps).sqrt()[:, :, None, None]
                * norm.weight
            )
            c = parts.norm(dim=3) @ c
    e = relprop.explain(model, {"input_ids": IDS}, 1, method="attention_norm", variant="2021")
    assert closeness(e.row, c[:, 0]) <= EXACT
    with pytest.raises(OptionError, match="variant='2022': '2020' or '2021'"):
        relprop.explain(model, {"input_ids": IDS}, 1, method="attention_norm", variant="2022")


def test_attention_norm_with_residual_of_blocks_that_normalise_first():
    model = llama(attn_implementation="eager")
    with torch.no_grad():
        out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        c = torch.eye(6, dtype=torch.float64).expand(2, 6, 6)
        for h, attention, layer in zip(
            out.hidden_states, out.attentions, model.model.layers, strict=False
        ):
            values = (
                layer.self_attn.v_proj(layer.input_layernorm(h))
                .unflatten(2, (2, 4))
                .repeat_interleave(2, 2)
            )
            parts = torch.einsum(
                "bhqk,bkhd,ohd->bqko",
                attention,
                values,
                layer.self_attn.o_proj.weight.unflatten(1, (4, 4)),
            )
            c = (parts + torch.eye(6)[None, :, :, None] * h[:, None]).norm(dim=3) @ c
    e = relprop.explain(model, {"input_ids": IDS}, method="attention_norm", variant="2021")
    assert closeness(e.row, c[:, -1]) <= EXACT


def test_attention_norm_with_grouped_queries():
    model = llama(attn_implementation="eager")
    with torch.no_grad():
        out = model(input_ids=IDS, output_hidden_states=True, output_attentions=True)
        matrices = []
        for h, attention, layer in zip(
            out.hidden_states, out.attentions, model.model.layers, strict=False
        ):
            values = (
                layer.self_attn.v_proj(layer.input_layernorm(h))
                .unflatten(2, (2, 4))
                .repeat_interleave(2, 2)
            )
            weight = layer.self_attn.o_proj.weight.unflatten(1, (4, 4))
            norms = torch.einsum("bkhd,ohd->bhko", values, weight).norm(dim=3)
            matrices.append((attention * norms[:, :, None]).mean(1))
    e = relprop.explain(model, {"input_ids": IDS}, method="attention_norm")
    assert closeness(e.scores, rolled(matrices, -1)) <= EXACT


class Cross(nn.Module):
    """Queries of one input, keys and values of another: as many keys as it pleases."""

    def __init__(self):
        super().__init__()
        self.q, self.kv, self.out, self.head = (
            nn.Linear(8, 8),
            nn.Linear(8, 16),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def forward(self, x, memory):
        q = self.q(x).unflatten(2, (2, 4)).transpose(1, 2)
        k, v = (t.unflatten(2, (2, 4)).transpose(1, 2) for t in self.kv(memory).chunk(2, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head((x + self.out(y))[:, 0])


@pytest.mark.parametrize("count", [2, 3, 7])
def test_attention_norm_of_any_number_of_keys(count):
    torch.manual_seed(0)
    model = Cross().double().eval()
    x, memory = (
        torch.randn(2, 3, 8, dtype=torch.float64),
        torch.randn(2, count, 8, dtype=torch.float64),
    )
    e = relprop.explain(
        model, {"x": x, "memory": memory}, 1, method="attention_norm", keep="blocks"
    )
    values = model.kv(memory).chunk(2, -1)[1].unflatten(2, (2, 4))
    norms = torch.einsum("bkhd,ohd->bhko", values, model.out.weight.unflatten(1, (2, 4))).norm(
        dim=3
    )
    by_hand = (e.blocks[0].attention * norms[:, :, None]).mean(1)[:, 0]
    assert list(e.streams) == ["memory"] and closeness(e.scores, by_hand.detach()) <= EXACT


class Learned(Cross):
    """A detector's decoder: the values of its first attention are learned, and only the queries and
    keys of it come from the input."""

    def __init__(self):
        super().__init__()
        self.held = nn.Parameter(torch.randn(3, 8))

    def forward(self, memory):
        q = k = self.q(memory[:, :3]).unflatten(2, (2, 4)).transpose(1, 2)
        v = self.held.unflatten(1, (2, 4)).transpose(0, 1)
        y = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return super().forward(self.held + self.out(y), memory)


@pytest.mark.parametrize("method", ["attention_norm", "value_zeroing"])
def test_values_that_no_input_reaches_carry_nothing(method):
    torch.manual_seed(0)
    model, memory = Learned().double().eval(), torch.randn(3, 5, 8, dtype=torch.float64)
    e = relprop.explain(model, memory, 1, method=method, keep="blocks")
    assert len(e.blocks) == 2
    alone = relprop.explain(model, memory, 1, method=method, layers=[1])
    assert e.scores.abs().max() > 0 and closeness(e.scores, alone.scores) <= EXACT


class Talking(Cross):
    """Attention whose heads are mixed after their softmax, by weights of either sign."""

    def forward(self, x):
        x = x.mul(1)
        q = self.q(x).unflatten(2, (2, 4)).transpose(1, 2)
        k, v = (t.unflatten(2, (2, 4)).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        self.maps = torch.stack([-(q @ k.mT).softmax(-1)[:, i] for i in (1, 0)], 1)
        self.state = x + self.out((self.maps @ v).transpose(1, 2).flatten(2))
        return self.head(self.state[:, 0])


def test_attcat_of_maps_that_are_negative():
    torch.manual_seed(0)
    model, x = Talking().double().eval(), torch.randn(2, 3, 8, dtype=torch.float64)
    model(x)
    (gradient,) = torch.autograd.grad(model.head(model.state[:, 0])[:, 1].sum(), model.state)
    by_hand = model.maps.mean((1, 2)) * (gradient * model.state).sum(2)
    e = relprop.explain(model, x, 1, method="attcat")
    assert closeness(e.scores, by_hand.detach()) <= EXACT


@pytest.mark.filterwarnings("ignore::relprop.errors.UnrecognisedWarning")
def test_attcat_passes_over_attention_to_pairs_of_tokens():
    """Of Nystrom attention the last map has the keys that are tokens; others, those of a matrix."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 50}
    lengths = {"num_landmarks": 4, "segment_means_seq_len": 16, "max_position_embeddings": 32}
    config = hf.NystromformerConfig(num_hidden_layers=1, num_labels=3, **sizes, **lengths)
    model = hf.NystromformerForSequenceClassification(config).double().eval()
    ids = torch.arange(5, 21)[None]
    with pytest.warns(
        UnexplainedPartWarning, match=r"taken from 4 tokens there, .*\(pairs of tokens\)"
    ):
        e = relprop.explain(model, ids, 1, method="attcat", keep="blocks")
    alone = e.blocks[-1].attention.mean((1, 2))
    layers = relprop.explain(model, ids, 1, method="cat", keep="layers").layers
    assert closeness(e.scores, alone * layers[:, -1]) <= EXACT


def test_value_zeroing_of_states_that_are_zero():
    """Positions set to 0 behind a layer stay as they are, whichever value is left out."""
    torch.manual_seed(0)
    model, ids = Masked().double().eval(), torch.arange(1, 6)[None]
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    padded, alone = (
        relprop.explain(model, (ids[:, :n], mask[:, :n]), 1, method="value_zeroing").scores
        for n in (5, 3)
    )
    assert closeness(padded[:, :3], alone) <= EXACT and not padded[:, 3:].any()


@functools.cache
def bert_in(dtype):
    return copy.deepcopy(bert()).to(dtype)


@pytest.mark.parametrize(
    ("method", "dtype", "most"),
    [
        ("value_zeroing", torch.float16, 0.1),  # takes small distances of what is rounded
        ("attention_norm", torch.bfloat16, 0.01),
        ("attcat", torch.bfloat16, 0.02),
    ],
)
def test_half_precision_is_close_to_single(method, dtype, most):
    """What a method works out from a half-precision model's values is worked out in float32: only
    the values themselves are rounded."""
    single, half = (
        relprop.explain(bert_in(each), {"input_ids": IDS}, 1, method=method)
        for each in (torch.float32, dtype)
    )
    assert half.scores.dtype == torch.float32 and closeness(half.scores, single.scores) <= most


class Branching(Model):
    """Python asks what a block gives."""

    def forward(self, *inputs):
        found = super().forward(*inputs)
        return found if bool((found < 1e6).all()) else -found


@pytest.mark.parametrize("method", ["value_zeroing", "deeplift"])
def test_methods_that_try_other_values_refuse_branches_on_computed_ones(method):
    model, inputs = Branching(PLAIN).eval(), PLAIN.inputs()
    with pytest.raises(OptionError, match="branches on what it has computed"):
        relprop.explain(model, inputs, 1, method=method)
    assert relprop.explain(Model(PLAIN).eval(), inputs, 1, method=method).scores.any()
