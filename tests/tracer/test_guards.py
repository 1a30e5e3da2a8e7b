"""A graph that depends on values serves other inputs of which Python reads the same."""

import torch
from torch import nn

import relprop
from relprop.tracer import bind, trace_program

ONE, SAME, OTHER = (
    torch.tensor([row]) for row in ([7, 2, 9, 9, 3], [9, 4, 9, 3, 3], [9, 4, 9, 9, 3])
)


class Reading(nn.Module):
    """Takes something of its ids into Python, and attends to their embeddings."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, ids):
        x = self.read(ids, self.embed(ids))
        return self.head(((x @ x.mT).softmax(-1) @ x)[:, -1])


class Counts(Reading):
    def read(self, ids, x):
        return x * (ids == 9).sum().item()


class Lists(Reading):
    def read(self, ids, x):
        return x * ids[0].tolist().index(3)


class Picks(Reading):
    def read(self, ids, x):
        return torch.cat([x, x[ids == 9][None]], 1)


class Routes(Reading):
    """What it reads is worked out with weights."""

    def read(self, ids, x):
        return 2 * x if x.sum().item() > 0 else x


def program(model, ids):
    return trace_program(model, bind(ids))


def assert_right(model, ids):
    e = relprop.explain(model, ids, 1)
    fresh = type(model)()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(e.scores, relprop.explain(fresh, ids, 1).scores)


def test_the_same_number_is_the_same_graph():
    model = Counts()
    first = program(model, ONE)
    assert first.input_specialised and program(model, SAME) is first
    other = program(model, OTHER)
    assert other is not first and program(model, ONE) is first and program(model, OTHER) is other
    for ids in (ONE, SAME, OTHER):
        assert_right(model, ids)


def test_of_a_list_every_value_is_compared():
    model = Lists()
    first = program(model, ONE)
    assert program(model, ONE) is first
    assert program(model, SAME) is not first  # both have a 3, at other places
    for ids in (SAME, OTHER):
        assert_right(model, ids)


def test_a_shape_that_depends_on_a_mask_is_that_of_the_same_mask():
    model = Picks()
    first = program(model, ONE)
    assert program(model, torch.tensor([[1, 2, 9, 9, 5]])) is first
    assert program(model, SAME) is not first and program(model, OTHER) is not first
    for ids in (torch.tensor([[1, 2, 9, 9, 5]]), SAME, OTHER):
        assert_right(model, ids)


def test_what_is_worked_out_with_weights_is_captured_anew():
    model = Routes()
    first = program(model, ONE)
    assert first.guards is None and program(model, ONE) is not first
    with torch.no_grad():
        model.embed.weight.neg_()
    assert_right(model, ONE)


def test_weights_are_read_again():
    model = Counts()
    program(model, ONE)
    with torch.no_grad():
        model.embed.weight.mul_(1.5)
    assert_right(model, SAME)


def test_what_export_refused_once_is_not_asked_again(monkeypatch):
    """Python decides by what weights make of the ids, so that every sample has its own graph."""
    asked, export = [], torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *a, **k: (asked.append(a), export(*a, **k))[1]
    )
    model = Routes().eval()
    found = [relprop.explain(model, ids, 1) for ids in (ONE, SAME, ONE)]
    assert len(asked) == 1 and found[0].facts["front_end"] == "concrete"
    assert torch.equal(found[0].scores, found[2].scores)
    relprop.explain(model, ONE[:, :4], 1)
    assert len(asked) == 2  # of another length it is asked
