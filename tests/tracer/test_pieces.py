"""Neighbouring pieces of one tensor are cut in one call, and nothing else is."""

import pytest
import torch
from torch import nn

from relprop.interpreter.forward import Kept, forward
from relprop.tracer.binding import bind
from relprop.tracer.run import pieces
from relprop.tracer.trace import trace_program

ALL = {
    "unbind": lambda x: x.unflatten(2, (3, 4)).unbind(2),
    "one by one": lambda x: [x.unflatten(2, (3, 4))[:, :, i] for i in (2, 0, 1)],
    "negative": lambda x: [x.unflatten(2, (3, 4))[:, :, i] for i in (-1, -2, 0)],
    "chunk": lambda x: x.chunk(3, -1),
    "split": lambda x: x.split([2, 9, 1], 2),
    "slices": lambda x: (x[..., 4:], x[..., :4]),
}
NOT_ALL = {
    "one is left out": lambda x: [x.unflatten(2, (3, 4))[:, :, i] for i in (0, 2)],
    "over another": lambda x: (x[..., :7], x[..., 5:]),
    "steps": lambda x: (x[..., ::2], x[..., 1::2]),
    "two axes": lambda x: (x[:, :2], x[..., 3:]),
}


FUNCTIONS = (torch.tanh, torch.sin, torch.exp)


class Model(nn.Module):
    def __init__(self, cut):
        super().__init__()
        self.layer, self.cut = nn.Linear(4, 12), cut

    def forward(self, x):
        both = zip(FUNCTIONS, self.cut(self.layer(x)), strict=False)
        return torch.stack([f(p).flatten(1).sum(1) for f, p in both], 1)


def traced(cut):
    torch.manual_seed(0)
    model, x = Model(cut).double().eval(), torch.rand(3, 5, 4, dtype=torch.float64)
    return model, x, trace_program(model, bind((x,)))


def backward_names(tensor):
    names, waiting = set(), [tensor.grad_fn]
    while waiting:
        step = waiting.pop()
        names.add(type(step).__name__)
        waiting += [n for n, _ in step.next_functions if n is not None]
    return names


@pytest.mark.parametrize("name", [*ALL, *NOT_ALL])
@pytest.mark.parametrize("batch", [1, 3])
def test_gradients_are_the_models(name, batch):
    cut = (ALL | NOT_ALL)[name]
    model, x, program = traced(cut)
    x = x[:batch]
    (watched,) = program.placeholders
    done = forward(program, model, bind((x,)), Kept(program.output_nodes, {watched}))
    (output,) = program.output_nodes
    found = done.gradients(done.values[output].flatten(1).sum(1), [watched], again=True)[watched]
    given = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(model(given).sum(), given)
    assert torch.allclose(found.reshape(want.shape), want, rtol=0, atol=1e-12)
    names = backward_names(done.values[output])
    together = {n for n in names if n.startswith(("Unbind", "SplitWithSizes"))}
    alone = {n for n in names if n.startswith(("Select", "Slice"))}
    assert bool(together) == (name in ALL), names
    assert bool(alone) == (name in NOT_ALL), names


def test_pieces_of_two_tensors_are_not_mixed():
    _, _, program = traced(lambda x: (x[..., :6], x.cos()[..., 6:]))
    assert not pieces([n for n in program.graph.nodes if n.op == "call_function"])
