"""Small models, unchanged but for how one function is called, where a library's model once had
another map: ``python -m tools.rewritten`` found each of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.rewriting import Rewritten
from tools.rewritten import called, explained, furthest

WIDTH, HEADS, TOKENS = 12, 2, 6


class Block(nn.Module):
    """Attention, queries and keys turned if ``turn`` is given, and a skip connection."""

    def __init__(self, turn=None):
        super().__init__()
        self.norm, self.turn = nn.LayerNorm(WIDTH), turn
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(y)


class Sound(nn.Module):
    """Convolutions with a norm of each channel, then attention."""

    def __init__(self, groups):
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 8, 3, 2), nn.GroupNorm(groups, 8)
        self.second, self.block = nn.Conv1d(8, WIDTH, 2, 2), Block()
        self.head = nn.Linear(WIDTH, 3)
        self.inputs = torch.randn(2, 1, 4 * TOKENS + 1)

    def forward(self, x):
        x = self.second(F.gelu(self.norm(self.first(x))))
        return self.head(self.block(x.transpose(1, 2)).mean(1))


def turned(x):
    """Rotary positions along two axes, a half of the features for each."""
    parts = []
    for y, places in zip(x.split(WIDTH // HEADS // 3 * 2, -1), (1.0, 2.0), strict=False):
        angles = places * torch.arange(TOKENS)[:, None] / (1 + torch.arange(y.shape[-1] // 2))
        cos, sin = (f(angles).repeat(1, 2) for f in (torch.cos, torch.sin))
        a, b = y.chunk(2, -1)
        parts.append(y * cos + torch.cat((-b, a), -1) * sin)
    return torch.cat(parts, -1)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(turned), Block(turned))
        self.head = nn.Linear(WIDTH, 3)
        self.inputs = torch.randn(2, TOKENS, WIDTH)

    def forward(self, x):
        return self.head(self.blocks(x)[:, 0])


CASES = {
    "norm of channels": (lambda: Sound(8), ["group_norm_of_rows"]),
    "norm of groups": (lambda: Sound(4), ["group_norm_of_rows"]),
    "rotations scattered": (Rotary, ["join_what_is_scattered"]),
}


@pytest.mark.parametrize(("make", "ways"), CASES.values(), ids=CASES)
def test_another_way_to_call_a_function_is_the_same_map(make, ways):
    model = make().double().eval()
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    found = []
    for mode in (Rewritten(()), Rewritten(ways)):
        with called(model, mode):
            found.append(explained(model, model.inputs.double(), 1))
    assert mode.used == set(ways)
    assert max(furthest(*found).values()) < 1e-9
