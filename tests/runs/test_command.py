"""``relprop explain --data``: models and data sets by name, resuming, refusals."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import relprop
from relprop.cli import app
from relprop.demo.model import digit_scene_model
from relprop.demo.scene_source import DigitScenes
from relprop.errors import InputError, OptionError
from relprop.runs import command, explanation_of, read_run
from tests.common import sizes
from tests.runs.sources import bert, tokenizer
from tests.runs.works import committed


def output_of(*arguments):
    result = CliRunner().invoke(app, ["explain", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_the_shipped_scenes(tmp_path):
    out = tmp_path / "run"
    arguments = [
        "--model",
        "demo:digits",
        "--data",
        "demo:digits",
        "--out",
        out,
        "--limit",
        4,
        "--batch-size",
        2,
        "--target",
        "label",
    ]
    arguments += [
        "--method",
        "rollout",
        "--method",
        "transformer_attribution:rules=stable,normalize_rows=true",
    ]
    assert "4 of 4 samples in 0:" in output_of(*arguments)
    results, source = read_run(out), DigitScenes(4, seed=0)
    images, digits = (
        torch.stack([source[i].inputs for i in range(4)]),
        [source[i].label for i in range(4)],
    )
    expected = relprop.explain(
        digit_scene_model(), images, digits, rules="stable", normalize_rows=True
    )
    for i in range(4):
        mine = explanation_of(results, i, "transformer_attribution")
        torch.testing.assert_close(mine.heatmap()[0], expected.heatmap()[i], rtol=1e-6, atol=1e-8)
        assert mine.rules == "stable" and mine.target == (digits[i],)
    next((out / "shards").glob("*.parquet")).unlink()
    with pytest.raises(OptionError, match="not empty"):
        output_of(*arguments)
    assert "2 of 4 samples" in output_of(*arguments, "--resume") and committed(out) == 2
    with pytest.raises(
        InputError, match=r"identity.target: \"label\" in the folder, \"predicted\" now"
    ):
        output_of(*arguments[:-6], "--resume", *arguments[-4:])


def test_texts_of_a_table_and_a_model_in_a_folder(tmp_path):
    bert().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    texts = ["the film was good", "a dull one but short", "great"]
    (tmp_path / "some.jsonl").write_text(
        "".join(json.dumps({"review": t, "label": i % 2}) + "\n" for i, t in enumerate(texts))
    )
    output_of(
        "--model",
        tmp_path / "model",
        "--data",
        tmp_path / "some.jsonl",
        "--data-option",
        "text=review",
        "--out",
        tmp_path / "run",
        "--max-length",
        "5",
        "--precision",
        "float64",
    )
    results = read_run(tmp_path / "run")
    assert [json.loads(r["tokens"]) for r in results.rows()] == [
        ["[CLS]", *t.split()[:3], "[SEP]"] for t in texts
    ]
    assert [r["truncated"] for r in results.rows()] == [1, 1, 0] and [
        r["label"] for r in results.rows()
    ] == [0, 1, 0]
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="token"):
        output_of(
            "--model",
            tmp_path / "model",
            "--data",
            tmp_path / "some.jsonl",
            "--data-option",
            "text=review",
            "--out",
            tmp_path / "other",
        )


def test_shipped_reviews_through_a_model_in_a_folder(tmp_path):
    bert().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    output_of(
        "--model",
        tmp_path / "model",
        "--data",
        "demo:reviews",
        "--limit",
        2,
        "--out",
        tmp_path / "run",
    )
    assert read_run(tmp_path / "run").identity["data"]["n"] == 2
    with pytest.raises(InputError, match="no tokenizer came with the model"):
        output_of(
            "--model",
            "demo:digits",
            "--data",
            "demo:reviews",
            "--limit",
            2,
            "--out",
            tmp_path / "other",
        )


def test_picture_files_go_through_the_models_own_processing(tmp_path):
    import timm
    import transformers
    from PIL import Image

    random = np.random.default_rng(0)
    for i in range(3):
        (tmp_path / "pictures" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (50 + i, 40, 3), dtype=np.uint8)).save(
            tmp_path / "pictures" / f"c{i % 2}" / f"{i}.png"
        )
    torch.manual_seed(0)
    model = sizes.vit(num_labels=3)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    output_of(
        "--model", tmp_path / "model", "--data", tmp_path / "pictures", "--out", tmp_path / "run"
    )
    results = read_run(tmp_path / "run")
    keys = [r["key"] for r in results.rows()]
    assert keys == ["c0/0.png", "c0/2.png", "c1/1.png"] and "mean" in results.identity["normalize"]
    pictures = [Image.open(tmp_path / "pictures" / k) for k in keys]
    expected = relprop.explain(model, pictures, processor=processor)
    for i in range(3):
        assert (
            results.tensors(i)["scores"] - expected.scores[i]
        ).abs().max() <= 1e-5 * expected.scores[i].abs().max()
    vit = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3
    ).eval()
    vit.pretrained_cfg = {
        "input_size": (3, 32, 32),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "interpolation": "bicubic",
        "crop_pct": 0.9,
    }
    source, normalize = command.prepared(
        command.open_source(str(tmp_path / "pictures")), command.Opened(vit)
    )
    timms = timm.data.create_transform(
        **timm.data.resolve_model_data_config(vit), is_training=False
    )
    torch.testing.assert_close(
        normalize(source[1].inputs), timms(pictures[1]), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "arguments, error",
    [
        (["--model", "demo:digits"], "explain needs an input or a data set"),
        (
            [
                "--model",
                "demo:digits",
                "--data",
                "demo:digits",
                "--out",
                "x",
                "--method",
                "rollout:discard",
            ],
            "--method rollout: 'discard': name=value is wanted",
        ),
        (
            [
                "--model",
                "demo:digits",
                "--data",
                "demo:digits",
                "--out",
                "x",
                "--data-option",
                "a=1",
            ],
            "--data demo:digits has no options: a",
        ),
        (
            ["--model", ".", "--data", "demo:digits", "--out", "x"],
            "the folder '.' holds no config.json",
        ),
        (["--model", "demo:digits", "--data", "nowhere.csv", "--out", "x"], "nowhere"),
    ],
    ids=["data", "method", "data option", "model", "file"],
)
def test_refusals(tmp_path, monkeypatch, arguments, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((OptionError, InputError), match=error):
        output_of(*arguments)
    assert not (tmp_path / "x").exists()
