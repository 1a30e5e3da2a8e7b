"""timm: the layout found in the graph against what timm says of its own models; labels; pictures
through timm's own transform."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.models._pretrained import PretrainedCfg

import relprop
from relprop.adapters import Timm, adapter_for
from tests.common.rows import only

SMALL = {"depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 5}
VITS = {  # what is special: model, arguments, image
    "class token": ("vit_tiny_patch16_224", {"img_size": 64}, (64, 64)),
    "mean pool": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "global_pool": "avg", "class_token": False},
        (64, 64),
    ),
    "map pool": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "global_pool": "map", "class_token": False},
        (64, 64),
    ),
    "registers": ("vit_tiny_patch16_224", {"img_size": 64, "reg_tokens": 4}, (64, 64)),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64}, (64, 64)),
    "no position for the prefix": ("deit3_small_patch16_224", {"img_size": 64}, (64, 64)),
    "rotary": ("eva02_tiny_patch14_224", {"img_size": 56}, (56, 56)),
    "relative positions": ("beit_base_patch16_224", {"img_size": 64}, (64, 64)),
    "wide": ("vit_tiny_patch16_224", {"img_size": (32, 80)}, (32, 80)),
    "dynamic size": ("vit_tiny_patch16_224", {"img_size": 64, "dynamic_img_size": True}, (48, 96)),
    "dynamic size, padded": (
        "vit_tiny_patch16_224",
        {"img_size": 64, "dynamic_img_size": True, "dynamic_img_pad": True},
        (50, 70),
    ),
    "one patch": ("vit_tiny_patch16_224", {"img_size": 16}, (16, 16)),
    "packed patches": ("naflexvit_base_patch16_gap", {"num_heads": 2}, (48, 64)),
}
DAILY = ("registers", "map pool", "distilled", "wide", "dynamic size, padded", "packed patches")
STAGED = {  # architecture: arguments, image
    "swin_tiny_patch4_window7_224": (
        {"img_size": 64, "window_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2)},
        (64, 64),
    ),
    "swinv2_tiny_window8_256": (
        {"img_size": 64, "window_size": 4, "embed_dim": 12, "depths": (2, 2), "num_heads": (2, 2)},
        (64, 64),
    ),
    "pvt_v2_b0": ({"depths": (1, 1, 1, 1)}, (64, 96)),
    "test_maxvit": ({"img_size": 64}, (64, 64)),
    "twins_svt_small": (
        {
            "depths": (1, 1, 1, 1),
            "embed_dims": (8, 16, 32, 64),
            "num_heads": (2, 2, 2, 2),
            "wss": (4, 4, 4, 4),
            "img_size": 64,
        },
        (64, 64),
    ),
    "hiera_tiny_224": ({"img_size": 64, "embed_dim": 12, "stages": (1, 1, 1, 1)}, (64, 64)),
    "levit_128s": (
        {
            "img_size": 64,
            "embed_dim": (16, 24, 32),
            "key_dim": 8,
            "num_heads": (2, 2, 2),
            "depth": (1, 1, 1),
        },
        (64, 64),
    ),
    "xcit_nano_12_p8_224": (
        {"img_size": 64, "embed_dim": 16, "depth": 2, "num_heads": 2},
        (64, 64),
    ),
}


def explained(model, image, batch=2):
    torch.manual_seed(0)
    model = model.eval()
    x = torch.randn(batch, 3, *image)
    return model, relprop.explain(model, x, 1)


@pytest.mark.parametrize("name", only(DAILY, VITS))
def test_patches_and_prefix_are_timms(name):
    architecture, settings, image = VITS[name]
    model, e = explained(timm.create_model(architecture, **{**SMALL, **settings}), image)
    embed = getattr(model, "patch_embed", None)
    grid = (
        embed.dynamic_feat_size(image)
        if embed is not None
        else tuple(n // model.embeds.patch_size[i] for i, n in enumerate(image))
    )
    prefix = model.num_prefix_tokens
    assert e.grid == tuple(grid) and e.image == image
    assert e.source.tolist() == [-1] * prefix + list(range(grid[0] * grid[1]))
    assert e.content.tolist() == [[False] * prefix + [True] * (grid[0] * grid[1])] * 2
    patch = image[0] if name == "one patch" else 14 if name == "rotary" else 16
    assert e.spans[prefix].tolist() == [[0, patch], [0, patch]]
    assert e.heatmap().shape == (2, *image)


@pytest.mark.parametrize("architecture", only(["hiera_tiny_224"], STAGED))
def test_the_first_stage_is_the_grid_of_models_with_stages(architecture):
    settings, image = STAGED[architecture]
    model, e = explained(timm.create_model(architecture, num_classes=5, **settings), image, batch=1)
    steps = [e.image[k] / e.grid[k] for k in (0, 1)]
    known = {info["reduction"] for info in model.feature_info}
    assert e.image == image and steps[0] == steps[1] and steps[0] in known
    prefix = int((e.source < 0).sum())
    assert sorted(e.source[prefix:].tolist()) == list(
        range(e.grid[0] * e.grid[1])
    ) and e.heatmap().shape == (1, *image)


def vit(**settings):
    return timm.create_model("vit_tiny_patch16_224", **{**SMALL, "img_size": 32, **settings}).eval()


def test_labels_of_imagenet():
    model = vit(num_classes=1000)
    image = torch.randn(1, 3, 32, 32)
    by_index = relprop.explain(model, image, 1)
    for label in ("goldfish, Carassius auratus", "n01443537"):
        assert torch.equal(relprop.explain(model, image, label).scores, by_index.scores)
    with pytest.raises(
        relprop.errors.TargetError,
        match="'Goldfish, Carassius auratus' is no label of the model; it has tench",
    ):
        relprop.explain(model, image, "Goldfish, Carassius auratus")
    with pytest.raises(
        relprop.errors.TargetError,
        match="label 'crane' is that of 2 classes, 134, 517: give the index",
    ):
        relprop.explain(model, image, "crane")


def test_a_head_of_its_own_has_no_labels_of_imagenet():
    with pytest.raises(relprop.errors.TargetError, match="it has no labels: give an index"):
        relprop.explain(vit(), torch.randn(1, 3, 32, 32), "goldfish")


@pytest.mark.parametrize("kind", [dict, PretrainedCfg], ids=["dict", "object"])
@pytest.mark.parametrize(
    "names",
    [
        ("cat", "dog", "cow", "hen", "owl"),
        {"4": "owl", "0": "cat", "1": "dog", "2": "cow", "3": "hen"},
    ],
    ids=["list", "by index"],
)
def test_labels_of_the_config(kind, names):
    model = vit()
    described = {
        "label_names": names,
        "label_descriptions": {
            "cat": "a cat",
            "dog": "a dog",
            "cow": "a cow",
            "hen": "a hen",
            "owl": "an owl",
        },
    }
    model.pretrained_cfg = kind(**{**model.pretrained_cfg, **described})
    assert adapter_for(model).labels(model) == ("a cat", "a dog", "a cow", "a hen", "an owl")
    assert [
        relprop.explain(model, torch.randn(1, 3, 32, 32), label).target
        for label in ("owl", "an owl")
    ] == [(4,), (4,)]


def picture(height, width, seed=0):
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    )


def test_pictures_go_through_timms_own_transform():
    model, pictures = vit(), [picture(50, 80), picture(64, 40, 1)]
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(
        **{**config, "input_size": (3, 32, 32)}, is_training=False
    )
    ready = torch.stack([transform(p) for p in pictures])
    e = relprop.explain(model, pictures, 1)
    torch.testing.assert_close(e.scores, relprop.explain(model, ready, 1).scores)
    scale = (
        int(32 / config["crop_pct"]) / 50
    )  # the shorter side to 35 pixels, then 32 × 32 from the middle
    original = e.streams[e.stream].originals[0]
    assert original.size == (50, 80) and original.frame == pytest.approx(
        (2 / scale, 12 / scale, 34 / scale, 44 / scale), abs=0.2
    )
    heat = e.original_heatmap(0)
    assert (
        heat.shape == (50, 80)
        and heat[:, 0].eq(0).all()
        and heat[:, -1].eq(0).all()
        and heat[25, 20:60].ne(0).any()
    )


def test_ready_inputs_are_not_touched():
    model, x = vit(), torch.randn(1, 3, 32, 32)
    prepared = Timm().prepare(model, x, None)
    assert prepared.inputs is x and not prepared.originals
