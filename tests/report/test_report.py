"""The report's file without a browser: its policy, its size, its rounding, its code, and what it
refuses."""

import base64
import hashlib
import io
import json
import re
import sys
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import relprop
from relprop.errors import InputError, OptionError, RelpropWarning
from relprop.reporting.chunks import png
from relprop.reporting.maps import LEVELS, rounded
from relprop.reporting.pooling import pooled_tokens
from relprop.runs.fingerprints import of_model
from tests.common.models import build, sample
from tests.common.rows import only
from tests.common.sizes import digits
from tests.report.conftest import HOSTILE, worded


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(), re.S)[1])


def chunk(path, number, kind=np.float32):
    text = re.search(rf'id="chunk-{number}">(.*?)</script>', path.read_text())[1]
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), kind)


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    images = torch.rand(2, 1, 32, 32)
    return relprop.explain(digits(), images, 3, keep=("blocks", "matrix"))


def test_the_policy_allows_the_one_script_and_the_one_style_by_hash(scenes):
    text = scenes.path.read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1].replace("&#39;", "'")
    assert (
        policy.startswith("default-src 'none'; ")
        and "unsafe" not in policy
        and "http" not in policy
    )
    for tag, body in (
        ("script", re.search(r"<script>(.*?)</script>", text, re.S)[1]),
        ("style", re.search(r"<style>(.*?)</style>", text, re.S)[1]),
    ):
        assert (
            f"{tag}-src "
            f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
        ) in policy
    assert text.count("<script>") == 1 and not re.search(r"(?:src|href)=\"(?!#|data:)", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text
    )


def test_hostile_text_is_no_markup_in_the_file(tmp_path):
    path = relprop.report(
        replace(worded(HOSTILE), target=(HOSTILE[1],)),
        tmp_path / "r.html",
        title=HOSTILE[1],
        code=HOSTILE[0] + "\ud800",
    )
    text = path.read_text()
    inside = re.search(r'id="data">(.*?)</script>', text, re.S)[1]
    assert (
        not set("<>&") & set(inside)
        and inside.isascii()
        and "<img" not in text
        and "alert(1)" in text
    )
    assert (
        data_of(path)["explanations"][0]["samples"][0]["streams"][0]["tokens"] == HOSTILE
        and data_of(path)["title"] == HOSTILE[1]
    )


@given(st.sampled_from(LEVELS), st.integers(0, 10_000), st.sampled_from([1e-30, 1e-3, 1.0, 1e20]))
def test_rounding_stays_within_its_resolution(level, seed, scale):
    maps = np.random.default_rng(seed).standard_normal((3, 4, 5)).astype(np.float32) * np.float32(
        scale
    )
    maps[1] = 0
    for axes in ((1, 2), (2,)):
        found, steps = rounded(maps, level, axes)
        steps = steps.reshape([1 if k in axes else n for k, n in enumerate(maps.shape)])
        error, largest = (
            np.abs(found * steps - maps),
            np.abs(maps).max(axis=axes, keepdims=True),
        )
        assert (error <= largest / level * 1.001).all() and found.dtype == (
            np.int16 if level > 255 else np.int8
        )


def test_scores_and_c_are_the_float32_numbers(small, tmp_path):
    path = small.to_html(tmp_path / "r.html")
    for n, one in enumerate(data_of(path)["explanations"][0]["samples"]):
        stream = one["streams"][0]
        assert np.array_equal(
            chunk(path, stream["scores"]), small.scores[n].numpy()
        ) and np.array_equal(
            chunk(path, stream["matrix"]["chunk"]), small.matrix[n].numpy().ravel()
        )


def test_a_large_report_keeps_to_the_limit(large):
    blocks = data_of(large.path)["explanations"][0]["samples"][0]["blocks"]
    assert large.path.stat().st_size <= 5e6 and len(blocks) == 12
    for block in blocks:
        assert all(
            block[k]["heads"] == 12 and block[k]["rows"] is None and block[k]["mean_rows"] is None
            for k in ("attention", "gradient", "relevance")
        )


@pytest.mark.parametrize("megabytes", only([0.4], [3.0, 0.4]))
def test_a_smaller_limit_costs_resolution_then_rows(large, tmp_path, megabytes):
    e = large.explanations[0]
    path = e.to_html(tmp_path / "r.html", megabytes=megabytes)
    one = data_of(path)["explanations"][0]["samples"][0]
    block = one["blocks"][5]
    assert 0.6 * megabytes * 1e6 < path.stat().st_size <= megabytes * 1e6
    assert block["attention"]["level"] < 255 and (block["attention"]["rows"] is not None) == (
        megabytes == 0.4
    )
    if megabytes == 0.4:
        rows = block["attention"]["rows"]
        best = set(e.scores[0].abs().argsort(descending=True, stable=True)[: len(rows)].tolist())
        assert 0 < len(rows) < 197 and set(rows) == best
        kept = chunk(path, block["attention"]["values"], np.int8).reshape(12, len(rows), 197)[
            4
        ] * np.float32(block["attention"]["steps"][4])
        whole = e.blocks[5].attention[0, 4].numpy()
        assert (
            np.abs(kept - whole[rows]).max() <= whole.max() / block["attention"]["level"] * 1.0001
        )


def test_a_limit_that_cannot_be_kept_is_warned_of(small, tmp_path):
    with pytest.warns(RelpropWarning, match=r"the report has 0\.\d MB, more than 0\.0"):
        small.to_html(tmp_path / "r.html", megabytes=0.02)


def test_attention_is_there_once_for_all_targets(tmp_path):
    many = relprop.explain_many(digits(), torch.rand(1, 1, 32, 32), [3, 8], keep="blocks")
    one, other = (
        e["samples"][0]["blocks"][2]
        for e in data_of(relprop.report(many, tmp_path / "r.html"))["explanations"]
    )
    assert one["attention"] == other["attention"] and one["gradient"] != other["gradient"]


def test_many_tokens_are_summed_with_nothing_lost():
    stream = next(iter(relprop.explain(build(), sample(), target=1).streams.values()))
    big = replace(
        stream,
        scores=torch.randn(2, 5001, dtype=torch.float64),
        row=torch.randn(2, 5001),
        identity=torch.zeros(2, 5001),
        content=torch.ones(2, 5001).bool(),
        source=torch.arange(5001),
    )
    pooled, note = pooled_tokens(big)
    assert (
        pooled.scores.shape == (2, 1001)
        and torch.allclose(pooled.scores.double().sum(1), big.scores.sum(1), rtol=1e-5)
        and "5 of them" in note
    )
    assert torch.allclose(
        pooled.scores[0, 7].double(), big.scores[0, 35:40].sum(), rtol=1e-6
    ) and pooled_tokens(stream) == (stream, None)


@pytest.mark.parametrize("shape", [(1, 9, 5), (3, 600, 300)])
def test_pictures_are_png(shape):
    picture = torch.rand(shape)
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(png(picture, 448).partition(",")[2]))))
    if max(shape) <= 448:
        assert np.array_equal(read, (picture[0] * 255).round().to(torch.uint8).numpy())
    else:
        assert read.shape == (448, 224, 3) and abs(read.mean() / 255 - float(picture.mean())) < 2e-3


@pytest.mark.parametrize(
    "options",
    only(
        [{"layers": [-1], "normalize_rows": True, "head_fusion": "max"}],
        [
            {},
            {"layers": [-1], "normalize_rows": True, "head_fusion": "max"},
            {"method": "gae"},
            {"method": "input_gradient"},
        ],
    ),
)
def test_the_code_in_the_report_makes_it_again(options, tmp_path, monkeypatch):
    model, images = digits(), torch.rand(2, 1, 32, 32)
    e = relprop.explain(model, images, target=[3, 5], **options)
    code = data_of(e.to_html(tmp_path / "r.html", model=model))["explanations"][0]["code"]
    assert of_model(model)["weights"][:16] in code
    scope = {}
    monkeypatch.chdir(tmp_path)
    ready = code.replace("model = ...", "model = GIVEN[0]").replace(
        "inputs = ...", "inputs = GIVEN[1]"
    )
    exec(compile(ready, "report", "exec"), scope | {"GIVEN": (model, images)}, scope)
    assert (
        torch.equal(scope["explanation"].scores, e.scores) and (tmp_path / "report.html").exists()
    )


def test_the_code_says_where_a_target_is_no_number(tmp_path):
    def margin(output):
        return output[0, 3] - output[0, 5]

    e = relprop.explain(digits(), torch.rand(1, 1, 32, 32), margin)
    assert re.search(
        r"target=\.\.\., .*# target: margin",
        data_of(e.to_html(tmp_path / "r.html"))["explanations"][0]["code"],
    )


def test_what_it_says_of_model_and_versions(small, tmp_path):
    model = digits()
    data = data_of(small.to_html(tmp_path / "r.html", model=model))
    assert (
        dict(data["model"]) == of_model(model)
        and dict(data["versions"])["torch"] == torch.__version__
    )
    assert dict(data["explanations"][0]["facts"])["rule set"] == "paper"
    assert data_of(small.to_html(tmp_path / "r.html"))["model"] is None


def test_comparisons_and_mappings_give_names(tmp_path):
    comparison = relprop.compare(
        digits(),
        torch.rand(1, 1, 32, 32),
        ["rollout", ("gae", {"layers": [-1]})],
        target=3,
    )
    labels = [
        e["label"] for e in data_of(relprop.report(comparison, tmp_path / "r.html"))["explanations"]
    ]
    assert labels == ["rollout", "gae"]
    one = comparison["gae"]
    assert [
        e["label"] for e in data_of(relprop.report([one, one], tmp_path / "r.html"))["explanations"]
    ] == ["gae", "gae (2)"]
    assert [
        e["label"]
        for e in data_of(relprop.report({"mine": one}, tmp_path / "r.html"))["explanations"]
    ] == ["mine"]


BAD = {
    "nothing": (lambda e: relprop.report([], "r.html"), OptionError, "not of an empty list"),
    "no explanation": (
        lambda e: relprop.report([torch.ones(2)], "r.html"),
        OptionError,
        "not of Tensor",
    ),
    "two batches": (
        lambda e: relprop.report(
            [e, relprop.explain(digits(), torch.rand(1, 1, 32, 32), 3)], "r.html"
        ),
        OptionError,
        "have 2, 1 samples",
    ),
    "limit": (
        lambda e: e.to_html("r.html", megabytes=0),
        OptionError,
        "megabytes=0: a positive number",
    ),
    "pictures' shape": (
        lambda e: e.to_html("r.html", pictures=torch.rand(2, 32, 32)),
        InputError,
        r"pictures is a tensor \(2, 1 or 3, H, W\), not \[2, 32, 32\]",
    ),
    "pictures' range": (
        lambda e: e.to_html("r.html", pictures=torch.full((2, 3, 4, 4), 2.0)),
        InputError,
        r"from 2 to 2, not in \[0, 1\]",
    ),
    "not finite": (
        lambda e: replace(e, output=torch.tensor([1.0, torch.nan])).to_html("r.html"),
        InputError,
        "transformer_attribution: the output holds NaN or infinite",
    ),
    "a map not finite": (
        lambda e: replace(
            e, blocks=(replace(e.blocks[0], gradient=e.blocks[0].gradient / 0),)
        ).to_html("r.html"),
        InputError,
        "gradient of blocks.0.attn holds NaN",
    ),
    "pictures' kind": (lambda e: e.to_html("r.html", pictures="cat.png"), InputError, "not str"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call(small)
    assert not (tmp_path / "r.html").exists()


def test_a_missing_extra_is_named(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(OptionError, match=r'pip install "relprop\[report\]"'):
        small.to_html(tmp_path / "r.html")
