"""The page on data sets: its examples run on small files of each format, and every reader is on
it."""

import json
import re
from pathlib import Path

import datasets
import numpy as np
from datasets import ClassLabel, Features, Value
from PIL import Image

import relprop.data
from tests.adapters.tokenizers_in_code import wordpiece
from tests.data import test_eraser, test_gtsegs, test_huggingface

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text()


def files(folder):
    for name in ("cat/1.jpg", "dog/1.jpg"):
        (folder / "photos" / name).parent.mkdir(parents=True)
        Image.fromarray(
            np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
        ).save(folder / "photos" / name)
    test_gtsegs.written(folder / "gtsegs_ijcv.mat", *test_gtsegs.contents())
    test_eraser.written(folder / "movies", test_eraser.annotation([[test_eraser.evidence(1, 4)]]))
    (folder / "reviews.csv").write_text("text,stars\na fine film,4\n")
    (folder / "pairs.jsonl").write_text(
        json.dumps({"premise": "A cat sat.", "hypothesis": "It sat.", "label": "neutral"})
    )
    (folder / "why.jsonl").write_text(json.dumps({"text": "a fine film", "why": [0, 1, 0]}))
    (folder / "photos.tsv").write_text(
        "file\tlabel\nphotos/cat/1.jpg\tcat\nphotos/dog/1.jpg\tdog\n"
    )
    rows = datasets.Dataset.from_dict(
        {"text": ["x"], "label": [0]},
        features=Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])}),
    )
    datasets.DatasetDict({"test": rows}).save_to_disk(folder / "saved")
    test_huggingface.squad_file(folder / "dev-v2.0.json")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    files(tmp_path)
    monkeypatch.chdir(tmp_path)
    scope = {"tokenizer": wordpiece(), "__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "data.md", "exec"), scope)
    assert capsys.readouterr().out.splitlines() == [
        "image ('cat', 'dog') 2 cat/1.jpg 0 (3, 64, 64)",
        "0:n01440764_1 (3, 224, 224) [0, 1]",
        "['cats', 'are', 'unhappy']",
        "a fine film ('A cat sat.', 'It sat.') 1 (False, True, False) 0",
        "('Is it so?', 'Is it?') ('no', 'yes')",
        "['Normandy', 'in', 'France']",
        "['I like it', 'I do not']",
    ]
    assert scope["logits"].shape == (1, 3) and scope["pieces"][-1] == () and scope["pieces"][0]


def test_every_reader_is_on_the_page():
    readers = [
        name
        for name in relprop.data.__all__
        if hasattr(getattr(relprop.data, name), "identity") and name != "Source"
    ]
    assert len(readers) == 7 and all(f"`{name}`" in PAGE for name in readers)


def test_exports_are_sorted():
    assert sorted(relprop.data.__all__, key=lambda n: (n[0].islower(), n)) == relprop.data.__all__
