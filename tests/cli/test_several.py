"""Several inputs at once, the page of a data set, pages of several methods, devices and names that
are misspelt."""

import json
import re

import numpy as np
import PIL.Image
import pytest

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.runs import explanation_of, read_run
from tests.common.rows import only

#: The shipped scenes show two digits each.
pytestmark = pytest.mark.filterwarnings("ignore:up to 2 labels are true")
FILMS = ("a wonderful film but the plot is dull", "a boring film")
ON_REVIEWS, ON_DIGITS = ("--model", "demo:reviews"), ("--model", "demo:digits")


@pytest.fixture
def scenes(tmp_path):
    """Two scenes of digits in files, and their tensors as the shipped model reads them."""
    grey = (make_scenes(2, seed=8).images[:, 0] * 255).round().byte()
    paths = [tmp_path / f"сцена {i}.png" for i in range(2)]
    for path, one in zip(paths, grey, strict=True):
        PIL.Image.fromarray(one.numpy()).save(path)
    return paths, grey[:, None].float() / 255


def test_several_pictures_are_one_batch(relprop_says, scenes, tmp_path):
    paths, images = scenes
    outs = [tmp_path / f"two{ending}" for ending in (".png", ".html", ".safetensors")]
    named = [a for out in outs for a in ("--out", out)]
    said = relprop_says("explain", *paths, *ON_DIGITS, "--target", 2, "--target", 6, *named)
    assert said.code == 0, said.err
    expected = relprop.explain_many(digit_scene_model(), images, [2, 6])
    saved = relprop.load(outs[2])
    assert saved.target == (2, 2, 6, 6)
    for i, (target, sample) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        wanted = expected[target].scores[sample]
        assert (saved.scores[i] - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    picture = np.asarray(PIL.Image.open(outs[0]).convert("RGB"))
    assert picture.shape[0] / 2 * 3 == pytest.approx(picture.shape[1], rel=0.2)  # 2 rows of 3
    data = re.search(r'id="data">(.*?)</script>', outs[1].read_text(encoding="utf-8"))[1]
    assert json.loads(data)["batch"] == 2 and len(json.loads(data)["explanations"]) == 2
    assert json.loads(data)["names"] == [path.name for path in paths]


@pytest.mark.slow
def test_several_texts_are_printed_one_after_another(relprop_says, tmp_path):
    said = relprop_says("explain", *FILMS, *ON_REVIEWS)
    assert said.code == 0, said.err
    alone = [relprop_says("explain", film, *ON_REVIEWS).out.strip() for film in FILMS]
    parts = [f"{film}:\n\n{one}" for film, one in zip(FILMS, alone, strict=True)]
    assert said.out.strip() == "\n\n".join(parts)
    out = tmp_path / "texts.png"
    assert relprop_says("explain", *FILMS, *ON_REVIEWS, "--out", out).code == 0
    assert np.asarray(PIL.Image.open(out)).std() > 5


def test_what_is_no_batch_is_refused(relprop_says, scenes):
    picture = scenes[0][0]
    for given, complaint in [
        (["a", "good", "film"], 'relprop explain "a good film"'),
        ([picture, "a good film"], "not both at once"),
        ([picture, picture, "--text", "a good film"], "beside one picture"),
    ]:
        said = relprop_says("explain", *given, *ON_REVIEWS)
        assert said.code == 2 and complaint in said.err
    said = relprop_says("compare", *FILMS, *ON_REVIEWS)
    assert said.code == 2 and "2 INPUTs are given" in said.err


def test_a_page_of_several_methods(relprop_says, scenes, tmp_path):
    out = tmp_path / "compared.html"
    methods = ("--method", "rollout", "--method", "gae")
    said = relprop_says("compare", scenes[0][0], *ON_DIGITS, *methods, "--out", out)
    assert said.code == 0, said.err
    data = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"))[1]
    assert [e["label"] for e in json.loads(data)["explanations"]] == ["rollout", "gae"]


@pytest.mark.slow
def test_a_folder_is_read_as_one_picture_is(relprop_says, tmp_path):
    """Of the shipped model, too, whose pictures are grey and small: the same scores."""
    (tmp_path / "pictures").mkdir()
    scene = (make_scenes(1, seed=8).images[0, 0] * 255).round().byte().numpy()
    picture = tmp_path / "pictures/scene.png"
    PIL.Image.fromarray(scene).resize((90, 64)).save(picture)
    one = json.loads(relprop_says("explain", picture, *ON_DIGITS, "--json").out)
    said = relprop_says(
        "explain", "--data", tmp_path / "pictures", *ON_DIGITS, "--out", tmp_path / "run"
    )
    assert said.code == 0, said.err
    found = explanation_of(read_run(tmp_path / "run"), 0).scores[0].numpy()
    expected = np.asarray(one["samples"][0]["inputs"]["input_0"]["scores"])
    assert np.allclose(found, expected, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("several", only([False], [False, True]))
def test_pixels_have_colours_that_are_seen(several, relprop_says, tmp_path):
    """In files of the command line, as in any other picture: more than one pixel in a hundred."""
    scene = (make_scenes(1, seed=8).images[0, 0] * 255).round().byte().numpy()
    picture = tmp_path / ("pictures/scene.png" if several else "scene.png")
    picture.parent.mkdir(exist_ok=True)
    PIL.Image.fromarray(scene).save(picture)
    method, out = ("--method", "gradient_x_input"), tmp_path / "drawn.png"
    given = ("--data", picture.parent, "--out", tmp_path / "run") if several else (picture,)
    said = relprop_says("explain", *given, *ON_DIGITS, *method, "--out", out)
    assert said.code == 0, said.err
    pixels = np.asarray(PIL.Image.open(out).convert("RGB"), dtype=np.int64)
    strong = (abs(pixels[..., 0] - pixels[..., 2]) > 140).mean()
    assert strong > 0.004


def test_a_shipped_model_generates(relprop_says):
    text = "Anna likes amber kites. Anna likes"
    said = relprop_says("generate", text, "--model", "demo:lookups", "--max-new-tokens", 2)
    assert said.code == 0 and said.out.startswith("2 generated tokens, "), said.err
    assert "amber" in said.out.splitlines()[1]


@pytest.mark.parametrize("name", only(["demo:digits"], ["demo:digits", "demo:reviews"]))
def test_the_page_of_a_run(relprop_says, tmp_path, name):
    run, page, picture = (tmp_path / n for n in ("run", "index.html", "index.png"))
    shared = ["explain", "--data", name, "--model", name, "--limit", 3, "--out", run]
    methods = ["--method", "rollout", "--method", "gae"]
    said = relprop_says(*shared, *methods, "--out", page, "--out", picture)
    assert said.code == 0, said.err
    text, own = (p.read_text(encoding="utf-8") for p in (page, run / "index.html"))
    assert text == own and text.count("<tr data-verdict") == 3 and "3 samples" in text
    assert text.count("<canvas") == (6 if name == "demo:digits" else 0)
    assert "| Samples | 3 explained, 0 failed |" in (run / "model-card.md").read_text()
    for row in read_run(run).rows():
        assert row["key"] in text and row["method"] in text
    assert np.asarray(PIL.Image.open(picture)).std() > 5
    (run / "index.html").unlink()
    (run / "index.html").mkdir()  # where no page can be written
    again = relprop_says(*shared, *methods, "--resume", "--no-checks")
    assert again.code == 0 and "its page could not be written" in again.err
    (run / "index.html").rmdir()
    assert relprop_says(*shared, *methods, "--resume", "--no-checks").code == 0
    assert "3 not judged" in (run / "index.html").read_text(encoding="utf-8")
    assert relprop_says(*shared, "--out", page).code == 1  # it exists


def test_devices(relprop_says):
    said = relprop_says("explain", FILMS[0], *ON_REVIEWS, "--device", "cpu")
    assert said.code == 0 and said.out == relprop_says("explain", FILMS[0], *ON_REVIEWS).out
    for wrong in ("cuda:99", "toaster"):
        said = relprop_says("explain", FILMS[0], *ON_REVIEWS, "--device", wrong)
        assert said.code == 1 and f"--device '{wrong}'" in said.err and "doctor" in said.err


@pytest.mark.parametrize(
    "given, near",
    [
        ("demo:digit", "did you mean 'demo:digits'?"),
        ("timm:vit_base_patch16_22", "timm:vit_base_patch16_224"),
        ("vit_base_patch16_224", "timm:vit_base_patch16_224"),
        ("{root}/imag", "{root}/image"),
    ],
)
def test_models_that_there_are_not(relprop_says, folders, scenes, given, near):
    name = given.format(root=folders.root)
    said = relprop_says("explain", scenes[0][0], "--model", name)
    assert said.code == 1 and near.format(root=folders.root) in said.err, said.err
