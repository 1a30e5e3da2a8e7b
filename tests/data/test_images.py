"""Picture files of every kind, folders of them, and timm's and Hugging Face's processing cut in
two."""

import os

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from torchvision import transforms

from relprop.data import ImageFolder, Normalize, image_transform
from relprop.errors import InputError, OptionError
from tests.data.laws import holds_the_laws


def noise(height, width, channels=3, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels.squeeze())


def folder(root):
    for i, (name, kind) in enumerate(
        [
            ("cat/b.png", "RGB"),
            ("cat/a.jpg", "RGB"),
            ("dog/deep/c.PNG", "RGB"),
            ("ant/x.webp", "RGB"),
        ]
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        noise(20, 30 + i, seed=i).convert(kind).save(root / name)
    (root / "cat/notes.txt").write_text("no picture")
    (root / "cat/._a.jpg").write_bytes(b"of another system")
    (root / ".hidden").mkdir()
    return root


def test_an_imagenet_style_folder(tmp_path):
    source = ImageFolder(folder(tmp_path / "val"), size=(8, 12))
    holds_the_laws(source, 4, lambda: ImageFolder(tmp_path / "val", size=(8, 12)), fork=True)
    assert source.labels == ("ant", "cat", "dog") and source.name == "val"
    assert [(s.key, s.label) for s in source] == [
        ("ant/x.webp", 0),
        ("cat/a.jpg", 1),
        ("cat/b.png", 1),
        ("dog/deep/c.PNG", 2),
    ]
    assert source[0].inputs.shape == (3, 8, 12)
    assert source.identity() != ImageFolder(tmp_path / "val").identity()


def test_the_default_is_the_papers_resize(tmp_path):
    folder(tmp_path)
    with Image.open(tmp_path / "cat/a.jpg") as picture:
        expected = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])(
            picture.convert("RGB")
        )
    assert torch.equal(ImageFolder(tmp_path)[1].inputs, expected)


def test_labels_are_numbered_by_the_models_classes(tmp_path):
    folder(tmp_path)
    source = ImageFolder(tmp_path, classes=("zebra", "dog", "ant", "cat"))
    assert source.labels == ("zebra", "dog", "ant", "cat") and [s.label for s in source] == [
        2,
        3,
        3,
        1,
    ]
    with pytest.raises(InputError, match="ant are none of the 2 classes"):
        len(ImageFolder(tmp_path, classes=("dog", "cat")))


def test_a_flat_folder_has_no_labels(tmp_path):
    for name in ("2.png", "1.png"):
        noise(5, 5).save(tmp_path / name)
    source = ImageFolder(tmp_path, size=4)
    holds_the_laws(source, 2, lambda: ImageFolder(tmp_path, size=4))
    assert source.labels is None and [(s.key, s.label) for s in source] == [
        ("1.png", None),
        ("2.png", None),
    ]


def test_a_folder_is_read_no_further_than_asked(tmp_path):
    folder(tmp_path)
    (tmp_path / "cat/b.png").write_bytes(b"broken")
    source = ImageFolder(tmp_path, size=4)
    assert len(source) == 4 and source[1].key == "cat/a.jpg"
    with pytest.raises(InputError, match=r"(?s)no picture can be read.*cat/b.png"):
        source[2]


@pytest.mark.parametrize(
    "content", [b"", b"not a picture", "half"], ids=["empty", "text", "truncated"]
)
@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "tif", "webp"])
def test_broken_files_are_named(tmp_path, content, ending):
    path = tmp_path / f"x.{ending}"
    noise(64, 64).save(path)
    path.write_bytes(
        path.read_bytes()[: len(path.read_bytes()) // 2] if content == "half" else content
    )
    with pytest.raises(InputError, match=f"x.{ending}"):
        ImageFolder(tmp_path)[0]


#: What is not read of a picture is said (tests/adapters/test_kinds_of_pictures.py).
UNREAD = pytest.mark.filterwarnings("ignore::relprop.errors.PictureWarning")


def one(tmp_path, picture, name="x.png", **options):
    size = (picture.size[1], picture.size[0])
    picture.save(tmp_path / name, **({"exif": options.pop("exif")} if "exif" in options else {}))
    return ImageFolder(tmp_path, size=options.pop("size", size), **options)[0].inputs


def tensor(pixels):
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float() / 255


def test_grey_is_three_equal_channels(tmp_path):
    picture = noise(6, 7, 1)
    assert torch.equal(
        one(tmp_path, picture), (torch.from_numpy(np.array(picture)).float() / 255).expand(3, 6, 7)
    )
    assert set(one(tmp_path, picture.point(lambda v: 255 * (v > 99), "1")).unique().tolist()) == {
        0.0,
        1.0,
    }


@UNREAD
def test_transparency_is_left_out(tmp_path):
    picture = noise(6, 7, 4)
    assert torch.equal(one(tmp_path, picture), tensor(picture)[:3])
    grey = noise(6, 7, 2)
    assert torch.equal(one(tmp_path, grey), tensor(grey)[:1].expand(3, 6, 7))


@UNREAD
def test_palettes_become_their_colours(tmp_path):
    picture = noise(6, 7).quantize(16)
    assert torch.equal(one(tmp_path, picture), tensor(picture.convert("RGB")))
    picture.save(tmp_path / "x.png", transparency=bytes([0, 128, 255]))
    assert torch.equal(ImageFolder(tmp_path, size=(6, 7))[0].inputs, tensor(picture.convert("RGB")))


@UNREAD
def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    levels = np.linspace(0, 65535, 42).astype(np.uint16).reshape(6, 7)
    image = one(tmp_path, Image.fromarray(levels))
    assert torch.equal(
        image, torch.from_numpy(np.round(levels / 257).astype(np.float32) / 255).expand(3, 6, 7)
    )
    assert image.max() == 1 and image.min() == 0


def test_floating_point_pixels_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"(?s)which of them is white.*x.tif"):
        one(tmp_path, Image.fromarray(np.ones((3, 3), np.float32)), "x.tif")
    with pytest.raises(InputError, match=r"(?s)pixels from 0 to 70000.*x.tif"):
        one(tmp_path, Image.fromarray(np.array([[0, 70000]], np.int32)), "x.tif")


@UNREAD
def test_other_colours_are_converted(tmp_path):
    image = one(tmp_path, Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "x.tif")
    assert torch.equal(image, torch.tensor([1.0, 0, 0])[:, None, None].expand(3, 4, 4))


def test_exif_orientation_is_applied_on_demand(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    picture = noise(6, 8)
    as_stored = one(tmp_path, picture, exif=exif)
    assert torch.equal(as_stored, tensor(picture))
    upright = ImageFolder(tmp_path, size=(8, 6), upright=True)[0].inputs
    assert torch.equal(upright, tensor(picture).flip(1).transpose(1, 2))


CONFIGS = {
    "center": {"crop_pct": 0.875, "crop_mode": "center", "interpolation": "bicubic"},
    "not square": {"input_size": (3, 32, 48), "crop_pct": 0.9},
    "squash": {"crop_pct": 0.9, "crop_mode": "squash", "interpolation": "bilinear"},
    "border": {
        "crop_pct": 1.0,
        "crop_mode": "border",
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.3, 0.4),
    },
}


@pytest.mark.parametrize("shape", [(60, 41), (33, 90), (16, 16)], ids=str)
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_timms_transform_is_cut_in_two(shape, changes):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3)
    config = {**timm.data.resolve_model_data_config(model), "input_size": (3, 32, 32), **changes}
    transform, normalize = image_transform(config)
    picture = noise(*shape)
    image = transform(picture)
    assert image.min() >= 0 and image.max() <= 1
    assert torch.equal(
        normalize(image), timm.data.create_transform(**config, is_training=False)(picture)
    )
    assert torch.equal(normalize(torch.stack([image, image])), torch.stack([normalize(image)] * 2))


def test_a_timm_models_own_transform(tmp_path):
    model = timm.create_model("deit_tiny_patch16_224", depth=1)
    transform, normalize = image_transform(model)
    picture = noise(300, 280)
    assert torch.equal(
        normalize(transform(picture)),
        timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)(
            picture
        ),
    )
    smaller = image_transform(timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1))[0]
    assert smaller(picture).shape == (3, 64, 64)
    noise(300, 280).save(tmp_path / "x.png")
    source = ImageFolder(tmp_path, transform=transform)
    holds_the_laws(source, 1, lambda: ImageFolder(tmp_path, transform=image_transform(model)[0]))
    assert torch.equal(source[0].inputs, transform(picture))


@pytest.mark.parametrize("kind", ["ViTImageProcessor", "CLIPImageProcessor"])
def test_hugging_face_processors_are_cut_in_two(kind):
    processor = getattr(transformers, kind)()
    transform, normalize = image_transform(processor)
    picture = noise(300, 260)
    expected = processor(picture, return_tensors="pt")["pixel_values"][0]
    assert torch.allclose(normalize(transform(picture)), expected, rtol=1e-5, atol=1e-5)
    plain = getattr(transformers, kind)(do_normalize=False)
    transform, normalize = image_transform(plain)
    assert torch.equal(
        normalize(transform(picture)), plain(picture, return_tensors="pt")["pixel_values"][0]
    )


def test_a_processors_settings_are_of_the_identity(tmp_path):
    noise(40, 50).save(tmp_path / "x.png")

    def source(size=32):
        return ImageFolder(
            tmp_path,
            transform=image_transform(
                transformers.ViTImageProcessor(size={"height": size, "width": size})
            )[0],
        )

    holds_the_laws(source(), 1, source)
    assert source().identity() != source(33).identity()


def test_a_processor_that_does_not_scale_is_refused():
    with pytest.raises(InputError, match="does not make images"):
        image_transform(transformers.ViTImageProcessor(do_rescale=False))[0](noise(30, 30))


def test_normalize_keeps_the_dtype():
    image = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    normalize = Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.1))
    assert torch.equal(normalize(image), transforms.Normalize(normalize.mean, normalize.std)(image))


BAD = {
    "no folder": (lambda root: ImageFolder(root / "none"), InputError, "does not exist"),
    "a file": (lambda root: ImageFolder(root / "x.txt"), InputError, "is no folder"),
    "no pictures": (lambda root: len(ImageFolder(root)), InputError, "no pictures"),
    "size and transform": (
        lambda root: ImageFolder(root, size=3, transform=lambda p: p),
        OptionError,
        "exclude each other",
    ),
    "one class": (
        lambda root: ImageFolder(root, classes="cat"),
        OptionError,
        "(?s)classes='cat': names of classes, each once",
    ),
    "class twice": (
        lambda root: ImageFolder(root, classes=("cat", "cat")),
        OptionError,
        "each once",
    ),
    "no size": (lambda root: ImageFolder(root, size=0), OptionError, "size=0"),
    "no model": (
        lambda root: image_transform(torch.nn.Linear(2, 2)),
        OptionError,
        "Linear says nothing",
    ),
}


@pytest.mark.parametrize("call, error, said", BAD.values(), ids=BAD)
def test_bad_input(tmp_path, call, error, said):
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(error, match=said):
        call(tmp_path)


def test_a_name_that_is_no_utf8_is_a_key_as_any_other(tmp_path):
    noise(9, 9).save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/caf\xe9.png")
    noise(9, 9).save(tmp_path / "b.png")
    source = ImageFolder(tmp_path)
    assert [sample.key for sample in source] == ["b.png", "caf\udce9.png"]
    assert source.identity()["files"] == 2


def test_folders_that_would_be_misread_are_refused(tmp_path):
    folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no picture in empty"):
        len(ImageFolder(tmp_path))
    noise(3, 3).save(tmp_path / "loose.png")
    with pytest.raises(InputError, match="1 pictures beside folders of pictures"):
        len(ImageFolder(tmp_path))


TRANSFORMS = {
    "picture": (lambda p: p, "the transform makes PngImageFile"),
    "normalised": (lambda p: torch.randn(3, 4, 4), r"(?s)pixels from -.*image_transform"),
    "bytes": (lambda p: torch.zeros(3, 4, 4, dtype=torch.uint8), "torch.uint8"),
    "NaN": (lambda p: torch.full((3, 2, 2), torch.nan), "pixels from nan"),
}


@pytest.mark.parametrize("transform, said", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_transform_that_makes_something_else(tmp_path, transform, said):
    noise(5, 5).save(tmp_path / "x.png")
    with pytest.raises(InputError, match=said):
        ImageFolder(tmp_path, transform=transform)[0]


def test_a_picture_of_the_same_size_in_another_ones_place_is_another_data_set(tmp_path):
    """And a name that is no UTF-8 does not keep the folder from being read."""
    picture = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    picture.save(tmp_path / "a.bmp")
    picture.save(os.path.join(os.fsencode(tmp_path), b"caf\xe9.bmp"), format="BMP")
    before, size = ImageFolder(tmp_path).identity(), (tmp_path / "a.bmp").stat().st_size
    assert ImageFolder(tmp_path).identity() == before and before["files"] == 2
    Image.fromarray(np.full((8, 8, 3), 9, np.uint8)).save(tmp_path / "a.bmp")
    assert (tmp_path / "a.bmp").stat().st_size == size
    assert ImageFolder(tmp_path).identity() != before
