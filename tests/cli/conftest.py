"""The commands as they are run, in this process: exit code, standard output, standard error. And
small models in folders, nothing downloaded."""

import sys
from types import SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch
import transformers

from relprop.cli import main
from tests.common.sizes import vit
from tests.runs.sources import bert, tokenizer


@pytest.fixture
def relprop_says(capsys, monkeypatch):
    """``relprop_says("explain", ...)``: what the console entry point does with these arguments."""

    def run(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["relprop", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return SimpleNamespace(code=ended.value.code or 0, out=said.out, err=said.err)

    return run


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Models in folders whose names have spaces and letters of several scripts: ``text`` and
    ``image``."""
    root = tmp_path_factory.mktemp("Модели и 模型")
    torch.manual_seed(0)
    bert().save_pretrained(root / "текст 1")
    tokenizer().save_pretrained(root / "текст 1")
    names = {0: "cat", 1: "dog", 2: "дом"}
    model = vit(id2label=names, label2id={name: i for i, name in names.items()})
    model.save_pretrained(root / "image")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(root / "image")
    return SimpleNamespace(text=root / "текст 1", image=root / "image", root=root)


@pytest.fixture
def photo(tmp_path):
    """A picture in a file, in a folder, with the kind of name that pictures have."""
    path = tmp_path / "Фото 1.png"
    PIL.Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (50, 40, 3), dtype=np.uint8)
    ).save(path)
    return path
