"""The hook interface: values, gradients and relevances by name, and hooks that observe or replace
relevance as it flows."""

import pytest
import torch

import relprop
from relprop.demo.model import digit_scene_model
from tests.common.rows import only

X = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def model():
    return digit_scene_model().double()


def test_relevance_and_gradient_equal_the_kept_blocks(model):
    blocks = relprop.explain(model, X, 3, keep="blocks").blocks
    with relprop.instrument(model, X, target=3) as probe:
        relevance, gradient = (
            probe.relevance("blocks.*.attn:softmax"),
            probe.gradient("blocks.*.attn:softmax"),
        )
        value = probe.value("blocks.*.attn:softmax")
    for i, block in enumerate(blocks):
        for mine, theirs in (
            (relevance, block.relevance),
            (gradient, block.gradient),
            (value, block.attention),
        ):
            torch.testing.assert_close(
                mine[f"blocks.{i}.attn:softmax"],
                theirs,
                rtol=1e-9,
                atol=1e-9 * float(theirs.abs().max()),
            )


def test_values_are_what_forward_hooks_see(model):
    seen = {}
    handle = model.blocks[1].mlp.register_forward_hook(
        lambda module, args, output: seen.update(output=output.detach())
    )
    with torch.no_grad():
        model(X)
    handle.remove()
    with relprop.instrument(model, X, target=3) as probe:
        torch.testing.assert_close(probe.value("blocks.1.mlp")["blocks.1.mlp"], seen["output"])


def test_gradients_are_autograds(model):
    kept = []

    def keep(module, args, output):
        output.retain_grad()
        kept.append(output)

    handle = model.blocks[1].register_forward_hook(keep)
    model(X.clone().requires_grad_())[:, 5].sum().backward()
    handle.remove()
    model.zero_grad(set_to_none=True)
    with relprop.instrument(model, X, target=5) as probe:
        torch.testing.assert_close(probe.gradient("blocks.1")["blocks.1"], kept[0].grad)


def test_relevance_sums_to_one_along_the_residual_stream(model):
    with relprop.instrument(model, X, target=3) as probe:
        for name, relevance in probe.relevance("blocks.?").items():
            assert torch.allclose(
                relevance.flatten(1).sum(1), torch.ones(3, dtype=torch.float64)
            ), name
        assert probe.ledger().balanced(1e-10)


def test_observing_changes_nothing_and_sees_the_batch(model):
    shapes = []
    with relprop.instrument(model, X, target=3) as probe:
        before = probe.explanation().scores
        probe.hook("blocks.2.attn:softmax", lambda r: shapes.append(tuple(r.shape)))
        assert torch.equal(probe.explanation().scores, before)
    assert shapes == [(3, 4, 65, 65)]


def test_silencing_a_head_changes_the_relevance_below(model):
    keep = torch.tensor([0.0, 1, 1, 1]).view(1, 4, 1, 1)
    with relprop.instrument(model, X, target=3) as probe:
        before = probe.relevance("blocks.1.attn:softmax")["blocks.1.attn:softmax"]
        handle = probe.hook("blocks.2.attn:softmax", lambda r: r * keep)
        assert (
            probe.relevance("blocks.2.attn:softmax")["blocks.2.attn:softmax"][:, 0].abs().max() == 0
        )
        after = probe.relevance("blocks.1.attn:softmax")["blocks.1.attn:softmax"]
        assert (after - before).abs().max() > 1e-3 * before.abs().max()
        handle.remove()
        assert torch.equal(
            probe.relevance("blocks.1.attn:softmax")["blocks.1.attn:softmax"], before
        )


def test_a_hook_of_the_wrong_shape_is_refused(model):
    with relprop.instrument(model, X, target=3) as probe:
        probe.hook("blocks.2.attn:softmax", lambda r: r[:, :1])
        with pytest.raises(
            relprop.RelpropError,
            match=r"returned \[3, 1, 65, 65\]; the relevance there is \[3, 4, 65, 65\]",
        ):
            probe.relevance("blocks.1.mlp")


def test_unknown_names_and_closed_instruments_are_refused(model):
    with (
        relprop.instrument(model, X, target=3) as probe,
        pytest.raises(relprop.errors.OptionError, match=r"no node is called 'blocks\.9'"),
    ):
        probe.value("blocks.9")
    with pytest.raises(relprop.RelpropError, match="closed"):
        probe.value("blocks.1")


TERMS = {
    "a difference": lambda o: o[0, 3] - o[0, 5],
    "weights of both signs": lambda o: 2.0 * o[0, 3] - 0.5 * o[0, 5] + 3.0 * o[0, 7],
    "a difference that cancels": lambda o: o[0, 3] - o[0, 5] + (o[0, 5] - o[0, 7]),
    "a list": [3, 5, 5],
}


@pytest.mark.parametrize("name", only(["weights of both signs", "a list"], TERMS))
def test_the_ledger_of_several_terms_is_that_of_explain_and_balances(model, name):
    """Σ coefficient · term, in the relevances and in the books."""
    target = TERMS[name]
    ledger = relprop.explain(model, X, target, method="lrp", rules="paper").ledger
    kept = relprop.explain(model, X, target, keep=("blocks", "input"))
    with relprop.instrument(model, X, target=target) as probe:
        mine, found = probe.ledger(), probe.relevance("blocks.*.attn:softmax")
    for key, theirs in ledger.totals().items():
        torch.testing.assert_close(mine.totals()[key], theirs, rtol=1e-9, atol=1e-9)
    assert set(mine.absorbed()) == set(ledger.absorbed())
    for name, theirs in ledger.absorbed().items():
        torch.testing.assert_close(mine.absorbed()[name], theirs, rtol=1e-9, atol=1e-9)
    for i, block in enumerate(kept.blocks):
        torch.testing.assert_close(
            found[f"blocks.{i}.attn:softmax"], block.relevance, rtol=1e-9, atol=1e-12
        )
    assert mine.balanced() and ledger.balanced()
    books = mine.totals()
    torch.testing.assert_close(
        books["started"],
        books["reached"] + books["absorbed"] + books["lost"] + books["unread"] + books["residual"],
    )


def test_a_difference_starts_with_nothing_and_keeps_one_account_per_operation(model):
    with relprop.instrument(model, X, target=lambda o: o[0, 3] - o[0, 5]) as probe:
        books = probe.ledger()
    assert float(books.started.abs().max()) == 0
    places = [(a.node, a.path) for a in books.accounts]
    assert len(places) == len(set(places))


def test_why_a_node_got_its_relevance(model):
    with relprop.instrument(model, X, target=3) as probe:
        for name in ("blocks.3.attn:matmul#1", "blocks.2.mlp", "blocks.1:add"):
            found = probe.why(name)
            total = probe.relevance(name)[name].flatten(1).sum(1)
            torch.testing.assert_close(found.arrived, total, rtol=1e-9, atol=1e-12)
            given = sum(s.amount for s in found.shares if s.amount is not None)
            lost = sum(found.account.lost.values(), torch.zeros(()))
            torch.testing.assert_close(given + lost, found.arrived, rtol=1e-6, atol=1e-9)
            assert found.readers and found.rule in str(found) and "residual" in str(found)
        first = probe.why(probe.names()[0])
        assert "blocks" not in first.node and len(first.readers) >= 1
        with pytest.raises(relprop.errors.OptionError, match="names 4 nodes"):
            probe.why("blocks.*.mlp")


@pytest.mark.parametrize(
    "method", only(["lrp", "attnlrp"], ["lrp", "attnlrp", "cp_lrp", "epsilon_lrp"])
)
def test_relevance_starts_as_in_explain(model, method):
    """With 1, or with y_t by the rules of a method that does so; of a negative y_t, too."""
    rules = relprop.rules.PRESETS[{"epsilon_lrp": "epsilon"}.get(method, method)]
    more = rules.with_rule(torch.ops.aten.gelu, relprop.rules.carry)
    outputs = []
    for target in range(3):
        e = relprop.explain(model, X, target, method=method, ledger=True)
        started = torch.ones_like(e.output) if method == "lrp" else e.output
        with relprop.instrument(model, X, target, rules=rules) as probe:
            torch.testing.assert_close(probe.ledger().started, started)
            torch.testing.assert_close(probe.ledger().started, e.ledger.started)
        with relprop.instrument(model, X, target, rules=more) as probe:
            torch.testing.assert_close(probe.ledger().started, started)
        outputs.append(e.output)
    assert torch.cat(outputs).min() < 0 < torch.cat(outputs).max()
