"""``relprop demo``, the command line, and the shipped model's accuracy on digits it has never
seen."""

import re
import subprocess
import sys

import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from typer.testing import CliRunner

import relprop
from relprop.cli import app
from relprop.demo.model import WEIGHTS, digit_scene_model, plain_model
from relprop.demo.scenes import digit_bank, make_scenes
from relprop.demo.show import share_on


def test_demo_writes_a_picture(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "demo.png")])
    assert result.exit_code == 0, result.output
    assert re.search(r"why 2\? (7|8)\d% of the score lies on the 2, \d+% on the 6", result.output)
    assert re.search(r"adds up at every operation of the model, to \de-0[6-9] of it", result.output)
    assert "forward passes" in result.output and "picture:" in result.output
    assert (tmp_path / "demo.png").read_bytes()[:4] == b"\x89PNG" and (
        tmp_path / "demo.png"
    ).stat().st_size > 10_000


def test_the_module_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "relprop", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in done.stdout


def test_the_shipped_model_finds_both_digits():
    assert WEIGHTS.stat().st_size <= 2 * 2**20
    scenes = make_scenes(1000, seed=123)
    with torch.no_grad():
        found = digit_scene_model()(scenes.images).topk(2).indices.sort().values
    assert (found == scenes.digits.sort().values).all(-1).float().mean() >= 0.95


def test_the_model_written_out_has_the_same_numbers():
    plain, scenes = plain_model().eval(), make_scenes(4, seed=5)
    plain.load_state_dict(load_file(WEIGHTS))
    with torch.no_grad():
        assert torch.allclose(plain(scenes.images), digit_scene_model()(scenes.images), atol=1e-5)
    mine, theirs = (
        relprop.explain(model, scenes.images, 3).scores for model in (plain, digit_scene_model())
    )
    assert torch.allclose(mine, theirs, atol=1e-5 * float(theirs.abs().max()))


def test_the_shipped_digits_are_scikit_learns():
    data = load_digits()
    parts = train_test_split(
        data.images / 16, data.target, test_size=297, random_state=0, stratify=data.target
    )
    for held_out in (False, True):
        images, classes = digit_bank(held_out)
        assert torch.equal(images[:, 0], torch.tensor(parts[held_out], dtype=torch.float32))
        assert torch.equal(classes, torch.tensor(parts[2 + held_out]))


def test_held_out_digits_are_held_out():
    train, held = digit_bank(False)[0].flatten(1), digit_bank(True)[0].flatten(1)
    assert len(train) + len(held) == 1797 and torch.cdist(held, train).min() > 0


def test_the_maps_are_class_specific_and_rollout_is_not():
    scenes, model = make_scenes(40, seed=321), digit_scene_model()
    first = relprop.explain(model, scenes.images, scenes.digits[:, 0])
    assert share_on(first, scenes, 0) > 0.7 > 0.25 > share_on(first, scenes, 1)
    rolled = relprop.explain(model, scenes.images, scenes.digits[:, 0], method="rollout")
    assert share_on(first, scenes, 0) > share_on(rolled, scenes, 0) + 0.25
