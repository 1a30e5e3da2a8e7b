"""ERASER's files: what its offsets count, which words are in the rationale, and the model's tokens
of them."""

import json

import pytest
import torch

from relprop.data import EraserMovies, eraser_words, word_pieces
from relprop.errors import InputError, OptionError
from tests.adapters.tokenizers_in_code import wordpiece
from tests.data.laws import holds_the_laws

DOCUMENT = "the cats are unhappy .\n\n  dogs  like café noise ,\tand\nthe end\n"
TOKENS = [
    "the",
    "cats",
    "are",
    "unhappy",
    ".",
    "dogs",
    "like",
    "café",
    "noise",
    ",\tand",
    "the",
    "end",
]


def evidence(start, end, docid="negR_1.txt"):
    return {
        "docid": docid,
        "start_token": start,
        "end_token": end,
        "start_sentence": -1,
        "end_sentence": -1,
        "text": " ".join(TOKENS[start:end]),
    }


def annotation(groups, name="negR_1.txt", label="NEG", **more):
    return {
        "annotation_id": name,
        "classification": label,
        "evidences": groups,
        "query": "What is the sentiment of this review?",
        "query_type": None,
        **more,
    }


def written(folder, *annotations, split="test"):
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    (folder / "docs/negR_1.txt").write_text(DOCUMENT, encoding="utf-8")
    (folder / "docs/posR_2.txt").write_text("a fine film\nof cats", encoding="utf-8")
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(a) + "\n" for a in annotations))
    return folder


def test_reviews(tmp_path):
    written(
        tmp_path,
        annotation([[evidence(1, 4)], [evidence(3, 5), evidence(10, 12)]]),
        annotation([], "posR_2.txt", "POS"),
    )
    source = EraserMovies(tmp_path)
    holds_the_laws(source, 2, lambda: EraserMovies(tmp_path), fork=True)
    first, second = source
    assert (
        first.key == "negR_1.txt"
        and first.inputs == DOCUMENT
        and [s.label for s in source] == [0, 1]
        and source.labels == ("NEG", "POS")
    )
    assert [first.inputs[w.start : w.end] for w in first.words] == TOKENS
    assert [token for token, marked in zip(TOKENS, first.rationale, strict=True) if marked] == [
        "cats",
        "are",
        "unhappy",
        ".",
        "the",
        "end",
    ]
    identity = source.identity()
    (tmp_path / "docs/posR_2.txt").write_text("a film of many fine cats")
    assert EraserMovies(tmp_path).identity() != identity
    assert (
        second.inputs == "a fine film\nof cats"
        and not any(second.rationale)
        and len(second.words) == 5
    )


def test_tokens_are_counted_as_eraser_does():
    """Its loader: lines stripped, empty ones dropped, cut at single spaces, empty tokens
    dropped."""
    for text in (DOCUMENT, "", "\n\n", " a\xa0b  c \n\x85d\x1c e ", "one"):
        lines = [line.strip() for line in text.split("\n")]
        expected = [token for line in lines if line for token in line.split(" ") if token]
        assert [text[w.start : w.end] for w in eraser_words(text)] == expected


def test_rationales_reach_the_models_tokens(tmp_path):
    sample = EraserMovies(written(tmp_path, annotation([[evidence(3, 4), evidence(7, 8)]])))[0]
    tokenizer = wordpiece()
    encoding = tokenizer(
        [sample.inputs], truncation=True, max_length=24, padding="max_length", return_tensors="pt"
    )
    pieces = word_pieces(sample.words, encoding)
    tokens = tokenizer.convert_ids_to_tokens(encoding["input_ids"][0])
    for word, places in zip(TOKENS[:8], pieces[:8], strict=True):
        assert "".join(tokens[p].removeprefix("##") for p in places) == word.replace(
            "é", "e"
        ) or "[UNK]" in [tokens[p] for p in places]
    marked = torch.zeros(encoding["input_ids"].shape[1], dtype=torch.bool)
    marked[
        [p for word, flag in zip(pieces, sample.rationale, strict=True) if flag for p in word]
    ] = True
    assert (
        marked.any() and not marked[0] and pieces[-1] == ()
    )  # cut off, and still in the rationale's list
    assert len(sample.rationale) == len(pieces)


def test_splits_and_classes(tmp_path):
    written(tmp_path, annotation([]), split="val")
    assert EraserMovies(tmp_path, split="val", classes=("POS", "NEG"))[0].label == 1
    with pytest.raises(OptionError, match=r"split='test': .* has val"):
        EraserMovies(tmp_path)


BAD = {
    "evidence outside": (annotation([[evidence(10, 13)]]), "tokens 10 to 13: the document has 12"),
    "evidence of nothing": (annotation([[evidence(3, 3)]]), "tokens 3 to 3"),
    "two documents": (
        annotation([[evidence(0, 1), evidence(0, 1, "posR_2.txt")]]),
        "evidence in 2 documents",
    ),
    "no document": (annotation([], "none.txt"), "no document docs/none.txt"),
    "outside docs": (annotation([], "../test.jsonl"), "no document docs/../test.jsonl"),
    "class": (annotation([], label="SUPPORTS"), "classification 'SUPPORTS'"),
    "flat evidences": (annotation([evidence(0, 1)]), "a list of groups"),
    "no evidences": (
        {"annotation_id": "negR_1.txt", "classification": "NEG"},
        "no column 'evidences'",
    ),
    "no offsets": (annotation([[{"docid": "negR_1.txt"}]]), "no column 'start_token'"),
}


@pytest.mark.parametrize("row, said", BAD.values(), ids=BAD)
def test_malformed(tmp_path, row, said):
    with pytest.raises(InputError, match=rf"(?s){said}.*test.jsonl, row 0"):
        EraserMovies(written(tmp_path, row))[0]


def test_documents_in_another_encoding(tmp_path):
    written(tmp_path, annotation([]))
    (tmp_path / "docs/negR_1.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(InputError, match=r"negR_1.txt is not UTF-8"):
        EraserMovies(tmp_path)[0]
