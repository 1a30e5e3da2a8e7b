"""Small models that tests of several folders explain: of transformers, with random weights, and the
shipped one of digits."""

import functools

import transformers

from relprop.demo.model import digit_scene_model
from tests.common.models import lent

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def clip():
    """Texts of fifty ids beside pictures of 16 × 16 pixels in four patches."""
    text = {**SIZES, "vocab_size": 50, "bos_token_id": 48, "eos_token_id": 49}
    vision = {**SIZES, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    return transformers.CLIPModel(config).eval()


def vit(**settings):
    """A classifier of pictures of 32 × 32 pixels in 16 patches."""
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, **settings)
    return transformers.ViTForImageClassification(config).eval()


def digits():
    """The shipped model of scenes, the same object at every call, so that it is captured once: for
    tests that do not change it (one that does fails)."""
    return lent(_digits())


@functools.cache
def _digits():
    return digit_scene_model()
