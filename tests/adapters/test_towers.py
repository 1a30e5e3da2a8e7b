"""Hugging Face image models: the layout found in the graph against what their configs say."""

import pytest
import torch
import transformers

import relprop
from tests.common.rows import only

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
WITHOUT = {k: v for k, v in SMALL.items() if k != "intermediate_size"}
SWIN = {"patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
STAGES = {
    "num_encoder_blocks": 2,
    "depths": [1, 1],
    "sr_ratios": [2, 1],
    "hidden_sizes": [8, 16],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "num_attention_heads": [1, 2],
    "mlp_ratios": [2, 2],
    "decoder_hidden_size": 8,
}
# what is special: model, image, pixels per patch, the model's own tokens before and after
TOWERS = {
    "class token": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
        (32, 32),
        8,
        (1, 0),
    ),
    "two tokens": (
        lambda: transformers.DeiTForImageClassification(transformers.DeiTConfig(**SMALL)),
        (32, 32),
        8,
        (2, 0),
    ),
    "positions interpolated": (
        lambda: transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**WITHOUT)),
        (32, 56),
        8,
        (1, 0),
    ),
    "registers": (
        lambda: transformers.Dinov2WithRegistersForImageClassification(
            transformers.Dinov2WithRegistersConfig(**WITHOUT, num_register_tokens=3)
        ),
        (40, 24),
        8,
        (4, 0),
    ),
    "relative positions": (
        lambda: transformers.BeitForImageClassification(transformers.BeitConfig(**SMALL)),
        (32, 32),
        8,
        (1, 0),
    ),
    "windows": (
        lambda: transformers.SwinForImageClassification(
            transformers.SwinConfig(image_size=64, **SWIN)
        ),
        (64, 64),
        4,
        (0, 0),
    ),
    "windows over a padded image": (
        lambda: transformers.SwinForImageClassification(
            transformers.SwinConfig(image_size=64, **SWIN)
        ),
        (64, 50),
        4,
        (0, 0),
    ),
    "overlapping patches": (
        lambda: transformers.SegformerForImageClassification(
            transformers.SegformerConfig(**STAGES)
        ),
        (64, 48),
        4,
        (0, 0),
    ),
}

DAILY = ("class token", "registers", "windows over a padded image", "overlapping patches")


@pytest.mark.parametrize("name", only(DAILY, TOWERS))
def test_patches_and_own_tokens_are_the_configs(name):
    make, image, pixels, (before, after) = TOWERS[name]
    torch.manual_seed(0)
    e = relprop.explain(make().eval(), {"pixel_values": torch.randn(2, 3, *image)}, 1)
    grid = tuple(-(-n // pixels) for n in image)
    count = grid[0] * grid[1]
    assert (e.grid, e.image) == (grid, image) and e.heatmap().shape == (2, *image)
    assert e.source.tolist() == [-1] * before + list(range(count)) + [-1] * after
    assert e.content.tolist() == [[False] * before + [True] * count + [False] * after] * 2
    middles = e.spans[before : before + count].mean(-1)
    steps = torch.stack([middles[grid[1]] - middles[0], middles[1] - middles[0]])
    torch.testing.assert_close(
        steps, torch.diag(torch.tensor([pixels, pixels], dtype=torch.float64))
    )


def test_a_detectors_own_tokens_come_after_the_patches_too():
    config = transformers.YolosConfig(**{**SMALL, "image_size": [32, 48]}, num_detection_tokens=5)
    torch.manual_seed(0)
    e = relprop.explain(
        transformers.YolosForObjectDetection(config).eval(),
        {"pixel_values": torch.randn(1, 3, 32, 48)},
        lambda output: output.logits[0, 1, 2],
    )
    assert e.grid == (4, 6) and e.source.tolist() == [-1, *range(24), *[-1] * 5]
    assert e.content[0].tolist() == [False] + [True] * 24 + [False] * 5


def test_patches_that_come_packed_are_a_sequence_with_padding():
    """Each sample has a picture of its own shape, cut into patches before the model."""
    vision = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "num_patches": 16,
        "patch_size": 8,
    }
    config = transformers.Siglip2Config(vision_config=vision, num_labels=3)
    torch.manual_seed(0)
    inputs = {
        "pixel_values": torch.randn(2, 12, 3 * 64),
        "pixel_attention_mask": torch.ones(2, 12, dtype=torch.long),
        "spatial_shapes": torch.tensor([[3, 4], [2, 4]]),
    }
    inputs["pixel_attention_mask"][1, 8:] = 0
    e = relprop.explain(transformers.Siglip2ForImageClassification(config).eval(), inputs, 1)
    assert e.grid is None and e.source.tolist() == list(range(12))
    assert e.content.sum(1).tolist() == [12, 8] and not e.content[1, 8:].any()
