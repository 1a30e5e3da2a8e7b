"""The result object: heat maps, saving and loading, plots, and what ``keep=`` keeps."""

import dataclasses
import re

import pytest
import torch
from safetensors.torch import save_file

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.demo.show import run_demo
from relprop.runs import run
from relprop.targets import similarity
from tests.runs.works import Numbers
from tests.targets.models import clip, pictures, words

SCENES = make_scenes(3, seed=11)


@pytest.fixture(scope="module")
def explanation():
    return relprop.explain(
        digit_scene_model(),
        SCENES.images,
        list(SCENES.digits[:, 0]),
        keep=("blocks", "matrix", "input"),
    )


def test_shapes(explanation):
    assert explanation.scores.shape == explanation.row.shape == explanation.content.shape == (3, 65)
    assert explanation.grid == (8, 8) and explanation.image == (32, 32)
    assert not explanation.content[:, 0].any() and explanation.content[:, 1:].all()
    assert explanation.matrix.shape == (3, 65, 65) and explanation.input.shape == (3, 1, 32, 32)
    assert [block.path for block in explanation.blocks] == [f"blocks.{i}.attn" for i in range(4)]
    assert explanation.blocks[0].relevance.shape == (3, 4, 65, 65)
    assert explanation.target == tuple(
        SCENES.digits[:, 0].tolist()
    ) and explanation.output.shape == (3,)


def test_scores_are_what_attention_carried(explanation):
    assert torch.equal(explanation.row, explanation.scores + explanation.identity)
    assert torch.equal(explanation.identity, torch.eye(65)[:1].expand(3, -1))


def test_it_is_frozen(explanation):
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.method = "other"


def test_heatmap_is_the_papers_upsampling(explanation):
    patches = explanation.scores[:, 1:].reshape(3, 1, 8, 8)
    expected = torch.nn.functional.interpolate(patches, scale_factor=4, mode="bilinear")[:, 0]
    torch.testing.assert_close(explanation.heatmap(), expected)
    assert explanation.heatmap(16).shape == (3, 16, 16) and explanation.heatmap((10, 20)).shape == (
        3,
        10,
        20,
    )


def test_save_and_load_give_the_same(explanation, tmp_path):
    again = relprop.load(explanation.save(tmp_path / "one.safetensors"))
    assert list(again.streams) == list(explanation.streams) == ["input_0"]
    fields = [
        (explanation, again, f.name) for f in dataclasses.fields(explanation) if f.name != "streams"
    ]
    fields += [
        (explanation.streams["input_0"], again.streams["input_0"], f.name)
        for f in dataclasses.fields(relprop.explanation.TokenScores)
    ]
    for mine, theirs, name in fields:
        mine, theirs = getattr(mine, name), getattr(theirs, name)
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, theirs), name
        elif name not in ("ledger", "blocks"):
            assert mine == theirs, name
    assert again.ledger.worst() == explanation.ledger.worst() and str(again.ledger) == str(
        explanation.ledger
    )
    assert all(
        torch.equal(a.relevance, b.relevance) and a.path == b.path
        for a, b in zip(again.blocks, explanation.blocks, strict=True)
    )


def test_loading_something_else_is_refused(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(relprop.errors.InputError, match="no saved explanation"):
        relprop.load(tmp_path / "other.safetensors")
    for name in ("text", "missing"):
        with pytest.raises(relprop.errors.InputError, match="cannot be read"):
            relprop.load(tmp_path / name)


def test_plots(explanation, tmp_path):
    explanation.plot(SCENES.images[1], sample=1).savefig(tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 2000
    with pytest.raises(relprop.errors.OptionError, match="sample=3"):
        explanation.plot(sample=3)


def test_batch_size_and_precision(explanation):
    model = digit_scene_model()
    parts = relprop.explain(
        model,
        SCENES.images,
        explanation.target and list(explanation.target),
        batch_size=2,
        precision="float64",
    )
    whole = relprop.explain(model.double(), SCENES.images.double(), list(explanation.target))
    assert parts.scores.dtype == torch.float64 and parts.ledger.started.shape == (3,)
    torch.testing.assert_close(
        parts.scores, whole.scores, rtol=1e-9, atol=1e-9 * float(whole.scores.abs().max())
    )


def test_stability_of_a_trained_model():
    values = relprop.rounding_stability(digit_scene_model(), SCENES.images, rules="stable")
    assert values.shape == (3,) and bool((values > 0.999).all())


def test_stability_of_a_pair_and_of_a_target_that_is_no_class():
    """All inputs' scores are compared; what ``None`` means is found anew in float64."""
    pair = {"input_ids": words(), "pixel_values": pictures()}
    values = relprop.rounding_stability(clip(), pair, similarity(), rules="stable")
    alone = relprop.rounding_stability(clip(), {k: v[:1] for k, v in pair.items()}, rules="stable")
    assert len(values) == len(words()) and bool((torch.cat([values, alone]) > 0.9).all())


def nowhere(tmp_path):
    return tmp_path / "no such" / "file.ending"


def in_a_file(tmp_path):
    (tmp_path / "plain").write_text("")
    return tmp_path / "plain" / "file.ending"


def a_folder(tmp_path):
    return tmp_path


@pytest.mark.parametrize("place", [nowhere, in_a_file, a_folder], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "write",
    [
        lambda e, path: e.save(path),
        lambda e, path: e.to_html(str(path)),
        lambda e, path: relprop.report([e, e], path),
        lambda e, path: run_demo(path, 0),
    ],
    ids=["save", "to_html", "report", "demo"],
)
def test_a_path_that_cannot_be_written_is_refused(explanation, tmp_path, place, write):
    path = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(relprop.RelpropError, match=re.escape(repr(str(path)))) as refused:
        write(explanation, path)
    assert "then" in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "plain").write_text("")
    with pytest.raises(relprop.RelpropError, match="cannot be made"):
        run(Numbers(3), tmp_path / "plain" / "run", progress=False)
