"""Words for people: the strongest parts, one sentence, concerns, tables and JSON; labels and
probabilities as the model's config has them."""

import contextlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pandas
import pytest
import torch
import transformers as hf

import relprop
from relprop.errors import OptionError
from relprop.interpreter.accounts import Account
from relprop.interpreter.ledger import Ledger
from relprop.reporting.words import in_words
from relprop.views import audit
from tests.common.models import sample
from tests.common.sizes import digits
from tests.targets.models import Heads, bert, gpt2
from tests.views.conftest import explain_texts, small_bert, small_tokenizer


def with_scores(e, scores, **changes):
    stream = next(iter(e.streams.values()))
    made = torch.zeros_like(stream.scores)
    made[:] = torch.as_tensor(scores, dtype=made.dtype)
    return replace(e, streams={stream.name: replace(stream, scores=made, **changes)})


def test_top_is_the_largest_scores_in_order(texts, pictures):
    assert texts.top(3) == sorted(texts.words(0), key=lambda w: -w[1])[:3]
    content = [
        (t, float(s))
        for t, s, c in zip(texts.tokens[0], texts.scores[0], texts.content[0], strict=True)
        if c
    ]
    assert texts.top(100, by="tokens") == sorted(content, key=lambda p: -p[1])
    e = pictures[0]
    (first, score), *_ = e.top(4, 1)
    assert score == float(e.scores[1, 1:].max()) and 8 * first[0] + first[1] == int(
        e.scores[1, 1:].argmax()
    )
    assert with_scores(texts, 1.0).top(2, by="tokens") == [
        ("the", 1.0),
        ("film", 1.0),
    ]  # ties in order


def test_top_without_a_tokenizer_is_of_tokens():
    ids = torch.tensor([[1, 4, 5, 2]])
    e = relprop.explain(small_bert(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert {name for name, _ in e.top(10)} <= {"1", "2", "4", "5"} and e.summary()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t, p: t.top(0), r"top\(k=0\)"),
        (lambda t, p: t.top(2, 5), "sample=5"),
        (lambda t, p: p.top(2, by="words"), r"words\(\) needs"),
        (lambda t, p: t.top(2, by="patches"), "by='patches' is for images"),
        (lambda t, p: p.top(2, by="tokens"), "of an image"),
        (lambda t, p: t.summary(k=True), r"summary\(k=True\)"),
        (lambda t, p: t.summary(True), "sample=True"),
        (lambda t, p: t.concerns(-3), "sample=-3"),
    ],
    ids=range(8),
)
def test_bad_calls_are_refused(call, match, texts, pictures):
    with pytest.raises(OptionError, match=match):
        call(texts, pictures[0])


def test_labels_and_probabilities_are_the_configs(texts):
    model, tokenizer = small_bert(), small_tokenizer()
    with torch.no_grad():
        logits = model.double()(
            **tokenizer(["the film was not boring", "awful"], padding=True, return_tensors="pt")
        ).logits
    assert texts.labels == tuple(["negative", "positive"][k] for k in logits.argmax(1).tolist())
    assert torch.allclose(texts.probability, logits.softmax(1).max(1).values, atol=1e-9)
    other = explain_texts(target="positive")
    assert other.labels == ("positive", "positive") and torch.allclose(
        other.probability, logits.softmax(1)[:, 1], atol=1e-9
    )
    assert explain_texts(target=[1, 0]).labels == ("positive", "negative")
    assert explain_texts(target="positive", method="gradient_x_input").labels == (
        "positive",
        "positive",
    )


def test_probabilities_follow_the_kind_of_problem():
    tokenizer = small_tokenizer()

    def explained(target=0, **config):
        model = small_bert(**config).double()
        with torch.no_grad():
            logits = model(**tokenizer("awful", return_tensors="pt")).logits
        return relprop.explain(model, "awful", target, processor=tokenizer), logits

    e, logits = explained(problem_type="multi_label_classification")
    assert torch.allclose(e.probability, logits.sigmoid()[:, 0], atol=1e-9)
    e, _ = explained(problem_type="regression")
    assert e.probability is None and e.labels == ("negative",)
    e, logits = explained(id2label={0: "quality"})
    assert torch.allclose(e.probability, logits.sigmoid()[:, 0], atol=1e-9)


@pytest.mark.parametrize(
    "kind, of",
    [
        ("single_label_classification", lambda y: y.softmax(1)),
        ("multi_label_classification", torch.sigmoid),
        ("regression", None),
    ],
)
def test_any_module_may_say_what_kind_of_problem_it_solves(kind, of):
    model = Heads(lambda y: y).eval()
    model.config = SimpleNamespace(problem_type=kind)
    e = relprop.explain(model, sample(), 1)
    y = model(sample()).detach()
    if of is None:
        assert e.probability is None
    else:
        torch.testing.assert_close(e.probability.to(y), of(y)[:, 1])


def test_what_the_model_says_instead_is_said(tmp_path):
    """In words, on a page, in JSON and in a file; of labels that are true side by side nothing."""
    tokenizer, model = small_tokenizer(), small_bert()
    e = relprop.explain(model, ["the film was not boring", "awful"], processor=tokenizer)
    own = [p.label for p in e.predictions]
    assert own == list(e.labels) and all("the prediction" in e.summary(i) for i in (0, 1))
    other = relprop.explain(model, ["awful"] * 2, [0, 1], processor=tokenizer)
    for e in (other, relprop.load(other.save(tmp_path / "e.safetensors")), other[:2]):
        asked, instead = sorted((0, 1), key=lambda i: e.predictions[i].target == i)
        share = e.predictions[asked].probability
        said = f" The model itself says {other.labels[instead]!r} ({share:.2f})."
        assert said in e.summary(asked) and "itself" not in e.summary(instead)
        assert f"{1 - share:.2f}" in e.summary(asked) and "the prediction" not in e.summary(asked)
        assert "The model itself says" in e[asked]._repr_html_()
        assert in_words(e, asked)["instead"] == said.strip() and not in_words(e, instead)["instead"]
        sample = json.loads(e.to_json())["samples"][asked]
        assert sample["prediction"]["label"] == other.labels[instead]
    apart = small_bert(problem_type="multi_label_classification")
    assert relprop.explain(apart, "awful", 0, processor=tokenizer).predictions is None


def test_a_next_token_that_the_model_does_not_say():
    ids, model = torch.tensor([[3, 4, 5], [6, 7, 8]]), gpt2()
    own = model(ids).logits[:, -1].argmax(1).tolist()
    e = relprop.explain(model, ids, (own[0] + 1) % 31)
    assert [p.target for p in e.predictions] == own and not e.predictions[0].label
    shares = model(ids).logits[:, -1].softmax(1)
    assert torch.allclose(e.probability, shares[[0, 1], [(own[0] + 1) % 31] * 2].double())
    assert f"itself says token {own[0]} ({shares[0, own[0]]:.2f})" in in_words(e, 0)["instead"]
    assert relprop.explain(model, ids)[0].summary().count("model") == 0


def test_a_class_at_a_position_has_its_label_and_a_token_its_text():
    """A number of a class is no id of a token, whatever the tokenizer makes of it."""
    tokenizer = small_tokenizer()
    for kind, name in (
        (hf.BertForTokenClassification, "'B-PER' at 2"),
        (hf.BertForMaskedLM, "token '[CLS]' at 2"),
    ):
        e = relprop.explain(bert(kind), ["the film was"], (2, 1), processor=tokenizer)
        assert e.labels == (name,) and e.summary().startswith(f"{name} (")
        share = bert(kind)(**tokenizer("the film was", return_tensors="pt")).logits[0, 2].softmax(0)
        assert "token" in name or e.probability is None
        assert "token" not in name or torch.allclose(e.probability, share[1])


@pytest.mark.parametrize(
    ("end", "probable"),
    [
        (lambda y: y.softmax(-1), True),
        (torch.sigmoid, True),
        (lambda y: y.log_softmax(-1), True),
        (torch.tanh, False),
        (lambda y: y, False),
    ],
    ids=["softmax", "sigmoid", "log_softmax", "tanh", "logits"],
)
def test_an_output_that_ends_in_probabilities_has_them(end, probable):
    model = Heads(end).eval()
    with pytest.warns(relprop.errors.ProbabilityWarning) if probable else contextlib.nullcontext():
        e = relprop.explain(model, sample(), 1)
    right = e.output.exp() if (e.output < 0).all() else e.output
    assert (
        torch.equal(e.probability, right.to(e.probability)) if probable else e.probability is None
    )


def test_a_class_of_a_model_without_labels(pictures):
    e = next(e for e in pictures if e.predictions[0].target != e.target[0])
    largest = f"The model's largest output is that of class {e.predictions[0].target} (y = "
    assert in_words(e, 0)["instead"].startswith(largest) and "largest" not in e.summary()


def test_targets_that_are_no_class_have_neither(texts, pictures):
    e = explain_texts(target=lambda out: out.logits[0, 0] - out.logits[0, 1])
    assert set(e.labels) == {"<lambda>; its sign does not matter"}
    assert e.probability is None and "(y = " in e.summary()
    assert (
        pictures[0].labels is None
        and pictures[0].probability is None
        and pictures[0].summary().startswith(f"class {pictures[0].target[0]} (y = ")
    )


def test_labels_are_saved_and_joined(texts, tmp_path):
    for e in (texts, relprop.load(texts.save(tmp_path / "e.safetensors"))):
        assert e.labels == texts.labels and torch.equal(e.probability, texts.probability)
    parts = explain_texts(batch_size=1)
    assert parts.labels == texts.labels and torch.allclose(parts.probability, texts.probability)
    none = replace(texts, labels=None, probability=None)
    assert relprop.load(none.save(tmp_path / "n.safetensors")).labels is None


def test_a_summary_gives_shares_of_the_positive_scores(texts):
    e = replace(
        with_scores(texts, [1.0, 1, 2, 0, -4, 3, 4, 1]),
        labels=("negative", "x"),
        probability=torch.tensor([0.97, 0.2]),
        predictions=None,
        ledger=None,
    )
    assert e.summary(k=2) == (
        "the prediction 'negative' (0.97) rests on: boring (0.70), film (0.20) and 1 "
        "more; against it most: not."
    )
    assert e.summary(1).startswith("'x' (0.20) rests on: awful (1.00).\nwarning: 9")
    nothing = with_scores(e, [0.0, -1, -2, 0, -4, 0, 0, 0]).summary().splitlines()[0]
    assert nothing == (
        "the prediction 'negative' (0.97) rests on nothing: no part has a positive "
        "score; against it most: not."
    )


def test_concerns_of_scores(texts):
    plain = replace(texts, ledger=None)
    assert with_scores(plain, 0.0).concerns() == ["all scores are 0: the map says nothing"]
    sinks = (
        "60% of the score is on special tokens or the model's own (attention sinks), "
        "not on the input's content"
    )
    assert with_scores(plain, [3.0, 1, 1, 0, 0, 0, 0, 0.0]).concerns() == [sinks]
    assert (
        with_scores(plain, [2.0, 1, 1, 0, 0, 0, 0, 0.0]).concerns() == []
    )  # exactly the limit is none
    every = torch.ones_like(texts.content)
    assert with_scores(plain, [9.0, 1, 0, 0, 0, 0, 0, 0], content=every).concerns() == [
        "90% of the score is on one of 8 tokens ('[CLS]'), which is no word: attention is often "
        "parked there"
    ]
    word = [0, 9.0, 1, 0, 0, 0, 0, 0]  # one word that decides is a sound map
    assert with_scores(plain, word, content=every).concerns() == []
    assert with_scores(plain, [8.0, 1, 1, 0, 0, 0, 0, 0], content=every).concerns() == []


def test_concerns_of_the_books(texts):
    def account(**amounts):
        zero = torch.zeros(2, dtype=torch.float64)
        named = {k: torch.tensor(v, dtype=torch.float64) for k, v in amounts.items() if k != "lost"}
        lost = {k: torch.tensor(v, dtype=torch.float64) for k, v in amounts.get("lost", {}).items()}
        return Account(
            "n",
            "a.b",
            "op",
            "rule",
            **{
                "arrived": zero + 1,
                "absolute": zero + 1,
                "to_inputs": zero,
                "unread": zero,
                **named,
            },
            lost=lost,
        )

    def told(*accounts):
        e = with_scores(texts, [0.0, 1, 0, 0, 0, 0, 0, 0.0])
        return [
            replace(e, ledger=Ledger(accounts, torch.ones(2, dtype=torch.float64))).concerns(i)
            for i in range(2)
        ]

    assert told(account(to_inputs=[0.75, 0.81], lost={"stabiliser": [0.25, 0.19]})) == [
        ["25% of the relevance was lost on the way (stabiliser 25%)"],
        [],
    ]
    assert told(account(to_inputs=[0.9, 1 - 0.9e-5])) == [
        ["the books of a node differ by 1.0e-01 of its relevance (limit 1e-05)"],
        [],
    ]
    assert texts.concerns(0) == [] and audit.LOST == 0.2


def test_concerns_reach_the_summary(texts):
    e = replace(with_scores(texts, 0.0), ledger=None)
    assert e.summary().splitlines()[1:] == ["warning: all scores are 0: the map says nothing"]


def test_a_data_frame_has_a_row_per_token(texts, pictures):
    frame = texts.to_dataframe()
    assert (
        len(frame) == 16
        and list(frame["token"]) == [t for row in texts.tokens for t in row]
        and frame["score"].tolist() == texts.scores.flatten().tolist()
    )
    summed = frame.dropna(subset="word_index").groupby(["sample", "word_index"])["score"].sum()
    assert summed.tolist() == pytest.approx([s for i in range(2) for _, s in texts.words(i)])
    assert frame.attrs["labels"] == list(texts.labels)
    patch = pictures[0].to_dataframe()
    assert (
        patch["patch_row"].isna().sum() == 2
        and patch["patch_column"].max() == 7
        and isinstance(patch, pandas.DataFrame)
    )


def test_json_is_strict_and_whole(texts, pictures, hostile):
    found = json.loads(texts.to_json(), parse_constant=pytest.fail)
    first = found["samples"][0]
    assert first["inputs"]["input_ids"]["scores"] == texts.scores[0].tolist()
    assert first["label"] == texts.labels[0] and first["probability"] == float(texts.probability[0])
    assert [(w["text"], w["score"]) for w in first["inputs"]["input_ids"]["words"]] == texts.words(
        0
    )
    assert json.loads(pictures[0].to_json(indent=1))["inputs"]["input_0"]["grid"] == [8, 8]
    infinite = replace(texts, output=texts.output * float("inf"), target=((1, 2), object()))
    assert json.loads(infinite.to_json())["samples"][0]["output"] is None
    assert (
        json.loads(hostile.to_json())["samples"][0]["inputs"]["input_ids"]["tokens"]
        == hostile.tokens[0]
    )


def test_without_pandas_the_extra_is_named(texts, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(OptionError, match=r'pip install "relprop\[pandas\]"'):
        texts.to_dataframe()


def test_several_inputs_are_asked_for_one(pictures, texts):
    both = replace(texts, streams={**texts.streams, **pictures[0].streams})
    for call in (
        both.top,
        both.summary,
        lambda: relprop.plot.text(both),
        lambda: relprop.plot.heatmap(both),
    ):
        with pytest.raises(OptionError, match="2 inputs are explained"):
            call()
    assert "input_ids:" in both.terminal(colour=False) and "data:image/png" in both._repr_html_()
    assert (
        set(both.to_dataframe()["input"]) == {"input_ids", "input_0"}
        and len(json.loads(both.to_json())["inputs"]) == 2
    )


def test_videos_and_pixels_have_places():
    e = relprop.explain(digits(), torch.rand(1, 1, 32, 32), 3, method="gradient_x_input")
    best = int(e.scores[0].argmax())
    assert e.top(1)[0][0] == divmod(best, 32)
