"""Positional LRP: what position terms receive is their tokens', by a walk with books and by one
gradient, against an eager model whose position terms are inputs."""

import itertools
import warnings

import pytest
import torch
import transformers as hf

import relprop
from relprop.errors import OptionError
from relprop.tracer import chunked
from tests.common.local_gradients import LocalGradients
from tests.common.models import closeness
from tests.common.rows import diagonal, only

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT = {"vocab_size": 50, **SMALL}
IDS = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(1))
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()
MASK = (torch.arange(7) >= torch.tensor([[0], [3]])).long()
METHODS = ["attnlrp", "cp_lrp", "lrp_gamma", "epsilon_lrp", "lrp"]


def ready(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def bert():
    return ready(hf.BertForSequenceClassification(hf.BertConfig(**TEXT, num_labels=3)))


def vit(**options):
    sizes = {"image_size": 16, "patch_size": 4, "num_labels": 3}
    return ready(hf.ViTForImageClassification(hf.ViTConfig(**sizes, **SMALL, **options)))


def gpt2():
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    config = hf.GPT2Config(**sizes, activation_function="gelu")
    return ready(hf.GPT2LMHeadModel(config))


def llama():
    return ready(hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=1)))


def gptj():
    config = hf.GPTJConfig(vocab_size=50, n_embd=16, n_layer=2, n_head=2, rotary_dim=4)
    return ready(hf.GPTJForCausalLM(config))


def opt():
    sizes = {"vocab_size": 50, "hidden_size": 16, "ffn_dim": 24, "word_embed_proj_dim": 16}
    config = hf.OPTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
    return ready(hf.OPTForCausalLM(config))


def dinov3():
    sizes = {"image_size": 16, "patch_size": 4, "num_register_tokens": 2}
    return ready(hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**sizes, **SMALL)))


def t5():
    config = hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    return ready(hf.T5ForConditionalGeneration(config))


def swin():
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "window_size": 4, "num_labels": 3}
    config = hf.SwinConfig(**sizes, depths=[2, 1], num_heads=[2, 2])
    return ready(hf.SwinForImageClassification(config))


def bloom():
    config = hf.BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=2)
    return ready(hf.BloomForCausalLM(config))


class Bare(torch.nn.Module):
    """Attention under a float mask, and no positions."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(self.tokens(ids), mask.to(self.head.weight))[:, -1])


class Waves(torch.nn.Module):
    """Sines and cosines added to the tokens, and a mean over these."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(50, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids):
        angles = torch.arange(ids.shape[1])[:, None] * 0.3 ** torch.arange(8)
        waves = torch.cat([angles.sin(), angles.cos()], 1)
        return self.head(self.layer(4 * self.tokens(ids) + waves).mean(1))


#: A model, its inputs, and the target.
MODELS = {
    "BERT": (bert, {"input_ids": IDS, "token_type_ids": (IDS > 20).long()}, 1),
    "ViT": (vit, PIXELS, 2),
    "GPT-2": (gpt2, {"input_ids": IDS}, (6, 7)),
    "Llama": (llama, {"input_ids": IDS}, (6, 7)),
    "Llama, padded": (llama, {"input_ids": IDS, "attention_mask": MASK}, (6, 7)),
    "GPT-J": (gptj, {"input_ids": IDS}, (6, 7)),
    "OPT, padded": (opt, {"input_ids": IDS, "attention_mask": MASK}, (6, 7)),
    "DINOv3": (dinov3, PIXELS, relprop.targets.output("pooler_output")[3]),
    "T5": (t5, {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}, (6, 7)),
    "Swin": (swin, PIXELS, 2),
    "Bloom, padded": (bloom, {"input_ids": IDS, "attention_mask": MASK}, (6, 7)),
    "waves": (lambda: ready(Waves()), IDS, 1),
}


def explained(name, method, **options):
    make, inputs, target = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", relprop.RelpropWarning)
        return relprop.explain(
            make(), inputs, target, method=method, positions=True, precision="float64", **options
        )


@pytest.mark.parametrize(
    ("name", "method"),
    only(
        [
            ("BERT", "attnlrp"),
            ("ViT", "cp_lrp"),
            ("Llama, padded", "lrp_gamma"),
            ("T5", "lrp"),
            ("waves", "epsilon_lrp"),
        ],
        itertools.product(MODELS, METHODS),
    ),
)
def test_tokens_positions_and_biases_are_the_target(name, method):
    walked, fast = (explained(name, method, ledger=books) for books in (True, None))
    books = walked.ledger
    assert books.balanced(1e-12)
    own = books.reached["positions of the model's own tokens"]
    whole = sum(books.totals()[k] for k in ("reached", "absorbed", "lost", "residual"))
    assert closeness(whole, books.started) <= 1e-9
    scored = sum(books.reached.values()) - own
    total = sum(stream.scores.sum(1) for stream in walked.streams.values())
    assert torch.allclose(total, scored, rtol=1e-9, atol=1e-9)
    assert (float(own.abs().max()) > 1e-6) == (name == "ViT")  # its class token
    assert method == "lrp" or fast.facts["relevance"] == "one gradient"
    for stream, one in walked.streams.items():
        assert closeness(fast[stream].scores, one.scores) <= 1e-8
    named = ("position", "token_type", "relative")
    tables = [n for n in books.absorbed() if any(part in n for part in named)]
    assert all(float(books.absorbed()[n].abs().max()) == 0 for n in tables)


def leaves_of(module):
    """What a module returns as inputs of their own, written down in a list as it is called."""
    found = []

    def hook(_, __, made):
        parts = made if isinstance(made, tuple) else (made,)
        fresh = tuple(p.detach().clone().requires_grad_() for p in parts)
        found.append(fresh)
        return fresh if isinstance(made, tuple) else fresh[0]

    return found, module.register_forward_hook(hook)


def by_local_gradients(model, module, embedding, forward, target):
    """Σ over features of value × gradient of what two modules return, (batch, tokens) both: an
    eager model in which tokens and positions are inputs."""
    model.set_attn_implementation("eager")
    found = [leaves_of(m) for m in (embedding, module)]
    model.requires_grad_(False)
    with LocalGradients():
        y = forward(model)
    leaves = [t for made, _ in found for parts in made for t in parts]
    for _, hook in found:
        hook.remove()
    gradients = torch.autograd.grad(target(y).sum(), leaves)
    parts = [(t * g).sum(-1) for t, g in zip(leaves, gradients, strict=True)]
    return [p.detach() for p in parts]


CHECKED = {
    "GPT-2": (gpt2, lambda m: m.transformer.wpe, lambda m: m.transformer.wte),
    "Llama": (llama, lambda m: m.model.rotary_emb, lambda m: m.model.embed_tokens),
}


@pytest.mark.parametrize("name", CHECKED)
def test_an_eager_model_whose_positions_are_inputs_says_the_same(name):
    make, positions, tokens = CHECKED[name]
    model = make()
    # one sample at a time: both share a position term
    for i in range(2):
        ids = IDS[i : i + 1]
        parts = by_local_gradients(
            model,
            positions(model),
            tokens(model),
            lambda m, ids=ids: m(ids).logits,
            lambda y: y[:, 6, 7],
        )
        e = relprop.explain(
            model, ids, (6, 7), method="attnlrp", positions=True, keep="input", precision="float64"
        )
        assert closeness(e.input.sum(-1), parts[0]) <= 1e-7
        assert closeness(e.scores, sum(parts)) <= 1e-7
        assert float((e.scores - e.input.sum(-1)).abs().min()) > 0


def test_relative_positions_are_half_the_querys_and_half_the_keys():
    model, ids = t5(), {"input_ids": IDS[:1], "decoder_input_ids": IDS[:1].flip(1)}
    model.set_attn_implementation("eager")
    stacks = (model.encoder, model.decoder)
    tables = [s.block[0].layer[0].SelfAttention.relative_attention_bias for s in stacks]
    tokens = [s.embed_tokens for s in stacks]  # which are live, too
    kept = [leaves_of(module) for module in (*tables, *tokens)]
    model.requires_grad_(False)
    with LocalGradients():
        y = model(**ids).logits[:, 6, 7]
    for _, hook in kept:
        hook.remove()
    given = [made[0][0] for made, _ in kept[:2]]
    shares = [t * g for t, g in zip(given, torch.autograd.grad(y.sum(), given), strict=True)]
    e = relprop.explain(
        model, ids, (6, 7), method="attnlrp", positions=True, keep="input", precision="float64"
    )
    for name, share in zip(ids, shares, strict=True):  # (queries, keys, heads)
        expected = (share.sum((1, 2)) + share.sum((0, 2))) / 2
        found = (e[name].scores - e[name].input.sum(-1))[0]
        assert closeness(found, expected.detach()) <= 1e-7 and float(found.abs().max()) > 1e-6


def test_a_patchs_position_is_spread_evenly_over_its_pixels():
    model, pixels = vit(), PIXELS[:1]
    e = relprop.explain(model, pixels, 2, method="attnlrp", positions=True, keep="input")
    found = (e.scores - e.input.sum(1).flatten(1)).reshape(4, 4, 4, 4)
    assert closeness(found, found.mean((1, 3), keepdim=True).expand_as(found)) <= 1e-9
    model.set_attn_implementation("eager")
    kept = model.vit.embeddings.position_embeddings.detach().requires_grad_()
    model.requires_grad_(False)
    del model.vit.embeddings.position_embeddings
    model.vit.embeddings.position_embeddings = kept
    with LocalGradients():
        y = model(pixels.clone().requires_grad_()).logits[:, 2]
    expected = (kept * torch.autograd.grad(y.sum(), kept)[0]).sum(-1)[0, 1:].detach()
    assert closeness(found.sum((1, 3)).flatten(), expected) <= 1e-7


HOW = {"in segments": {"memory": 0}, "in parts": {"batch_size": 1}, "walked": {"ledger": True}}


@pytest.mark.parametrize(("how", "name"), diagonal(HOW, ["ViT", "Llama"]))
def test_in_segments_in_parts_and_beside_other_questions(how, name):
    (make, inputs, target), options = MODELS[name], HOW[how]
    alone = explained(name, "attnlrp")
    assert closeness(explained(name, "attnlrp", **options).scores, alone.scores) <= 1e-8
    questions = [("attnlrp", {"positions": True}), ("attnlrp", {})]
    both = relprop.compare(
        make(), inputs, questions, target, precision="float64", ledger=options.get("ledger")
    )
    beside, without = both.explanations.values()
    assert closeness(beside.scores, alone.scores) <= 1e-8
    plain = relprop.explain(make(), inputs, target, method="attnlrp", precision="float64")
    assert closeness(without.scores, plain.scores) <= 1e-8
    assert closeness(plain.scores, alone.scores) > 1e-3


def test_a_flat_program_has_the_same_numbers():
    make, inputs, target = MODELS["Llama"]
    model = make()
    program = relprop.compile(model, inputs, target, method="attnlrp", positions=True)
    expected = relprop.explain(model, inputs, target, method="attnlrp", positions=True)
    assert closeness(program(inputs, target).scores, expected.scores) <= 1e-9


def test_long_inputs_in_chunks(monkeypatch):
    expected = explained("Llama", "lrp")
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 200)
    assert closeness(explained("Llama", "lrp").scores, expected.scores) <= 1e-9


def test_a_model_without_position_terms_is_refused():
    with pytest.raises(OptionError, match="passes no position terms"):
        relprop.explain(ready(Bare()), IDS, method="attnlrp", positions=True)
    with pytest.raises(OptionError, match="True or False"):
        relprop.explain(gpt2(), IDS, method="attnlrp", positions=1)
    with pytest.raises(OptionError, match="has no option 'positions'"):
        relprop.explain(gpt2(), IDS, method="rollout", positions=True)
