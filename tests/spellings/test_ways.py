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
    """Attention, queries and keys turned if ``turn`` is given, scores within a ``cap``, and a skip
    connection."""

    def __init__(self, turn=None, cap=None):
        super().__init__()
        self.norm, self.turn, self.cap = nn.LayerNorm(WIDTH), turn, cap
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        if self.cap is None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (self.cap * torch.tanh(q @ k.mT / self.cap)).softmax(-1) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))


class Picture(nn.Module):
    """A convolution and a layer, each with a norm by stored statistics, around attention."""

    def __init__(self):
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, WIDTH, 2, 2), nn.BatchNorm2d(WIDTH)
        self.block, self.layer = Block(), nn.Linear(WIDTH, WIDTH, bias=False)
        self.again, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)
        for norm in (self.norm, self.again):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 1.5)
        self.inputs = torch.randn(2, 3, 4, 4)

    def forward(self, x):
        x = F.gelu(self.norm(self.patches(x))).flatten(2).transpose(1, 2)
        x = self.block(x)
        x = x + F.relu(self.again(self.layer(x).flatten(0, 1))).reshape_as(x)
        return self.head(F.gelu(x).mean(1))


class Alone(nn.Module):
    """Attention of one token to itself, twice."""

    def __init__(self, cap):
        super().__init__()
        blocks = [Block(cap=cap), Block(cap=cap)]
        self.enter, self.blocks = nn.Linear(4, WIDTH), nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 3)
        self.inputs = torch.randn(2, 1, 4)

    def forward(self, x):
        x = self.blocks[0](self.enter(x)).mean(1, keepdim=True)
        return self.head(self.blocks[1](x)[:, 0])


class Pooled(nn.Module):
    """Attention of every token to the mean of all, two heads, then of every token to all."""

    def __init__(self):
        super().__init__()
        self.block, self.again = Block(), Block()
        self.head = nn.Linear(WIDTH, 3)
        self.inputs = torch.randn(2, TOKENS, WIDTH)

    def forward(self, x):
        own = self.block.norm(x)
        q, k, v = (
            F.linear(t, w).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t, w in zip(
                (own, *[own.mean(1, keepdim=True)] * 2),
                self.block.qkv.weight.chunk(3),
                strict=True,
            )
        )
        y = (q @ k.mT).softmax(-1) @ v
        return self.head(self.again(x + self.block.out(y.transpose(1, 2).flatten(2)))[:, 0])


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


class Stack(nn.Module):
    """Two blocks, read at their first token, outputs within a cap."""

    def __init__(self, *how):
        super().__init__()
        self.blocks = nn.Sequential(Block(*how), Block(*how))
        self.head = nn.Linear(WIDTH, 3)
        self.inputs = torch.randn(2, TOKENS, WIDTH)

    def forward(self, x):
        return 30 * torch.tanh(self.head(self.blocks(x)[:, 0]) / 30)


CASES = {
    "stored statistics": (Picture, ["batch_norm_written_out"]),
    "stored statistics, one product": (Picture, ["batch_norm_as_a_product_and_a_sum"]),
    "one token": (lambda: Alone(9.0), ["softmax_in_powers_of_two"]),
    "one key, head by head": (Pooled, ["softmax_of_each_head"]),
    "activation before a mean": (Picture, ["gelu_by_its_distribution"]),
    "norm of channels": (lambda: Sound(8), ["group_norm_of_rows"]),
    "norm of groups": (lambda: Sound(4), ["group_norm_of_rows"]),
    "rotations scattered": (lambda: Stack(turned), ["join_what_is_scattered"]),
    "scores within a cap": (lambda: Stack(None, 2.0), ["tangent_by_a_sigmoid"]),
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
