"""A generation over a picture and words, shown: the picture under its map beside the words, for
every generated token; in a figure, a page, a notebook, JSON and lines."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import relprop
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import make_quadrants
from relprop.views.heat import patches
from relprop.views.token_maps import maps_of, strongest


@pytest.fixture(scope="module")
def drawn():
    return make_quadrants(2, seed=7)


@pytest.fixture(scope="module")
def generation(drawn):
    inputs = {"images": drawn.pictures(), "text": [f"<image> {q}" for q in drawn.questions]}
    return relprop.explain_generation(
        quadrant_model(), inputs, processor=quadrant_processor(), max_new_tokens=2
    )


def test_maps_and_words_have_one_scale(generation):
    for sample in range(2):
        (found,) = maps_of(generation.steps[:2], sample)
        assert found.seen.shape == (32, 32, 3)
        for k, step in enumerate(generation.steps):
            scores = [s.scores[sample] * s.content[sample] for s in step.streams.values()]
            most = max(float(s.abs().max()) for s in scores)
            assert strongest(step, sample) == pytest.approx(most)
            cells = patches(step.streams["pixel_values"], sample) / most
            assert found.shares[k] == pytest.approx(cells.clip(-1, 1), abs=1e-6)


def test_a_figure_has_the_picture_beside_the_words(generation, drawn):
    axes = generation.plot(sample=1).axes
    assert len(axes) == 4
    maps = maps_of(generation.steps[:2], 1)[0]
    for k in range(2):
        picture, words = axes[2 * k : 2 * k + 2]
        (image,) = picture.images
        assert np.array_equal(
            np.round(image.get_array() * 255).astype(np.uint8), maps.over(maps.shares[k])
        )
        assert picture.get_title() == generation.labels[1][k]
        written = [text.get_text() for text in words.texts]
        assert written == [*drawn.questions[1].split(), *generation.labels[1][:k]]


def test_json_says_where_patches_are(generation):
    found = json.loads(generation.to_json())["samples"][0]
    given = found["inputs"]["pixel_values"]
    assert given["grid"] == [4, 4] and sorted(given["source"]) == [-1, *range(16)]
    scores = found["steps"][1]["scores"]["pixel_values"]
    placed = np.zeros(16)
    for place, score in zip(given["source"], scores, strict=True):
        placed[place] += score * (place >= 0)
    stream = generation.steps[1].streams["pixel_values"]
    assert placed.reshape(4, 4) == pytest.approx(patches(stream, 0))


def test_lines_and_notebooks(generation, capsys):
    generation.show(0, k=3)
    assert "pixel_values:patch (" in capsys.readouterr().out
    assert generation._repr_html_().count("data:image/png") == 2


def test_a_file_keeps_each_picture_once(generation, tmp_path):
    again = relprop.load(generation.save(tmp_path / "g.safetensors"))
    for a, b in zip(again.steps, generation.steps, strict=True):
        first, second = (e.streams["pixel_values"].originals for e in (a, b))
        assert all(torch.equal(x.picture, y.picture) for x, y in zip(first, second, strict=True))
    assert again.to_json() == generation.to_json()
    kept = load_file(tmp_path / "g.safetensors")
    assert sum(".picture." in name for name in kept) == 2


def test_pointing_at_a_token_changes_the_picture(generation, tmp_path, browser):
    page, problems = browser.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(generation.to_html(tmp_path / "g.html").as_uri())
    section = page.locator("[data-answer]").nth(1)
    assert section.locator(".stack img").count() == 1
    assert section.locator("[data-part]").first.inner_text().count("<image>") <= 1
    (maps,) = maps_of(generation.steps[:2], 1)
    read = """canvas => {
        const {width, height} = canvas;
        return [...canvas.getContext("2d").getImageData(0, 0, width, height).data];
    }"""
    for step in range(2):
        section.locator(f"[data-said='{step}']").hover()
        pixels = np.array(section.locator("canvas").evaluate(read)).reshape(4, 4, 4)
        assert int(pixels[..., 3].argmax()) == int(np.abs(maps.shares[step]).argmax())
        weights = np.abs(maps.shares[step]) ** 0.8 * 0.9 * 255
        assert np.abs(pixels[..., 3] - weights).max() < 12
    page.close()
    assert not problems
