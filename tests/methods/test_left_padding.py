"""Texts with padding before them: what the user gives is called as given, and compared once with
the text alone; what relprop pads itself is counted from the text's beginning."""

import warnings

import pytest
import torch
import transformers

import relprop
from relprop.adapters.masks import positions_of
from relprop.errors import PaddingWarning
from tests.common.models import closeness
from tests.common.rows import only

IDS = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(6) >= torch.tensor([[0], [2]])).long()
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "initializer_range": 0.3}
TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "initializer_range": 0.3,
}


def made(name, **config):
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForSequenceClassification", None)
    config = getattr(transformers, f"{name}Config")(**config, num_labels=3, pad_token_id=0)
    return kind(config).eval().double()


@pytest.mark.parametrize("name", only(["GPT2"], ["GPT2", "Bert"]))
def test_padding_that_changes_the_output_is_said_and_the_advice_helps(name):
    model = made(name, **(GPT2 if name == "GPT2" else TINY))
    given = {"input_ids": IDS, "attention_mask": MASK}
    with pytest.warns(PaddingWarning, match="y of sample 1 is .* without padding"):
        e = relprop.explain(model, given, 1)
    assert closeness(e.output, model(**given).logits[:, 1].detach()) <= 1e-9  # as it was given
    alone = relprop.explain(model, {"input_ids": IDS[1:, 2:]}, 1, strict=True)
    if name == "GPT2":  # what reads its first position reads padding, however it is counted
        numbered = given | {"position_ids": (MASK.cumsum(1) - 1).clamp(min=0)}
        e = relprop.explain(model, numbered, 1, strict=True)
        assert closeness(e.output[1:], alone.output) <= 1e-9
        assert closeness(e.scores[1:, 2:], alone.scores) <= 1e-9


def test_where_only_the_map_can_differ_nothing_is_said():
    config = TINY | {"num_key_value_heads": 1}
    relprop.explain(
        made("Llama", **config), {"input_ids": IDS, "attention_mask": MASK}, 1, strict=True
    )


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {w: i for i, w in enumerate(["pad", "a", "b", "c", "d", "e"])}
    made = Tokenizer(models.WordLevel(words, unk_token="a"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="pad", padding_side="left"
    )


@pytest.mark.parametrize("by_pipeline", only([False], [False, True]))
def test_what_is_padded_here_is_counted_from_its_beginning(by_pipeline):
    model, texts = made("GPT2", **GPT2), ["a b c d e", "c a"]
    how = {"processor": tokenizer()}
    if by_pipeline:
        pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer())
        model, how = pipe, {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PaddingWarning)
        e = relprop.explain(model, texts, 1, **how)
        one = relprop.explain(model, texts[1:], 1, **how)
    assert closeness(e.output[1:], one.output) <= 1e-9
    assert closeness(e.scores[1:, -2:], one.scores) <= 1e-9


def test_a_model_that_does_not_count_padding_itself_is_told_nothing():
    given = {"input_ids": IDS, "attention_mask": MASK}
    assert not positions_of(made("Roberta", **TINY), given)
    assert positions_of(made("GPT2", **GPT2), given)["position_ids"].tolist()[1] == [
        0,
        0,
        0,
        1,
        2,
        3,
    ]
