"""``gtsegs_ijcv.mat``: the layout, what the authors do with it, and files that are not whole."""

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from relprop.data import ImageNetSegmentation
from relprop.errors import InputError, OptionError
from tests.data.laws import holds_the_laws

NAMES = ("n01440764_1", "n02089867_22", "n01440764_33")


def contents(seed=0):
    random = np.random.default_rng(seed)
    sizes = [(30, 50), (41, 17), (20, 20)]
    return [random.integers(0, 256, (*s, 3), dtype=np.uint8) for s in sizes], [
        random.integers(0, 2, s, dtype=np.uint8) for s in sizes
    ]


def written(path, pictures, masks, names=NAMES):
    """As MATLAB writes a struct array: the axes in reverse, masks in cells, texts in UTF-16."""
    with h5py.File(path, "w") as file:
        inside, value = file.create_group("#refs#"), file.create_group("value")

        def put(name, data):
            return inside.create_dataset(name, data=data).ref

        def column(name, references):
            value.create_dataset(
                name, data=np.array(references, dtype=h5py.ref_dtype)[:, None], dtype=h5py.ref_dtype
            )

        column("img", [put(f"p{i}", p.T) for i, p in enumerate(pictures)])
        cells = [put(f"m{i}", m.T) for i, m in enumerate(masks)]
        column(
            "gt",
            [
                inside.create_dataset(
                    f"c{i}", data=np.array([[c]], dtype=h5py.ref_dtype), dtype=h5py.ref_dtype
                ).ref
                for i, c in enumerate(cells)
            ],
        )
        if names:
            column(
                "id",
                [
                    put(f"n{i}", np.array([[ord(c)] for c in n], dtype=np.uint16))
                    for i, n in enumerate(names)
                ],
            )
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "gtsegs.mat", *contents())


def test_as_the_authors_read_it(path):
    source = ImageNetSegmentation(path)
    holds_the_laws(source, 3, lambda: ImageNetSegmentation(path), fork=True)
    for sample, picture, mask in zip(source, *contents(), strict=True):
        expected = transforms.Compose([transforms.Resize((224, 224)), transforms.ToTensor()])(
            Image.fromarray(picture)
        )
        nearest = transforms.Resize((224, 224), transforms.InterpolationMode.NEAREST)(
            Image.fromarray(mask)
        )
        assert torch.equal(sample.inputs, expected) and torch.equal(
            sample.mask, torch.from_numpy(np.array(nearest)).long()
        )
        assert sample.label is None and sample.mask.shape == (224, 224)
    assert [s.key for s in source] == [f"{i}:{name}" for i, name in enumerate(NAMES)]


def test_masks_lie_on_their_pictures(tmp_path):
    """One white corner, marked: the mask is where the picture is white, whatever the axes."""
    picture, mask = np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60), np.uint8)
    picture[:20, 30:], mask[:20, 30:] = 255, 1
    sample = ImageNetSegmentation(
        written(tmp_path / "x.mat", [picture], [mask], None), size=(20, 30)
    )[0]
    assert sample.key == "0" and torch.equal((sample.inputs > 0.5).all(0), sample.mask == 1)
    assert sample.mask[:10, 15:].all() and sample.mask.sum() == 150


def test_grey_pictures_and_unknown_pixels(tmp_path):
    picture, mask = np.full((4, 6), 51, np.uint8), np.array([[-1, 0, 1, 0, 1, -1]] * 4, np.int8)
    sample = ImageNetSegmentation(
        written(tmp_path / "x.mat", [picture], [mask], None), size=(4, 6)
    )[0]
    assert torch.equal(sample.inputs, torch.full((3, 4, 6), 0.2)) and torch.equal(
        sample.mask, torch.from_numpy(mask).long()
    )


def test_labels_by_name(path):
    source = ImageNetSegmentation(path, classes=("n02089867", "n01440764"))
    assert source.labels == source.classes and [s.label for s in source] == [1, 0, 1]
    assert [s.label for s in ImageNetSegmentation(path, classes=("n01440764",))] == [0, None, 0]


def test_names_must_tell_the_class(tmp_path):
    source = ImageNetSegmentation(
        written(tmp_path / "x.mat", *contents(), names=None), classes=("n01440764",)
    )
    with pytest.raises(InputError, match="does not begin with a WordNet id"):
        source[0]


def changed(path, name, value):
    with h5py.File(path, "r+") as file:
        del file[name]
        if value is not None:
            file[name] = value


def test_missing_and_misshapen(path):
    changed(path, "value/img", np.zeros((3, 4)))
    with pytest.raises(
        InputError, match=r"(?s)/value/img is \(3, 4\), float64: references \(N, 1\).*gtsegs.mat"
    ):
        ImageNetSegmentation(path)
    changed(path, "value/img", None)
    with pytest.raises(InputError, match=r"(?s)no /value/img; there is gt, id.*gtsegs.mat"):
        ImageNetSegmentation(path)
    changed(path, "value", None)
    with pytest.raises(InputError, match="no /value/img; there is #refs#"):
        ImageNetSegmentation(path)
    with h5py.File(path, "r+") as file:
        file["value"] = np.zeros(3)
    with pytest.raises(InputError, match="no /value/img; there is #refs#, value"):
        ImageNetSegmentation(path)


def test_files_that_are_not_whole(path, tmp_path):
    whole = path.read_bytes()
    (tmp_path / "half.mat").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "old.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(500))
    for name in ("half.mat", "old.mat"):
        with pytest.raises(InputError, match=rf"(?s)not a whole HDF5 file.*{name}"):
            ImageNetSegmentation(tmp_path / name)
    with pytest.raises(InputError, match="does not exist"):
        ImageNetSegmentation(tmp_path / "none.mat")
    with pytest.raises(OptionError, match="size=-1"):
        ImageNetSegmentation(path, size=-1)


BAD = {
    "mask's size": (
        lambda p, m: (p, [m[0].T, *m[1:]]),
        r"a picture of \[30, 50\] pixels, a mask of \[50, 30\]",
    ),
    "mask's values": (lambda p, m: (p, [m[0] * 7, *m[1:]]), r"a mask of \[0, 7\]"),
    "mask's shape": (lambda p, m: (p, [m[0][0], *m[1:]]), r"/value/gt refers to \[50\], uint8"),
    "picture's type": (
        lambda p, m: ([p[0] / 255, *p[1:]], m),
        r"/value/img refers to \[3, 50, 30\], float64",
    ),
    "picture's channels": (
        lambda p, m: ([p[0][..., :2], *p[1:]], m),
        r"/value/img refers to \[2, 50, 30\]",
    ),
}


@pytest.mark.parametrize("change, said", BAD.values(), ids=BAD)
def test_pictures_that_are_something_else(tmp_path, change, said):
    source = ImageNetSegmentation(written(tmp_path / "x.mat", *change(*contents())))
    with pytest.raises(InputError, match=rf"(?s){said}.*x.mat, picture 0"):
        source[0]
    assert source[1].mask is not None


def test_numbers_of_pictures_and_masks_differ(tmp_path):
    pictures, masks = contents()
    with pytest.raises(InputError, match="3 pictures, 2 masks"):
        len(ImageNetSegmentation(written(tmp_path / "x.mat", pictures, masks[:2])))


def test_references_to_nothing(path):
    with h5py.File(path, "r+") as file:
        file["value/img"][1, 0] = h5py.Reference()
        file["value/gt"][2, 0] = file["value/img"][0, 0]
    source = ImageNetSegmentation(path)
    assert source[0].mask is not None
    with pytest.raises(InputError, match=r"/value/img: entry 1 cannot be read"):
        source[1]
    with pytest.raises(InputError, match=r"/value/gt: entry 2 cannot be read"):
        source[2]
