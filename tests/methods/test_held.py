"""What an explanation holds: values that are cheap to make are made again where rules read them,
others are let go as soon as relevance has passed them; nothing of it changes a number."""

import pytest
import timm
import torch

import relprop
from relprop.plan import again
from relprop.runner import run
from relprop.runner.session import Session
from relprop.tracer import bind, trace_program
from tests.common.rows import only
from tests.methods.test_chunks import MODELS, lively_case
from tests.methods.test_segments import Held

METHODS = ("transformer_attribution", "lrp", "gae")


@pytest.fixture(autouse=True)
def _plenty(monkeypatch):
    """Values of models as small as these are kept, also where the environment says otherwise."""
    monkeypatch.setattr(again, "SMALL", 2**30)
    monkeypatch.setattr(run, "MATTERS", 2**30)


def frugal(monkeypatch):
    """Small values, too, are made again or let go."""
    monkeypatch.setattr(again, "SMALL", 0)
    monkeypatch.setattr(run, "MATTERS", 0)


def relevance_plan(model, inputs):
    bound = bind(inputs)
    program = trace_program(model, bound)
    session = Session(model, None, program, relprop.rules.PAPER, "generic")
    maps = frozenset(s.attention for s in program.sites)
    return program, session.plan(program.output_nodes[:1], maps)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize(
    "name", only(["padded BERT"], ["padded BERT", "grouped queries", "ViT", "talking heads"])
)
def test_what_is_made_again_and_let_go_changes_nothing(name, monkeypatch):
    kept, (_, inputs, target) = {}, lively_case(name)
    for little in (False, True):
        if little:
            frugal(monkeypatch)
        for batch in (None, 1):
            model = lively_case(name)[0]
            assert bool(relevance_plan(model, inputs)[1].again) == little
            for method in METHODS:
                how = {"method": method, "batch_size": batch, "verify": False}
                found = relprop.explain(model, inputs, target, **how)
                before = kept.setdefault((batch, method), found)
                assert torch.equal(found.scores, before.scores)
                if found.ledger is not None:
                    assert found.ledger.balanced()
                    assert torch.equal(found.ledger.started, before.ledger.started)
                    residual = found.ledger.totals()["residual"]
                    # walks in pieces sum other tensors together
                    assert (residual - before.ledger.totals()["residual"]).abs().max() <= 1e-6


def test_norms_copies_and_scores_are_made_again(monkeypatch):
    frugal(monkeypatch)
    model = timm.create_model("vit_tiny_patch16_224", depth=2, embed_dim=24).eval()
    program, plan = relevance_plan(model, torch.rand(1, 3, 224, 224))
    names = {n.target for n in plan.again}
    assert torch.ops.aten.layer_norm.default in names
    assert torch.ops.aten.matmul.default in names  # the scores; results are no larger than values
    assert plan.again.keys().isdisjoint(s.contraction for s in program.sites)
    assert {s for sources in plan.again.values() for s in sources} <= plan.keep
    assert plan.keep.isdisjoint(plan.again)


def test_the_walk_lets_go_of_what_it_has_read(monkeypatch):
    most, how = [], {"img_size": 64, "patch_size": 4, "depth": 6, "embed_dim": 48}
    for little in (False, True):
        if little:
            frugal(monkeypatch)
        model = timm.create_model("vit_tiny_patch16_224", **how).eval().requires_grad_(False)
        x = torch.rand(1, 3, 64, 64)
        relprop.explain(model, x, 1)
        with Held() as held:
            relprop.explain(model, x, 1)
        most.append(held.most)
    assert most[1] < 0.85 * most[0]


def test_what_others_read_is_not_let_go(monkeypatch):
    """Several targets or methods, and what is kept, read values after the walk."""
    frugal(monkeypatch)
    model, x, _ = MODELS["ViT"]()
    both = relprop.explain_many(model, x, [0, 1])
    methods = ["transformer_attribution", "lrp", "partial_lrp"]
    found = relprop.compare(model, x, methods, target=1)
    whole = relprop.explain(model, x, 1, keep=("blocks", "matrix", "input"))
    assert torch.equal(both[1].scores, relprop.explain(model, x, 1).scores)
    assert torch.equal(found["transformer_attribution"].scores, both[1].scores)
    assert torch.equal(whole.scores, both[1].scores) and whole.blocks[0].relevance is not None


def test_the_roll_up_keeps_no_values():
    """Where fields meet, sums of residual streams among them, no number of the model is read."""
    model, x, _ = MODELS["ViT"]()
    program = trace_program(model, bind(x))
    session = Session(model, None, program, relprop.rules.PAPER, "generic")
    plan, _ = session.rollup(program.output_nodes[:1], program.sites)
    assert not plan.keep and not plan.joined
