"""The guard of models that several tests use sees what a test leaves changed."""

import pytest
import torch

from tests.common.models import _few_recipes, build, changed, lent


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.train(),
        lambda m: m.head.register_forward_hook(print),
        lambda m: m.head.weight.data.add_(1),
        lambda m: m(torch.zeros(1, 5, 6, dtype=torch.float64)).sum().backward(),
        lambda m: setattr(m, "head", torch.nn.Linear(8, 4)),
        lambda m: m.requires_grad_(False),
    ],
    ids=["mode", "hook", "values", "gradient", "module", "frozen"],
)
def test_a_changed_model_is_told(change):
    model = lent(build())
    assert not changed()
    lent(model)
    change(model)
    assert changed() and not changed()


def test_the_few_recipes_have_every_value():
    few = _few_recipes()
    for name in ("depth", "heads", "norm", "activation", "pool", "ids", "tied", "parallel"):
        assert len({getattr(r, name) for r in few}) >= 2
    assert any(r.tied and r.ids for r in few) and len(set(few)) == len(few)
