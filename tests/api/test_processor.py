"""One name for what reads texts: ``processor=``; and what is said of tokens where it is known."""

import pytest

import relprop
from relprop.errors import OptionError
from relprop.views.shown import target_of
from tests.targets.models import llama, tokenizer

TEXT = "w5 w6 w7"


def reads():
    return tokenizer()


def test_a_text_is_generated_from_explained_and_checked():
    model, read = llama(), reads()
    read.model_input_names = ["input_ids", "attention_mask"]
    g = relprop.explain_generation(model, TEXT, max_new_tokens=2, processor=read)
    assert g.tokens[0][:3] == ["w5", "w6", "w7"] and g.labels[0][0] == g.tokens[0][3]
    assert g.steps[0].labels == (f"next token {read.decode([int(g.ids[0, 0])])!r}",)
    assert relprop.check(model, TEXT, processor=read).ok
    with relprop.instrument(model, TEXT, processor=read) as probe:
        assert probe.ledger().balanced()


def instrumented(*args, **options):
    with relprop.instrument(*args, **options):
        pass


ENTRIES = (
    relprop.explain,
    relprop.explain_generation,
    relprop.compile,
    relprop.check,
    relprop.compare,
    instrumented,
)


@pytest.mark.parametrize("entry", ENTRIES)
def test_tokenizer_is_taken_with_a_hint(entry):
    model, read = llama(), reads()
    read.model_input_names = ["input_ids"]
    with pytest.warns(relprop.RelpropWarning, match="processor=tokenizer"):
        entry(model, TEXT, tokenizer=read)
    with pytest.raises(OptionError, match="are one argument"):
        entry(model, TEXT, tokenizer=read, processor=read)


def test_a_token_is_called_by_its_text():
    model, read = llama(), reads()
    read.model_input_names = ["input_ids"]
    e = relprop.explain(model, TEXT, 17, processor=read)
    assert e.target == ((2, 17),) and e.labels == ("next token 'w17'",)
    assert target_of(e, 0) == "next token 'w17'" and "target next token 'w17'" in repr(e)
    assert e.summary().startswith("next token 'w17' (0.17)")
    bare = relprop.explain(model, read(TEXT, return_tensors="pt"), 17)
    assert bare.labels is None and target_of(bare, 0) == "(2, 17)"
