"""Writes in place, also through views of views, become functional: the graph equals the model,
whichever front end recorded it."""

import pytest
import torch
from torch import nn

import relprop
from relprop.tracer.assemble import assemble
from relprop.tracer.binding import bind
from relprop.tracer.capture import Capture, _concrete
from relprop.tracer.flat import Flat, run_eager
from relprop.tracer.passes import canonicalise
from relprop.tracer.verify import verify


def through_a_select(x):
    y = x.clone()
    y[:, 0].add_(1)
    return y


def views_of_one_tensor(x):
    y = x.clone()
    v = y[:, 1:3]
    y[:, 0] = 5.0
    v.mul_(2)
    w = y.view(-1)
    w[3] = 7.0
    return y + v.sum()


def pieces(x):
    y = x.clone()
    p, q = y.chunk(2, 1)
    p.add_(q)
    q.zero_()
    return y


def transposed_and_copied(x):
    y = x.clone()
    z = y.t()
    z[0].copy_(z[1])
    z.relu_().add_(1)
    return y * z.t()


def unbound(x):
    y = x.clone()
    u = y.unbind(1)
    u[2].mul_(3.0)
    s = y.squeeze()
    s -= 1
    return y + u[2][:, None]


def read_before_and_after(x):
    y = x.clone()
    v = y[:, :2]
    before = v.exp()
    v.masked_fill_(v > 0, -1.0)
    return y.sum() + before.sum() + v


def slices_and_diagonals(x):
    y = x.new_zeros(3, 4)
    y[:, 1:3] = x[:, :2]
    y.diagonal().fill_(2.0)
    return y @ x.t()


def a_copy_is_no_view(x):
    y = x.t().clone()
    z = y.t().reshape(-1)
    z.add_(1)
    return y.sum() + z


def by_index(x):
    y = x.clone()
    y[torch.arange(3), torch.tensor([0, 1, 2])] = 0.0
    y[y > 0.5] = 0.25
    y += x
    return y


WRITES = [
    through_a_select,
    views_of_one_tensor,
    pieces,
    transposed_and_copied,
    unbound,
    read_before_and_after,
    slices_and_diagonals,
    a_copy_is_no_view,
    by_index,
]


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.scale = body, nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.body((x * self.scale)[0])[None]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_exported_graphs_equal_the_model(write):
    assert relprop.trace(Model(write), torch.randn(1, 3, 4)).front_end == "export"


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_concrete_graphs_equal_the_model(write):
    model, inputs = Model(write), bind(torch.randn(1, 3, 4))
    flat = Flat(model, inputs)
    with torch.no_grad():
        eager = run_eager(flat, inputs, model)
        found = _concrete(flat, inputs, lambda: None)
        raw = Capture(
            found.graph, found.constants, flat.outputs, "concrete", found.decisions, eager=eager
        )
        canonicalise(raw.graph, torch.device("cpu"))
        verify(assemble(raw, inputs.names, None, model), model, inputs, raw.eager)
    assert not any(str(n.target).endswith("_.default") for n in raw.graph.nodes)
