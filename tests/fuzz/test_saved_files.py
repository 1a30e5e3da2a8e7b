"""Files that were changed after they were saved end in one error, or load."""

import os
import random

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

import relprop
from relprop.errors import InputError
from relprop.storage import FORMAT
from tests.common.models import build, sample


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "one.safetensors"
    return relprop.explain(build(), sample(), 1, keep="blocks").save(path)


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_changed_file_loads_or_is_refused(saved, tmp_path, count):
    drawn, whole = random.Random(0), saved.read_bytes()
    head = int.from_bytes(whole[:8], "little")
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(drawn.randint(1, 4)):
            data[drawn.randrange(8 + head)] = drawn.randrange(32, 127)
        (tmp_path / "x").write_bytes(data[: drawn.choice([len(data), drawn.randrange(len(data))])])
        try:
            relprop.load(tmp_path / "x")
        except InputError as error:
            assert str(tmp_path / "x") in str(error)


@pytest.mark.parametrize("header", ["[" * 100_000, "{}", "3", '{"streams": [1]}', "no"])
def test_a_header_of_something_else_is_refused(saved, tmp_path, header):
    with safe_open(str(saved), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    save_file(tensors, tmp_path / "x", metadata={"format": FORMAT, "header": header})
    with pytest.raises(InputError, match="is damaged"):
        relprop.load(tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="it is no file"):
            relprop.load(path)
