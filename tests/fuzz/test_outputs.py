"""Hostile strings through everything that is written for people: none of it acts on a terminal, a
table or a page. (The report has its own tests, in a real browser: ``tests/report``.)"""

import json
import re

import pandas
import pytest

from relprop.data import ImageTable
from relprop.errors import InputError
from relprop.evaluation.table import markdown_grid, plain
from relprop.runs.manifest import NAME, Manifest
from relprop.runs.progress import Progress
from tests.views.conftest import HOSTILE, hostile, texts  # noqa: F401

SGR = re.compile(r"\x1b\[[0-9;]*m")


def acts(text):
    return [
        c for c in SGR.sub("", text) if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160
    ]


def test_terminals_and_words(hostile):  # noqa: F811
    for colour in (False, True):
        assert not acts(hostile.terminal(colour=colour))
    assert not acts(hostile.summary()) and "\x1b" not in hostile.summary()
    assert "<script>" not in hostile._repr_html_() and "\x1b" not in hostile._repr_html_()


def test_json_csv_and_parquet(hostile, tmp_path):  # noqa: F811
    assert json.loads(hostile.to_json())["samples"]
    frame = hostile.to_dataframe()
    frame.to_csv(tmp_path / "a.csv")
    frame.attrs = {}
    frame.to_parquet(tmp_path / "a.parquet")
    back = pandas.read_parquet(tmp_path / "a.parquet")
    assert r"\ud800" in set(back["token"]) and len(back) == len(frame)


@pytest.mark.parametrize("name", [*HOSTILE, "a|b", "![](http://x)", "[a](javascript:b)"])
def test_markdown(name):
    grid = markdown_grid([name], [(name, None)], lambda row, column: "1", False)
    rows = [re.split(r"(?<!\\)\|", line) for line in grid.split("\n")]
    assert len(rows) == 3 and {len(row) for row in rows} == {4} and "<" not in grid
    assert not acts(grid) and "](" not in plain(name)


def test_progress_lines(capsys):
    Progress(1, "x", wanted=False).say("sample 'a\x1b[2J\x9b' failed")
    assert capsys.readouterr().err == "sample 'a\\x1b[2J\\x9b' failed\n"


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "a/../../secret.png"])
def test_a_table_of_pictures_stays_in_its_folder(tmp_path, path):
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(b"")
    (folder / "t.csv").write_text(f"image,label\n{path},0\n")
    with pytest.raises(InputError, match="leads out of the table's folder"):
        ImageTable(folder / "t.csv")[0]


ODD = ["", "{", "[]", "3", "null", "[" * 100_000, '{"format": "relprop-run-1"}', "\ud800"]
PROBES = [3, {"a": 3}, {"a": [0.0, 1.0]}, {"a": ["0"] * 10}, {"a": [None] * 10}]
FIELDS = {"format": "relprop-run-1", "identity": {}, "samples": 3, "columns": {}, "versions": {}}


@pytest.mark.parametrize(
    "text",
    [
        *ODD,
        *(
            json.dumps({"format": "relprop-run-1", **FIELDS, f: v})
            for f in FIELDS
            for v in (None, -1, "a", [1], 1.5)
        ),
        *(json.dumps({**FIELDS, "probe": v}) for v in PROBES),
    ],
    ids=str,
)
def test_odd_run_json(tmp_path, text):
    (tmp_path / NAME).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=NAME):
        Manifest.read(tmp_path)
