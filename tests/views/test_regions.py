"""Maps with a score for every pixel, and of sound: colours that are seen, a sentence of whole
areas, time to the right."""

import io
import re

import numpy as np
import pytest
import torch
import transformers
from matplotlib.image import imread
from torch import nn

import relprop
from relprop import plot
from relprop.demo.scenes import make_scenes
from relprop.views.overlay import full_colour, heatmap_and_image
from tests.adapters.test_sound import RATE, SMALL, WAVE, sound
from tests.common.sizes import digits


@pytest.fixture(scope="module")
def pixels():
    images = make_scenes(1, seed=8).images
    return relprop.explain(digits(), images, 2, method="attnlrp")


class Spiked(nn.Module):
    """Adds up an image's pixels, one of them a thousand times."""

    def forward(self, x):
        weights = torch.ones(x.shape[-2:])
        weights[3, 5] = 1000
        return (x * weights).sum((1, 2, 3))[:, None]


@pytest.fixture(scope="module")
def spiked():
    return relprop.explain(Spiked(), torch.rand(1, 1, 40, 60) + 0.5, 0, method="gradient_x_input")


def test_one_pixel_does_not_take_the_colour_from_all_others(spiked):
    heat = heatmap_and_image(spiked, 0, False)[0]
    others = heat.flatten().sort().values[:-1]
    for axes in (plot.heatmap(spiked), *plot.compare({"a": spiked, "b": spiked}, scale="own")):
        (drawn,) = axes.images
        shares = np.asarray(drawn.get_array()) / drawn.norm.vmax
        assert np.median(shares) > 0.3 and (shares > 1).mean() <= 0.011
    assert full_colour(heat, spiked.streams["input_0"]) <= float(others[-1])
    assert plot.heatmap(spiked, strongest=7.0).images[0].norm.vmax == 7.0


def test_of_patches_the_largest_has_the_full_colour():
    e = relprop.explain(digits(), torch.rand(1, 1, 32, 32), 3)
    assert plot.heatmap(e).images[0].norm.vmax == pytest.approx(float(e.heatmap().max()))


def test_the_sentence_adds_pixels_up_to_areas(pixels, spiked):
    positive = {}
    for row in range(0, 32, 4):
        for column in range(0, 32, 4):
            area = float(pixels.scores[0].view(32, 32)[row : row + 4, column : column + 4].sum())
            positive[f"rows {row}–{row + 3} × columns {column}–{column + 3}"] = max(area, 0.0)
    best = max(positive, key=positive.get)
    share = positive[best] / sum(positive.values())
    assert f"rests on: {best} ({share:.2f})" in pixels.summary()
    assert "rows 0–7 × columns 0–7" in spiked.summary()  # 40 × 60 in areas of 8
    last = relprop.explain(
        nn.Sequential(nn.Flatten(), nn.Linear(40 * 60, 2)), torch.rand(1, 1, 40, 60), 0,
        method="gradient_x_input",
    )  # fmt: skip
    assert all(f"columns 56–{n}" not in last.summary(k=99) for n in (60, 61, 62, 63))


@pytest.fixture(scope="module")
def spectrogram():
    torch.manual_seed(0)
    config = transformers.ASTConfig(
        **SMALL,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=96,
        num_mel_bins=32,
    )
    extractor = transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=96)
    model = transformers.ASTForAudioClassification(config).eval()
    return relprop.explain(model, [sound(RATE)], 1, processor=extractor)


def test_of_a_spectrogram_time_runs_to_the_right_and_pitch_upwards(spectrogram):
    heat = spectrogram.heatmap()[0]
    assert heat.shape == (96, 32)
    axes = plot.heatmap(spectrogram)
    (drawn,) = axes.images
    assert np.allclose(np.asarray(drawn.get_array()), heat.T.flip(0).numpy())
    assert drawn.get_extent() == pytest.approx([0, 0.96, 0, 32])
    assert axes.get_xlabel() == "seconds"
    assert plot.compare([spectrogram] * 2)[1].get_xlabel() == "seconds"
    height, width, *_ = imread(io.BytesIO(spectrogram._repr_png_())).shape
    assert width > 2.9 * height


def test_a_report_draws_it_the_same_way(spectrogram, tmp_path, browser):
    """Each cell by its seconds and bands; the arrow keys go the way that they point."""
    stream = spectrogram.streams["input_values"]
    page = browser.new_page()
    page.goto(spectrogram.to_html(tmp_path / "sound.html").as_uri())
    page.wait_for_selector("html[data-ready]")
    cells = page.query_selector_all("#score-field .cells button")
    assert len(cells) == 48  # 12 times, 4 pitches
    best = int((stream.scores[0] * stream.content[0]).argmax())
    (first, last), (low, high) = stream.spans[best].long().tolist()
    said = f"{first / 100:.2f}–{last / 100:.2f} s × bands {low}–{high - 1}"
    area = page.locator(f"#score-field .cells button[data-token='{best}']")
    row, column = area.evaluate("cell => [cell.style.gridRowStart, cell.style.gridColumnStart]")
    assert (int(row), int(column)) == (4 - low // 8, first // 8 + 1)
    area.click()
    assert said in page.inner_text("#scores")
    page.keyboard.press("ArrowRight" if first < 80 else "ArrowLeft")
    moved = first + 8 if first < 80 else first - 8
    assert f"{moved / 100:.2f}–{moved / 100 + 0.08:.2f} s × bands {low}" in page.inner_text(
        "#scores"
    )
    page.close()


def test_the_sentence_names_seconds_and_bands(spectrogram):
    content = spectrogram.content[0]
    best = int((spectrogram.scores[0] * content).argmax())
    (first, last), (low, high) = spectrogram.spans[best].long().tolist()
    expected = f"{first / 100:.2f}–{last / 100:.2f} s × bands {low}–{high - 1} ("
    assert expected in spectrogram.summary()
    wave = relprop.explain(_wave(), [sound(RATE)], 1, processor=_extractor())
    start, end = wave.seconds()[int(wave.scores[0].argmax())].tolist()
    assert f"{start:.2f}–{end:.2f} s (" in wave.summary()
    every = relprop.explain(
        _wave(), [sound(RATE)], 1, processor=_extractor(), method="gradient_x_input"
    )
    named = re.findall(r"\d\.\d\d–\d\.\d\d s \(", every.summary(k=99))
    assert len(named) > 5 and "position" not in every.summary()


def _extractor():
    return transformers.Wav2Vec2FeatureExtractor()


def _wave():
    torch.manual_seed(0)
    return transformers.Wav2Vec2ForSequenceClassification(
        transformers.Wav2Vec2Config(**WAVE)
    ).eval()
