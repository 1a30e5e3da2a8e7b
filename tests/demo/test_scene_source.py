"""Digit scenes as a data set: the drawing is what it always was, and the mask is the first digit's
own pixels."""

import hashlib

import pytest
import torch

from examples.train_digit_scenes import augmented
from relprop.data import Source
from relprop.demo.scene_source import DigitScenes
from relprop.demo.scenes import NOISE, make_scenes
from relprop.errors import OptionError

#: Of scenes drawn before ``Scenes`` knew the digits' ink; images to 1/1000, so that another
#: machine's last bit does not count.
DRAWN = {
    (7, 3, True, False): "36736a70f63112f1a027b43b9552eb5adbddcb70c719f81717e37f06188e4a2a",
    (5, 11, False, True): "0b7bcd44fd15e5431da1478ce3a2a33fa2dfadb084768a5d5780f7d12c7b7bb7",
}


@pytest.mark.parametrize(("n", "seed", "held_out", "augment"), DRAWN)
def test_scenes_are_drawn_as_ever(n, seed, held_out, augment):
    options = {"enlarge": augmented} if augment else {}
    scenes = make_scenes(n, seed=seed, held_out=held_out, **options)
    parts = ((scenes.images * 1000).round().to(torch.int16), scenes.digits, scenes.corners)
    digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()
    assert digest == DRAWN[n, seed, held_out, augment]


@pytest.mark.parametrize("which", [0, 1])
def test_pixels_are_the_digits_own(which):
    scenes = make_scenes(50, seed=4)
    pixels, box = scenes.pixels(which), scenes.mask(which)
    assert pixels.shape == (50, 32, 32) and pixels.dtype == torch.bool
    assert not (pixels & ~box).any() and not (pixels & scenes.pixels(1 - which)).any()
    share = pixels.float().sum((1, 2)) / box.float().sum((1, 2))
    assert float(share.min()) > 0.15 and float(share.max()) < 0.85
    assert (scenes.images[:, 0][pixels] > NOISE).all(), (
        "a digit's pixel is brighter than what noise alone gives"
    )
    outside = ~(scenes.pixels(0) | scenes.pixels(1))
    assert float((scenes.images[:, 0][outside] > 2 * NOISE).float().mean()) < 0.03, (
        "what is brighter elsewhere is speckles"
    )


def test_the_image_is_ink_and_noise():
    scenes = make_scenes(20, seed=9)
    noise = scenes.images[:, 0] - scenes.ink.sum(1)
    assert (
        float(noise[scenes.images[:, 0] < 1].min()) >= -1e-6
        and float((noise > NOISE).float().mean()) < 0.03
    )


def test_the_source():
    source, scenes = DigitScenes(6, seed=5), make_scenes(6, seed=5)
    assert (
        isinstance(source, Source)
        and len(source) == 6
        and source.kind == "image"
        and source.labels == tuple("0123456789")
    )
    assert source.identity() == {"name": "digit scenes", "n": 6, "seed": 5}
    for i in range(6):
        sample = source[i]
        assert (
            sample.key == str(i)
            and torch.equal(sample.inputs, scenes.images[i])
            and sample.inputs.shape == (1, 32, 32)
        )
        assert [sample.label, *sample.others] == scenes.digits[i].tolist() and torch.equal(
            sample.mask, scenes.pixels(0)[i].int()
        )
        assert torch.equal(source[i].inputs, sample.inputs)
    with pytest.raises(IndexError, match="scene 6 of 6"):
        source[6]
    with pytest.raises(OptionError, match="at least one scene"):
        DigitScenes(0)
