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


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        attention_bias=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return model


def test_the_first_token_is_no_padding(tmp_path):
    model, ids = llama(), torch.tensor([[7, 8, 9, 10, 11, 12], [3, 3, 7, 8, 9, 10]])
    mask = (torch.arange(6) >= torch.tensor([[0], [2]])).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    options = {"method": "transformer_attribution", "keep": "blocks"}
    both = relprop.explain(model, inputs, (5, 9), **options)
    assert torch.equal(both.streams["input_ids"].padding, mask == 0)
    both.save(tmp_path / "e.safetensors")
    parts = relprop.explain(model, inputs, (5, 9), **options, batch_size=1)
    for e in (both, both[1], relprop.load(tmp_path / "e.safetensors"), parts):
        found = e.sinks()
        received = {"attention": e.blocks[1].attention, "relevance": e.blocks[1].relevance.abs()}
        amounts = {kind: maps[-1].sum((0, 1)) for kind, maps in received.items()}
        for kind, columns in {**amounts, "scores": e.scores[-1].abs()}.items():
            share = list(getattr(found, kind).values())[-1].first[-1]
            assert float(share) == pytest.approx(float(columns[2] / columns.sum()), rel=1e-5)
            assert float(share) > 0.01
    alone = relprop.explain(model, {"input_ids": ids[1:, 2:]}, (3, 9), **options).sinks()
    shares = [s.scores["input_ids"].first[-1] for s in (both.sinks(), alone)]
    assert float(shares[0]) == pytest.approx(float(shares[1]), rel=0.01)


def test_what_each_block_absorbed():
    ids = torch.tensor([[7, 8, 9, 10]])
    e = relprop.explain(llama(), ids, (3, 5), method="attnlrp", ledger=True)
    found = e.sinks().absorbed_in
    assert list(found) == ["model.layers.0", "model.layers.1"]
    for name, share in found.items():
        inside = [a for a in e.ledger.accounts if a.path.startswith(name)]
        kept = sum(amount for a in inside for amount in a.absorbed.values())
        assert float(share) == pytest.approx(float(kept / e.ledger.started)) and float(share) != 0
    whole = e.ledger.totals()["absorbed"] / e.ledger.started
    assert float(sum(found.values())) == pytest.approx(float(whole))
    assert "absorbed in model.layers.0" in str(e.sinks())


def test_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/sinks.md").read_text()
    (block,) = page.split("```python\n")[1:]
    exec(compile(block.split("```")[0], "sinks.md", "exec"), {})
    out = capsys.readouterr().out
    assert "[0.0, 0.07, 0.29, 0.64]" in out and "98.0%" in out
