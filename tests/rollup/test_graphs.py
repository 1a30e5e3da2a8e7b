"""The roll-up against its definition: the worked cases of its page, and residual graphs drawn by
chance, ``tools.rollup_graphs``, whose oracle multiplies its own recipe by hand
(``tests/tools/test_rollup_graphs.py``)."""

from functools import reduce

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.rollup.structures import merged, split
from tests.rollup.worked import OF_TWO, WORKED, recipe_of, rows_of
from tools.rollup_graphs.drawing import drawn, shrunk
from tools.rollup_graphs.modules import OneInput, TwoInputs
from tools.rollup_graphs.recording import recorded

DRAWS, EACH = 300, 20
WIDTH, HEADS, TOKENS = 16, 8, 5


@pytest.mark.parametrize("first", range(0, DRAWS, EACH))
def test_every_row_is_the_definitions(first):
    for number in range(first, first + EACH):
        trial = drawn(number, seed=0)
        with recorded():
            least = shrunk(trial) if trial.wrong else trial
        if least.wrong:
            raise AssertionError(
                f"python -m tools.rollup_graphs --show {number}: {least.wrong}\n"
                f"{', '.join(least.draw.kinds)}\n{least.recipe.said()}"
            )


# -- what the definition's page works out


def every_place(model, inputs, tokens):
    """Of each input scores and identity, (tokens of the model's result, tokens of the input): of
    one sample for each token of the result, what brought one feature of it."""
    target = [(place, 1) for place in range(tokens)]
    e = relprop.explain(model, inputs, target, method="rollout")
    return [(s.scores.numpy(), s.identity.numpy()) for s in e.streams.values()]


def agree(found, products):
    """``products``: of each input its rows of every sample, and the same without any map."""
    for (scores, identity), (rows, without) in zip(found, products, strict=True):
        own = np.arange(len(scores))
        row = rows[own, own] if rows.ndim == 3 else rows
        assert scores.shape == row.shape == identity.shape
        for one, other in ((scores, row - without), (identity, without)):
            assert abs(one - other).max() <= 1e-12 * abs(row).max(), f"{one}, by hand {other}"


@pytest.mark.parametrize("name", [*WORKED, *OF_TWO])
def test_worked(name):
    torch.manual_seed(0)
    recipe, x = recipe_of(name)
    recipe.reads, recipe.form = [(x, 0)], "feature"
    tokens = recipe.tokens(x)
    leaves = [recipe.tokens(i) for i in recipe.of_kind("input")]
    model = (OneInput, TwoInputs)[len(leaves) - 1](recipe).double().eval()
    inputs = tuple(torch.randn(tokens, n, 3).double() for n in leaves)
    kept, _ = model.mixing(*inputs)
    maps = [kept[recipe.nodes[u].of[0]] for u in recipe.of_kind("use")]
    with recorded():
        found = every_place(model, inputs, tokens)
    products = rows_of(name, *maps)
    agree(found, [(rows, identity[0] if identity.ndim == 3 else identity) for rows, identity in products])
