"""Recurrent layers and cells are unrolled: the graph equals the model, samples do not mix, and
every step has rules."""

import pytest
import torch
from torch import nn

import relprop
from tests.common.rows import marked


class Layer(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed, self.layer, self.first = (
            nn.Embedding(20, 8),
            kind(8, 6, **options),
            options.get("batch_first", False),
        )
        self.head = nn.Linear(6 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, ids):
        x = self.embed(ids)
        out = self.layer(x)[0] if self.first else self.layer(x.transpose(0, 1))[0].transpose(0, 1)
        return self.head(out[:, -1])


class Cell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(20, 8), kind(8, 6), nn.Linear(6, 3)

    def forward(self, ids):
        state = None
        for x in self.embed(ids).unbind(1):
            state = self.cell(x, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


MODELS = {
    **{
        f"{kind.__name__} {options}": (Layer, kind, options)
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for options in (
            {"batch_first": True},
            {"num_layers": 2, "bidirectional": True},
            {"batch_first": True, "bias": False},
        )
    },
    "RNN relu": (Layer, nn.RNN, {"nonlinearity": "relu"}),
    **{kind.__name__: (Cell, kind, {}) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)},
}


#: Every kind of layer and every option once.
QUICK = (
    "LSTM {'batch_first': True}",
    "GRU {'num_layers': 2, 'bidirectional': True}",
    "RNN {'batch_first': True, 'bias': False}",
    "RNN relu",
    "LSTMCell",
)


@pytest.mark.parametrize("name", marked(MODELS, QUICK))
def test_relevance_goes_through_every_step(name):
    make, kind, options = MODELS[name]
    model, ids = make(kind, **options).double().eval(), torch.randint(0, 20, (3, 5))
    together = relprop.explain(model, ids, 1, method="lrp")
    alone = torch.cat(
        [relprop.explain(model, ids[i : i + 1], 1, method="lrp").scores for i in range(3)]
    )
    assert together.facts["generic"] == [] and together.ledger.worst() <= 1e-9
    assert (together.scores - alone).abs().max() <= 1e-9 * together.scores.abs().max()
    assert together.scores.shape == (3, 5) and bool((together.scores != 0).any(0).all())
