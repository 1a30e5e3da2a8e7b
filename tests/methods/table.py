"""Every method on every kind of model: what holds is checked, and what is refused is written down.
``python -m tests.methods.table`` writes docs/methods-on-models.md."""

import sys
import warnings
from pathlib import Path

import torch
import transformers as hf

import relprop
from relprop.errors import RelpropError
from tools.sweep.snapshot import differences, snapshot

PATH = Path(__file__).parents[2] / "docs" / "methods-on-models.md"
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
EXACT = 1e-7
FEW = {
    "integrated_gradients": {"n_steps": 4},
    "smoothgrad": {"n_samples": 2},
    "gradient_shap": {"n_samples": 2},
}


def _pixels(size):
    return torch.randn(2, 3, size, size, dtype=torch.float64)


def _ids(length=7):
    return torch.randint(5, 50, (2, length))


def vit():
    return (
        hf.ViTForImageClassification(
            hf.ViTConfig(image_size=16, patch_size=4, num_labels=4, **SMALL)
        ),
        {"pixel_values": _pixels(16)},
        1,
    )


def swin():
    config = hf.SwinConfig(
        image_size=32,
        patch_size=4,
        embed_dim=8,
        depths=[2, 1],
        num_heads=[2, 2],
        window_size=4,
        num_labels=4,
    )
    return hf.SwinForImageClassification(config), {"pixel_values": _pixels(32)}, 1


def bert():
    return (
        hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, num_labels=3, **SMALL)),
        {"input_ids": _ids()},
        1,
    )


def llama():
    return (
        hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=50, num_key_value_heads=1, **SMALL)),
        {"input_ids": _ids()},
        None,
    )


def t5():
    config = hf.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return (
        hf.T5ForConditionalGeneration(config),
        {"input_ids": _ids(), "decoder_input_ids": _ids(4)},
        None,
    )


def clip():
    vision = {"image_size": 16, "patch_size": 4, **SMALL}
    config = hf.CLIPConfig(
        text_config={"vocab_size": 50, "eos_token_id": 49, **SMALL},
        vision_config=vision,
        projection_dim=16,
    )
    return hf.CLIPModel(config), {"input_ids": _ids(), "pixel_values": _pixels(16)}, None


def detr():
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 12],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_queries=4,
        num_labels=3,
    )
    return hf.DetrForObjectDetection(config), {"pixel_values": _pixels(32)}, relprop.targets.query()


MODELS = {
    "ViT": vit,
    "Swin": swin,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "CLIP": clip,
    "DETR": detr,
}


def made(name):
    """A model, its inputs and a target."""
    torch.manual_seed(0)
    model, inputs, target = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.double().eval(), inputs, target


def status(model, inputs, target, method):
    """``"yes"`` if what must hold holds, else the first line of the refusal."""
    before = snapshot(model, inputs)
    options = FEW.get(method, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            together = relprop.explain(model, inputs, target, method=method, **options)
        except RelpropError as refusal:
            assert not differences(before, snapshot(model, inputs)), f"{method} changed the model"
            return str(refusal).splitlines()[0]
        one = {k: v[1:] for k, v in inputs.items()}
        alone = relprop.explain(model, one, target, method=method, **options)
        for name, stream in together.streams.items():
            assert torch.isfinite(stream.scores).all(), f"{method}: {name} is not finite"
            error = float((alone.streams[name].scores[0] - stream.scores[1]).abs().max())
            assert error <= EXACT * max(float(stream.scores.abs().max()), 1e-9), (
                f"{method}: the second sample of {name} differs by {error} from itself alone"
            )
    assert not differences(before, snapshot(model, inputs)), f"{method} changed the model"
    return "yes"


def column(name):
    """Every method's status on one model."""
    model, inputs, target = made(name)
    return {method: status(model, inputs, target, method) for method in relprop.methods.METHODS}


def written(columns):
    """The page."""
    reasons, numbers = {}, []
    lines = [
        "# Which method works on which kind of model",
        "",
        "<!-- Written by `python -m tests.methods.table`; a test compares it with what holds. -->",
        "",
        (
            f"All {len(relprop.methods.METHODS)} methods work on ViT, Swin, BERT, Llama, T5, CLIP "
            "and DETR, but for those in the table. A number: refused, with the sentence below."
        ),
        "",
        (
            "Tried on small models with random weights, in double precision, on two samples: "
            "scores are finite, the second sample's are the same in the batch and alone"
        ),
        f"(to {EXACT:.0e} of the largest), and the model is left bit for bit as it was.",
        "",
        "| method | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for method in relprop.methods.METHODS:
        if all(found[method] == "yes" for found in columns.values()):
            continue
        cells = []
        for found in columns.values():
            said = found[method]
            cells.append(
                "yes" if said == "yes" else str(reasons.setdefault(said, len(reasons) + 1))
            )
        numbers.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join([*lines, *numbers, "", *(f"{k}. {said}" for said, k in reasons.items()), ""])


if __name__ == "__main__":
    found = {}
    for model_name in MODELS:
        found[model_name] = column(model_name)
        print(
            model_name, {k: v for k, v in found[model_name].items() if v != "yes"}, file=sys.stderr
        )
    PATH.write_text(written(found))
