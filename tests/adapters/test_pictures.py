"""Pictures: through processors, back onto the original, beside text, padded in a batch, and on a
detector's feature grid."""

import numpy as np
import pytest
import torch
import torchvision
import transformers
from PIL import Image

import relprop
from tests.adapters.tokenizers_in_code import wordpiece
from tests.common.rows import only

VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 60,
    "max_position_embeddings": 40,
}


def picture(height, width, seed=0):
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    )


def vit():
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**VISION, num_labels=3)
    ).eval()


PROCESSORS = {  # what it does: (processor, frame of a picture of 100 × 60 pixels)
    "stretch": (transformers.ViTImageProcessor(size={"height": 32, "width": 32}), (0, 0, 100, 60)),
    "resize and cut the middle": (
        transformers.CLIPImageProcessor(
            size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}
        ),
        (50 - 24, 6, 50 + 24, 54),
    ),
    "cut the middle of a small picture": (
        transformers.CLIPImageProcessor(do_resize=False, crop_size={"height": 32, "width": 32}),
        (34, 14, 66, 46),
    ),
    "a torchvision transform": (
        torchvision.transforms.Compose(
            [
                torchvision.transforms.Resize((32, 32)),
                torchvision.transforms.ToTensor(),
                torchvision.transforms.Normalize([0.5] * 3, [0.2] * 3),
            ]
        ),
        (0, 0, 100, 60),
    ),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_frame_of_the_original_is_found(name):
    processor, frame = PROCESSORS[name]
    model: torch.nn.Module = vit()
    if isinstance(processor, torchvision.transforms.Compose):
        model = torchvision.models.VisionTransformer(32, 8, 1, 2, 16, 16, num_classes=3).eval()
    e = relprop.explain(model, [picture(100, 60), picture(60, 100)], 1, processor=processor)
    originals = e.streams[e.stream].originals
    assert [o.size for o in originals] == [(100, 60), (60, 100)]
    assert originals[0].frame == pytest.approx(frame, abs=0.3)
    assert originals[1].frame == pytest.approx([frame[i] for i in (1, 0, 3, 2)], abs=0.3)


def test_the_heat_map_of_the_original_is_the_heat_map_there():
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}
    )
    e = relprop.explain(vit(), picture(100, 60), 1, processor=processor)
    heat, here = e.original_heatmap(), e.heatmap()[0]
    top, left, bottom, right = e.streams["pixel_values"].originals[0].frame
    assert heat.shape == (100, 60)
    assert (
        heat[: int(top)].eq(0).all()
        and heat[int(bottom) + 1 :].eq(0).all()
        and heat[:, : int(left)].eq(0).all()
    )
    for y, x in ((30, 20), (50, 30), (70, 50)):
        v, u = (
            int((y + 0.5 - top) / (bottom - top) * 32),
            int((x + 0.5 - left) / (right - left) * 32),
        )
        assert abs(float(heat[y, x] - here[v, u])) <= 0.1 * float(here.abs().max() - here.min())


def test_arrays_are_pictures_too():
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    as_array = relprop.explain(vit(), np.array(picture(40, 60)), 1, processor=processor)
    assert torch.equal(
        as_array.scores, relprop.explain(vit(), picture(40, 60), 1, processor=processor).scores
    )
    assert as_array.original_heatmap().shape == (40, 60)


def test_originals_are_saved_and_joined_and_plotted(tmp_path):
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    e = relprop.explain(
        vit(),
        [picture(40, 60), picture(50, 50), picture(64, 32)],
        1,
        processor=processor,
        batch_size=2,
    )
    again = relprop.load(e.save(tmp_path / "pictures.safetensors"))
    assert again.streams["pixel_values"].originals == e.streams["pixel_values"].originals
    assert torch.equal(again.original_heatmap(2), e.original_heatmap(2)) and again.original_heatmap(
        2
    ).shape == (64, 32)
    drawn = e.plot(torch.rand(3, 40, 60), sample=0).axes[0].images[-1].get_array()
    assert drawn.shape == (40, 60) and e.plot(torch.rand(3, 32, 32)).axes[0].images[
        -1
    ].get_array().shape == (32, 32)


def test_without_the_pictures_there_is_no_way_back():
    e = relprop.explain(vit(), {"pixel_values": torch.randn(1, 3, 32, 32)}, 1)
    with pytest.raises(relprop.errors.OptionError, match="processor=image_processor"):
        e.original_heatmap()


def test_labels_of_a_config_are_exact():
    model = vit()
    model.config.id2label = {0: "cat", 1: "Dog", 2: "hen"}
    x = {"pixel_values": torch.randn(1, 3, 32, 32)}
    assert relprop.explain(model, x, "Dog").target == (1,)
    with pytest.raises(
        relprop.errors.TargetError, match="'dog' is no label of the model; it has cat, Dog, hen"
    ):
        relprop.explain(model, x, "dog")


def test_labels_whose_indices_have_gaps():
    model = vit()
    model.config.id2label = {0: "nothing", 2: "hen"}
    assert relprop.explain(model, {"pixel_values": torch.randn(1, 3, 32, 32)}, "hen").target == (2,)


def detr():
    torch.manual_seed(0)
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=3,
        num_labels=4,
    )
    return transformers.DetrForObjectDetection(config).eval()


@pytest.mark.slow
def test_a_detectors_tokens_are_its_backbones_features_and_padding_is_no_content():
    processor = transformers.DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 200})
    e = relprop.explain(
        detr(),
        [picture(120, 60), picture(60, 120)],
        lambda output: output.logits[0, 1, 2],
        processor=processor,
    )
    assert e.image == (128, 128) and e.grid == (4, 4)
    assert e.spans.mean(-1)[:, 0].reshape(4, 4)[:, 0].tolist() == [0.5, 32.5, 64.5, 96.5], (
        "strides of 32 with padding: patches lie around every 32nd pixel"
    )
    assert e.content.reshape(2, 4, 4).int().tolist() == [
        [[1, 1, 0, 0]] * 4,
        [[1] * 4] * 2 + [[0] * 4] * 2,
    ]
    assert e.scores[~e.content].abs().max() <= 1e-6 * e.scores.abs().max()
    first, second = e.streams["pixel_values"].originals
    assert first.frame == pytest.approx(
        (0, 0, 120, 120), abs=0.5
    ) and second.frame == pytest.approx((0, 0, 120, 120), abs=0.5)
    assert e.original_heatmap(0).shape == (120, 60) and e.original_heatmap(1).shape == (60, 120)


def clip():
    config = transformers.CLIPConfig(
        text_config=dict(TEXT, eos_token_id=3, bos_token_id=2, pad_token_id=0),
        vision_config=VISION,
        projection_dim=8,
    )
    return transformers.CLIPModel(config), lambda output: output.logits_per_image[0, 0]


def blip():
    config = transformers.BlipConfig(
        text_config=dict(
            TEXT,
            encoder_hidden_size=16,
            bos_token_id=2,
            eos_token_id=3,
            sep_token_id=3,
            pad_token_id=0,
        ),
        vision_config=VISION,
        projection_dim=8,
    )
    return transformers.BlipForImageTextRetrieval(config), lambda output: output.itm_score[0, 1]


def vilt():
    return transformers.ViltForQuestionAnswering(
        transformers.ViltConfig(**VISION, vocab_size=60, max_position_embeddings=40, num_labels=4)
    ), 1


@pytest.mark.parametrize(
    "make",
    only([vilt], [clip, blip, vilt]),
    ids=["two towers", "text looks at image", "one sequence"],
)
def test_pictures_beside_text(make):
    torch.manual_seed(0)
    tokenizer = wordpiece()
    model, target = make()
    inputs = dict(
        tokenizer(
            ["unhappy cats", "happy dogs"],
            padding=True,
            return_tensors="pt",
            return_token_type_ids=make is vilt,
        )
    )
    inputs["pixel_values"] = torch.randn(2, 3, 32, 32)
    e = relprop.explain(model.eval(), inputs, target, processor=tokenizer)
    assert list(e.streams) == ["input_ids", "pixel_values"]
    text, image = e["input_ids"], e["pixel_values"]
    assert [w for w, _ in text.words(1)] == ["happy", "dogs"] and not text.content[:, 0].any()
    assert image.grid == (4, 4) and image.image == (32, 32) and image.heatmap().shape == (2, 32, 32)
    assert sorted(image.source[image.source >= 0].tolist()) == list(range(16))
    assert image.plot(torch.rand(3, 32, 32)).axes and text.plot().axes
    with pytest.raises(relprop.errors.OptionError, match=r"heatmap\(\) belongs to one of them"):
        e.heatmap()


def test_patches_a_model_draws_in_random_order_come_back_in_rows():
    """ViLT draws the order of its patches anew at every call; the scores do not depend on it."""
    torch.manual_seed(0)
    model, _ = vilt()
    inputs = {
        "input_ids": torch.randint(5, 50, (1, 5)),
        "pixel_values": torch.randn(1, 3, 32, 48, dtype=torch.float64),
    }
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        e = relprop.explain(model.double().eval(), inputs, 1)["pixel_values"]
        assert e.source.tolist() == sorted(e.source.tolist())
        found.append(e.scores[:, e.source >= 0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(found[0], found[2], rtol=1e-6, atol=1e-12)


def test_features_that_are_handed_over_ready_are_explained():
    torch.manual_seed(0)
    config = transformers.LxmertConfig(
        vocab_size=60,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=16,
        l_layers=1,
        x_layers=1,
        r_layers=1,
        visual_feat_dim=8,
        num_qa_labels=4,
    )
    inputs = {
        "input_ids": torch.randint(5, 50, (2, 6)),
        "visual_feats": torch.randn(2, 5, 8),
        "visual_pos": torch.rand(2, 5, 4),
    }
    e = relprop.explain(transformers.LxmertForQuestionAnswering(config).eval(), inputs, 1)
    assert {name: s.scores.shape for name, s in e.streams.items()} == {
        "input_ids": (2, 6),
        "visual_feats": (2, 5),
    }
