"""The shipped model of pictures and words: its data, whether it is right, and whether maps of its
answers lie where these say."""

import json

import pytest
import torch

from relprop.demo.quadrant_model import (
    WEIGHTS,
    quadrant_model,
    quadrant_numbers,
    quadrant_processor,
)
from relprop.demo.quadrants import ANSWERS, make_quadrants
from tools.known_answers.quadrants import QuadrantStudy
from tools.train_quadrants import all_asked, encoded, moved, right

SEED = 91_000_003


@pytest.fixture(scope="module")
def model():
    return quadrant_model()


@pytest.fixture(scope="module")
def processor():
    return quadrant_processor()


def test_pictures_are_what_is_said_of_them():
    drawn = make_quadrants(50, seed=SEED)
    assert torch.equal(drawn.images, make_quadrants(50, seed=SEED).images)
    rows = torch.arange(50)
    disc = drawn.discs[rows, drawn.asked]
    assert bool((disc <= drawn.quarters).all()) and bool(disc.any(-1).any(-1).all())
    assert all(len(set(row)) == 4 for row in drawn.colours.tolist())
    assert drawn.answers == [ANSWERS[k] for k in drawn.asked.tolist()]
    alone = make_quadrants(50, seed=SEED, others=1)
    assert alone.discs.any(-1).any(-1).sum(1).tolist() == [2] * 50
    assert len(all_asked(alone).asked) == 100


def test_the_processor_makes_what_training_made(processor):
    drawn = make_quadrants(5, seed=SEED)
    text = [f"<image> {q} {a} </s>" for q, a in zip(drawn.questions, drawn.answers, strict=True)]
    made = processor(images=drawn.pictures(), text=text, padding=True, return_tensors="pt")
    inputs, answers = encoded(drawn)
    assert torch.equal(made["input_ids"], inputs["input_ids"])
    assert torch.equal(made["input_ids"][:, -3:], answers)
    assert float((made["pixel_values"] - inputs["pixel_values"]).abs().max()) <= 1 / 255


def test_it_is_right_and_by_the_disc_that_is_asked_for(model):
    drawn = make_quadrants(300, seed=SEED)
    assert right(model, drawn) > 0.97
    assert right(model, moved(drawn, asked=True)) > 0.97
    assert right(model, moved(drawn, asked=False)) > 0.97
    assert quadrant_numbers()["right"] > 0.97
    assert WEIGHTS.stat().st_size < 1_000_000
    json.dumps(quadrant_numbers())


@pytest.mark.slow
def test_maps_lie_in_the_quarter_of_the_answer():
    study = QuadrantStudy(12, SEED)
    study.methods = {"attnlrp": {"method": "attnlrp"}}
    numbers = [value for unit in range(12) for value in study(unit)]

    def shares(row):
        return [v.number for v in numbers if (v.row, v.column) == (row, "share on the quarter")]

    assert sum(shares("attnlrp")) / 12 > 0.35
    assert sum(shares("random")) / 12 == pytest.approx(0.25, abs=0.06)
