"""Words and their tokens, by characters: for every kind of tokenizer, every text, cut off or
padded."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relprop.data import Word, split_words, word_pieces
from relprop.data.pieces import overlapping
from relprop.errors import InputError
from tests.adapters.tokenizers_in_code import KINDS, wordpiece

TOKENIZERS = {name: make() for name, make in KINDS.items()}
ALPHABET = "aehinostukl'.,-é🙂न \n"
TEXTS = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=30)


@given(TEXTS)
@example("don't  stop-it.")
@example("हिन्दी में, e\u0301a\u0301!")
@example("\u0301a 👩‍🔬 $5.00")
def test_words_are_the_text_without_white_space(text):
    words = split_words(text)
    covered = [c for w in words for c in range(w.start, w.end)]
    assert covered == [i for i, c in enumerate(text) if not c.isspace()]
    assert split_words(text, 1) == tuple(Word(w.start, w.end, 1) for w in words)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It's fine-tuned, no?", ["It", "'", "s", "fine", "-", "tuned", ",", "no", "?"]),
        ("$5.00 + 3", ["$", "5", ".", "00", "+", "3"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("cafe\u0301 x", ["cafe\u0301", "x"]),
        ("a_b\tc\u00a0d", ["a", "_", "b", "c", "d"]),
        ("", []),
        (" \n", []),
        ("...", [".", ".", "."]),
    ],
)
def test_split_words(text, expected):
    assert [text[w.start : w.end] for w in split_words(text)] == expected


def covered(text, offsets, words, pieces):
    """Of each word, the characters that its tokens hold."""
    return [
        {c for p in places for c in range(*offsets[p])} & set(range(w.start, w.end))
        for w, places in zip(words, pieces, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
@given(first=TEXTS, second=TEXTS)
@example(first="don't  like", second="🙂🙂 न")
def test_every_character_of_a_word_is_in_its_tokens(kind, first, second):
    """Every one that any token has; and a token is in a word exactly if they share a character."""
    encoding = TOKENIZERS[kind]([first, second], padding=True)
    for row, text in enumerate((first, second)):
        words = split_words(text)
        pieces, record = word_pieces(words, encoding, row), encoding.encodings[row]
        known = {
            c
            for offsets, number in zip(record.offsets, record.sequence_ids, strict=True)
            if number is not None
            for c in range(*offsets)
        }
        assert covered(text, record.offsets, words, pieces) == [
            set(range(w.start, w.end)) & known for w in words
        ]
        assert all(
            list(p) == sorted(set(p)) and all(record.sequence_ids[t] is not None for t in p)
            for p in pieces
        )
        if kind in ("WordPiece", "byte-level BPE") and not any(c in text for c in "न"):
            assert known >= {
                c for w in words for c in range(w.start, w.end)
            }  # nothing of a text without marks is dropped
        for token, (offsets, number) in enumerate(
            zip(record.offsets, record.sequence_ids, strict=True)
        ):
            inside = [
                max(w.start, offsets[0]) < min(w.end, offsets[1]) and number is not None
                for w in words
            ]
            assert inside == [token in p for p in pieces]


def test_tokens_spell_their_words():
    text = "the unhappy cats don't like it"
    tokenizer = wordpiece()
    encoding = tokenizer([text], padding="max_length", max_length=40)
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    spelled = [
        "".join(tokens[p].removeprefix("##") for p in places)
        for places in word_pieces(split_words(text), encoding)
    ]
    assert spelled == ["the", "unhappy", "cats", "don", "'", "t", "like", "it"]


def test_pairs_are_told_apart():
    tokenizer, texts = wordpiece(), ("the cats", "the dogs like")
    encoding = tokenizer([texts[0]], [texts[1]])
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    words = (*split_words(texts[0]), *split_words(texts[1], 1))
    spelled = [
        "".join(tokens[p].removeprefix("##") for p in places)
        for places in word_pieces(words, encoding)
    ]
    assert spelled == ["the", "cats", "the", "dogs", "like"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_word_cut_off_has_no_tokens(side):
    tokenizer = wordpiece()
    tokenizer.truncation_side = side
    text = "the cats like the happy dogs"
    pieces = word_pieces(split_words(text), tokenizer([text], truncation=True, max_length=7))
    kept = [bool(p) for p in pieces]
    assert kept != sorted(kept) if side == "right" else kept == sorted(kept)
    assert any(kept) and not all(kept)


def test_a_token_of_two_words_is_in_both():
    tokenizer = TOKENIZERS["byte-level BPE"]
    text = "don't like"
    encoding = tokenizer([text])
    (whole,) = (
        i
        for i, (start, end) in enumerate(encoding.encodings[0].offsets)
        if text[start:end].strip() == "'t"
    )
    assert [whole in places for places in word_pieces(split_words(text), encoding)] == [
        False,
        True,
        True,
        False,
    ]


def test_overlapping():
    words = (Word(0, 3), Word(4, 6), Word(7, 9), Word(4, 6, 1))
    assert overlapping(words, [Word(2, 5)]) == (True, True, False, False)
    assert overlapping(words, [Word(3, 4), Word(5, 5), Word(0, 9, 1)]) == (
        False,
        False,
        False,
        True,
    )
    assert overlapping(words, []) == (False,) * 4


def test_bad_input():
    encoding = wordpiece()(["the cats"])
    with pytest.raises(InputError, match="row 1 of an encoding of 1 texts"):
        word_pieces((), encoding, 1)
    with pytest.raises(InputError, match="it is no fast one"):
        word_pieces((), {"input_ids": [[1, 2]]})
