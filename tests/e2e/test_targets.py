"""Targets: every accepted form equals the plain index; sums of outputs are explained term by term;
heads of all kinds.

Models are tiny Hugging Face ones built from a config, and the plain transformers of
``tests.common.models``.
"""

import functools

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import relprop
from relprop.errors import JointStartWarning, TargetError
from tests.common.models import CLASSES, Recipe, build, closeness, randomise, sample, shared
from tests.common.rows import diagonal, marked

EXACT = 1e-9
RECIPES = [Recipe(), Recipe(ids=True, pool="mean", norm="post", fused=False)]
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 31,
    "max_position_embeddings": 16,
}
LABELS = {0: "cat", 1: "dog", 2: "owl"}


def assert_same(a, b):
    assert closeness(a.scores, b.scores) <= EXACT and closeness(a.row, b.row) <= EXACT
    assert closeness(a.output, b.output) <= 1e-12
    assert float(a.scores.abs().max()) > 1e-9


FORMS = {
    "negative": -2,
    "numpy int": np.int64(2),
    "0-d tensor": torch.tensor(2),
    "0-d int32 tensor": torch.tensor(2, dtype=torch.int32),
    "list": [2, 2, 2],
    "list of tensors": [torch.tensor(2)] * 3,
    "list of tuples": [(2,)] * 3,
    "tensor": torch.tensor([2, 2, 2]),
    "column": torch.tensor([[2], [2], [2]]),
    "array": np.array([2, 2, 2]),
    "tuple": (2,),
    "callable": lambda out: out[0, 2],
    "callable, negative": lambda out: out[0, -2],
    "callable, sum of one": lambda out: out[:, 2].sum(),
    "callable, by a mask": lambda out: (out * torch.eye(CLASSES)[2].to(out.dtype)).sum(),
    "callable, index_select": lambda out: out.index_select(1, torch.tensor([2])).squeeze(),
    "callable, scaled": lambda out: 1.0 * out[0, 2],
}


@pytest.mark.parametrize(
    "recipe", [pytest.param(RECIPES[0], marks=pytest.mark.slow), RECIPES[1]], ids=["floats", "ids"]
)
def test_every_form_equals_the_index(recipe):
    model, x = shared(recipe), sample(recipe)
    plain = relprop.explain(model, x, 2)
    assert plain.target == (2, 2, 2)
    for name, form in FORMS.items():
        e = relprop.explain(model, x, form)
        assert_same(e, plain)
        assert callable(form) or e.target == (2, 2, 2), name


def test_no_target_is_the_predicted_class_of_each_sample():
    model, x = shared(), sample(batch=6)
    predicted = model(x).argmax(1)
    assert len(set(predicted.tolist())) > 1
    e = relprop.explain(model, x)
    assert e.target == tuple(predicted.tolist())
    assert_same(e, relprop.explain(model, x, predicted))
    assert closeness(e.output, model(x).amax(1).detach()) <= 1e-12


def test_one_target_per_sample_equals_each_ones_own():
    model, x = shared(), sample()
    e = relprop.explain(model, x, [3, 0, 2])
    for i, k in enumerate([3, 0, 2]):
        assert (
            closeness(e.scores[i : i + 1], relprop.explain(model, x[i : i + 1], k).scores) <= EXACT
        )


def test_targets_differ_from_each_other():
    model, x = shared(), sample()
    a, b = relprop.explain_many(model, x, [0, 1])
    assert closeness(a.scores, b.scores) > 1e-2


# -- combinations of outputs
# -------------------------------------------------------------------------------------------------

COMBINATIONS = {
    "difference": (lambda y: y[0, 1] - y[0, 2], {1: 1.0, 2: -1.0}),
    "sum": (lambda y: y[0, 1] + y[0, 3], {1: 1.0, 3: 1.0}),
    "weighted": (lambda y: 2 * y[0, 0] - y[0, 1] / 4, {0: 2.0, 1: -0.25}),
    "against the mean of the others": (
        lambda y: y[0, 1] - (y.sum() - y[0, 1]) / 3,
        {0: -1 / 3, 1: 1.0, 2: -1 / 3, 3: -1 / 3},
    ),
}


@pytest.mark.parametrize(("name", "recipe"), diagonal(COMBINATIONS, RECIPES))
def test_a_linear_combination_is_that_of_its_terms(recipe, name):
    """R = Σ_k c_k·R_k at every site, ∇A of the combination, and Eq. 13 of the two."""
    function, coefficients = COMBINATIONS[name]
    model, x, keep = shared(recipe), sample(recipe), ("blocks", "input")
    together = relprop.explain(model, x, function, keep=keep)
    terms = {k: relprop.explain(model, x, k, keep=keep) for k in coefficients}

    def combined(read):
        return sum(c * read(terms[k]) for k, c in coefficients.items())

    assert closeness(together.output, combined(lambda e: e.output)) <= EXACT
    assert closeness(together.input, combined(lambda e: e.input)) <= EXACT
    for i, block in enumerate(together.blocks):
        assert closeness(block.relevance, combined(lambda e, i=i: e.blocks[i].relevance)) <= EXACT
        assert closeness(block.gradient, combined(lambda e, i=i: e.blocks[i].gradient)) <= EXACT
    assert together.ledger.balanced(1e-12)
    assert closeness(together.ledger.started, combined(lambda e: e.ledger.started)) <= EXACT
    assert closeness(row_of(together.blocks, recipe), together.row) <= EXACT


def row_of(blocks, recipe):
    """What the head reads of the product of I + E_h(∇A ⊙ R)⁺."""
    s = recipe.tokens
    row = (
        torch.full((s,), 1 / s, dtype=torch.float64)
        if recipe.pool == "mean"
        else torch.eye(s, dtype=torch.float64)[0]
    ).expand(3, 1, s)
    for block in reversed(blocks):
        row = row + row @ (block.gradient * block.relevance).clamp(min=0).mean(1)
    return row[:, 0]


def test_a_single_term_starts_with_one_whatever_its_coefficient():
    model, x = shared(), sample()
    one, five = (
        relprop.explain(model, x, 1, keep="blocks"),
        relprop.explain(model, x, lambda y: 5 * y[0, 1], keep="blocks"),
    )
    assert closeness(five.blocks[0].relevance, one.blocks[0].relevance) <= EXACT
    assert closeness(five.blocks[0].gradient, 5 * one.blocks[0].gradient) <= EXACT


def test_many_terms_that_cancel_are_refused():
    model = build(Recipe(ids=True))
    model.head = randomise(torch.nn.Linear(8, 80)).double()
    with pytest.raises(TargetError, match="80 outputs whose coefficients sum to 0"):
        relprop.explain(
            model, sample(Recipe(ids=True)), lambda y: y[0, :40].sum() - y[0, 40:].sum()
        )


def test_many_terms_at_once_are_said_where_rules_normalise():
    model, ids = build(Recipe(ids=True)), sample(Recipe(ids=True))
    model.head = randomise(torch.nn.Linear(8, 80)).double()
    with pytest.warns(JointStartWarning, match="combines 70 outputs, which start at once") as said:
        relprop.explain(model, ids, lambda y: y[0, :70].mean())
    assert {w.filename for w in said} == {__file__}
    for method in ("epsilon_lrp", "gradient_x_input"):  # the same as one by one; without a start
        relprop.explain(model, ids, lambda y: y[0, :70].mean(), method=method)


NONLINEAR = {
    "probability": lambda y: y.softmax(-1)[0, 1],
    "odds": lambda y: y[0, 1].exp() / y[0, 2].exp(),
    "margin to the best other": lambda y: y[0, 1] - y[0, 2:].amax(),
    "length": lambda y: y.square().sum().sqrt(),
    "product": lambda y: y[0, 0] * y[0, 1],
}


@pytest.mark.parametrize("name", marked(NONLINEAR, ("probability", "margin to the best other")))
@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
def test_a_nonlinear_callable_is_finite_batch_exact_and_has_autograds_gradient(name):
    model, x, function = shared(Recipe(fused=False)), sample(), NONLINEAR[name]
    e = relprop.explain(model, x, function, keep="blocks")
    assert torch.isfinite(e.scores).all() and float(e.scores.abs().max()) > 0
    y = model(x).detach().requires_grad_()
    values = torch.stack([function(y[i : i + 1]) for i in range(3)])
    assert closeness(e.output, values.detach()) <= 1e-12
    (slopes,) = torch.autograd.grad(values.sum(), y)
    classes = relprop.explain_many(model, x, list(range(CLASSES)), keep="blocks")
    expected = sum(
        slopes[:, k, None, None, None] * c.blocks[0].gradient for k, c in enumerate(classes)
    )
    assert closeness(e.blocks[0].gradient, expected) <= EXACT
    for i in range(3):
        assert (
            closeness(e.scores[i : i + 1], relprop.explain(model, x[i : i + 1], function).scores)
            <= EXACT
        )


def test_a_callable_that_passes_no_relevance_on_is_refused():
    """A sum of negative terms has no positive one to give relevance to (Eq. 5): all of it would be
    lost before the model is reached."""
    with pytest.raises(TargetError, match="none of its relevance arrives at the model's outputs"):
        relprop.explain(shared(), sample(), lambda y: (-y.square()).sum())


# -- Hugging Face heads
# --------------------------------------------------------------------------------------------------


@functools.cache
def bert(kind=BertForSequenceClassification, **settings):
    config = BertConfig(
        **SMALL, id2label=LABELS, label2id={v: k for k, v in LABELS.items()}, **settings
    )
    return randomise(kind(config)).double().eval()


def words(batch=3, length=7, seed=3):
    return torch.randint(5, 31, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_labels_of_the_config_are_targets():
    model, ids = bert(), words()
    named = relprop.explain(model, {"input_ids": ids}, "owl")
    assert named.target == (2, 2, 2)
    assert_same(named, relprop.explain(model, {"input_ids": ids}, 2))
    mixed = relprop.explain(model, {"input_ids": ids}, ["owl", 0, "dog"])
    assert_same(mixed, relprop.explain(model, {"input_ids": ids}, [2, 0, 1]))
    assert_same(relprop.explain(model, {"input_ids": ids}, lambda out: out.logits[0, 2]), named)
    with pytest.raises(TargetError, match=r"'cow' is no label of the model; it has cat, dog, owl"):
        relprop.explain(model, {"input_ids": ids}, "cow")


def test_a_padded_batch_equals_its_sentences_alone_and_pads_score_nothing():
    model, ids = bert(), words()
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 4 + [0] * 3])
    e = relprop.explain(model, {"input_ids": ids, "attention_mask": mask}, 1)
    assert not e.scores[mask == 0].any() and e.content.equal(mask.bool())
    for i, n in enumerate((7, 5, 4)):
        alone = relprop.explain(
            model, {"input_ids": ids[i : i + 1, :n], "attention_mask": mask[i : i + 1, :n]}, 1
        )
        assert closeness(e.scores[i : i + 1, :n], alone.scores) <= 1e-7


def test_token_classification_takes_position_and_class():
    model, ids = bert(BertForTokenClassification), words()
    e = relprop.explain(model, {"input_ids": ids}, (4, 1))
    assert e.target == ((4, 1),) * 3 and e.identity.argmax(1).tolist() == [4, 4, 4]
    assert_same(e, relprop.explain(model, {"input_ids": ids}, lambda out: out.logits[0, 4, 1]))
    assert_same(e, relprop.explain(model, {"input_ids": ids}, (-3, -2)))
    each = relprop.explain(model, {"input_ids": ids}, [(4, 1), (0, 2), (6, 0)])
    assert_same(
        each, relprop.explain(model, {"input_ids": ids}, torch.tensor([[4, 1], [0, 2], [6, 0]]))
    )
    assert each.identity.argmax(1).tolist() == [4, 0, 6]
    with pytest.raises(
        TargetError, match=r"target=None needs a class head; output 'logits' is \[1, 7, 3\]"
    ):
        relprop.explain(model, {"input_ids": ids})
    with pytest.raises(
        TargetError, match=r"target 7 is out of range: axis 0 of output 'logits' has 7"
    ):
        relprop.explain(model, {"input_ids": ids}, (7, 0))
    with pytest.raises(TargetError, match=r"has 1 indices, output 'logits' has 2 axes"):
        relprop.explain(model, {"input_ids": ids}, 1)


@functools.cache
def gpt2():
    config = GPT2Config(
        n_embd=16,
        n_layer=2,
        n_head=2,
        vocab_size=31,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    return randomise(GPT2LMHeadModel(config)).double().eval()


@functools.cache
def llama():
    config = LlamaConfig(
        **SMALL, num_key_value_heads=1, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    return randomise(LlamaForCausalLM(config)).double().eval()


MASKS = {
    "none": None,
    "right": torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 4 + [0] * 3]),
    "left": torch.tensor([[1] * 7, [0] * 2 + [1] * 5, [0] * 3 + [1] * 4]),
}
LAST = {"none": [6, 6, 6], "right": [6, 4, 3], "left": [6, 6, 6]}


@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
@pytest.mark.parametrize(("padding", "make"), diagonal(MASKS, (llama, gpt2)))
def test_a_language_models_default_is_the_next_token_at_the_last_real_position(make, padding):
    model, inputs, last = make(), {"input_ids": words()}, LAST[padding]
    if MASKS[padding] is not None:
        inputs["attention_mask"] = MASKS[padding]
    logits = model(**inputs).logits.detach()
    best = [int(logits[i, p].argmax()) for i, p in enumerate(last)]
    e = relprop.explain(model, inputs)
    assert e.target == tuple(zip(last, best, strict=True))
    assert_same(e, relprop.explain(model, inputs, list(zip(last, best, strict=True))))
    assert_same(
        relprop.explain(model, inputs, 9), relprop.explain(model, inputs, [(p, 9) for p in last])
    )
    assert e.identity.argmax(1).tolist() == last
    if MASKS[padding] is not None:
        assert not e.scores[MASKS[padding] == 0].any()


@pytest.mark.parametrize("make", marked([gpt2, llama], ("llama",), lambda f: f.__name__))
def test_a_padded_prompt_is_explained_as_without_pads(make):
    model, ids = make(), words()
    inputs = {"input_ids": ids, "attention_mask": MASKS["right"]}
    e = relprop.explain(model, inputs, 9)
    for i, n in enumerate((7, 5, 4)):
        alone = relprop.explain(model, {"input_ids": ids[i : i + 1, :n]}, 9)
        assert closeness(e.scores[i : i + 1, :n], alone.scores) <= 1e-7


@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize(("make", "kind"), [(gpt2, "booleans"), (llama, "added")])
def test_a_mask_of_queries_and_keys_says_which_position_is_the_last(make, kind, padding):
    """(batch, 1, queries, keys), as a model takes it ready made: what no query sees is padding."""
    model, ids, last = make(), words(), LAST[padding]
    seen = torch.ones(7, 7, dtype=torch.bool).tril() & MASKS[padding].bool()[:, None, None]
    seen = (
        seen | torch.eye(7, dtype=torch.bool) if padding == "left" else seen
    )  # a pad before the text has nothing else to look at
    mask = (
        seen
        if kind == "booleans"
        else torch.zeros(seen.shape, dtype=torch.float64).masked_fill(
            ~seen, torch.finfo(torch.float64).min
        )
    )
    inputs = {"input_ids": ids, "attention_mask": mask}
    e = relprop.explain(model, inputs)
    best = model(**inputs).logits[range(3), last].argmax(1).tolist()
    assert e.target == tuple(zip(last, best, strict=True))
    assert_same(e, relprop.explain(model, inputs, list(zip(last, best, strict=True))))
    flat = relprop.explain(model, {"input_ids": ids, "attention_mask": MASKS[padding]})
    assert closeness(e.scores, flat.scores) <= EXACT and e.target == flat.target


def test_a_mask_shared_by_the_batch_is_every_samples():
    model, ids = llama(), words()
    shared = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    shared[..., 5:] = False
    e = relprop.explain(model, {"input_ids": ids, "attention_mask": shared}, 9)
    assert e.target == ((4, 9),) * 3
    assert_same(
        e,
        relprop.explain(
            model, {"input_ids": ids, "attention_mask": shared.expand(3, -1, -1, -1)}, 9
        ),
    )


def test_later_positions_score_nothing_in_a_causal_model():
    e = relprop.explain(llama(), {"input_ids": words()}, (3, 9))
    assert not e.scores[:, 4:].any() and bool((e.scores[:, :4] != 0).any())
