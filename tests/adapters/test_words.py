"""Words and their scores, from every kind of tokenizer, and the same words whatever is known of the
text."""

import sys
import types

import pytest
import torch
import transformers

import relprop
from relprop.adapters.words import words_from_ids, words_from_record
from tests.adapters.tokenizers_in_code import KINDS, byte_level, unigram, wordpiece
from tests.common.models import sample, shared

TEXT = "the unhappy cats don't like café noise, naïve people"
SPLIT = {  # as the tokenizer's record has them; by the text's spaces alone
    "WordPiece": "the unhappy cats don ' t like cafe noise , naive people".split(),
    "byte-level BPE": "the unhappy cats don 't like café noise , naïve people".split(),
    "Unigram": "the unhappy cats don't like café noise, naïve people".split(),
    "BPE without pre-tokenizer": "the unhappy cats don't like café noise, naïve people".split(),
    "BPE with ends": "the unhappy cats don ' t like café noise , naïve people".split(),
}
SPACES = {"byte-level BPE": TEXT.split()}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 300,
}


def only_text(words):
    return [word for word, _ in words]


@pytest.mark.parametrize("kind", KINDS)
def test_words_from_the_record_and_from_ids(kind):
    tokenizer = KINDS[kind]()
    record = tokenizer([TEXT]).encodings[0]
    special = record.special_tokens_mask
    words = words_from_record(record, special, tokenizer)
    assert only_text(words) == SPLIT[kind]
    assert only_text(words_from_ids(record.ids, special, tokenizer)) == SPACES.get(
        kind, SPLIT[kind]
    )
    assert [i for _, pieces in words for i in pieces] == [
        i for i, s in enumerate(special) if not s
    ], "every piece of the text is in one word"
    without = [
        w.replace("cafÃ©", "café").replace("naÃ¯ve", "naïve")
        for w in only_text(words_from_record(record, special))
    ]
    assert without == SPLIT[kind], "the record alone has the pieces' signs to go by"


def test_pieces_alone():
    class Record:
        tokens = ("[CLS]", "un", "##happy", "cats", ",", "[SEP]")

    assert words_from_record(Record(), [1, 0, 0, 0, 0, 1]) == [
        ("unhappy", [1, 2]),
        ("cats", [3]),
        (",", [4]),
    ]


def bert(tokenizer):
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, pad_token_id=tokenizer.pad_token_id)
    ).eval()


def test_a_words_score_is_the_sum_of_its_tokens():
    tokenizer = wordpiece()
    e = relprop.explain(
        bert(tokenizer), tokenizer([TEXT, "happy dogs"], padding=True, return_tensors="pt")
    )
    words = e.words(0)
    assert only_text(words) == SPLIT["WordPiece"] and only_text(e.words(1)) == ["happy", "dogs"]
    assert sum(s for _, s in words) == pytest.approx(
        float(e.scores[0, e.content[0]].sum()), rel=1e-5
    )
    start = e.tokens[0].index("un")
    end = next(i for i in range(start + 1, len(e.tokens[0])) if not e.tokens[0][i].startswith("##"))
    assert end > start + 1 and words[1][1] == pytest.approx(
        float(e.scores[0, start:end].sum()), rel=1e-5
    )


@pytest.mark.parametrize("make", [wordpiece, unigram], ids=["WordPiece", "Unigram"])
def test_text_and_its_tokenizer_are_enough(make):
    tokenizer = make()
    model = bert(tokenizer)
    by_text = relprop.explain(model, [TEXT, "happy dogs"], processor=tokenizer)
    by_ids = relprop.explain(
        model,
        dict(tokenizer([TEXT, "happy dogs"], padding=True, return_tensors="pt")),
        processor=tokenizer,
    )
    torch.testing.assert_close(by_text.scores, by_ids.scores)
    assert by_text.tokens == by_ids.tokens and torch.equal(by_text.content, by_ids.content)
    assert only_text(by_text.words(1)) == only_text(by_ids.words(1)) == ["happy", "dogs"]
    assert only_text(relprop.explain(model, TEXT, processor=tokenizer).words()) == only_text(
        by_text.words(0)
    )


def test_pairs_of_texts_have_the_words_of_both():
    tokenizer = wordpiece()
    e = relprop.explain(
        bert(tokenizer),
        {"text": ["happy dogs"], "text_pair": ["dogs like cats"]},
        processor=tokenizer,
    )
    assert only_text(e.words()) == ["happy", "dogs", "dogs", "like", "cats"]


def test_several_pairs_are_padded():
    tokenizer = wordpiece()
    e = relprop.explain(
        bert(tokenizer),
        {"text": ["happy dogs", "cats"], "text_pair": ["dogs like cats", "noise"]},
        processor=tokenizer,
    )
    assert only_text(e.words(1)) == ["cats", "noise"] and e.scores[1, ~e.content[1]].shape[0] > 3


def test_batch_size_does_not_change_words():
    tokenizer = wordpiece()
    model, inputs = (
        bert(tokenizer),
        tokenizer([TEXT, "happy dogs", "naïve cats"], padding=True, return_tensors="pt"),
    )
    whole, parts = relprop.explain(model, inputs), relprop.explain(model, inputs, batch_size=2)
    assert (
        whole.tokens == parts.tokens
        and whole.streams["input_ids"].words == parts.streams["input_ids"].words
    )
    assert only_text(parts.words(2)) == ["naive", "cats"]


def test_unknown_and_masked_words_are_content_and_padding_is_not():
    tokenizer = wordpiece()
    model = bert(tokenizer)
    inputs = tokenizer(["happy [MASK] §", "dogs"], padding=True, return_tensors="pt")
    for given in (inputs, dict(inputs)):
        e = relprop.explain(model, given, processor=tokenizer)
        assert only_text(e.words(0)) == ["happy", "[MASK]", "[UNK]"] and only_text(e.words(1)) == [
            "dogs"
        ]
        assert not e.content[1, inputs["attention_mask"][1] == 0].any()


def test_left_padding_of_a_language_model_whose_padding_is_its_end():
    tokenizer = byte_level()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **SIZES,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    e = relprop.explain(
        transformers.LlamaForCausalLM(config).eval(), [TEXT, "happy dogs"], processor=tokenizer
    )
    assert only_text(e.words(0)) == SPLIT["byte-level BPE"] and only_text(e.words(1)) == [
        "happy",
        "dogs",
    ]
    assert e.scores[1, ~e.content[1]].eq(0).all()


def test_encoder_and_decoder_have_words_of_their_own(tmp_path):
    tokenizer = unigram()
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=100,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    inputs = dict(tokenizer(["happy dogs like noise"], return_tensors="pt"))
    inputs["decoder_input_ids"] = torch.tensor(
        [[0, *tokenizer("the end", add_special_tokens=False)["input_ids"]]]
    )
    e = relprop.explain(
        transformers.T5ForConditionalGeneration(config).eval(), inputs, (1, 7), processor=tokenizer
    )
    assert list(e.streams) == ["input_ids", "decoder_input_ids"]
    assert only_text(e["input_ids"].words()) == ["happy", "dogs", "like", "noise"]
    assert (
        only_text(e["decoder_input_ids"].words()) == ["the", "end"]
        and not e["decoder_input_ids"].content[0, 0]
    )
    with pytest.raises(relprop.errors.OptionError, match="words\\(\\) belongs to one of them"):
        e.words()
    again = relprop.load(e.save(tmp_path / "both.safetensors"))
    assert again["decoder_input_ids"].words() == e["decoder_input_ids"].words()
    for name in e.streams:
        shown = {t.get_text() for t in e[name].plot().axes[0].texts}
        assert {word for word, _ in e[name].words()} <= shown


def test_without_a_tokenizer_there_are_no_words():
    model = bert(wordpiece())
    e = relprop.explain(model, {"input_ids": torch.randint(5, 50, (1, 6))})
    assert e.tokens[0][0].isdigit()
    with pytest.raises(relprop.errors.OptionError, match="processor=tokenizer"):
        e.words()


@pytest.mark.parametrize(
    ("inputs", "processor", "says"),
    [
        ("happy dogs", None, "inputs is text, which the model does not read itself"),
        (["happy dogs"], None, "inputs is text"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(), None, "inputs is a picture"),
        (
            torch.zeros(8, 8, 3, dtype=torch.uint8).numpy(),
            wordpiece(),
            "does not read ndarray: it is neither a tokenizer, .* that takes a picture",
        ),
        ({"text": 3}, wordpiece(), "does not read dict"),
    ],
    ids=["text", "texts", "picture", "a picture to a tokenizer", "an argument it does not take"],
)
def test_what_cannot_be_prepared_is_refused(inputs, processor, says):
    with pytest.raises(relprop.errors.InputError, match=says):
        relprop.explain(bert(wordpiece()), inputs, processor=processor)


def test_a_library_that_another_thread_is_importing_has_no_models_yet(monkeypatch):
    half = types.ModuleType("transformers.modeling_utils")
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", half)
    monkeypatch.setitem(sys.modules, "transformers.pipelines.base", half)
    assert relprop.explain(shared(), sample(), 1).scores.isfinite().all()


def test_an_id_that_the_tokenizer_has_no_piece_for_is_a_number():
    tokenizer = byte_level()
    last = len(tokenizer) + 3
    ids = [*tokenizer("the cats")["input_ids"], last]
    words = words_from_ids(ids, [False] * len(ids), tokenizer)
    assert " ".join(only_text(words)).startswith("the cats")
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": last + 1})
    model = transformers.LlamaForCausalLM(config).eval()
    e = relprop.explain(model, {"input_ids": torch.tensor([ids])}, processor=tokenizer)
    assert e.tokens[0][-1] == f"<{last}>" and e.segments("sentences").words()
