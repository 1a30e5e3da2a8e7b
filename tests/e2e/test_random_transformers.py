"""End to end, over random small transformers: the books balance at every node, samples never meet,
and the roll-up is Eq. 14's product.

Exactness is tested in float64; float32 is held to the ledger's own promise only (relevance on adds
is ill-conditioned there).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import relprop
from tests.common.models import Recipe, build, closeness, recipes, sample, shared

FEW = settings(max_examples=max(settings().max_examples // 3, 1))
EXACT = 1e-9
RULES = st.sampled_from(["paper", "stable"])


def scale_of(ledger):
    """Σ|R| at its largest, per sample: what rounding in the end-to-end books is measured by."""
    return torch.stack([a.absolute for a in ledger.accounts]).amax(0)


def assert_balanced(ledger, tolerance):
    for account in ledger.accounts:
        assert (account.residual.abs() <= tolerance * account.absolute).all(), account
    totals = ledger.totals()
    explained = sum(totals[name] for name in ("reached", "absorbed", "lost", "unread", "residual"))
    assert (
        (totals["started"] - explained).abs() <= tolerance * len(ledger.accounts) * scale_of(ledger)
    ).all(), totals


def assert_same(a, b, tolerance=EXACT):
    assert closeness(a.scores, b.scores) <= tolerance
    assert closeness(a.row, b.row) <= tolerance
    assert closeness(a.output, b.output) <= tolerance
    assert a.target == b.target


@FEW
@given(recipes(), RULES, st.sampled_from([torch.float32, torch.float64]))
def test_books_balance_at_every_node_and_end_to_end(recipe, rules, dtype):
    model, x = shared(recipe, dtype), sample(recipe, dtype=dtype)
    e = relprop.explain(model, x, rules=rules, keep="input")
    assert torch.isfinite(e.scores).all() and torch.isfinite(e.input).all()
    assert e.scores.dtype == dtype and e.scores.shape == (3, recipe.tokens)
    assert len(e.ledger.accounts) > 8 * recipe.depth
    assert_balanced(e.ledger, 1e-5 if dtype == torch.float32 else 1e-12)
    (reached,) = e.ledger.reached.values()
    assert closeness(reached.to(e.input.dtype), e.input.flatten(1).sum(1)) <= (
        1e-5 if dtype == torch.float32 else EXACT
    )


@FEW
@given(recipes())
def test_books_balance_when_the_walk_stops_at_the_last_site(recipe):
    e = relprop.explain(shared(recipe), sample(recipe))
    assert all(name.startswith("attention ") for name in e.ledger.reached)
    assert_balanced(e.ledger, 1e-12)


def test_the_ledger_check_can_fail():
    e = relprop.explain(build(), sample())
    first = e.ledger.accounts[0]
    wrong = replace(
        e.ledger,
        accounts=(
            replace(first, to_inputs=first.to_inputs + 1e-6 * first.absolute),
            *e.ledger.accounts[1:],
        ),
    )
    with pytest.raises(AssertionError):
        assert_balanced(wrong, 1e-12)


@FEW
@given(recipes(), RULES, st.sampled_from([1, 2, 5]))
def test_a_batch_equals_its_samples_one_by_one(recipe, rules, n):
    model, x = shared(recipe), sample(recipe, n)
    e = relprop.explain(model, x, rules=rules, keep=("blocks", "input"))
    assert n == 1 or recipe.ids or closeness(e.scores[0], e.scores[1]) > 1e-3
    for i in range(n):
        one = relprop.explain(model, x[i : i + 1], rules=rules, keep=("blocks", "input"))
        assert closeness(e.scores[i : i + 1], one.scores) <= EXACT
        assert closeness(e.input[i : i + 1], one.input) <= EXACT
        assert e.target[i] == one.target[0]
        for ours, single in zip(e.blocks, one.blocks, strict=True):
            assert ours.path == single.path
            for part in ("attention", "gradient", "relevance"):
                assert closeness(getattr(ours, part)[i : i + 1], getattr(single, part)) <= EXACT


@FEW
@given(recipes(), st.permutations(range(4)))
def test_the_order_of_samples_does_not_matter(recipe, order):
    model, x = shared(recipe), sample(recipe, 4)
    e, permuted = relprop.explain(model, x), relprop.explain(model, x[list(order)])
    assert closeness(e.scores[list(order)], permuted.scores) <= EXACT
    assert tuple(e.target[i] for i in order) == permuted.target


@FEW
@given(recipes(), st.integers(1, 4))
def test_batch_size_splits_the_work_and_changes_nothing(recipe, size):
    model, x, keep = shared(recipe), sample(recipe, 5), ("blocks", "matrix", "input")
    whole, parts = (
        relprop.explain(model, x, [0, 1, 2, 3, 0], keep=keep),
        relprop.explain(model, x, [0, 1, 2, 3, 0], keep=keep, batch_size=size),
    )
    assert_same(whole, parts)
    assert (
        closeness(whole.matrix, parts.matrix) <= EXACT
        and closeness(whole.input, parts.input) <= EXACT
    )
    assert whole.content.equal(parts.content) and len(parts.blocks) == len(whole.blocks)
    assert closeness(whole.blocks[0].relevance, parts.blocks[0].relevance) <= EXACT
    for name, value in whole.ledger.totals().items():
        assert float((parts.ledger.totals()[name] - value).abs().max()) <= EXACT * float(
            scale_of(whole.ledger).max()
        )


@FEW
@given(recipes(), RULES)
def test_explain_many_equals_separate_calls(recipe, rules):
    model, x = shared(recipe), sample(recipe)
    targets = [0, None, [3, 1, 2], torch.tensor(2), lambda logits: logits[0, 1] - logits[0, 2]]
    together = relprop.explain_many(model, x, targets, rules=rules)
    assert len(together) == len(targets)
    for target, e in zip(targets, together, strict=True):
        alone = relprop.explain(model, x, target, rules=rules)
        assert_same(e, alone)
        assert closeness(e.ledger.totals()["absorbed"], alone.ledger.totals()["absorbed"]) <= EXACT


@FEW
@given(recipes(), RULES)
def test_the_row_is_what_the_head_reads_of_eq_14s_product(recipe, rules):
    e = relprop.explain(shared(recipe), sample(recipe), 1, rules=rules, keep=("blocks", "matrix"))
    c = product_of_blocks(e.blocks)
    assert closeness(e.matrix, torch.from_numpy(c)) <= EXACT
    read = reading(recipe)
    assert closeness(e.row, torch.from_numpy(read @ c)) <= EXACT
    assert closeness(e.identity, torch.from_numpy(np.tile(read, (3, 1)))) <= EXACT
    assert closeness(e.scores, e.row - e.identity) <= EXACT


@FEW
@given(recipes(pool="class"), RULES)
def test_the_class_tokens_row_of_the_matrix_is_the_row(recipe, rules):
    e = relprop.explain(shared(recipe), sample(recipe), rules=rules, keep="matrix")
    assert closeness(e.matrix[:, 0], e.row) <= EXACT
    assert e.source.tolist() == [-1, *range(recipe.tokens - 1)]
    assert e.content.tolist() == [[False, *[True] * (recipe.tokens - 1)]] * 3


def product_of_blocks(blocks):
    """C = Ā(1)···Ā(B) (Eq. 13–14), in numpy, from what was kept at every site: the site nearest the
    output is the left factor."""
    c = 1.0
    for block in blocks:
        change = np.maximum(block.gradient.numpy() * block.relevance.numpy(), 0).mean(1)
        a = np.eye(change.shape[-1]) + change
        c = a if isinstance(c, float) else a @ c
    return c


def reading(recipe):
    """Which positions the head reads, and how much of each."""
    s = recipe.tokens
    return (
        np.full(s, 1 / s)
        if recipe.pool == "mean"
        else np.eye(s)[0 if recipe.pool == "class" else s - 1]
    )


@FEW
@given(recipes())
def test_the_gradient_at_a_site_is_autograds_and_attention_the_models_own(recipe):
    """Against the plain model with its softmax written out, and autograd alone."""
    recipe = replace(recipe, fused=False, shared=False)
    model, x = shared(recipe), sample(recipe, 2)
    e = relprop.explain(model, x, 1, keep="blocks")
    maps = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._softmax.default:
                maps.append(out)
            return out

    with Watch(), torch.no_grad():
        model(x)
    for block, attention in zip(e.blocks, maps, strict=True):
        assert closeness(block.attention, attention) <= EXACT
    assert closeness(e.blocks[-1].gradient, last_gradient(model, x)) <= EXACT


def last_gradient(model, x):
    """∂ logit 1/∂A at the last block, by a softmax that autograd can see."""
    kept = []
    original = torch.Tensor.softmax

    def softmax(self, *args, **kwargs):
        kept.append(original(self, *args, **kwargs))
        return kept[-1]

    torch.Tensor.softmax = softmax
    try:
        y = model(x)[:, 1].sum()
    finally:
        torch.Tensor.softmax = original
    return torch.autograd.grad(y, kept[-1])[0]


class Count(TorchDispatchMode):
    """Counts every operation that reaches the dispatcher, which a loop over samples would multiply.

    Copies are left out: a reshape of a strided tensor makes one, and a batch of 1 has strides that
    need none.
    """

    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is not torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(ids=True, pool="mean", fused=False),
        Recipe(shared=True, parallel=True, pool="last"),
    ],
    ids=["class", "mean", "last"],
)
def test_a_batch_is_one_vmapped_pass_not_a_loop(recipe):
    model, keep, counts = build(recipe), ("blocks", "matrix", "input"), {}
    relprop.explain(model, sample(recipe, 2), 0, keep=keep)  # of which gradients are compared
    for n in (2, 3, 6):  # one sample alone runs without vmap
        with Count() as count:
            relprop.explain(model, sample(recipe, n), 0, keep=keep)
        counts[n] = count.calls
    assert counts[2] > 100
    assert counts[2] == counts[3] == counts[6]
