"""Explanations by sentences, lines, paragraphs, turns of a chat and stretches of characters."""

import functools
import json

import pytest
import torch

import relprop
from relprop.adapters.texts import decoded, recorded, with_turns, written
from relprop.errors import OptionError
from relprop.explanation.segments import owners, sentences
from tests.adapters.tokenizers_in_code import KINDS
from tests.views.conftest import explain_texts, shared_bert, small_tokenizer

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BRACKETS = (
    "{{ '<s>' }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }}"
    " [/INST]{% elif m['role'] == 'assistant' %} {{ m['content'] }}</s>"
    "{% else %}{{ raise_exception('no system turns') }}{% endif %}{% endfor %}"
)
HEADERS = (
    "<|begin|>{% for m in messages %}<|head|>{{ m['role'] }}<|/head|>\n\n{{ m['content'] | trim }}"
    "<|eot|>{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
OTHER_NAMES = (
    "{% for m in messages %}<turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] }}<end>\n{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        (
            "Dr. Smith of the U.S. Army came. He left.",
            ["Dr. Smith of the U.S. Army came.", "He left."],
        ),
        ('He said "no." She went.', ['He said "no."', "She went."]),
        ("It costs 3.5 percent, e.g. here. Yes", ["It costs 3.5 percent, e.g. here.", "Yes"]),
        ("A heading\nA line. Another", ["A heading", "A line.", "Another"]),
        ("Wait... what? Hm", ["Wait... what?", "Hm"]),
        ("not bad . awful ! e.g. this", ["not bad .", "awful !", "e.g. this"]),
        ("今日は雨。明日は晴れ！", ["今日は雨。", "明日は晴れ！"]),
        ("  \n ", []),
    ],
)
def test_sentences(text, found):
    assert [text[a:b] for a, b in sentences(text)] == found


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_to_a_text_give_each_token_its_characters(kind):
    tokenizer, text = KINDS[kind](), "the cats like noise, the dogs don't. The end"
    encoding = tokenizer(text, return_offsets_mapping=True).encodings[0]
    by_record, by_ids = recorded(encoding, text), decoded(encoding.ids, tokenizer)
    assert by_record.text == text and len(by_record.spans) == len(by_ids.spans) == len(encoding.ids)
    cut = text.index("the dogs")
    for found in (by_record, by_ids):
        whole = found.text.replace(" ", "").lower()
        at = found.text.lower().find("the dogs")
        assert whole.find("thedogs") > 0 and at > 0, found
        first, second = owners([(0, at), (at, len(found.text))], found.spans)
        read = [tokenizer.decode([encoding.ids[i] for i in part]) for part in (first, second)]
        assert "thedogs" in read[1].replace(" ", "") and "dogs" not in read[0]
        assert sorted(first + second) == [*range(first[0], second[-1] + 1)]
    assert text[cut:].startswith("the dogs")


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_without_its_text_still_says_where_each_token_stood(kind):
    tokenizer, text = KINDS[kind](), "The  naïve cats\n\nlike noise 🙂 the dogs"
    encoding = tokenizer(text, return_offsets_mapping=True).encodings[0]
    found, typed = written(encoding, tokenizer), recorded(encoding, text)
    assert recorded(encoding, found, encoding.ids).spans == typed.spans and len(found) == len(text)
    for at in (text.index("cats"), text.index("noise"), text.index("dogs")):
        assert found[at : at + 4].lower() == text[at : at + 4]


def test_characters_of_several_tokens_belong_to_all_of_them():
    tokenizer = KINDS["byte-level BPE"]()
    ids = tokenizer("cats 🙂 like")["input_ids"]
    found = decoded(ids, tokenizer)
    smile = found.text.index("🙂")
    pieces = [i for i, (a, b) in enumerate(found.spans) if a <= smile < b]
    assert found.text == "cats 🙂 like" and len(pieces) > 1
    assert all(a < b for a, b in found.spans)


def chat_tokenizer(template):
    made = KINDS["byte-level BPE"]()
    made.chat_template = template
    return made


@pytest.mark.parametrize("template", [CHATML, BRACKETS, HEADERS, OTHER_NAMES])
def test_turns_are_found_by_the_template(template):
    tokenizer = chat_tokenizer(template)
    said = ["Who are you?", "A model.\n\nOf language.", "And now?"]
    roles = ("user", "assistant", "user")
    chat = [{"role": r, "content": s} for r, s in zip(roles, said, strict=True)]
    for go_on in (False, True):
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=go_on)
        for answer in ("", "Fine.") if go_on else ("",):
            if answer and template is not BRACKETS:
                text += answer
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            for found in (decoded(ids, tokenizer), recorded(tokenizer(text).encodings[0], text)):
                turns = with_turns(found, tokenizer).turns
                expected = [*said, *([answer] if answer and template is not BRACKETS else [])]
                if template is CHATML:
                    expected.insert(0, "You help.")
                assert [text[a:b] for a, b in turns] == expected


def test_a_system_turn_and_a_text_that_is_no_chat():
    tokenizer = chat_tokenizer(HEADERS)
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    found = with_turns(decoded(tokenizer(text)["input_ids"], tokenizer), tokenizer)
    assert [found.text[a:b] for a, b in found.turns] == ["Be brief.", "Hello"]
    plain = with_turns(decoded(tokenizer("cats like dogs")["input_ids"], tokenizer), tokenizer)
    assert plain.turns == []


LONG = "the film was not boring .\n\nthe film was awful . awful !"


@functools.cache
def explained(**options):
    return relprop.explain(shared_bert(), LONG, processor=small_tokenizer(), **options)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("lines", ["the film was not boring .", "the film was awful . awful !"]),
        ("paragraphs", ["the film was not boring .", "the film was awful . awful !"]),
        ([(0, 8), (31, 35)], ["the film", "film"]),
        ([[(0, 8), (31, 35)]], ["the film", "film"]),
    ],
)
def test_a_segment_scores_the_sum_of_its_tokens(by, names):
    e = explained(method="attcat")
    found = e.segments(by)
    assert [name for name, _ in found.words()] == names
    words = e.words()
    if isinstance(by, str):
        cut = next(i for i, (word, _) in enumerate(words) if word == "[UNK]" and i > 4) + 1
        parts = [words[:cut], words[cut:]]
    else:
        parts = [words[:2], [pair for pair in words if pair[0] == "film"][1:]]
    for (_, score), part in zip(found.words(), parts, strict=True):
        assert score == pytest.approx(sum(s for _, s in part), abs=1e-6)
    assert torch.equal(found.scores, e.scores)


def test_sentences_score_the_sums_of_their_tokens():
    e = explained(method="attcat")
    found, words = e.segments("sentences").words(), [score for _, score in e.words()]
    assert [name for name, _ in found] == [
        "the film was not boring .",
        "the film was awful .",
        "awful !",
    ]
    parts = (words[:6], words[6:11], words[11:])
    for (_, score), part in zip(found, parts, strict=True):
        assert score == pytest.approx(sum(part), abs=1e-6)


def test_what_people_do_with_segments(tmp_path):
    e = explained().segments("paragraphs")
    assert len(e.top(5)) == 2 and e.top(1)[0][0] in LONG
    assert [
        w["text"] for w in json.loads(e.to_json())["samples"][0]["inputs"]["input_ids"]["words"]
    ] == (LONG.split("\n\n"))
    assert "boring" in e.terminal(colour=False) and "awful" in e._repr_html_()
    assert e.plot().axes and "the film was" in e.summary()
    assert set(e.to_dataframe()["word"].dropna()) == set(LONG.split("\n\n"))
    assert LONG.split("\n\n")[0] in e.to_html(tmp_path / "page.html").read_text()
    loaded = relprop.load(explained().save(tmp_path / "e.safetensors"))
    assert loaded.segments("paragraphs").words() == e.words()


def test_each_sample_has_its_own_segments_and_keeps_them():
    e = explain_texts()
    both = e.segments([[(0, 8), (9, 23)], [(0, 5)]])
    assert [[name for name, _ in both.words(i)] for i in (0, 1)] == [
        ["the film", "was not boring"],
        ["awful"],
    ]
    assert both[1].words() == both.words(1) and e[1].segments("sentences").words()[0][0] == "awful"


def test_text_of_ids_is_read_by_the_tokenizer():
    ids = small_tokenizer()(LONG, return_tensors="pt")
    by_record = relprop.explain(shared_bert(), ids, processor=small_tokenizer())
    plain = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
    by_ids = relprop.explain(shared_bert(), plain, processor=small_tokenizer())
    for e in (by_record, by_ids):
        assert "the film was" in e["input_ids"].streams["input_ids"].texts[0].text
        assert e.segments("lines").words()


@pytest.mark.parametrize(
    ("by", "match"),
    [
        ("sentence", "sentences"),
        ("documents", "'paragraphs'"),
        ("turns", "no chat of the tokenizer's template"),
        ([(0, 8), (4, 12)], "overlap"),
        ([(3, 3)], "pairs"),
        ([(0, 8, 9)], "pairs"),
        ([[(0, 8)], [(0, 8)]], "each of 1 samples"),
        ([], "pairs"),
        (3, "pairs"),
        ([(900, 901)], "no token"),
    ],
)
def test_what_is_no_segment_is_refused(by, match):
    with pytest.raises(OptionError, match=match):
        explained().segments(by)


def test_without_a_text_it_says_what_to_give():
    ids = torch.tensor([[1, 4, 5, 2]])
    e = relprop.explain(shared_bert(), {"input_ids": ids})
    with pytest.raises(OptionError, match="processor=tokenizer"):
        e.segments("lines")


def test_a_record_of_another_text_is_not_taken():
    encoding = small_tokenizer()(["the film was"]).encodings[0]
    assert recorded(encoding, "the film was") and recorded(encoding, "the") is None
    assert recorded(KINDS["WordPiece"]()([("cats", "dogs")]).encodings[0], "cats dogs") is None
