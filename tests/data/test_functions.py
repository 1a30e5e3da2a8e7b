"""What tells one function of the user's from another."""

import types
from functools import partial

import numpy as np
import pytest
import torch

from relprop.data import ImageFolder
from relprop.data.functions import of_callable
from relprop.errors import OptionError

SCALE, NAMES, TABLE = 2.0, {str(n): [n] for n in range(99)}, np.arange(3)
settings = types.ModuleType("settings")
settings.mean = 0.5


def helper(x):
    return SCALE * x


def through_a_helper(x):
    return [helper(y) for y in x]


def of_a_container(x):
    return NAMES["1"] + x


def of_an_array(x):
    return TABLE + x


def of_a_module(x):
    return x - settings.mean


def inside(x):
    def inner(y):
        return SCALE * y

    return inner(x)


def around(value):
    return lambda x: x + value


@pytest.mark.parametrize(
    ("function", "where", "name", "value"),
    [
        (through_a_helper, globals(), "SCALE", 3.0),
        (through_a_helper, globals(), "helper", lambda x: x),
        (inside, globals(), "SCALE", 3.0),
        (of_a_container, globals(), "NAMES", {**NAMES, "98": [0]}),
        (of_an_array, globals(), "TABLE", np.arange(3) + 1),
        (of_a_module, vars(settings), "mean", 0.4),
    ],
)
def test_what_a_function_reads_tells_it(function, where, name, value, monkeypatch):
    before = of_callable(function)
    assert before == of_callable(function)
    monkeypatch.setitem(where, "unread", 1)
    assert of_callable(function) == before
    monkeypatch.setitem(where, name, value)
    assert of_callable(function) != before


def test_what_a_function_is_made_around_tells_it():
    assert of_callable(around(1)) == of_callable(around(1)) != of_callable(around(2))
    one, other = around(torch.ones(2)), around(torch.zeros(2))
    assert of_callable(one) != of_callable(other)
    assert of_callable(partial(helper, x=1)) != of_callable(partial(helper, x=2))
    assert of_callable(partial(helper, x=1)) != of_callable(partial(of_an_array, x=1))
    cyclic = []
    cyclic.append(cyclic)
    assert of_callable(around(cyclic))
    assert of_callable(torch.nn.functional.interpolate)  # of a library: by its own source


class Nameless:
    def __call__(self, picture):
        return picture


def test_what_cannot_be_told_is_refused(tmp_path):
    with pytest.raises(OptionError, match="holds values that do not show in its source"):
        of_callable(around(Nameless()))
    (tmp_path / "x.png").write_bytes(b"")
    with pytest.raises(OptionError, match="Nameless prints only its address"):
        ImageFolder(tmp_path, transform=Nameless()).identity()
