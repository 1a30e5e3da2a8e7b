"""Models on several devices: every call runs where the model made it, and everything that follows
the graph (gradients, rules, the roll-up, methods) goes there, too. There need be no such device."""

import copy
from types import SimpleNamespace

import pytest
import torch
from accelerate.hooks import attach_align_device_hook_on_blocks
from torch import nn

import relprop
from relprop.runner import session
from relprop.tracer import bind, trace_program
from relprop.tracer.capture import _export
from relprop.tracer.facts import place
from relprop.tracer.flat import Flat
from relprop.tracer.offloaded import devices_of, in_outline
from relprop.tracer.passes import canonicalise
from tests.common.devices import ONE, TWO, ZeroPadded, devices, placed, put, put_module
from tests.common.models import Block, Recipe, randomise
from tests.common.rows import marked
from tests.methods.test_chunks import in_chunks, lively_case

METHODS = ("transformer_attribution", "gradient_x_input", "attnlrp", "rollout", "gae", "cat")
pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")


def test_a_call_is_placed_where_its_module_runs():
    """Through accelerate's own hooks, on devices that this machine need not have."""
    model = randomise(nn.Sequential(Block(Recipe()), Block(Recipe()))).requires_grad_(False)
    first, second = torch.device("cuda:0"), torch.device("cuda:1")
    attach_align_device_hook_on_blocks(
        model,
        execution_device={"": first, "0": first, "1": second},
        offload={"0": True, "1": True},
        weights_map={name: p.clone() for name, p in model.state_dict().items()},
    )
    assert devices_of(model) == {first, second}
    inputs = bind(torch.randn(1, 5, 8))
    with torch.no_grad(), in_outline(model):
        found = _export(Flat(model, inputs), inputs)
    canonicalise(found.graph, first, found.constants, {})
    calls = [n for n in found.graph.nodes if n.op == "call_function" and place(n).path]
    assert {place(n).device for n in calls if place(n).path.startswith("0")} == {first}
    assert {place(n).device for n in calls if place(n).path.startswith("1")} == {second}


def spread(model, inputs, monkeypatch):
    """A copy of a model whose second half is on another device than the first, and the inputs of
    the first; each call of its program is placed with its module."""
    far, program = copy.deepcopy(model), trace_program(model, bind(inputs))
    blocks = [m for m in far.modules() if type(m).__name__.endswith(("Layer", "Block"))]
    there = {p for p, m in far.named_modules() if m in blocks[len(blocks) // 2 :]}
    for path in there:
        put_module(far.get_submodule(path), TWO)
    put_module(far, ONE)
    far._hf_hook = SimpleNamespace(execution_device=ONE)

    def where(node):
        return TWO if any(c.split("@")[0] in there for c, _ in place(node).modules) else ONE

    program = placed(program, where)
    monkeypatch.setattr(session, "trace_program", lambda *_: program)
    return far


@pytest.mark.parametrize("chunks", marked([False, True], ("False",)))
@pytest.mark.parametrize(
    "name", ["grouped queries", pytest.param("encoder and decoder", marks=pytest.mark.slow)]
)
def test_a_model_on_two_devices_is_explained_as_on_one(name, chunks, monkeypatch):
    model, inputs, target = lively_case(name)
    model.double()
    if chunks:
        in_chunks(monkeypatch)

    def scores(model, inputs, method, **options):
        found = relprop.explain(model, inputs, target, method=method, **options)
        each = (found[n].scores for n in found.streams)
        return torch.cat([(s.inner if isinstance(s, ZeroPadded) else s).flatten() for s in each])

    whole = {method: scores(model, inputs, method) for method in METHODS}
    far = spread(model, inputs, monkeypatch)
    with devices():
        given = {n: put(t, ONE) for n, t in inputs.items()}
        for method, theirs in whole.items():
            for memory in (None, 0):
                mine = scores(far, given, method, memory=memory, verify=False)
                assert (mine - theirs).abs().max() <= 1e-12 * theirs.abs().max()


def test_tensors_on_two_devices_are_refused_by_each_other():
    """The devices of these tests are as strict as real ones."""
    with devices(), pytest.raises(RuntimeError, match="tensors on"):
        put(torch.ones(2), ONE) + put(torch.ones(2), TWO)
