"""What a person reads off a result: shares beside scores, samples one by one, labels, plain words,
tables in a notebook; and files of the kind that their name says."""

import html
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import relprop
from relprop.errors import OptionError
from relprop.methods import METHODS, available
from relprop.methods.tiers import ARCHIVE, RECOMMENDED, place
from tests.common.sizes import digits
from tests.views.conftest import explain_texts


@pytest.fixture(scope="module")
def texts():
    return explain_texts()


@pytest.fixture(scope="module")
def images():
    kept = ("blocks", "matrix", "input")
    return relprop.explain(digits(), torch.rand(3, 1, 32, 32), [3, 1, 4], keep=kept)


def test_shares_of_words_and_of_the_strongest(texts):
    scores, shares = texts.words(0), texts.words(0, share=True)
    total = sum(abs(score) for _, score in scores)
    assert sum(abs(share) for _, share in shares) == pytest.approx(1)
    for (word, score), (same, share) in zip(scores, shares, strict=True):
        assert word == same and share == pytest.approx(score / total)
    (first, share), *_ = texts.top(1, share=True)
    assert (first, share) == (texts.top(1)[0][0], pytest.approx(texts.top(1)[0][1] / total))


def test_samples_one_by_one(images):
    _, second, third = images
    assert third.target == (4,) and len(images[1:]) == 2 and images[-1].target == (4,)
    assert torch.equal(second.scores, images.scores[1:2]) and second.source is images.source
    assert torch.equal(second.matrix, images.matrix[1:2])
    assert torch.equal(second.blocks[0].gradient, images.blocks[0].gradient[1:2])
    totals = images.ledger.totals()
    assert all(torch.equal(t, totals[k][1:2]) for k, t in second.ledger.totals().items())
    with pytest.raises(OptionError, match="has 3 samples"):
        images[3]
    with pytest.raises(OptionError, match="explained inputs are"):
        images["3"]


def test_samples_of_texts_keep_their_words(texts):
    for i, one in enumerate(texts):
        assert one.words() == texts.words(i) and one.summary() == texts.summary(i)
        assert one.labels == texts.labels[i : i + 1]


def test_the_repr_names_the_label(texts):
    assert repr(texts.labels[0]) in repr(texts)


def test_a_map_that_is_the_same_everywhere_is_said_to_be(images):
    name, stream = next(iter(images.streams.items()))
    even = replace(stream, scores=torch.rand(3, 65) * 0.01 + 1)
    said = replace(images, streams={name: even}).summary()
    assert "rests on all 64 patches alike" in said.replace("parts", "patches")
    assert "alike" not in images.summary()


def test_the_page_of_methods_has_each_in_plain_words():
    """One row per method, of its own; four columns, which a phone has room for."""
    page = (Path(__file__).parents[2] / "docs/methods.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[?`(\w+)`.*? \| (.*?)<br>.*? \| (\w+) \| ([\w ]+) \|", page, re.M)
    assert [name for name, *_ in rows] == sorted(METHODS, key=place)
    assert [line.split()[0] for line in str(available()).splitlines()[1:]] == [n for n, *_ in rows]
    assert set(RECOMMENDED) | set(ARCHIVE) < set(METHODS)
    for name, plain, of_a_class, signed in rows:
        method = METHODS[name]
        assert plain == method.plain and not plain.startswith("the same")
        assert of_a_class == ("yes" if method.class_specific else "no")
        assert (signed != "no") == method.signed


def test_every_method_is_described_whole_and_in_plain_words():
    for method in METHODS.values():
        assert method.plain and not set(method.plain) & set("∇∂Σ⊙²^"), method.name
        assert method.description.count("(") == method.description.count(")"), method.name
    assert METHODS["attention_times_grad"].description.startswith("Σ over blocks of E_h (A ⊙ ∂y")
    assert METHODS["vit_cx"].signed and METHODS["rollout"].plain in str(available())


def test_what_is_shown_last_in_a_cell_or_a_prompt_is_its_table(images):
    model, x = digits(), torch.rand(1, 1, 32, 32)
    e = relprop.explain(model, x, 3)
    for shown, first in (
        (e.ledger, "ledger over "),
        (e.sinks(), "mean of the samples"),
        (relprop.check(model, x), "check: ok"),
        (relprop.compare(model, x, ["gae", "attnlrp"]), "2 methods, 1 sample, "),
    ):
        assert repr(shown) == str(shown) and str(shown).startswith(first)
    apart = "attnlrp scores 1024 parts of 'input_0', so that its ranks are not compared"
    assert apart in str(shown) and html.escape(apart) in shown._repr_html_()


def test_tables_in_a_notebook(images):
    compared = relprop.compare(digits(), torch.rand(2, 1, 32, 32), target=3)
    report = relprop.check(digits(), torch.rand(1, 1, 32, 32))
    for shown in (compared, report, available()):
        page = shown._repr_html_()
        assert page.count("<table>") == 1 and page.count("<tr>") > 3 and "<script" not in page
    assert "check: ok" in report._repr_html_() and "1.00" in compared._repr_html_()


@pytest.mark.parametrize(
    ("name", "then"), [("x.png", "savefig"), ("x.HTML", "to_html"), ("x.csv", "to_dataframe")]
)
def test_a_name_of_another_kind_of_file_is_refused(name, then, texts, tmp_path):
    with pytest.raises(OptionError, match=then):
        texts.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_files_have_the_permissions_of_any_new_file(texts, tmp_path):
    (tmp_path / "other").touch()
    texts.save(tmp_path / "e.safetensors")
    usual = (tmp_path / "other").stat().st_mode
    assert (tmp_path / "e.safetensors").stat().st_mode == usual
    os.chmod(tmp_path / "e.safetensors", 0o600)
    texts.save(tmp_path / "e.safetensors")
    assert (tmp_path / "e.safetensors").stat().st_mode & 0o777 == 0o600
    assert {p.name for p in Path(tmp_path).iterdir()} == {"other", "e.safetensors"}
