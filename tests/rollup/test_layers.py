"""Where the layer of each attention site ends."""

import pytest
import torch
from torch import nn

import relprop
from relprop.operations import Kind, kind
from relprop.plan import flowing
from relprop.rollup import layer_outputs
from relprop.rules import PAPER


class Stack(nn.Module):
    """Blocks that normalise first or last, then a norm of the whole."""

    def __init__(self, norm_first):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
            for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(8) if norm_first else nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@pytest.mark.parametrize(("norm_first", "ends"), [(True, Kind.SUM), (False, Kind.NORM)])
def test_the_last_layer_ends_with_the_same_operation_as_the_layer_before(norm_first, ends):
    """A stack repeats one block; what the head does to all tokens is no part of it."""
    program = relprop.trace(Stack(norm_first).eval(), torch.randn(1, 5, 8))
    found = layer_outputs(program, flowing(program, PAPER), program.sites, program.output_nodes)
    assert [kind(node) for node in found.values()] == [ends] * 3
