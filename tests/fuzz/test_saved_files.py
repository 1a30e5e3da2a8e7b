"""Files that were changed after they were saved end in one error, or load."""

import contextlib
import copy
import functools
import json
import os
import random
import threading

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import relprop
from relprop.demo.scenes import make_scenes
from relprop.errors import InputError, RelpropError
from relprop.storage import FORMAT, _digest
from tests.common.models import build, sample
from tests.common.sizes import digits


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


@pytest.mark.parametrize("write", ["save", "to_html"])
def test_what_is_written_to_a_pipe_goes_through_it(tmp_path, write):
    """The file that a library puts in its own place must not take that of a pipe, or of a device
    such as /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    contents = []
    reader = threading.Thread(target=lambda: contents.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    e = relprop.explain(build(), sample())
    getattr(e, write)(tmp_path / "pipe")
    reader.join(20)
    assert (tmp_path / "pipe").is_fifo() and list(tmp_path.iterdir()) == [tmp_path / "pipe"]
    (tmp_path / "file").write_bytes(contents[0])
    if write == "save":
        assert str(relprop.load(tmp_path / "file")) == str(e)
    else:
        assert contents[0].startswith(b"<!")


def test_what_was_loaded_is_no_longer_the_files(saved, tmp_path):
    """safetensors hands out the file's own memory."""
    copy, whole = tmp_path / "x", saved.read_bytes()
    copy.write_bytes(whole)
    loaded = relprop.load(copy)
    before = loaded.scores.clone()
    with copy.open("r+b") as file:
        file.write(b"\xff" * len(whole))
    assert loaded.scores.equal(before)
    os.truncate(copy, 0)
    assert loaded.scores.equal(before)


def texts_and_pictures(folder):
    """Two saved explanations, of pictures with the ledger and of texts with words."""
    from tests.views.conftest import explain_texts

    scenes = make_scenes(2, seed=5)
    seen = relprop.explain(digits(), scenes.images, 1)
    words = explain_texts(keep=("blocks", "matrix"))
    return [e.save(folder / f"{i}.safetensors") for i, e in enumerate((seen, words))]


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


OTHERS = (None, 0, -1, 10**6, 1e300, True, "", "a", "\ud800", [], [1], {}, {"a": 1}, [[1, 2]])


def changed(header, drawn):
    """The header with something else at one place, or without it."""
    found = copy.deepcopy(header)
    *path, last = drawn.choice([p for p in places(header) if p])
    at = functools.reduce(lambda v, k: v[k], path, found)
    if drawn.random() < 0.2:
        del at[last]
    elif isinstance(at[last], int) and drawn.random() < 0.5:
        at[last] *= 10 ** drawn.randrange(1, 12)
    else:
        at[last] = drawn.choice(OTHERS)
    return found


def read_all(e):
    """Everything a person does with an explanation: each refused by name, or done."""
    for call in (
        *(
            lambda name=name: getattr(e, name)()
            for name in ("heatmap", "original_heatmap", "words")
        ),
        *(
            lambda name=name: getattr(e, name)()
            for name in ("top", "summary", "terminal", "to_json")
        ),
        *(e.concerns, e.seconds, lambda: relprop.plot.matrix(e), lambda: repr(e), e._repr_html_),
        lambda: str(e.ledger),
    ):
        with contextlib.suppress(RelpropError):
            call()


@pytest.mark.parametrize("count", [20, pytest.param(2500, marks=pytest.mark.slow)])
def test_a_header_that_was_written_to_do_harm(tmp_path, count):
    """The checksum is right: whoever can write a file can write that, too."""
    drawn = random.Random(1)
    for path in texts_and_pictures(tmp_path):
        with safe_open(str(path), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
            whole = json.loads(file.metadata()["header"])
        for _ in range(count):
            header = json.dumps(changed(whole, drawn))
            metadata = {"format": FORMAT, "header": header, "sha256": _digest(header, tensors)}
            save_file(tensors, tmp_path / "x", metadata=metadata)
            try:
                read = relprop.load(tmp_path / "x")
            except InputError as error:
                assert "is damaged" in str(error)
            else:
                read_all(read)


@pytest.mark.parametrize("name, value", [("image", [10**6, 10**6]), ("grid", [10**6, 10**6])])
def test_a_claimed_size_is_refused_before_memory_is_asked_for(tmp_path, name, value):
    path, _ = texts_and_pictures(tmp_path)
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        whole = json.loads(file.metadata()["header"])
    whole["streams"][0][name] = value
    header = json.dumps(whole)
    metadata = {"format": FORMAT, "header": header, "sha256": _digest(header, tensors)}
    save_file(tensors, tmp_path / "x", metadata=metadata)
    with pytest.raises(RelpropError, match=r"grid does not fit|has 2e\+12 numbers"):
        relprop.load(tmp_path / "x").heatmap()
