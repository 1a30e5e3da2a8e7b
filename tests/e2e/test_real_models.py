"""Models of timm and Hugging Face as their users have them: finite scores, balanced books in
float32, pads at 0, batch-exact in float64."""

import functools

import pytest
import timm
import torch
import transformers

import relprop
from tests.common.rows import marked
from tools.sweep.subjects import build as build_subject
from tools.sweep.subjects import subjects

TOKENS, VOCABULARY = 7, 50
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


def images(model):
    return model.eval(), torch.randn(2, 3, 32, 32), torch.zeros(2, 0, dtype=torch.bool)


def texts(model, side="right"):
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, slice(-3, None) if side == "right" else slice(0, 3)] = 0
    return (
        model.eval(),
        {"input_ids": torch.randint(3, VOCABULARY, (2, TOKENS)), "attention_mask": mask},
        mask == 0,
    )


def llama(side):
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1, pad_token_id=0)
    return texts(transformers.LlamaForCausalLM(config), side)


def deit():
    return images(
        timm.models.VisionTransformerDistilled(
            img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=5
        )
    )


MODELS = {
    "timm DeiT, distilled": deit,
    "HF BERT, padded": lambda: texts(
        transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL, num_labels=3))
    ),
    "HF Llama, padded right": lambda: llama("right"),
    "HF Llama, padded left": lambda: llama("left"),
    "HF GPT-2, padded": lambda: texts(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=32
            )
        )
    ),
    "HF DistilBERT, padded": lambda: texts(
        transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(
                vocab_size=VOCABULARY,
                dim=16,
                hidden_dim=32,
                n_layers=2,
                n_heads=2,
                max_position_embeddings=32,
            )
        )
    ),
    "HF ViT": lambda: images(
        transformers.ViTForImageClassification(
            transformers.ViTConfig(
                image_size=32,
                patch_size=8,
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                num_labels=3,
            )
        )
    ),
}


@functools.cache
def built(name):
    torch.manual_seed(0)
    return MODELS[name]()


def alone(inputs, i):
    return (
        {k: v[i : i + 1] for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else inputs[i : i + 1]
    )


@pytest.mark.parametrize("name", marked(MODELS, ("timm DeiT, distilled", "HF Llama, padded left")))
def test_finite_balanced_and_blind_to_padding(name):
    model, inputs, pads = built(name)
    e = relprop.explain(model, inputs)
    assert torch.isfinite(e.scores).all() and float(e.scores.abs().max()) > 0
    assert e.ledger.worst() <= 1e-5
    assert pads.numel() == 0 or (e.scores[pads] == 0).all()
    assert pads.numel() == 0 or not e.content[pads].any()


@pytest.mark.parametrize("name", marked(MODELS, ("timm DeiT, distilled", "HF Llama, padded left")))
def test_batch_exact_in_double(name):
    model, inputs, _ = built(name)
    together = relprop.explain(model, inputs, precision="float64")
    for i in range(2):
        one = relprop.explain(
            model,
            alone(inputs, i),
            [together.target[i]]
            if not isinstance(together.target[i], tuple)
            else together.target[i],
            precision="float64",
        )
        for quantity in ("scores", "row", "output"):
            a, b = getattr(together, quantity)[i], getattr(one, quantity)[0]
            assert (a - b).abs().max() <= 1e-9 * b.abs().max(), quantity


@pytest.mark.parametrize(
    "name",
    marked(
        ["HF GPT-2, padded", "HF Llama, padded right", "HF Llama, padded left"],
        ("HF Llama, padded left",),
    ),
)
def test_the_default_target_of_a_causal_model_is_the_next_token_at_the_last_real_position(name):
    model, inputs, pads = built(name)
    e = relprop.explain(model, inputs)
    last = [int((~p).nonzero().max()) for p in pads]
    assert [t[0] for t in e.target] == last


@pytest.mark.slow
def test_a_released_architecture_at_its_own_size():
    torch.manual_seed(0)
    model, image = (
        timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10).eval(),
        torch.randn(2, 3, 224, 224),
    )
    e = relprop.explain(model, image)
    assert (
        e.scores.shape == (2, 197)
        and torch.isfinite(e.scores).all()
        and float(e.scores.abs().max()) > 0
    )
    totals = e.ledger.totals()
    assert (totals["residual"].abs() <= 1e-5 * totals["started"].abs()).all()
    assert e.ledger.worst() <= 1e-5
    assert relprop.explain(model, image, precision="float64").ledger.worst() <= 1e-12
    assert e.grid == (14, 14) and e.heatmap().shape == (2, 224, 224)


def test_an_input_past_all_attention_is_said():
    """ALIGN's image tower is an EfficientNet: the picture has no tokens, which is no reason to
    leave it out without a word."""
    subject = next(s for s in subjects("hf", "AlignModel") if s.entry == "AlignModel")
    built = build_subject(subject)
    with pytest.warns(
        relprop.RelpropWarning,
        match=r"(?s)'pixel_values' feeds the target past all attention.*method='lrp'",
    ):
        e = relprop.explain(built.model, built.inputs)
    assert list(e.streams) == ["input_ids"] and e.facts["inputs_without_attention"] == [
        "pixel_values"
    ]
    with pytest.raises(
        relprop.errors.OptionError,
        match=(
            r"(?s)explained inputs are 'input_ids'; this one feeds the target past all "
            r"attention.*method='lrp'"
        ),
    ):
        e["pixel_values"]
    assert set(relprop.explain(built.model, built.inputs, method="lrp").streams) == {
        "input_ids",
        "pixel_values",
    }
    assert relprop.check(built.model, built.inputs).past_attention == ("pixel_values",)
