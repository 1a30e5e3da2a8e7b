"""Files that were changed after they were saved end in one error, or load."""

import os
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import relprop
from relprop.errors import InputError
from relprop.storage import FORMAT, _digest
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
            loaded = relprop.load(tmp_path / "x")
        except InputError as error:
            assert str(tmp_path / "x") in str(error)
        else:
            assert str(loaded) == str(relprop.load(saved))


@pytest.mark.parametrize("header", ["[" * 100_000, "{}", "3", '{"streams": [1]}', "no"])
def test_a_header_of_something_else_is_refused(saved, tmp_path, header):
    with safe_open(str(saved), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    digest = _digest(header, tensors)
    metadata = {"format": FORMAT, "header": header, "sha256": digest}
    save_file(tensors, tmp_path / "x", metadata=metadata)
    with pytest.raises(InputError, match="is damaged"):
        relprop.load(tmp_path / "x")


@pytest.mark.parametrize("change", ["swapped", "one bit", "reshaped", "renamed"])
def test_other_numbers_are_refused(saved, tmp_path, change):
    with safe_open(str(saved), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        metadata = file.metadata()
    row, scores = "streams.0.row", "streams.0.scores"
    assert tensors[row].shape == tensors[scores].shape
    if change == "swapped":
        tensors[row], tensors[scores] = tensors[scores], tensors[row]
    elif change == "one bit":
        tensors[scores].view(-1).view(torch.uint8)[0] ^= 1
    elif change == "reshaped":
        tensors[scores] = tensors[scores].reshape(-1, 1)
    else:
        tensors["streams.0.matrix"] = tensors.pop(row)
    save_file(tensors, tmp_path / "x", metadata=metadata)
    with pytest.raises(InputError, match="is damaged: its checksum"):
        relprop.load(tmp_path / "x")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="it is no file"):
            relprop.load(path)
