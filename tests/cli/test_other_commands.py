"""``relprop compare``, ``check``, ``methods``, ``doctor``, ``demo``: what they
print is what the library found."""

import json
import shutil
import subprocess
import sys
from importlib import metadata

import numpy as np
import PIL.Image
import pytest
import torch

import relprop
from relprop.commands import doctor
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.methods import METHODS
from tests.runs.sources import bert

REVIEW = "a wonderful film but the plot is dull"
ROWS = ("rollout", "transformer_attribution", "lrp")


def test_compare_prints_and_writes_rank_correlations(relprop_says, tmp_path):
    shared = (
        "compare",
        REVIEW,
        "--model",
        "demo:reviews",
        "--target",
        "positive",
        *(a for m in ROWS for a in ("--method", m)),
    )
    said = relprop_says(*shared, "--json", "--out", tmp_path / "все.json")
    assert said.code == 0, said.err
    expected = relprop.compare(review_model(), REVIEW, ROWS, 1, processor=review_tokenizer())
    found = json.loads(said.out)
    names, table = expected.rank_correlations()
    assert found["rank_correlations"]["input_ids"]["methods"] == list(names)
    np.testing.assert_allclose(
        found["rank_correlations"]["input_ids"]["rho"], table.tolist(), rtol=1e-6
    )
    assert json.loads((tmp_path / "все.json").read_text(encoding="utf-8")) == found
    assert "rank correlations of the scores of 'input_ids'" in relprop_says(*shared).out


def test_compare_draws_maps_side_by_side_and_says_what_it_cannot_rank(
    relprop_says, folders, photo, tmp_path
):
    out = tmp_path / "рядом.png"
    said = relprop_says(
        "compare",
        photo,
        "--model",
        folders.image,
        "--target",
        1,
        "--out",
        out,
        *(a for m in ROWS for a in ("--method", m)),
    )
    assert said.code == 0 and f"written: {out}" in said.out, said.err
    assert "lrp scores 1024 parts of 'pixel_values', so that its ranks are not compared" in said.out
    picture = np.asarray(PIL.Image.open(out).convert("RGB"))
    assert picture.shape[1] > 2 * picture.shape[0] and picture.std() > 20
    again = relprop_says("compare", photo, "--model", folders.image, "--out", out)
    assert again.code == 1 and "--force" in again.err
    assert relprop_says("compare", "--model", folders.image).code == 2


@pytest.mark.parametrize(
    "arguments",
    [pytest.param((), marks=pytest.mark.slow), (REVIEW,)],
    ids=["a random input", "an input"],
)
def test_check_a_supported_model(relprop_says, arguments):
    said = relprop_says("check", *arguments, "--model", "demo:reviews", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (
        found["ok"]
        and found["supported"]
        and "transformer_attribution" in found["methods"]
        and len(found["sites"]) == 4
    )
    assert {
        "operation": "aten.linear.default",
        "nodes": 26,
        "family": "share",
        "rule": "linear: Eq. 5",
    } in found["rows"]
    totals = found["ledger"]["totals"]
    assert totals["started"] == pytest.approx(
        sum(totals[k] for k in ("reached", "absorbed", "lost", "unread", "residual")), rel=1e-6
    )
    if arguments:
        ledger = relprop.explain(review_model(), REVIEW, processor=review_tokenizer()).ledger
        worst = max(ledger.accounts, key=lambda a: float(a.unread.abs()))
        assert found["ledger"]["places"][0]["path"] == worst.path
        assert found["ledger"]["places"][0]["share"] == pytest.approx(float(worst.unread), rel=1e-4)


def test_check_says_it_in_words(relprop_says, folders):
    said = relprop_says("check", "--model", folders.text)
    assert (
        said.code == 0
        and "check: ok" in said.out
        and "where relevance stays" in said.out
        and "for a random input" in said.out
    )
    assert relprop_says("check", "--model", "demo:digits", "--method", "lrp").code == 0


@pytest.mark.slow
def test_check_needs_no_tokenizer_and_tells_a_model_without_attention(relprop_says, tmp_path):
    import timm

    bert().save_pretrained(tmp_path / "alone")
    assert relprop_says("check", "--model", tmp_path / "alone").code == 0
    torch.manual_seed(0)
    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)}
    timm.models.save_for_hf(
        timm.create_model("convnext_atto", num_classes=3, **sizes),
        tmp_path / "convnet",
        model_args=sizes,
        safe_serialization=True,
    )
    said = relprop_says("check", "--model", tmp_path / "convnet")
    assert (
        said.code == 1
        and "NOT OK for the default method" in said.out
        and "no attention site" in said.out
    )
    assert relprop_says("check", "--model", tmp_path / "convnet", "--method", "lrp").code == 0


def test_methods_lists_every_method(relprop_says):
    found = json.loads(relprop_says("methods", "--json").out)
    assert [row["name"] for row in found] == list(METHODS)
    for row in found:
        assert row["source"] and row["options"] == json.loads(
            json.dumps(METHODS[row["name"]].options(), default=str)
        )
    one = relprop_says("methods", "rollout")
    assert one.code == 0 and "discard_ratio=0.0" in one.out and "Abnar & Zuidema" in one.out
    assert all(name in relprop_says("methods").out for name in METHODS)
    assert relprop_says("methods", "nonsense").code == 2


def test_doctor_reports_this_installation(relprop_says):
    said = relprop_says("doctor", "--json")
    found = json.loads(said.out)
    assert (
        said.code == 0
        and found["ok"]
        and found["versions"]["torch"] == metadata.version("torch")
        and found["memory"]["cpu"] > 0
    )
    words = relprop_says("doctor")
    assert (
        words.code == 0
        and "no problem found" in words.out
        and metadata.version("timm") in words.out
    )


FAKES = {
    "its requirement says so": (
        "==2.1.0",
        "",
        "torchvision 0.16.0 was made for torch ==2.1.0, and",
    ),
    "only its import says so": (
        "",
        "raise RuntimeError('operator torchvision::nms does not exist')",
        "does not work with torch",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("wants, body, complaint", FAKES.values(), ids=FAKES)
def test_doctor_finds_a_torchvision_made_for_another_torch(tmp_path, wants, body, complaint):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(body)
    (tmp_path / "torchvision-0.16.0.dist-info").mkdir()
    (tmp_path / "torchvision-0.16.0.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torchvision\nVersion: 0.16.0\nRequires-Dist: torch{wants}\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from relprop.cli import "
        "main; main(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert (
        f"PROBLEM: torchvision 0.16.0 {complaint.removeprefix('torchvision 0.16.0 ')}"
        in done.stdout
    )
    torch_version = metadata.version("torch").partition("+")[0]
    assert (
        f'pip install --upgrade --force-reinstall "torch=={torch_version}" torchvision'
        in done.stdout
    )
    assert "nms does not exist" in done.stdout or wants


@pytest.mark.slow
def test_commands_that_meet_such_a_torchvision_send_to_the_doctor(tmp_path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from relprop.cli import "
        "main; main(['check', '--model', 'demo:digits'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "Traceback" not in done.stderr
        and "then  relprop doctor" in done.stderr
    ), done.stderr


def test_doctor_says_what_to_type_for_an_extra(monkeypatch):
    real = doctor.version
    monkeypatch.setattr(
        doctor,
        "version",
        lambda name: (
            {"matplotlib": None, "captum": "0.1"}.get(name, real(name))
            if name in ("matplotlib", "captum")
            else real(name)
        ),
    )
    found = {extra.name: extra for extra in doctor.missing_extras()}
    assert (
        found["plot"].missing == ("matplotlib >=3.8",)
        and found["plot"].command == 'pip install "relprop[plot]"'
    )
    assert str(found["plot"]).startswith("missing      pictures (explanation.plot")
    assert str(found["report"]).startswith("works        reports to look into")
    assert set(found) == set(doctor.BRINGS)
    assert found["captum"].missing == ("captum >=0.9",) and not set(found) & set(
        doctor.NOT_FOR_USERS
    )


def test_demo_overwrites_only_if_told(relprop_says, tmp_path):
    out = tmp_path / "demo.png"
    out.write_text("mine")
    said = relprop_says("demo", "--out", out)
    assert said.code == 1 and "--force" in said.err and out.read_text() == "mine"
    said = relprop_says("demo", "--out", out, "--force", "--json")
    assert (
        said.code == 0
        and json.loads(said.out)["picture"] == str(out)
        and out.read_bytes()[:4] == b"\x89PNG"
    )


@pytest.mark.slow
def test_a_data_sets_summary_as_json(relprop_says, tmp_path):
    said = relprop_says(
        "explain",
        "--data",
        "demo:reviews",
        "--model",
        "demo:reviews",
        "--limit",
        2,
        "--out",
        tmp_path / "прогон 1",
        "--rules",
        "stable",
        "--json",
    )
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert found["complete"] and found["done"] == 2
    assert (
        relprop_says(
            "explain",
            "--data",
            "demo:reviews",
            "--model",
            "demo:reviews",
            "--out",
            tmp_path / "прогон 1",
        ).code
        == 1
    )
    shutil.rmtree(tmp_path / "прогон 1")
