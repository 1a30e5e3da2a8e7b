"""Which inputs of ids are explained, and which are only properties of another's tokens."""

import pytest
import torch
from torch import nn

import relprop
from relprop.tracer.leaves import ADDED

WIDTH, TOKENS = 8, 5


class Segments(nn.Module):
    """Words, and segments that reach them through ``way``."""

    def __init__(self, way):
        super().__init__()
        self.words, self.segments = nn.Embedding(20, WIDTH), nn.Embedding(3, WIDTH)
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(TOKENS, TOKENS)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.head, self.way = nn.Linear(WIDTH, 3), way

    def forward(self, words, segments):
        x = self.way(self, self.words(words), self.segments(segments))
        return self.head((x + self.attention(x, x, x)[0]).mean(1))


def traced(way):
    ids = torch.randint(0, 3, (2, TOKENS))
    return relprop.trace(Segments(way).eval(), {"words": ids, "segments": ids.flip(1)})


POSITIONWISE = {
    "as it is": lambda m, x, s: x + s,
    "scaled": lambda m, x, s: x + 2 * s.tanh(),
    "normed": lambda m, x, s: x + m.norm(s),
    "moved and back": lambda m, x, s: x + s.mT.contiguous().mT,
}
OTHERWISE = {
    "mixed along the positions": lambda m, x, s: x + m.mix(s.mT).mT,
    "joined as tokens": lambda m, x, s: torch.cat([x, s], 1),
}


@pytest.mark.parametrize("way", POSITIONWISE.values(), ids=POSITIONWISE)
def test_what_is_added_position_by_position_is_a_property_of_the_tokens(way):
    program = traced(way)
    assert set(program.leaves) == {"words"}
    assert program.constant_inputs == {"segments": ADDED}


@pytest.mark.parametrize("way", OTHERWISE.values(), ids=OTHERWISE)
def test_what_reaches_other_positions_is_explained(way):
    assert set(traced(way).leaves) == {"words", "segments"}
