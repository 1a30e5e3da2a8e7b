"""``relprop compile``: the file it writes explains as the library does."""

import json

import pytest
import torch
from torch._inductor.exc import InvalidCxxCompiler

import relprop
from relprop.demo.review_model import review_model, review_tokenizer

REVIEW = "a wonderful film but the plot is dull"
OTHER = "a tedious film but the end is fun"
COMMAND = ("compile", REVIEW, "--model", "demo:reviews", "--method", "attention_grad")


@pytest.mark.slow
def test_the_file_explains_other_texts_of_that_length(relprop_says, tmp_path):
    out = tmp_path / "отзыв.pt2"
    said = relprop_says(*COMMAND, "-o", out)
    assert said.code == 0, said.err
    assert "input_ids int64 (batch, " in said.out and f"written: {out}" in said.out
    tokenizer = review_tokenizer()
    loaded = relprop.load_explainer(out, processor=tokenizer)
    found = loaded([REVIEW, OTHER], ["positive", "negative"])
    own = relprop.explain(
        review_model(),
        [REVIEW, OTHER],
        ["positive", "negative"],
        method="attention_grad",
        processor=tokenizer,
    )
    torch.testing.assert_close(found.scores, own.scores, rtol=0, atol=1e-6)
    assert found.tokens == own.tokens and found.target == own.target
    assert relprop_says(*COMMAND, "--out", out).code == 1  # it exists
    as_json = relprop_says(*COMMAND, "--out", out, "--force", "--json")
    assert json.loads(as_json.out)["written"] == str(out)


def test_what_is_refused(relprop_says, tmp_path):
    for wrong, fact in (
        ((), "compile writes one file"),
        (("--out", tmp_path / "x.zip"), "the ending says what is written: .safetensors, .pt2"),
    ):
        said = relprop_says(*COMMAND, *wrong)
        assert said.code == 2 and fact in said.err
    out = ("--out", tmp_path / "x.pt2")
    said = relprop_says("compile", "--model", "demo:reviews", *out)
    assert said.code == 2 and "compile needs an input" in said.err
    said = relprop_says(*COMMAND[:-1], "integrated_gradients", *out)
    assert said.code == 1 and "runs the model several times" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_missing_compiler_is_said(relprop_says, tmp_path, monkeypatch):
    def none(*given, **options):
        raise InvalidCxxCompiler

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", none)
    said = relprop_says(*COMMAND, "--out", tmp_path / "x.pt2", "--ahead-of-time")
    assert said.code == 1 and "ahead_of_time=True needs a C++ compiler" in said.err
    assert not list(tmp_path.iterdir())
