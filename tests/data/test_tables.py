"""CSV, TSV and JSON lines: any text goes there and back; labels, rationales, pictures; what is
malformed."""

import csv
import json
import math
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from relprop.data import ImageTable, TextTable, Word
from relprop.data.rows import rows_of
from relprop.errors import InputError, OptionError
from tests.data.laws import holds_the_laws

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def table(path, rows):
    """Rows of dictionaries, as the file's ending says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file,
            list(rows[0]),
            **(
                {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
                if path.suffix == ".tsv"
                else {}
            ),
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


ROWS = [
    {"text": "a fine film", "label": 1, "id": "x"},
    {"text": 'he said "no", café', "label": 0, "id": "y"},
    {"text": " 🙂 last ", "label": -1, "id": "z"},
]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_texts(tmp_path, ending):
    path = table(tmp_path / f"reviews.{ending}", ROWS)
    source = TextTable(path, key="id")
    holds_the_laws(source, 3, lambda: TextTable(path, key="id"), fork=True)
    assert [(s.inputs, s.label, s.key) for s in source] == [
        (r["text"], r["label"] if r["label"] >= 0 else None, r["id"]) for r in ROWS
    ]
    assert (
        source.labels is None
        and source.name == "reviews"
        and source[0].words is None
        and TextTable(path)[2].key == "2"
    )
    assert source.identity() != TextTable(path).identity()


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@given(texts=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6), data=st.data())
def test_there_and_back(ending, texts, data):
    """In any order, with quotes, commas and line ends inside."""
    with tempfile.TemporaryDirectory() as folder:
        source = TextTable(
            table(
                Path(folder) / f"x{ending}", [{"text": a, "pair": b, "n": "1"} for a, b in texts]
            ),
            pair="pair",
            label=None,
        )
        assert len(source) == len(texts)
        for i in data.draw(st.permutations(range(len(texts)))):
            assert source[i].inputs == texts[i]
        rows = rows_of(source.path)
        assert list(rows) == [rows.row(i) for i in range(len(rows))]


def test_spaces_marks_and_empty_lines(tmp_path):
    (tmp_path / "a.csv").write_bytes('\ufefftext,label\r\n"one\r\ntwo",1\r\n\r\nthree,0'.encode())
    assert [(s.inputs, s.label) for s in TextTable(tmp_path / "a.csv")] == [
        ("one\r\ntwo", 1),
        ("three", 0),
    ]
    (tmp_path / "a.jsonl").write_bytes(
        '\ufeff{"text": "one", "label": 1}\r\n\n{"text": "two", "label": null}'.encode()
    )
    assert [(s.inputs, s.label) for s in TextTable(tmp_path / "a.jsonl")] == [
        ("one", 1),
        ("two", None),
    ]


def test_labels_by_name(tmp_path):
    path = table(
        tmp_path / "a.csv", [{"text": "x", "label": name} for name in ("pos", "neg", "", "pos")]
    )
    assert TextTable(path).labels == ("neg", "pos") and [s.label for s in TextTable(path)] == [
        1,
        0,
        None,
        1,
    ]
    given_names = TextTable(path, classes=("pos", "neutral", "neg"))
    assert given_names.labels == ("pos", "neutral", "neg") and [s.label for s in given_names] == [
        0,
        2,
        None,
        0,
    ]
    with pytest.raises(InputError, match=r"(?s)label 'neg': the 1 classes are 'pos'.*a.csv, row 1"):
        TextTable(path, classes=("pos",))[1]
    unread = TextTable(path, label=None)
    assert unread.labels is None and unread[0].label is None


def test_numbers_must_be_classes(tmp_path):
    path = table(
        tmp_path / "a.jsonl", [{"text": "x", "label": label} for label in (3, -2, 0.5, True)]
    )
    assert TextTable(path, label="label", classes=tuple("abcd"))[0].label == 3
    whole = table(tmp_path / "c.jsonl", [{"text": "x", "label": label} for label in (3, -2)])
    with pytest.raises(InputError, match="label -2"):
        TextTable(whole)[1]
    listed = table(tmp_path / "b.jsonl", [{"text": "x", "label": [0]}])
    with pytest.raises(InputError, match=r"label \[0\]: a number from 0 on, or a name, is needed"):
        TextTable(listed)[0]
    for i, said in ((0, "label 3: the 2 classes"), (1, "label -2"), (2, "label 0.5")):
        with pytest.raises(InputError, match=said):
            TextTable(path, classes=("a", "b"))[i]
    assert TextTable(path, classes=("a", "b"))[3].label == 1


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ((2.0, 0.0, 11.0, ""), [2, 0, 11, None]),  # as pandas writes whole numbers
        (("1e1", "2", "-1"), [10, 2, None]),
        (("+3", "03", ""), [3, 3, None]),
        ((-1.0, 0, 1), [None, 0, 1]),
        (("-1", "b", "a"), [None, 1, 0]),
        ((2, 10, "a"), [1, 0, 2]),  # names: 10, 2, a
        ((1.0, "a", 1.0), [0, 1, 0]),
        ((True, False, True), [1, 0, 1]),
        (("true", "False", 1), [1, 0, 1]),
        ((math.nan, 1, "nan"), [None, 1, None]),
    ],
)
def test_whole_numbers_are_classes_however_written(tmp_path, ending, labels, wanted):
    path = table(tmp_path / f"a.{ending}", [{"text": "x", "label": label} for label in labels])
    assert [s.label for s in TextTable(path)] == wanted


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("classes", "labels", "wanted"),
    [
        (("5", "10", "1"), (10, 1, 5.0, "10.0"), [1, 2, 0, 1]),
        (("1.0", "0.5"), (0.5, 1.0), [1, 0]),
        (("true", "false"), (True, False, 0), [0, 1, 0]),
        (("no", "yes"), (True, 0.0, "1"), [1, 0, 1]),
    ],
)
def test_names_that_look_like_numbers_are_names(tmp_path, ending, classes, labels, wanted):
    path = table(tmp_path / f"a.{ending}", [{"text": "x", "label": label} for label in labels])
    assert [s.label for s in TextTable(path, classes=classes)] == wanted


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("label", [[0], [0, 2], ["a", "b"], {"a": 1}, "[0 2]", '["a"]'])
def test_several_labels_of_one_row_are_refused(tmp_path, ending, label):
    path = table(tmp_path / f"a.{ending}", [{"text": "x", "label": k} for k in (label, "[Other]")])
    for classes in (None, ("a", "b")):
        with pytest.raises(InputError, match="a number from 0 on, or a name, is needed, not sev"):
            TextTable(path, classes=classes)[0]
    assert TextTable(path)[1].label == 0 and TextTable(path, label=None)[0].label is None


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("labels", "said", "wanted"),
    [
        ((0.5, 1.0, 0.25), "labels are numbers with fractions", [[None] * 3, [1, 2, 0]]),
        (("2.5", "1"), "labels are numbers with fractions", [[None] * 2, [1, 0]]),
        (("+1", "-1", "+1"), "labels are -1 and 1", [[1, 0, 1], [1, None, 1]]),
        ((-1, 1, 1), "labels are -1 and 1", [[0, 1, 1], [None, 1, 1]]),
    ],
)
def test_numbers_that_may_be_no_classes(tmp_path, ending, labels, said, wanted):
    """They are refused, and each advice works."""
    path = table(tmp_path / f"a.{ending}", [{"text": "x", "label": label} for label in labels])
    with pytest.raises(InputError, match=said) as error:
        TextTable(path)[0]
    advices = re.findall(r"(?:label|classes)=.*(?=   #)", str(error.value))
    for advice, found in zip(advices, wanted, strict=True):
        options = eval(f"dict({advice})")
        assert [s.label for s in TextTable(path, **options)] == found


RATIONALES = {
    "words": ("a  fine film.", None, [0, 1, 1], ["a", "fine", "film."], [False, True, True]),
    "characters": (
        "a fine film.",
        None,
        [[2, 6], [11, 12]],
        ["a", "fine", "film", "."],
        [False, True, False, True],
    ),
    "no characters": ("a film.", None, [], ["a", "film", "."], [False] * 3),
    "given words": (
        ["a", "fine", "film."],
        None,
        [1, 0, 0],
        ["a", "fine", "film."],
        [True, False, False],
    ),
    "characters of given words": (
        ["a", "fine", "film."],
        None,
        [[3, 4]],
        ["a", "fine", "film."],
        [False, True, False],
    ),
    "pair, words": ("a b", "c", [0, 1, 1], ["a", "b", "c"], [False, True, True]),
    "pair, characters": (
        "a b",
        "c!",
        [[0, 1], [1, 2, 1]],
        ["a", "b", "c", "!"],
        [True, False, False, True],
    ),
}


@pytest.mark.parametrize("as_text", [False, True], ids=["list", "JSON in a cell"])
@pytest.mark.parametrize("text, pair, rationale, words, flags", RATIONALES.values(), ids=RATIONALES)
def test_rationales(tmp_path, text, pair, rationale, words, flags, as_text):
    row = {"text": text, "pair": pair, "why": json.dumps(rationale) if as_text else rationale}
    source = TextTable(
        table(tmp_path / "a.jsonl", [row]),
        pair="pair" if pair else None,
        rationale="why",
        label=None,
    )
    holds_the_laws(source, 1, lambda: source)
    texts = (source[0].inputs,) if pair is None else source[0].inputs
    assert [texts[w.text][w.start : w.end] for w in source[0].words] == words and source[
        0
    ].rationale == tuple(flags)


def test_given_words_are_kept_without_a_rationale(tmp_path):
    sample = TextTable(table(tmp_path / "a.jsonl", [{"text": ["New", "York", "!"]}]), label=None)[0]
    assert (
        sample.inputs == "New York !"
        and sample.words == (Word(0, 3), Word(4, 8), Word(9, 10))
        and sample.rationale is None
    )


BAD_RATIONALES = {
    "too few": ([1], "for 1 words, and there are 3"),
    "outside": ([[0, 99]], "outside the text, of 11 characters"),
    "backwards": ([[3, 2]], "outside the text"),
    "other text": ([[0, 1, 1]], "outside the text"),
    "mixed": ([0, [1, 2]], "holds int 0"),
    "number": (3, "rationale is int 3"),
    "text": ("0 1 0", "is no list in JSON"),
    "floats": ([0.5], "holds float"),
}


@pytest.mark.parametrize("rationale, said", BAD_RATIONALES.values(), ids=BAD_RATIONALES)
def test_malformed_rationales(tmp_path, rationale, said):
    source = TextTable(
        table(tmp_path / "a.jsonl", [{"text": "a fine film", "why": rationale}]),
        rationale="why",
        label=None,
    )
    with pytest.raises(InputError, match=rf"(?s){said}.*a.jsonl, row 0"):
        source[0]


BAD = {
    "column": (
        "a.csv",
        b"text,label\nx,1\n",
        {"text": "sentence"},
        "no column 'sentence'; there are 'text', 'label'",
    ),
    "label column": ("a.csv", b"text\nx\n", {}, "(?s)no column 'label'.*label=None"),
    "cells": ("a.csv", b"text,label\nx,1,2\n", {"classes": ("a", "b")}, "3 cells, 2 columns"),
    "open quote": (
        "a.csv",
        b'text,label\n"x,1\ny,2\n',
        {},
        "(?s)no table in UTF-8: unexpected end of data",
    ),
    "header": ("a.csv", b"text,text\nx,1\n", {}, "the first line names the columns, each once"),
    "empty": ("a.csv", b"", {}, "the first line names the columns"),
    "latin-1": ("a.tsv", "text\tlabel\ncaf\xe9\t1\n".encode("latin-1"), {}, "no table in UTF-8"),
    "no JSON": ("a.jsonl", b"{'text': 1}\n", {}, "(?s)not JSON.*a.jsonl, row 0"),
    "no object": ("a.jsonl", b"[1]\n", {}, "(?s)a list, not an object.*a.jsonl, row 0"),
    "deep JSON": ("a.jsonl", b"[" * 100_000, {}, "not JSON"),
    "no text": ("a.jsonl", b'{"text": 3, "label": 0}\n', {}, "column 'text' holds int 3"),
    "null text": ("a.jsonl", b'{"text": null, "label": 0}\n', {}, "column 'text' holds NoneType"),
    "long cell": (
        "a.csv",
        b"text,label\n" + b"x" * 140_000 + b",1\n",
        {},
        "(?s)field larger.*csv.field_size_limit",
    ),
    "ending": ("a.parquet", b"", {}, "tables are .csv, .tsv, .jsonl, .ndjson"),
}


@pytest.mark.parametrize("name, content, options, said", BAD.values(), ids=BAD)
def test_malformed(tmp_path, name, content, options, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        TextTable(tmp_path / name, **options)[0]


def test_pictures(tmp_path):
    (tmp_path / "pictures").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 7, 3), dtype=np.uint8)
    for i, p in enumerate(pixels):
        Image.fromarray(p).save(tmp_path / f"pictures/{i}.png")
    path = table(
        tmp_path / "a.csv",
        [{"image": f"pictures/{i}.png", "label": name} for i, name in enumerate("ba")],
    )
    source = ImageTable(path, size=(6, 7))
    holds_the_laws(source, 2, lambda: ImageTable(path, size=(6, 7)))
    assert source.labels == ("a", "b") and [s.label for s in source] == [1, 0]
    assert torch.equal(source[1].inputs, torch.from_numpy(pixels[1]).permute(2, 0, 1) / 255)
    identity = source.identity()
    (tmp_path / "pictures/1.png").unlink()
    assert source.identity() != identity
    with pytest.raises(InputError, match=r"(?s)no picture 'pictures/1.png'.*a.csv, row 1"):
        source[1]
    with pytest.raises(OptionError, match="exclude each other"):
        ImageTable(path, size=3, transform=torch.nn.Identity())
