"""The oracle of ``tools.rollup_graphs`` says what the definition's page works out: without relprop,
on maps drawn by chance."""

import numpy as np
import pytest

from tests.rollup.worked import OF_TWO, WORKED, recipe_of, rows_of
from tools.rollup_graphs.by_hand import ByHand


@pytest.mark.parametrize("name", [*WORKED, *OF_TWO])
def test_worked_by_hand(name):
    recipe, x = recipe_of(name)
    for place in range(recipe.tokens(x)):
        recipe.__dict__.pop("live", None)
        recipe.reads = [(x, place)]
        chance = np.random.default_rng(0)
        maps = {
            i: (m := chance.random((2, recipe.tokens(i), recipe.tokens(recipe.nodes[i].of[1]))))
            / m.sum(-1, keepdims=True)
            for i in recipe.of_kind("map")
        }
        e = [maps[recipe.nodes[u].of[0]] for u in recipe.of_kind("use")]
        found = ByHand(recipe, maps, {}).rows()
        for (scores, identity), (row, without) in zip(found, rows_of(name, *e), strict=True):
            assert abs(identity - without[..., place, :]).max() < 1e-14
            assert abs(scores + identity - row[..., place, :]).max() < 1e-14
