"""Sinks: a first token that has nearly all attention, and either holds nothing or the answer."""

from pathlib import Path

import pytest
import torch
import transformers

import relprop

IDS = torch.tensor([[0, 1, 2, 3]])
BY_VALUE = ("transformer_attribution", "gae", "lrp")
BY_KEY = ("attnlrp", "gradient_x_input")
BY_ATTENTION = ("rollout", "raw_attention")


class Model(torch.nn.Module):
    """x + softmax(q kᵀ) v with a first token that every query attends to by 98 %."""

    def __init__(self, value):
        super().__init__()
        # features: what the token says, whether it is the sink
        self.table = torch.nn.Parameter(
            torch.tensor([[value, 1.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
        )

    def forward(self, ids):
        x = torch.nn.functional.embedding(ids, self.table)
        attention = (torch.ones_like(x[..., :1]) @ (5 * x[..., 1:]).mT).softmax(-1)
        return torch.cat([(attention @ x[..., :1])[:, -1], x[:, -1, :1]], -1)


def explained(value, method, **options):
    return relprop.explain(Model(value).double(), IDS, 0, method=method, **options)


@pytest.mark.parametrize("method", BY_VALUE)
def test_a_sink_of_zero_value_scores_0(method):
    model = Model(0.0).double()
    e = relprop.explain(model, IDS, 0, method=method)
    assert abs(float(e.scores[0, 0])) <= 1e-9 * float(e.scores.abs().max())
    assert bool((e.scores[0, 1:] > 0).all())
    assert float(e.sinks().scores["input_0"].first) <= 1e-9


@pytest.mark.parametrize("method", BY_KEY)
def test_what_passes_keys_says_that_a_sink_draws_attention_away(method):
    e = explained(0.0, method)
    assert float(e.scores[0, 0]) < 0 and bool((e.scores[0, 1:] > 0).all())


@pytest.mark.parametrize("method", BY_VALUE)
def test_a_sink_that_matters_scores_most(method):
    shares = explained(5.0, method).sinks().scores["input_0"]
    assert float(shares.first) > 0.9
    assert float(shares.first + shares.special + shares.content) == pytest.approx(1)


@pytest.mark.parametrize("method", BY_ATTENTION)
def test_attention_alone_says_the_same_of_both(method):
    one, other = (explained(value, method) for value in (0.0, 5.0))
    assert torch.allclose(one.scores, other.scores) and float(one.scores[0].argmax()) == 0


def test_the_shares_of_each_site_and_of_special_tokens():
    e = explained(0.0, "transformer_attribution", keep="blocks")
    (path,) = e.sinks().attention
    block = e.blocks[0]
    column = block.attention[0].sum((0, 1))
    assert float(e.sinks().attention[path].first) == pytest.approx(float(column[0] / column.sum()))
    relevance = block.relevance[0].abs().sum((0, 1))
    first = float(relevance[0] / relevance.sum())
    assert float(e.sinks().relevance[path].first) == pytest.approx(first) and first < 1e-6
    assert "attention" in str(e.sinks()) and "first" in str(e.sinks())


def test_special_tokens_positions_and_biases_are_told():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        cls_token_id=1,
        sep_token_id=2,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    ids = torch.tensor([[1, 7, 8, 2, 9, 2]])
    e = relprop.explain(model, {"input_ids": ids}, 1, method="lrp", ledger=True)
    shares, weights = e.sinks().scores["input_ids"], e.scores[0].abs()
    special = weights * ~e.content[0]
    assert float(shares.first) == pytest.approx(float(weights[0] / weights.sum()), rel=1e-4)
    behind = float(special[1:].sum() / weights.sum())
    assert float(shares.special) == pytest.approx(behind, rel=1e-4)
    absorbed = e.sinks().absorbed
    kept = e.ledger.totals()["absorbed"] / e.ledger.started
    assert float(sum(absorbed.values())) == pytest.approx(float(kept), abs=1e-6)
    assert list(absorbed) and "absorbed by" in str(e.sinks())
    without = relprop.explain(model, {"input_ids": ids}, 1, method="rollout").sinks()
    assert not without.absorbed and not without.attention


def test_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/sinks.md").read_text()
    (block,) = page.split("```python\n")[1:]
    exec(compile(block.split("```")[0], "sinks.md", "exec"), {})
    out = capsys.readouterr().out
    assert "[0.0, 0.07, 0.29, 0.64]" in out and "98.0%" in out
