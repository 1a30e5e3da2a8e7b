"""Which part of the prompt a whole answer rests on: a generation's steps added up over what was
typed."""

import pytest
import torch

import relprop
from relprop.errors import OptionError
from relprop.views.audit import LOST
from tests.common.models import closeness
from tests.common.rows import only
from tests.targets import models

TYPED = "w5   w6. w9\n\nw7 w8\nw6 w5"
OTHER = "w9\n\nw3"
MAKE = {"llama": models.llama, "gpt2": models.gpt2, "t5": models.t5, "bart": models.bart}


def generation(name="llama", **options):
    """Of a batch of two prompts, one of them padded."""
    tok = models.tokenizer()
    tok.padding_side = "right" if name in ("t5", "bart") else "left"
    how = {"max_new_tokens": 4, "generate": {"eos_token_id": None}, **options}
    return relprop.explain_generation(MAKE[name](), [TYPED, OTHER], processor=tok, **how)


@pytest.mark.parametrize("name", only(["llama", "t5"], MAKE))
def test_a_part_of_the_prompt_scores_the_sum_of_all_steps(name):
    g = generation(name)
    pairs = [[(0, 7), (13, 18)], [(0, 2)]]
    found = g.segments(pairs)
    for i, row in enumerate(pairs):
        steps = [step["input_ids"].segments(pairs).words(i) for step in g.steps]
        summed = [sum(score for _, score in same) for same in zip(*steps, strict=True)]
        assert [part for part, _ in found.words(i)] == [(TYPED, OTHER)[i][a:b] for a, b in row]
        assert [score for _, score in found.words(i)] == pytest.approx(summed, rel=1e-12)
        assert found[i].top(1) == found.top(1, i) and found[i].summary() == found.summary(i)
    assert torch.equal(found.output, g.output.sum(1)) and len(found.streams) == 1


@pytest.mark.parametrize("name", only(["gpt2", "bart"], MAKE))
@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("paragraphs", ["w5   w6. w9", "w7 w8\nw6 w5"]),
        ("lines", ["w5   w6. w9", "w7 w8", "w6 w5"]),
    ],
)
def test_segments_end_where_the_prompt_does(name, by, names):
    """Though the output of a decoder stands in the same line."""
    g = generation(name)
    found = g.segments(by)
    assert [part for part, _ in found.words(0)] == names
    own, size = (g.prompt, found.scores.shape[1])
    if found.stream == g.stream:
        assert size > own and not found.scores[:, own:].any() and not found.content[:, own:].any()
        assert closeness(found.scores[:, :own], g.scores.sum(1)[:, :own]) == 0
    with pytest.raises(OptionError, match="no token of sample 0 is of characters 26 to 27"):
        g.segments([[(26, 27)], [(0, 1)]])


def test_a_summary_is_of_the_answer_and_says_what_is_on_its_own_words():
    g = generation(method="attnlrp", max_new_tokens=6)
    said = g.summary(1, k=1)
    answer, y = " ".join(g.labels[1]), float(g.output[1].sum())
    assert said.startswith(f"the answer {answer!r} (y = {y:.3g}) rests on: ")
    sizes = g.scores.sum(1)[1].abs()
    share = float(sizes[g.prompt :].sum() / sizes.sum())
    assert share > LOST and f"{share:.0%} of the score is on the answer's own words" in said
    for summary in (g.segments("lines").summary(1), g.segments("lines")[1].summary()):
        assert f"{share:.0%} of the score is on the answer's own words" in summary
    assert "own words" not in g.sent_on(6).summary(1)


def test_books_of_all_steps_are_added():
    g = generation()
    ledger, books = g.segments("lines").ledger, [step.ledger for step in g.steps]
    assert torch.equal(ledger.started, sum(one.started for one in books))
    for account, *same in zip(ledger.accounts, *(one.accounts for one in books), strict=True):
        assert closeness(account.arrived, sum(one.arrived for one in same)) < 1e-12
    assert len(ledger.accounts) > 9 and ledger.balanced(1e-12)


def test_a_whole_answer_is_saved_and_loaded(tmp_path):
    g = generation("t5")
    found, again = g.segments("lines"), relprop.load(g.save(tmp_path / "g.safetensors"))
    assert again.segments("lines").words() == found.words()
    loaded = relprop.load(found.save(tmp_path / "e.safetensors"))
    assert loaded.words() == found.words() and loaded[1].summary() == found.summary(1)


def test_pairs_are_of_one_text():
    step = generation("t5").steps[1]
    with pytest.raises(OptionError, match=r"explanation\['input_ids'\]\.segments\(pairs\)"):
        step.segments([[(0, 7)], [(0, 2)]])
    assert step.segments("lines")["input_ids"].words()
