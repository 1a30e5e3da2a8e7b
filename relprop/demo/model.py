"""The shipped model: a small timm ``VisionTransformer`` trained by
``examples/train_digit_scenes.py``, loaded from the package, never downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from relprop.demo.scenes import CLASSES, SCENE

if TYPE_CHECKING:
    from timm.models import VisionTransformer

WEIGHTS = Path(__file__).with_name("digit_scenes.safetensors")


def digit_scene_model(*, pretrained: bool = True) -> VisionTransformer:
    """A ten-class, multi-label ViT (patch 4, width 96, depth 4, 4 heads; 0.45 M parameters) in eval
    mode; logits (batch, 10).

    Its input is a scene as ``make_scenes`` draws it: (batch, 1, 32, 32), pixels in [0, 1].
    """
    from timm.models import VisionTransformer

    with torch.random.fork_rng([], enabled=pretrained):  # the first weights are drawn
        model = VisionTransformer(
            img_size=SCENE,
            patch_size=4,
            in_chans=1,
            num_classes=CLASSES,
            embed_dim=96,
            depth=4,
            num_heads=4,
            class_token=True,
        )
    if pretrained:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(WEIGHTS))
    return model.eval()
