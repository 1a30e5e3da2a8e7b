"""The lookups and the shipped model that answers them."""

import re
from pathlib import Path

import pytest
import torch

import relprop
from relprop.demo.lookup_model import (
    lookup_model,
    lookup_numbers,
    lookup_tokenizer,
    vocabulary,
)
from relprop.demo.lookups import ADJECTIVES, NOUNS, VERBS, make_lookups
from relprop.errors import OptionError
from tools.known_answers.lookups import MORE, WHOLE, Lookups, case_of
from tools.train_lookups import encoded, exchanged, right


def test_every_answer_stands_in_one_known_place():
    lookups = make_lookups(60, seed=4)
    assert lookups[:7] == make_lookups(7, seed=4) and lookups != make_lookups(60, seed=5)
    for lookup in lookups:
        said = re.findall(r"\w+ \w+ \w+ \w+\.", lookup.answer)
        assert len(said) == len(lookup.evidence) and " ".join(said) == lookup.answer
        whole = " ".join(lookup.documents)
        for sentence, evidence in zip(said, lookup.evidence, strict=True):
            text = lookup.documents[evidence.document]
            assert text[slice(*evidence.sentence)] == sentence
            words = [text[slice(*span)] for span in evidence.words]
            assert words == [lookup.answer[slice(*span)] for span in evidence.answered]
            assert words == sentence.rstrip(".").split()[2:]
            assert all(len(re.findall(rf"\b{w}\b", whole)) == 1 for w in words)
        verbs = [w for w in re.findall(r"\w+", whole) if w in VERBS]
        assert 4 <= len(verbs) == len(set(verbs)) <= 9


def test_wrong_numbers_of_facts_are_refused():
    for options in ({"facts": (0, 3)}, {"facts": (3, 12)}, {"questions": 3}):
        with pytest.raises(OptionError):
            make_lookups(1, seed=0, **options)


def test_the_tokenizer_knows_every_word_and_writes_chats():
    tokenizer = lookup_tokenizer()
    for lookup in make_lookups(40, seed=8):
        ids, answer = encoded(tokenizer, [lookup])
        assert tokenizer.unk_token_id not in ids[0].tolist()
        read = tokenizer.decode(ids[0][answer[0]], skip_special_tokens=True)
        assert read == lookup.answer
    assert len(vocabulary()) == len(tokenizer) and set(ADJECTIVES).isdisjoint(NOUNS)


def test_exchanged_words_change_the_answer_only_where_they_are_asked_for():
    lookup = make_lookups(3, seed=1)[2]
    turned, others = exchanged(lookup, 0, asked=True), exchanged(lookup, 0, asked=False)
    assert turned.answer != lookup.answer == others.answer
    assert turned.documents != lookup.documents != others.documents
    for evidence in lookup.evidence:
        fact = others.documents[evidence.document]
        assert lookup.answer.split()[2] in " ".join(others.documents) and fact


def test_the_model_is_as_often_right_as_it_says():
    model, tokenizer, numbers = lookup_model(), lookup_tokenizer(), lookup_numbers()
    share = 100 * right(model, tokenizer, make_lookups(100, seed=77))
    assert numbers["held_out"] >= 99 and share >= 98


@pytest.mark.slow
def test_citations_of_right_answers_are_right():
    study = Lookups(30)
    study.methods = {name: MORE[name] for name in (WHOLE, "random", "deeplift")}
    numbers = [value for unit in range(len(study)) for value in study(unit)]

    def mean(row, column):
        found = [v.number for v in numbers if (v.row, v.column) == (row, column)]
        return sum(found) / len(found)

    assert len(study) >= 28 and list(study.refused) == ["deeplift"]
    assert mean(WHOLE, "best sentence is the source") >= 0.9
    assert mean("random", "best sentence is the source") < 0.5
    assert mean("random", "best token is a source word") < 0.5
    assert mean("always the first sentence", "best sentence is the source") < 0.5
    falls = "fall without the best sentence"
    assert mean(WHOLE, falls) > 5 > mean("random", falls)


def test_the_truth_of_a_case_stands_in_its_text():
    tokenizer = lookup_tokenizer()
    for lookup in make_lookups(20, seed=6):
        case = case_of(lookup, tokenizer)
        start, end = case.sentences[case.fact]
        assert case.text.endswith(case.text[start:end].rstrip("."))
        assert " ".join(case.text[a:b] for a, b in case.words) == " ".join(case.text.split()[-2:])


def test_an_answer_is_generated_and_cited():
    model, tokenizer = lookup_model(), lookup_tokenizer()
    lookup = next(one for one in make_lookups(50, seed=3) if right(model, tokenizer, [one]) == 1)
    found = relprop.cite(model, lookup.question, lookup.documents, processor=tokenizer)
    assert found.answer == lookup.answer
    for k, evidence in enumerate(lookup.evidence):
        assert found.top(k, 1)[0][0].document == evidence.document
    assert isinstance(found.scores, torch.Tensor)


@pytest.mark.slow
def test_the_page_runs_and_segments_end_with_their_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(relprop.__file__).parents[1] / "docs/answers.md").read_text()
    scope = {}
    for block in page.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "answers.md", "exec"), scope)
    assert scope["found"].answer == "Boris paints silver rivers. Anna likes amber kites."
    assert [scope["found"].top(k, 1)[0][0].document for k in (0, 1)] == [1, 0]
    assert scope["parts"].top(1)[0][0] == "Boris paints silver rivers."
    assert [name for name, _ in scope["parts"].words()][-1] == "Boris paints what?"
    answers = [one.answer for one in scope["several"]]
    assert answers == ["Boris paints silver rivers.", "Clara hides marble lanterns."]
    e = scope["explanation"]
    assert [name for name, _ in e.segments("sentences").words()][-2:] == [
        "Clara hides what?",
        "Clara hides",
    ]
    assert [name for name, _ in e.segments("turns").words()][1:] == ["Clara hides"]
    assert e.segments("sentences").top(1)[0][0] == "Clara hides marble lanterns."
    assert (tmp_path / "answer.html").exists()
    assert f"| {WHOLE} |" in page, "python -m tools.known_answers"


def test_the_page_of_trained_models_says_how_often_it_is_right():
    numbers = lookup_numbers()
    page = (Path(relprop.__file__).parents[1] / "docs/trained-models.md").read_text()
    for name in ("held_out", "fact_exchanged", "others_exchanged"):
        assert f"{numbers[name]:.1f} %" in page.split("## Answers")[1].split("##")[0]
