"""Pictures that were given to ``explain``: the map lies on them where the model's image was cut, by
default on those that were kept, in figures, notebooks and reports; an image of no known size is
refused."""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import relprop
from relprop import plot
from relprop.errors import InputError
from relprop.views.overlay import heatmap_and_image, pixels
from tests.common.sizes import SIZES, digits
from tests.views.conftest import explain_texts

WIDE, HIGH = 120, 60
"""A picture twice as wide as high, of which processing takes the middle square."""


def given():
    across = np.linspace(0, 255, WIDE).astype(np.uint8)
    return Image.fromarray(np.stack([np.tile(across, (HIGH, 1))] * 3, -1))


def processor(edge=32):
    return transformers.CLIPImageProcessor(
        size={"shortest_edge": edge}, crop_size={"height": 32, "width": 32}
    )


def vit():
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config).eval()


@pytest.fixture(scope="module")
def cropped():
    return relprop.explain(vit(), [given(), given()], 1, processor=processor())


FORMS = {
    "PIL": lambda picture: picture,
    "H×W×3": lambda picture: np.array(picture),
    "C×H×W": lambda picture: torch.from_numpy(np.array(picture)).movedim(-1, 0),
}


def layers_of(axes):
    ground, drawn = axes.images
    return np.asarray(ground.get_array()), np.asarray(drawn.get_array())


@pytest.mark.parametrize("form", FORMS)
def test_the_map_lies_where_the_image_was_cut(form, cropped):
    ground, drawn = layers_of(cropped.plot(FORMS[form](given())).axes[0])
    assert ground.shape == drawn.shape == (HIGH, WIDE)
    outside = np.r_[0:29, 92:WIDE]
    assert (drawn[:, outside] == 0).all() and (drawn[:, 35:85] != 0).mean() > 0.5
    assert np.allclose(drawn, cropped.original_heatmap(0).numpy())
    assert np.allclose(ground, pixels(given())[..., 0], atol=1e-6)


def test_compared_maps_lie_there_too(cropped):
    for axes in plot.compare({"a": cropped, "b": cropped}, given()):
        assert layers_of(axes)[1].shape == (HIGH, WIDE)


@pytest.mark.parametrize("size", [(HIGH, HIGH), (2 * HIGH, 2 * WIDE), (WIDE, HIGH)])
def test_an_image_of_no_known_size_is_refused(size, cropped):
    image = np.zeros((*size, 3), np.uint8)
    known = rf"{size[0]}×{size[1]} pixels .* the model saw 32×32, made from a picture of 60×120"
    with pytest.raises(InputError, match=known):
        cropped.plot(image)
    with pytest.raises(InputError, match=known):
        cropped.to_html("never.html", pictures=[image, image])
    with pytest.raises(InputError, match=r"fits the map to the picture"):
        plot.show_heatmap(plot.figure(1)[1][0], torch.rand(32, 32), "", image)


def test_without_a_picture_only_the_models_own_size_is_known():
    e = relprop.explain(digits(), torch.rand(1, 1, 32, 32), 3)
    assert layers_of(e.plot(torch.rand(1, 32, 32)).axes[0])[1].shape == (32, 32)
    with pytest.raises(InputError, match=r"processor=\.\.\.\) knows where its picture lies"):
        e.plot(given())


def test_of_one_size_for_both_the_given_picture_is_told_from_the_models_image():
    square = given().resize((32, 32))
    e = relprop.explain(vit(), square, 1, processor=processor(64))  # the middle quarter is seen
    whole, own = e.original_heatmap(0), e.heatmap()[0]
    assert not torch.allclose(whole, own)
    for image in (square, np.array(square)):
        assert torch.equal(heatmap_and_image(e, 0, image)[0], whole)
    for image in (torch.rand(3, 32, 32), np.random.default_rng(0).random((32, 32, 3))):
        assert torch.equal(heatmap_and_image(e, 0, image)[0], own)


def test_the_given_picture_is_under_the_map_by_default(cropped):
    ground, drawn = layers_of(cropped.plot().axes[0])
    assert np.allclose(ground, pixels(given())[..., 0], atol=1e-6)
    assert np.allclose(drawn, cropped.original_heatmap(0).numpy())
    (bare,) = cropped.plot(False).axes[0].images
    assert np.allclose(np.asarray(bare.get_array()), cropped.heatmap()[0].numpy())
    shown = np.array(Image.open(io.BytesIO(cropped._repr_png_())))
    assert shown.shape == (HIGH, WIDE, 3)
    assert np.abs(shown[:, :25].astype(int) - np.array(given())[:, :25]).max() <= 1
    assert "data:image/png" in cropped._repr_html_()


def pictures_in(path):
    data = re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1]
    found = [s["streams"][0]["picture"] for s in json.loads(data)["explanations"][0]["samples"]]
    return [
        p and np.array(Image.open(io.BytesIO(base64.b64decode(p.partition(",")[2])))) for p in found
    ]


def test_words_speak_of_the_picture_that_was_given():
    """Of its rows and columns, not of those of the cut and shrunk image that the model saw."""
    e = relprop.explain(vit(), given(), 1, processor=processor(), method="gradient_x_input")
    stream = e.streams["pixel_values"]
    scores = torch.zeros_like(stream.scores)
    scores.view(1, 32, 32)[0, 4:8, 28:32] = 1.0  # the last four columns of the middle square
    one = replace(e, streams={stream.name: replace(stream, scores=scores)})
    assert "rests on: rows 8–14 × columns 82–89 (1.00)" in one.summary()
    assert one.summary().endswith("those of the picture that was given, 60 × 120.")
    padded = replace(stream.originals[0], frame=(0.0, 60.0, 60.0, 180.0))  # half of it is padding
    beyond = replace(stream, scores=scores, originals=(padded,))
    assert "rests on: outside of the picture" in replace(e, streams={"": beyond}).summary()
    patches = relprop.explain(vit(), given(), 1, processor=processor())
    assert "patch (" in patches.summary() and "picture" not in patches.summary()


def test_a_report_shows_what_the_model_saw_of_the_given_pictures(cropped, tmp_path):
    kept = pictures_in(cropped.to_html(tmp_path / "a.html"))
    again = pictures_in(cropped.to_html(tmp_path / "b.html", pictures=[given(), given()]))
    middle = np.array(given())[:, 30:90]
    for seen in (*kept, *again):
        assert seen.shape == middle.shape and np.abs(seen.astype(int) - middle).max() <= 3
    with pytest.raises(InputError, match="1 pictures are given for 2 samples"):
        cropped.to_html(tmp_path / "c.html", pictures=given())


def test_pictures_are_kept_small_and_saved_and_can_be_left_out(tmp_path):
    large = given().resize((900, 600))
    e = relprop.explain(vit(), large, 1, processor=processor())
    (original,) = e.streams["pixel_values"].originals
    assert original.picture.shape == (3, 299, 448) and original.picture.dtype == torch.uint8
    means = np.array(large.resize((448, 299), Image.Resampling.BOX)).astype(int)
    assert np.abs(original.picture.movedim(0, -1).numpy() - means).max() <= 3
    again = relprop.load(e.save(tmp_path / "one.safetensors"))
    assert torch.equal(again.streams["pixel_values"].originals[0].picture, original.picture)
    assert layers_of(again.plot().axes[0])[1].shape == (299, 448)
    none = relprop.explain(vit(), large, 1, processor=processor(), keep_pictures=False)
    assert none.streams["pixel_values"].originals[0].picture is None
    assert torch.equal(none.original_heatmap(0), e.original_heatmap(0))
    assert len(none.plot().axes[0].images) == 1
    assert relprop.load(none.save(tmp_path / "two.safetensors")).plot().axes[0].images


def test_what_the_model_saw_is_upright_and_grey_where_it_was_padded():
    from relprop.adapters.pictures import Original

    picture = torch.arange(12, dtype=torch.uint8).view(1, 3, 4)
    seen = Original((3, 4), (-1.0, 4.0, 3.0, 1.0), picture).seen()  # a row above, and mirrored
    assert seen.tolist() == [[[128] * 3, [3, 2, 1], [7, 6, 5], [11, 10, 9]]]


def test_figures_and_axes_show_themselves(cropped):
    e = explain_texts()
    for shown in (cropped.plot(), e.plot(), plot.heatmap(cropped), plot.text(e), plot.ledger(e)):
        assert Image.open(io.BytesIO(shown._repr_png_())).format == "PNG"


def test_many_maps_are_wrapped_and_long_texts_broken(cropped):
    axes = plot.compare([cropped] * 9, labels=[f"m{i}" for i in range(9)])
    rows = {round(float(a.get_position().y0), 6) for a in axes}
    assert len(axes) == 9 and len(rows) == 3 and axes[0].figure.get_size_inches()[0] < 10
    e = explain_texts()
    stream = next(iter(e.streams.values()))
    words = [[(f"w{i}", [1]) for i in range(70)]] * 2
    long = replace(e, streams={stream.name: replace(stream, words=words)})
    lines = plot.compare([long, long])
    assert len(lines) == 3 and lines[0].figure.get_size_inches()[0] < 14
    assert [t.get_text() for a in lines for t in a.get_xticklabels()] == [w for w, _ in words[0]]


def test_six_methods_are_compared_by_default_and_groups_stand_for_theirs():
    model, image = digits(), torch.rand(1, 1, 32, 32)
    found = relprop.compare(model, image, target=3)
    assert [*found.explanations, *found.refused] == list(relprop.methods.USUAL)
    named = relprop.compare(model, image, ["rollout", "input"], target=3)
    levels = {relprop.methods.METHODS[n].level for n in named.explanations if n != "rollout"}
    assert levels == {"input"} and len(named.explanations) > 5
    with pytest.raises(relprop.errors.OptionError, match="stands for other methods already"):
        relprop.methods.register("all", lambda at: {})


def test_text_is_drawn_as_shaded_words():
    fig = explain_texts().plot()
    texts = [t.get_text() for t in fig.axes[0].texts]
    assert "boring" in texts and fig.get_size_inches()[0] < 8 and not fig.axes[0].containers


def test_one_colour_scale_for_all(cropped):
    signed = relprop.explain(digits(), torch.rand(1, 1, 32, 32), 3, method="lrp")
    for e in (cropped, signed):
        drawn = plot.heatmap(e, False).images[-1]
        red, _, blue = drawn.cmap(1.0)[:3]
        assert red > blue and min(drawn.cmap(drawn.norm(0.0))[:3]) > 0.95


def test_a_function_of_pictures_serves_a_hugging_face_model():
    """A torchvision transform is such a function; the map lies where the picture was cut."""
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=8)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8))

    def middle(one):
        cut = one.resize((24, 16)).crop((4, 0, 20, 16))
        return torch.from_numpy(np.array(cut)).permute(2, 0, 1).float() / 255

    model = transformers.ViTForImageClassification(config).eval()
    e = relprop.explain(model, picture, 1, processor=middle)
    heat = e.original_heatmap()
    assert heat.shape == (40, 60) and not heat[:, :9].any() and heat[:, 20:40].any()
