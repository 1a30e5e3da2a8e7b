"""The shipped model: a small timm ``VisionTransformer`` trained by
``examples/train_digit_scenes.py``, loaded from the package, never downloaded. Without timm it is
the same model written out in PyTorch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch import nn

from relprop.demo.plain_vit import PlainViT
from relprop.demo.scenes import CLASSES, SCENE
from relprop.demo.shipped import trained

WEIGHTS = Path(__file__).with_name("digit_scenes.safetensors")
WIDTH, DEPTH, HEADS, PATCH = 96, 4, 4, 4


def digit_scene_model(*, pretrained: bool = True) -> nn.Module:
    """A ten-class, multi-label ViT (patch 4, width 96, depth 4, 4 heads; 0.45 M parameters) in eval
    mode; logits (batch, 10): timm's, or ``PlainViT`` where timm is not installed.

    Its input is a scene as ``make_scenes`` draws it: (batch, 1, 32, 32), pixels in [0, 1].
    """
    return trained(pretrained, WEIGHTS, _of_timm if find_spec("timm") else plain_model)


def plain_model() -> PlainViT:
    """The model in PyTorch alone, not trained."""
    return PlainViT(size=SCENE, patch=PATCH, classes=CLASSES, width=WIDTH, depth=DEPTH, heads=HEADS)


def _of_timm() -> nn.Module:
    from timm.models import VisionTransformer

    return VisionTransformer(
        img_size=SCENE,
        patch_size=PATCH,
        in_chans=1,
        num_classes=CLASSES,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        class_token=True,
    )
