"""Places in a user's code are told whatever the folders above it are called."""

import importlib.util
import sys

import pytest
import torch

import relprop
from relprop.tracer.facts import place

CODE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(4, 12), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            scale = x.square().mean((1, 2), keepdim=True).sqrt()
        q, k, v = self.qkv(x / scale).chunk(3, -1)
        return self.head(((q @ k.mT).softmax(-1) @ v).mean(1))
"""


@pytest.mark.parametrize("folder", ("mine", "relprop", "torch", "torch/relprop"))
def test_places_are_told_under_folders_of_any_name(tmp_path, folder):
    file = tmp_path / folder / "users_model.py"
    file.parent.mkdir(parents=True)
    file.write_text(CODE)
    spec = importlib.util.spec_from_file_location("users_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, x = module.Model(), torch.randn(2, 3, 4)
    (site,) = relprop.trace(model, x).sites
    assert place(site.contraction).source.startswith("users_model.py:15: `return")
    said = relprop.explain(model, x, 1).facts["compared"]
    assert "no_grad at users_model.py:12: `with" in said
    sys.modules.pop("users_model", None)
