"""No work twice: questions with the same rules share a relevance pass, several targets are walked
from side by side, and both give what each gives alone."""

from collections import Counter

import pytest
import torch
from torch import nn

import relprop
from relprop.interpreter import batch
from relprop.runner import memory
from relprop.targets import output
from tests.common.models import closeness, sample, shared

EXACT = 1e-12
PLAIN = ("transformer_attribution", {})
ROWS = [
    PLAIN,
    ("transformer_attribution", {"use_gradient": False}),
    ("transformer_attribution", {"head_fusion": "max"}),
    ("partial_lrp", {"rules": "paper"}),
    ("partial_lrp", {}),
    ("lrp", {}),
]


@pytest.fixture
def passed(monkeypatch):
    """How often relevance was walked, by the rule set: these plans have one stretch each."""
    asked, apply = Counter(), batch.walk

    def counting(plan, nodes, *args):
        if plan.rules.name != "rollup":
            asked[plan.rules.name] += 1
        return apply(plan, nodes, *args)

    monkeypatch.setattr(batch, "walk", counting)
    return asked


def test_one_walk_for_methods_of_one_rule_set(passed):
    together = relprop.compare(shared(), sample(), ROWS, target=1)
    assert passed == {"paper": 1, "reference_lrp": 1, "lrp": 1}
    for (name, options), e in zip(ROWS, together.explanations.values(), strict=True):
        alone = relprop.explain(shared(), sample(), 1, method=name, **options)
        assert torch.equal(e.scores, alone.scores)
        for key, amount in alone.ledger.totals().items():
            assert torch.equal(e.ledger.totals()[key], amount), key


def test_choices_of_layers_share_one_walk_that_wants_them_all(passed):
    def metric(e):
        return float(e.scores[:, 1].mean())

    passed.clear()
    found = relprop.compare(shared(), sample(), [PLAIN], target=1, metric=metric)
    assert passed == {"paper": 2} and len(found.trials) == 8  # with books, and for all the trials
    for trial in found.trials:
        alone = relprop.explain(shared(), sample(), 1, method=trial.method, **trial.options)
        assert closeness(trial.explanation.scores, alone.scores) <= EXACT


@pytest.mark.parametrize("samples", [slice(0, 1), slice(0, 3)])
@pytest.mark.parametrize("options", [{}, {"rules": "reference"}, {"method": "lrp"}])
def test_targets_walked_from_side_by_side(passed, samples, options):
    model, x = shared(), sample()[samples]
    targets = [0, 1, 2, None, lambda logits: logits[0, 0] - logits[0, 2]]
    relprop.explain(model, x, targets[-1], **options)  # tries it once against its negative
    passed.clear()
    many = relprop.explain_many(model, x, targets, **options)
    assert sum(passed.values()) <= 2  # one of those at the head, one of the function's two terms
    for target, e in zip(targets, many, strict=True):
        alone = relprop.explain(model, x, target, **options)
        assert closeness(e.scores, alone.scores) <= EXACT
        for key, amount in alone.ledger.totals().items():
            torch.testing.assert_close(e.ledger.totals()[key], amount, rtol=EXACT, atol=1e-11)


class TwoHeads(nn.Module):
    """One output of the first token, one of the mean, each read by a linear layer of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)
        self.other, self.head = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x):
        y = x + self.attend(x, x, x, need_weights=False)[0]
        return {"other": self.other(y[:, 0]), "logits": self.head(y.mean(1))}


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution", "attnlrp"])
def test_targets_at_several_outputs(method):
    """Each passes the end of the graph before its own output."""
    model, asked = TwoHeads().double().eval(), {"method": method, "ledger": True}
    for targets in ([1, output("other")[2]], [output("other")[2], 1]):
        together = relprop.explain_many(model, sample(), targets, **asked)
        for target, e in zip(targets, together, strict=True):
            alone = relprop.explain(model, sample(), target, **asked)
            assert float(alone.row.abs().max()) > 0
            assert (e.scores - alone.scores).abs().max() <= EXACT * alone.row.abs().max()
            assert [a.key for a in e.ledger.accounts] == [a.key for a in alone.ledger.accounts]
            torch.testing.assert_close(e.ledger.totals(), alone.ledger.totals())


def test_memory_says_how_many_go_side_by_side(passed, monkeypatch):
    monkeypatch.setattr(memory, "ABREAST", 2)
    relprop.explain_many(shared(), sample(), [0, 1, 2, 0, 1])
    assert passed == {"paper": 3}
    passed.clear()
    limit = memory.TIMES * 10**6
    monkeypatch.setattr(memory, "_at_most", lambda needs, batch: limit)
    relprop.explain_many(shared(), sample(), [0, 1, 2], memory=limit)  # nothing is left
    assert passed == {"paper": 3}


def test_a_rule_that_looks_at_values_is_walked_from_one_target_after_the_other():
    looked = []

    def looking(relevance, call):
        looked.append(call.op)
        return call.only(relevance if float(relevance.sum()) > -1e9 else 0 * relevance)

    rules = relprop.rules.PAPER.with_rule(torch.ops.aten.gelu.default, looking)
    x = sample()[:1]
    many = relprop.explain_many(shared(), x, [0, 1], rules=rules)
    assert looked
    for target, e in zip([0, 1], many, strict=True):
        assert torch.equal(e.scores, relprop.explain(shared(), x, target, rules=rules).scores)


def test_one_of_several_targets_can_be_saved(tmp_path):
    """Its books are slices of what was walked side by side."""
    many = relprop.explain_many(shared(), sample()[:1], [0, 1, 2])
    many[1].save(tmp_path / "e.safetensors")
    read = relprop.load(tmp_path / "e.safetensors")
    assert torch.equal(read.scores, many[1].scores)
    for key, amount in many[1].ledger.totals().items():
        assert torch.equal(read.ledger.totals()[key], amount)
