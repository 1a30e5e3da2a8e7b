"""Unit models: their algebra holds, the checks can fail, and docs/units.md says which method gives
the right answer."""

import re

import pytest
import torch

import relprop
from tests.demo.units_table import PATH, UNITS, WHY, cell, column, reasons
from tools.units import Answer, units

EXACT = 1e-9
OUTPUTS = {
    "mean": [1.5],
    "signed mean": [2 / 3],
    "copy": [2.0],
    "and": [1.0],
    "or": [1.0],
    "two classes": [4 / 3, 4 / 3],
    "cancelling branches": [4 / 3],
    "constant": [1.0],
}


@pytest.mark.parametrize("name", UNITS)
def test_the_output_is_what_the_algebra_says(name):
    unit = UNITS[name]
    torch.testing.assert_close(
        unit.model(unit.inputs)[0],
        torch.tensor(OUTPUTS[name], dtype=torch.float64),
        rtol=EXACT,
        atol=0,
    )


@pytest.mark.parametrize("name", UNITS)
def test_attention_is_found(name):
    unit = UNITS[name]
    assert relprop.check(unit.model, unit.inputs).ok
    assert (
        relprop.explain(unit.model, unit.inputs, unit.target, method="rollout").scores.shape
        == unit.inputs.shape[:2]
    )


@pytest.mark.parametrize("name", UNITS)
def test_tokens_that_must_score_0_have_no_part_in_the_output(name):
    """Such a token set to 0 altogether leaves the target's output as it was."""
    unit = UNITS[name]
    before = unit.model(unit.inputs)[0, unit.target]
    for token in unit.answer.zero:
        changed = unit.inputs.clone()
        changed[0, token] = 0
        torch.testing.assert_close(unit.model(changed)[0, unit.target], before, rtol=EXACT, atol=0)


@pytest.mark.parametrize("name", UNITS)
def test_tokens_that_must_score_the_same_are_exchangeable(name):
    unit = UNITS[name]
    if unit.answer.equal:
        a, b = unit.answer.equal
        order = list(range(unit.inputs.shape[1]))
        order[a], order[b] = b, a
        torch.testing.assert_close(
            unit.model(unit.inputs[:, order])[0, unit.target],
            unit.model(unit.inputs)[0, unit.target],
            rtol=EXACT,
            atol=0,
        )


@pytest.mark.parametrize("name", UNITS)
def test_ratios_are_those_of_the_terms_of_the_sum(name):
    """Where proportions are asked for, y is the sum of what each of these tokens gives alone."""
    unit = UNITS[name]
    if unit.answer.ratio:
        alone = []
        for token, _ in unit.answer.ratio:
            only = torch.zeros_like(unit.inputs)
            only[0, token] = unit.inputs[0, token]
            alone.append(float(unit.model(only)[0, unit.target].detach()))
        wanted = torch.tensor([n for _, n in unit.answer.ratio], dtype=torch.float64)
        torch.testing.assert_close(
            torch.tensor(alone, dtype=torch.float64) / sum(alone),
            wanted / wanted.sum(),
            rtol=EXACT,
            atol=0,
        )
        assert sum(alone) == pytest.approx(
            float(unit.model(unit.inputs)[0, unit.target].detach()), rel=EXACT
        )


@pytest.mark.parametrize(
    ("answer", "scores", "right"),
    [
        (Answer(zero=(0,)), [0.0, 1.0], True),
        (Answer(zero=(0,)), [0.1, 1.0], False),
        (Answer(zero=(0,)), [float("nan"), 1.0], False),
        (Answer(positive=(0,)), [0.1, 1.0], True),
        (Answer(positive=(0,)), [0.0, 1.0], False),
        (Answer(positive=(0,)), [1e-9, 0.0], False),
        (Answer(negative=(0,)), [-1.0, 1.0], True),
        (Answer(negative=(0,)), [0.0, 1.0], True),
        (Answer(negative=(0,)), [0.5, 1.0], False),
        (Answer(equal=(0, 1)), [1.0, 1.0], True),
        (Answer(equal=(0, 1)), [1.0, 0.9], False),
        (Answer(ratio=((0, 1.0), (1, 3.0))), [2.0, 6.0], True),
        (Answer(ratio=((0, 1.0), (1, 3.0))), [2.0, 5.0], False),
        (Answer(ratio=((0, 1.0), (1, 3.0))), [0.0, 0.0], True),
    ],
)
def test_an_answer_tells_right_from_wrong(answer, scores, right):
    assert (not answer.failures(torch.tensor(scores))) == right


@pytest.mark.parametrize("name", UNITS)
def test_the_page_says_what_holds_and_every_failure_has_one_reason(name):
    found = column(UNITS[name])
    failing = {method for method, said in found.items() if said and not isinstance(said, str)}
    assert {method for method in found if reasons(method, name)} == failing and all(
        len(reasons(method, name)) == 1 for method in failing
    )
    text = PATH.read_text()
    head, *rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(("| `", "| method"))
    ]
    place = head.index(name)
    assert {row[0].strip("`"): row[place] for row in rows} == {
        m: cell(m, name, said) for m, said in found.items()
    }, "python -m tests.demo.units_table"


def test_the_pages_sentences_are_those_of_the_table():
    text = PATH.read_text()
    assert re.findall(r"^\d+\. (.*)$", text, re.M) == [sentence for sentence, _ in WHY]
    assert all(unit.why in text for unit in units())


def test_units_are_built_anew():
    first, second = units()[0], units()[0]
    assert first.model is not second.model and torch.equal(first.inputs, second.inputs)
