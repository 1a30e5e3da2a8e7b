"""``relprop explain INPUT``: the numbers of ``relprop.explain``, in every file format, and one
clear sentence for what is refused."""

import importlib
import io
import json
import sys

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.demo.scenes import make_scenes
from relprop.reporting import pooling
from relprop.runner import ask as runner_ask
from relprop.runner.recommended import BY_KIND
from tests.e2e.test_opening import CROPPED, clip, llama
from tests.e2e.test_opening import tokenizer as words

REVIEW = "a wonderful film but the plot is dull"


def test_a_text_is_explained_as_the_library_explains_it(relprop_says):
    said = relprop_says(
        "explain", REVIEW, "--model", "demo:reviews", "--json", "--precision", "float64"
    )
    assert said.code == 0 and not said.err, said.err
    expected = relprop.explain(
        review_model(), REVIEW, processor=review_tokenizer(), precision="float64"
    )
    (sample,) = json.loads(said.out)["samples"]
    found = sample["inputs"]["input_ids"]
    torch.testing.assert_close(
        torch.tensor(found["scores"], dtype=torch.float64),
        expected.scores[0],
        rtol=1e-9,
        atol=1e-12,
    )
    assert (
        sample["target"] == expected.target[0]
        and [w["text"] for w in found["words"]] == REVIEW.split()
    )
    assert max(found["words"], key=lambda w: w["score"])["text"] == "wonderful"


def test_the_recommended_method_is_taken_by_what_is_given(relprop_says):
    said = relprop_says(
        "explain", REVIEW, "--model", "demo:reviews", "--json", "--method", "recommended"
    )
    assert said.code == 0, said.err
    assert json.loads(said.out)["method"] == BY_KIND["texts"][0]


@pytest.mark.slow
def test_memory_reaches_the_library(relprop_says, monkeypatch):
    asked = []

    def noted(make, batch, memory, device):
        asked.append(memory)
        return make(None)

    monkeypatch.setattr(runner_ask, "fitted", noted)
    command = ("explain", REVIEW, "--model", "demo:reviews")
    for given in ("4e9", "auto", "none"):
        assert relprop_says(*command, "--memory", given).code == 0
    assert asked == [4 * 10**9, "auto", None]


@pytest.mark.slow
def test_books_are_printed_where_they_are_asked_for(relprop_says, tmp_path):
    exact = ("--precision", "float64")
    command = ("explain", REVIEW, "--model", "demo:reviews", "--method", "attnlrp", *exact)
    model, how = review_model(), {"processor": review_tokenizer(), "precision": "float64"}
    own = relprop.explain(model, REVIEW, method="attnlrp", ledger=True, **how)
    assert "constant term of the softmax" in str(own.ledger)
    plain, asked, none = (
        relprop_says(*command, *more) for more in ((), ("--ledger",), ("--no-ledger",))
    )
    assert plain.out == none.out and "softmax" not in plain.out
    assert plain.out.splitlines()[-1] in asked.out and str(own.ledger) in asked.out
    out = tmp_path / "x.safetensors"
    written = relprop_says(*command, "--ledger", "--out", out)
    assert str(own.ledger) in written.out and f"written: {out}" in written.out
    assert relprop.load(out).ledger is not None
    both = relprop_says("compare", *command[1:], "--method", "rollout", "--ledger")
    assert f"attnlrp\n{own.ledger}" in both.out and "rollout\nwalk" not in both.out
    data = ("--data", "demo:reviews", "--out", tmp_path / "run")
    for option in ("--ledger", "--no-ledger"):
        refused = relprop_says("explain", "--model", "demo:reviews", *data, option)
        assert refused.code == 2 and "--ledger: only for inputs that are named" in refused.err


@pytest.mark.parametrize("given", ["much", "inf", "nan"])
def test_memory_that_is_no_number_is_refused(relprop_says, given):
    said = relprop_says("explain", REVIEW, "--model", "demo:reviews", "--memory", given)
    assert said.code == 2 and f"--memory {given}: a number of bytes, auto or none" in said.err


def test_the_terminal_shows_the_words_that_count(relprop_says):
    said = relprop_says(
        "explain", REVIEW, "--model", "demo:reviews", "--target", "negative", "--target", 1
    )
    assert said.code == 0 and "negative" in said.out and "positive" in said.out
    for word in REVIEW.split():
        assert said.out.count(word) >= 2  # once per target


def test_text_from_a_file_and_from_standard_input(relprop_says, tmp_path, monkeypatch):
    (tmp_path / "отзыв 1.txt").write_text(REVIEW + "\n", encoding="utf-8")
    shared = ("--model", "demo:reviews", "--json")
    literal = relprop_says("explain", REVIEW, *shared)
    assert (
        relprop_says("explain", "--text-file", tmp_path / "отзыв 1.txt", *shared).out == literal.out
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(REVIEW.encode() + b"\r\n")))
    assert relprop_says("explain", "-", *shared).out == literal.out
    said = relprop_says("explain", tmp_path / "отзыв 1.txt", *shared)
    assert said.code == 2 and "--text-file" in said.err


def test_longer_texts_are_cut_if_asked(relprop_says):
    said = relprop_says(
        "explain", "good " * 200, "--model", "demo:reviews", "--max-length", 16, "--json"
    )
    assert (
        said.code == 0
        and len(json.loads(said.out)["samples"][0]["inputs"]["input_ids"]["scores"]) == 16
    )


@pytest.fixture
def asked(monkeypatch):
    """What ``explain_many`` was asked to keep, one entry per call."""
    found, whole = [], importlib.import_module("relprop.api.explain").explain_many

    def explain_many(*arguments, keep, **options):
        found.append(keep)
        return whole(*arguments, keep=keep, **options)

    monkeypatch.setattr("relprop.api.explain.explain_many", explain_many)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "kept"), [(4096, ("blocks", "matrix")), (5, ("blocks",))], ids=["shown", "summed"]
)
def test_c_is_asked_for_only_if_the_page_shows_it(
    cells, kept, relprop_says, asked, tmp_path, monkeypatch
):
    """A page sums the scores of too many words over neighbours, and such a sum has no row of C."""
    monkeypatch.setattr(pooling, "MOST_CELLS", cells)
    for ending in (".html", ".json"):
        out = tmp_path / f"page{ending}"
        said = relprop_says("explain", REVIEW, "--model", "demo:reviews", "--out", out)
        assert said.code == 0, said.err
    assert asked == [kept, ()]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert ('"matrix":null' in page.replace(" ", "")) == (cells == 5)


@pytest.mark.slow
def test_a_page_of_a_model_whose_tokens_are_merged_between_blocks(relprop_says, tmp_path, photo):
    """There is no C of one sequence; everything else is on the page."""
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    transformers.SwinForImageClassification(config).save_pretrained(tmp_path / "swin")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path / "swin")
    out = tmp_path / "page.html"
    said = relprop_says("explain", photo, "--model", tmp_path / "swin", "--out", out)
    assert said.code == 0, said.err
    assert '"matrix":null' in out.read_text(encoding="utf-8").replace(" ", "")


def test_a_picture_with_every_kind_of_file(relprop_says, folders, photo, tmp_path):
    outs = [tmp_path / f"карта 1{ending}" for ending in (".png", ".safetensors", ".json", ".html")]
    said = relprop_says(
        "explain",
        photo,
        "--model",
        folders.image,
        "--target",
        "дом",
        "--target",
        0,
        *(a for out in outs for a in ("--out", out)),
    )
    assert said.code == 0, said.err
    assert all(f"written: {out}" in said.out for out in outs)
    import transformers

    model, processor = (
        transformers.AutoModelForImageClassification.from_pretrained(folders.image).eval(),
        transformers.AutoImageProcessor.from_pretrained(folders.image),
    )
    expected = relprop.explain_many(model, PIL.Image.open(photo), [2, 0], processor=processor)
    saved, written = relprop.load(outs[1]), json.loads(outs[2].read_text(encoding="utf-8"))
    for i, e in enumerate(expected):
        assert (saved.scores[i] - e.scores[0]).abs().max() <= 1e-5 * e.scores.abs().max()
        np.testing.assert_allclose(
            written["samples"][i]["inputs"]["pixel_values"]["scores"],
            e.scores[0].tolist(),
            rtol=1e-4,
            atol=1e-8,
        )
    picture = np.asarray(PIL.Image.open(outs[0]).convert("RGB"))
    assert (
        picture.std() > 20 and picture.shape[1] > 2.5 * picture.shape[0]
    )  # the input and two maps beside each other
    page = outs[3].read_text(encoding="utf-8")
    assert (
        "Content-Security-Policy" in page
        and ("дом" in page or json.dumps("дом")[1:-1] in page)
        and "rows of C were not kept" not in page
    )
    assert not list(tmp_path.glob(".*")), "unfinished files are left"


def test_the_shipped_digits_and_a_picture_on_standard_input(relprop_says, tmp_path, monkeypatch):
    scene = make_scenes(1, seed=8)
    pixels = (scene.images[0, 0] * 255).round().byte()
    PIL.Image.fromarray(pixels.numpy()).save(tmp_path / "scene.png")
    said = relprop_says(
        "explain", tmp_path / "scene.png", "--model", "demo:digits", "--target", 2, "--json"
    )
    expected = relprop.explain(
        digit_scene_model(), pixels[None, None].float() / 255, target=2
    ).scores[0]
    (sample,) = json.loads(said.out)["samples"]
    np.testing.assert_allclose(
        sample["inputs"]["input_0"]["scores"], expected.tolist(), rtol=1e-4, atol=1e-8
    )
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "scene.png").read_bytes()))
    )
    assert (
        relprop_says("explain", "-", "--model", "demo:digits", "--target", 2, "--json").out
        == said.out
    )


def test_a_timm_model_in_a_folder(relprop_says, photo, tmp_path):
    import timm

    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=16,
        depth=1,
        num_heads=2,
        num_classes=3,
    ).eval()
    timm.models.save_for_hf(
        model,
        tmp_path / "vit",
        model_args={"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2},
        safe_serialization=True,
    )
    said = relprop_says(
        "explain",
        photo,
        "--model",
        tmp_path / "vit",
        "--json",
        "--method",
        "rollout:discard_ratio=0.5",
    )
    assert said.code == 0, said.err
    expected = relprop.explain(
        model, PIL.Image.open(photo).convert("RGB"), method="rollout", discard_ratio=0.5
    )
    (sample,) = json.loads(said.out)["samples"]
    np.testing.assert_allclose(
        next(iter(sample["inputs"].values()))["scores"],
        expected.scores[0].tolist(),
        rtol=1e-4,
        atol=1e-8,
    )


@pytest.mark.slow
def test_a_picture_and_a_text_together(relprop_says, photo, tmp_path):
    import transformers

    clip().save_pretrained(tmp_path / "clip")
    transformers.CLIPProcessor(CROPPED, words()).save_pretrained(tmp_path / "clip")
    shared = ("explain", photo, "--text", "really art", "--model", tmp_path / "clip")
    said = relprop_says(*shared, "--json")
    assert said.code == 0, said.err
    assert set(json.loads(said.out)["samples"][0]["inputs"]) == {"input_ids", "pixel_values"}
    said = relprop_says(*shared, "--out", tmp_path / "x.png")
    assert (
        said.code == 1 and "--stream pixel_values" in said.err and not (tmp_path / "x.png").exists()
    )
    assert (
        relprop_says(*shared, "--stream", "pixel_values", "--out", tmp_path / "x.png").code == 0
        and (tmp_path / "x.png").exists()
    )


def test_a_language_models_token(relprop_says, tmp_path):
    llama().save_pretrained(tmp_path / "llm")
    words(special=False).save_pretrained(tmp_path / "llm")
    shared = ("explain", "the film was", "--model", tmp_path / "llm", "--json")
    said = relprop_says(*shared, "--target", "token:good")
    expected = relprop.explain(
        tmp_path / "llm", "the film was", relprop.targets.token("good", words(special=False))
    )
    (sample,) = json.loads(said.out)["samples"]
    assert said.code == 0 and sample["target"] == [
        2,
        9,
    ]  # after the last word, the vocabulary's ninth
    np.testing.assert_allclose(
        sample["inputs"]["input_ids"]["scores"], expected.scores[0].tolist(), rtol=1e-4, atol=1e-8
    )
    said = relprop_says(*shared, "--target", "token:unheard")
    assert said.code == 1 and "unheard" in said.err


def test_rules_and_method_options(relprop_says):
    said = relprop_says(
        "explain",
        REVIEW,
        "--model",
        "demo:reviews",
        "--rules",
        "stable",
        "--method",
        "transformer_attribution:normalize_rows=true",
        "--json",
    )
    expected = relprop.explain(
        review_model(), REVIEW, processor=review_tokenizer(), rules="stable", normalize_rows=True
    )
    found = json.loads(said.out)
    assert found["rules"] == "stable"
    np.testing.assert_allclose(
        found["samples"][0]["inputs"]["input_ids"]["scores"],
        expected.scores[0].tolist(),
        rtol=1e-4,
        atol=1e-8,
    )


def test_nothing_is_overwritten_unasked(relprop_says, tmp_path):
    out = tmp_path / "было.json"
    out.write_text("mine")
    shared = ("explain", REVIEW, "--model", "demo:reviews", "--out", out)
    said = relprop_says(*shared)
    assert (
        said.code == 1
        and "exists already" in said.err
        and "--force" in said.err
        and out.read_text() == "mine"
    )
    assert (
        relprop_says(*shared, "--target", "nonsense", "--force").code == 1
        and out.read_text() == "mine"
    )
    assert relprop_says(*shared, "--force").code == 0 and json.loads(out.read_text())["samples"]


REVIEWS = ("--model", "demo:reviews")


@pytest.mark.parametrize(
    "code, arguments, complaint",
    [
        (2, [*REVIEWS], "explain needs an input or a data set"),
        (2, ["good", *REVIEWS, "--data", "demo:reviews"], "give one of them"),
        (2, ["good"], "--model"),
        (2, ["good", *REVIEWS, "--limit", "3"], "--limit: only with --data"),
        (
            2,
            [*REVIEWS, "--data", "demo:reviews", "--out", "x", "--force"],
            "--force: only for inputs that are named",
        ),
        (2, [*REVIEWS, "--data", "demo:reviews"], "--data needs one run folder"),
        (2, ["good", *REVIEWS, "--text", "bad"], "another one is given"),
        (2, ["--text", "a", "--text-file", "b", *REVIEWS], "two texts"),
        (2, ["good", *REVIEWS, "--out", "x.gif"], ".png, .html, .safetensors, .json"),
        (2, ["good", *REVIEWS, "--out", "x.png", "--out", "x.png"], "given twice"),
        (2, ["good", *REVIEWS, "--method", "nonsense"], "'nonsense' is no method"),
        (2, ["good", *REVIEWS, "--method", "rollout:processor=1"], "has no option 'processor'"),
        (2, ["good", *REVIEWS, "--method", "rollout:discard"], "name=value is wanted"),
        (2, ["good", *REVIEWS, "--method", "rollout", "--method", "lrp"], "relprop compare"),
        (2, ["good", *REVIEWS, "--method", "lrp:rules=paper", "--rules", "stable"], "give one"),
        (2, [".", *REVIEWS], "is a folder"),
        (1, ["no such cat.png", *REVIEWS], "there is no file 'no such cat.png'"),
        (1, ["a text", "--model", "demo:digits"], "there is no file 'a text'"),
        (1, ["", *REVIEWS], "is empty"),
        (1, ["--text-file", "nowhere.txt", *REVIEWS], "'nowhere.txt' cannot be read"),
        (1, ["good", *REVIEWS, "--target", "positiv"], "--target 'positive'"),
        (1, ["good", *REVIEWS, "--target", "7"], "7"),
        (1, ["good", *REVIEWS, "--rules", "nonsense"], "nonsense"),
        (1, ["good", *REVIEWS, "--out", "nowhere/x.png"], "does not exist"),
        (1, ["good", "--model", "."], "holds no config.json"),
        (1, ["notpicture.jpg", "--model", "demo:digits"], "no picture can be read"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_refusals(relprop_says, tmp_path, monkeypatch, code, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notpicture.jpg").write_text("this is no picture")
    said = relprop_says("explain", *arguments)
    assert said.code == code and complaint in said.err and not said.out, said


def test_a_picture_for_a_model_of_texts(relprop_says, folders, photo):
    said = relprop_says("explain", photo, "--model", folders.text)
    assert said.code == 1 and "a picture is given" in said.err and "reads texts" in said.err
