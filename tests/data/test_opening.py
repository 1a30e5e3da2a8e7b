"""What a user types, to the reader of its format; everything without the optional libraries says
which is missing."""

import subprocess
import sys
from collections import namedtuple

import datasets
import pytest

from relprop.data import (
    EraserMovies,
    HuggingFaceData,
    ImageFolder,
    ImageNetSegmentation,
    ImageTable,
    Squad,
    TextTable,
    open_data,
)
from relprop.data.files import needed
from relprop.errors import InputError, OptionError
from tests.data import test_eraser, test_gtsegs, test_huggingface, test_images, test_tables

Case = namedtuple("Case", "make options kind length")


def saved(rows, path):
    rows.save_to_disk(path)
    return path


CASES = {
    "pictures": Case(lambda p: test_images.folder(p), {"size": 8}, ImageFolder, 4),
    "ERASER": Case(
        lambda p: test_eraser.written(p, test_eraser.annotation([])), {}, EraserMovies, 1
    ),
    "gtsegs": Case(
        lambda p: test_gtsegs.written(p / "gtsegs_ijcv.mat", *test_gtsegs.contents()),
        {"size": 8},
        ImageNetSegmentation,
        3,
    ),
    "csv": Case(
        lambda p: test_tables.table(p / "x.csv", test_tables.ROWS), {"text": "id"}, TextTable, 3
    ),
    "TSV": Case(lambda p: test_tables.table(p / "x.tsv", test_tables.ROWS), {}, TextTable, 3),
    "jsonl": Case(lambda p: test_tables.table(p / "x.jsonl", test_tables.ROWS), {}, TextTable, 3),
    "table of pictures": Case(
        lambda p: test_tables.table(p / "x.csv", [{"file": "x.png", "label": 0}]),
        {"image": "file"},
        ImageTable,
        1,
    ),
    "SQuAD file": Case(lambda p: test_huggingface.squad_file(p / "dev.json"), {}, Squad, 3),
    "SQuAD folder": Case(lambda p: saved(test_huggingface.squad_rows(), p / "x"), {}, Squad, 3),
    "datasets folder": Case(
        lambda p: saved(datasets.Dataset.from_dict({"text": ["x"], "label": [0]}), p / "x"),
        {},
        HuggingFaceData,
        1,
    ),
    "splits": Case(
        lambda p: saved(datasets.DatasetDict({"test": test_huggingface.squad_rows()}), p / "x"),
        {"split": "test"},
        Squad,
        3,
    ),
    "data set": Case(
        lambda p: datasets.Dataset.from_dict({"sentence": ["x", "y"]}),
        {"label": None},
        HuggingFaceData,
        2,
    ),
    "SQuAD": Case(lambda p: test_huggingface.squad_rows(), {}, Squad, 3),
    "SQuAD's texts": Case(
        lambda p: test_huggingface.squad_rows(),
        {"text": "context", "label": None},
        HuggingFaceData,
        3,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_known_formats(tmp_path, case):
    spec = case.make(tmp_path)
    source = open_data(spec, **case.options)
    assert type(source) is case.kind and len(source) == case.length
    if not hasattr(spec, "column_names"):
        assert type(open_data(str(spec), **case.options)) is case.kind
    assert open_data(source) is source


def test_a_source_is_handed_back_unread(tmp_path):
    path = test_tables.table(tmp_path / "x.csv", test_tables.ROWS)
    source = TextTable(path)
    path.unlink()
    assert open_data(source) is source


def test_unknown(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"")
    for spec, said in (
        (tmp_path / "x.parquet", "the ending '.parquet'(?s:.*)gtsegs_ijcv.mat(?s:.*).csv"),
        (tmp_path / "none", "does not exist(?s:.*)gtsegs"),
        (tmp_path, "a folder of no known format(?s:.*)ERASER"),
        (3, "int is no data set(?s:.*)ERASER"),
    ):
        with pytest.raises(InputError, match=said):
            open_data(spec)


def test_options_of_another_reader(tmp_path):
    path = test_tables.table(tmp_path / "x.csv", test_tables.ROWS)
    with pytest.raises(
        OptionError, match="split=: TextTable has label=, classes=, key=, text=, pair=, rationale="
    ):
        open_data(path, split="test")
    with pytest.raises(OptionError, match="text=: TextTable is made already"):
        open_data(TextTable(path), text="id")


def test_missing_libraries_are_named(monkeypatch, tmp_path):
    path = test_gtsegs.written(tmp_path / "x.mat", *test_gtsegs.contents())
    test_images.noise(3, 3).save(tmp_path / "x.png")
    folder = saved(datasets.Dataset.from_dict({"text": ["x"]}), tmp_path / "rows")
    for name, call in (
        ("h5py", lambda: open_data(path)),
        ("PIL", lambda: open_data(tmp_path)[0]),
        ("datasets", lambda: HuggingFaceData(folder)),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            patch.setitem(sys.modules, f"{name}.Image", None)
            with pytest.raises(
                OptionError, match=rf'this data needs {name}: pip install "relprop\[data\]"'
            ):
                call()
    with pytest.raises(OptionError, match="pip install timm"):
        needed("no_such_library.data", package="timm")


@pytest.mark.slow
def test_nothing_heavy_is_imported():
    code = (
        "import sys, relprop.data; print([n for n in ('h5py', 'datasets', 'PIL', "
        "'timm', 'transformers', 'torchvision', 'pyarrow') if n in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )
