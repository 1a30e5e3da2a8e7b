"""A picture, however it is given, is the same picture saved as RGB, bit for bit; what is not read
of it is said; or it is refused with a call that works."""

import io

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image, ImageCms

import relprop
from relprop.errors import InputError, PictureWarning
from tests.common import sizes
from tests.common.rows import diagonal
from tests.targets import models

COLOURS = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
RGB = Image.fromarray(COLOURS)
GREY = RGB.convert("L")
METHOD = "gradient_x_input"
SIZE = {"height": 32, "width": 32}


def vit(channels=3):
    torch.manual_seed(0)
    return sizes.vit(num_channels=channels)


def of_timm(**options):
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=1, num_classes=5, **options
    )
    return model.eval()


HF, TIMM, EDGE = vit(), of_timm(), {"shortest_edge": 32}
#: The model, and what reads pictures for it.
ROADS = {
    "timm": (TIMM, None),
    "ViT": (HF, transformers.ViTImageProcessor(size=SIZE)),
    "ViT by PIL": (HF, transformers.ViTImageProcessorPil(size=SIZE)),
    "CLIP": (HF, transformers.CLIPImageProcessor(size=EDGE, crop_size=SIZE)),
}


def file(picture, format, **options):
    found = io.BytesIO()
    picture.save(found, format, **options)
    return found.getvalue()


def opened(picture, format, **options):
    return Image.open(io.BytesIO(file(picture, format, **options)))


def see_through(picture, level):
    picture = picture.convert("RGBA")
    picture.putalpha(level)
    return picture


def of_profiles(picture, source, wanted, mode):
    profiles = ImageCms.createProfile(source), ImageCms.createProfile(wanted)
    return ImageCms.profileToProfile(picture, *profiles, outputMode=mode)


PALETTE = RGB.quantize(64)
LAB = of_profiles(RGB, "sRGB", "LAB", "LAB")
LAB_AS_RGB = of_profiles(LAB, "LAB", "sRGB", "RGB")
HALF = np.linspace(0, 255, 50)
#: What is given, and the RGB picture that it is.
SAME = {
    "RGB": (RGB, RGB),
    "L": (GREY, GREY.convert("RGB")),
    "1": (GREY.convert("1"), GREY.convert("1").convert("RGB")),
    "P": (PALETTE, PALETTE.convert("RGB")),
    "RGBA": (see_through(RGB, 255), RGB),
    "LA": (GREY.convert("LA"), GREY.convert("RGB")),
    "PA": (PALETTE.convert("PA"), PALETTE.convert("RGB")),
    "a GIF": (opened(PALETTE, "GIF"), PALETTE.convert("RGB")),
    "I;16": (Image.fromarray(np.array(GREY).astype(np.uint16) * 257), GREY.convert("RGB")),
    "I": (Image.fromarray(np.array(GREY).astype(np.int32)), GREY.convert("RGB")),
    "an array": (COLOURS, RGB),
    "channels first": (COLOURS.transpose(2, 0, 1), RGB),
    "an array of one level": (np.array(GREY), GREY.convert("RGB")),
    "an array (H, W, 1)": (np.array(GREY)[..., None], GREY.convert("RGB")),
    "an array (H, W, 4)": (np.array(see_through(RGB, 255)), RGB),
    "an array of int64": (COLOURS.astype(np.int64), RGB),
    "an array of 16 bits": (COLOURS.astype(np.uint16) * 257, RGB),
    "an array of truth values": (np.array(GREY) > 99, GREY.point(lambda g: 255 * (g > 99))),
    "bytes": (file(RGB, "PNG"), RGB),
    "1×1": (RGB.crop((0, 0, 1, 1)), RGB.crop((0, 0, 1, 1))),
    "2×300": (GREY.resize((300, 2)), GREY.resize((300, 2)).convert("RGB")),
}
LOSSES = {
    "transparency": (see_through(RGB, 99), RGB, "transparency is left out"),
    "CMYK": (RGB.convert("CMYK"), RGB.convert("CMYK").convert("RGB"), "colours are CMYK"),
    "YCbCr": (RGB.convert("YCbCr"), RGB.convert("YCbCr").convert("RGB"), "colours are YCbCr"),
    "HSV": (RGB.convert("HSV"), RGB.convert("HSV").convert("RGB"), "colours are HSV"),
    "LAB": (LAB, LAB_AS_RGB, "colours are LAB"),
    "16 bits": (
        np.minimum(COLOURS * 257.0 + 1, 65535).astype(np.uint16),
        RGB,
        "16 bits, and are rounded to 8",
    ),
    "two frames": (
        opened(PALETTE, "GIF", save_all=True, append_images=[PALETTE.rotate(90)]),
        PALETTE.convert("RGB"),
        "frame 1 of 2",
    ),
}


def scores(road, given):
    model, processor = ROADS[road]
    return relprop.explain(model, given, 1, processor=processor, method=METHOD).scores


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "road"), diagonal(SAME, ROADS))
def test_a_kind_of_picture_is_the_same_picture_in_rgb(kind, road):
    given, plain = SAME[kind]
    right = scores(road, plain.convert("RGB"))
    assert torch.equal(scores(road, given), right)
    assert torch.equal(
        scores(road, [RGB, given])[1:], scores(road, [RGB, plain.convert("RGB")])[1:]
    )


@pytest.mark.parametrize(("kind", "road"), diagonal(LOSSES, ROADS))
def test_what_is_not_read_of_a_picture_is_said(kind, road):
    given, plain, said = LOSSES[kind]
    with pytest.warns(PictureWarning, match=said):
        found = scores(road, given)
    assert torch.equal(found, scores(road, plain))


@pytest.mark.parametrize("road", ROADS)
def test_a_file_is_given_by_its_path(road, tmp_path):
    path = tmp_path / "a cat.png"
    path.write_bytes(file(GREY, "PNG"))
    for given in (path, str(path), [path, str(path)]):
        assert torch.equal(scores(road, given)[:1], scores(road, GREY))
    with pytest.raises(InputError, match=r"there is no such file\n  at .*a dog\.png"):
        scores(road, tmp_path / "a dog.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(InputError, match="no picture can be read"):
        scores(road, tmp_path / "text.png")


@pytest.mark.parametrize(("kind", "road"), diagonal(["array", "F"], ROADS))
def test_floating_point_pixels_are_refused_and_the_advice_works(kind, road):
    image = np.asarray(RGB.resize((32, 32))) / 255
    picture = image if kind == "array" else Image.fromarray(image[..., 0].astype(np.float32))
    with pytest.raises(InputError, match="which of them is white") as refused:
        scores(road, picture)
    first, *second = str(refused.value).split("  then  ")[1].splitlines()
    names = {"np": np, "torch": torch, "relprop": relprop, "picture": picture}
    exec(first, names | (known := {}), known)
    right = scores(
        road, RGB.resize((32, 32)) if kind == "array" else names["np"].asarray(known["picture"])
    )
    assert torch.equal(scores(road, known["picture"]), right)
    model, names["processor"] = ROADS[road]
    names["model"] = model
    for call in second:
        exec(call.strip(), names)
        if road == "timm":  # which would resize and crop the picture
            normal = (torch.from_numpy(image).movedim(-1, 0)[None].float() - 0.5) / 0.5
            right = relprop.explain(model, normal, 1, method=METHOD).scores
        assert torch.allclose(
            relprop.explain(model, names["inputs"], 1, method=METHOD).scores, right, rtol=1e-3
        )
    assert len(second) == (kind == "array")


@pytest.mark.parametrize(("narrow", "first", "road"), diagonal([4, 3, 1], [True, False], ROADS))
def test_channels_at_either_end_are_asked_for_and_the_advice_works(narrow, first, road):
    plain = COLOURS[:, :narrow] if first else COLOURS[:narrow]
    picture = plain.transpose(2, 0, 1) if first else plain
    with pytest.raises(InputError, match="are the channels first, or last") as refused:
        scores(road, picture)
    advice = str(refused.value).split("  then  ")[1].splitlines()[not first]
    import PIL

    exec(advice.strip(), {"PIL": PIL}, known := {"picture": picture})
    assert torch.equal(scores(road, known["picture"]), scores(road, Image.fromarray(plain)))


@pytest.mark.parametrize("road", ROADS)
def test_a_tensor_among_pictures_is_one(road):
    found = scores(road, [RGB, torch.from_numpy(COLOURS)])
    assert torch.equal(found[0], found[1])
    with pytest.raises(InputError, match="which of them is white"):
        scores(road, [RGB, torch.rand(3, 40, 50)])


def test_advice_for_a_picture_beside_texts_keeps_the_texts():
    model, side = models.clip(), {"height": 32, "width": 32}
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    processor = transformers.CLIPProcessor(images, models.tokenizer())
    picture, texts = np.asarray(RGB.resize((32, 32))) / 255, ["w6 w7", "w6 w7 w8 </s>"]
    inputs = {"text": texts, "images": [picture] * 2}
    with pytest.raises(InputError, match="which of them is white") as refused:
        relprop.explain(model, inputs, (0,), processor=processor)
    exec(str(refused.value).splitlines()[-1].strip(), names := dict(locals()))
    assert set(names["inputs"]) >= {"input_ids", "attention_mask", "pixel_values"}
    assert len(names["inputs"]["input_ids"]) == 2


@pytest.mark.parametrize("road", ROADS)
def test_a_batch_in_one_array_is_its_pictures(road):
    both = np.stack([COLOURS, COLOURS[::-1]])
    assert torch.equal(scores(road, both), scores(road, [Image.fromarray(one) for one in both]))


@pytest.mark.parametrize(
    "what",
    [{"a": 1}, 3, np.zeros(5), np.zeros((2, 3, 4, 5, 6)), [None], [[RGB, RGB], [RGB]]],
    ids=["mapping", "number", "one axis", "five axes", "none", "nested"],
)
def test_what_is_no_picture_is_refused(what):
    for road in ROADS:
        with pytest.raises(InputError):
            scores(road, what)
    with pytest.raises(InputError, match="is no picture"):
        scores("timm", what)


WRONG = {
    "objects": (COLOURS.astype(object), r"\[40, 50, 3\] of object is no picture"),
    "texts": (np.array([["a", "b"]]), r"\[1, 2\] of <U1 is no picture"),
    "no path": ("", "the path of a picture is an empty text"),
    "no path among paths": ([RGB, ""], "the path of a picture is an empty text"),
    "a folder": (".", "it is a folder"),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(("what", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_picture_is_said(what, said, road):
    with pytest.raises(InputError, match=said):
        scores(road, what)


def test_lists_of_pictures_that_would_be_samples_are_refused():
    inputs = [[RGB, GREY], [RGB]]
    with pytest.raises(InputError, match="makes a sample of each picture") as refused:
        scores("ViT", inputs)
    one = eval(str(refused.value).split("one list: ")[1], {"inputs": inputs})
    assert len(scores("ViT", one)) == 3


OF_GREY = {"input_size": (1, 32, 32), "mean": (0.5,), "std": (0.5,)}


def test_models_of_one_channel_read_grey():
    processor = transformers.ViTImageProcessorPil(size=SIZE, image_mean=[0.5], image_std=[0.5])
    for model, reads in (
        (vit(1), processor),
        (of_timm(in_chans=1, pretrained_cfg_overlay=OF_GREY), None),
    ):
        found = [
            relprop.explain(model, p, 1, processor=reads, method=METHOD).scores
            for p in (GREY, GREY.convert("RGB"), np.array(GREY))
        ]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
