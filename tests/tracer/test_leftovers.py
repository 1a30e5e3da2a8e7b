"""What stays in the process when a model is let go: nothing that grows with the captures."""

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import graph_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import relprop
from relprop.tracer import recorded
from tests.common.models import Recipe, build, sample


def held(*kinds):
    gc.collect()
    return sum(isinstance(o, kinds) for o in gc.get_objects())


def captured(seed):
    """One sample of a batch is a view of it, and so is what a person cuts out of a data set."""
    recipe = Recipe(seed=seed, depth=1)
    relprop.explain(build(recipe), sample(recipe, 4)[1:3], 1)


@pytest.mark.slow
def test_captures_of_views_are_collected_and_their_texts_let_go(monkeypatch):
    monkeypatch.setattr(recorded, "KEPT", 0)
    captured(0)
    kinds = (ShapeEnv, FakeTensorMode, FakeTensor)
    before, texts = held(*kinds), len(graph_module._loader.eval_cache)
    for seed in range(1, 5):
        captured(seed)
    assert held(*kinds) <= before and len(graph_module._loader.eval_cache) == texts
    assert not FakeTensorMode.cache


def test_the_results_of_few_captures_are_kept_for_the_next():
    torch._subclasses.FakeTensorMode.cache_clear()
    captured(9)
    assert 0 < len(FakeTensorMode.cache) <= recorded.KEPT
