"""``check`` and ``trace``: what is reported of a model, and when it is ok."""

import pytest
import torch
from torch import nn

import relprop
from relprop.demo.model import digit_scene_model

X = torch.rand(2, 1, 32, 32)


def test_a_vision_transformer_is_ok():
    report = relprop.check(digit_scene_model(), X)
    assert report.ok and report.front_end == "export" and not report.generic and not report.unknown
    assert report.sites == tuple(f"blocks.{i}.attn" for i in range(4)) and report.rollup == (
        "input_0 (65 tokens)",
    )
    counts = {row.operation: row.nodes for row in report.rows}
    assert counts["aten.linear.default"] == 17 and counts["aten.softmax.int"] == 4
    assert "aten.layer_norm.default" in str(report) and str(report).startswith("check: ok")


def test_a_model_without_attention_is_not():
    report = relprop.check(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 900, 3)), X
    )
    assert not report.ok and "no attention site" in str(report)


class Odd(nn.Module):
    """One block with a cumulative maximum, which no rule is about, and a detach."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        y = x + self.attend(x, x, x, need_weights=False)[0]
        y = torch.logcumsumexp(y, 1)
        return self.head((y + y.detach()).mean(1))


def test_generic_ops_and_detaches_are_listed_with_their_source():
    report = relprop.check(Odd(), torch.rand(2, 5, 8))
    assert report.ok and len(report.generic) == 1
    assert (
        "logcumsumexp" in report.generic[0] and "y = torch.logcumsumexp(y, 1)" in report.generic[0]
    )
    assert len(report.detached) == 1


def test_generic_ops_warn_once_and_can_be_refused():
    model, x = Odd(), torch.rand(2, 5, 8)
    with pytest.warns(relprop.RelpropWarning, match="logcumsumexp"):
        explanation = relprop.explain(model, x, 0)
    assert explanation.facts["generic"] == ["aten.logcumsumexp.default"]
    assert explanation.ledger.balanced() and "not conserved: generic" in explanation.ledger.lost()
    relprop.explain(model, x, 1)
    with pytest.raises(
        relprop.errors.UnknownOperation,
        match=r"(?s)no relevance rule for aten.logcumsumexp.default.*test_check.py.*with_rule",
    ):
        relprop.explain(model, x, 0, on_unknown="error")


def test_a_hidden_site_is_reported():
    rules = relprop.rules.PAPER.with_rule(nn.MultiheadAttention, relprop.rules.generic)
    report = relprop.check(Odd(), torch.rand(2, 5, 8), rules=rules)
    assert len(report.hidden_sites) == 1 and not report.ok


def test_trace_gives_the_graph_and_holds_no_parameter():
    model = digit_scene_model()
    program = relprop.trace(model, X)
    assert (
        program.inputs == ("input_0",)
        and len(program.sites) == 4
        and "4 attention sites" in repr(program)
    )
    shapes = {tuple(p.shape) for p in model.parameters()}
    assert not program.constants and shapes
