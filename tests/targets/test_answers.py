"""Targets of several tokens, log-probabilities and losses: however they are written they start at
their logits, and methods without a start take any differentiable number."""

import pytest
import torch
import torch.nn.functional as F

import relprop
import relprop.methods  # without_start() reads its table
from relprop.errors import OptionError, TargetError
from relprop.runner.method import without_start
from relprop.runner.relevance import Relevance
from relprop.targets import answer, contrast, span, token
from tests.common.models import closeness
from tests.common.rows import only
from tests.targets import models
from tests.targets.models import bert, tokenizer, words

FIRST, LAST = 3, 5
IDS = words(2)
WITH_START = ("transformer_attribution", "partial_lrp", "lrp", "attnlrp", "cp_lrp", "epsilon_lrp")
NO_PICTURE = set(without_start()) - {"vit_cx", "attention_flow", "random"}


def labels(i=0):
    return IDS[i, FIRST : LAST + 1]


def rows(out):
    return out.logits[0, FIRST - 1 : LAST]


def stable(out):
    z = rows(out)
    largest = z.amax(-1, keepdim=True)
    normaliser = largest + (z - largest).exp().sum(-1, keepdim=True).log()
    return (z - normaliser).gather(1, labels()[:, None]).mean()


SPELLINGS = {
    "gather": lambda o: rows(o).log_softmax(-1).gather(1, labels()[:, None]).mean(),
    "indexing": lambda o: rows(o).log_softmax(-1)[torch.arange(3), labels()].sum() / 3,
    "cross_entropy": lambda o: -F.cross_entropy(rows(o), labels()),
    "nll_loss": lambda o: -F.nll_loss(rows(o).softmax(-1).log(), labels(), reduction="sum") / 3,
    "logsumexp": lambda o: (
        rows(o).gather(1, labels()[:, None])[:, 0] - torch.logsumexp(rows(o), -1)
    ).mean(),
    "exp, sum, log": lambda o: (
        rows(o).gather(1, labels()[:, None])[:, 0] - rows(o).exp().sum(-1).log()
    ).mean(),
    "shifted": stable,
    "ignored": lambda o: (
        -F.cross_entropy(
            torch.cat([rows(o), rows(o)[:1]]), torch.cat([labels(), torch.tensor([-100])])
        )
    ),
}


def first(method, target):
    return explained({"input_ids": IDS[:1]}, target, method)


def explained(inputs, target, method):
    return relprop.explain(models.llama(), inputs, target, method=method, precision="float64")


def logits(k, method):
    """R of the logit that predicts token k."""
    return first(method, (k - 1, int(IDS[0, k]))).scores


@pytest.mark.parametrize(
    "method", only(["lrp", "gae"], ["transformer_attribution", "lrp", "attnlrp", "gae"])
)
def test_one_start_however_it_is_written(method):
    named = first(method, span(FIRST, LAST))
    for name, target in SPELLINGS.items():
        e = first(method, target)
        assert closeness(e.scores, named.scores) < 1e-9, name
        assert closeness(e.row, named.row) < 1e-9, name
        assert closeness(e.output, named.output) < 1e-9, name
    assert float(named.scores.abs().max()) > 1e-9


@pytest.mark.parametrize("method", only(["attnlrp"], ["lrp", "attnlrp", "epsilon_lrp"]))
def test_it_is_the_weighted_sum_of_the_logits_own(method):
    expected = sum(logits(k, method) for k in range(FIRST, LAST + 1)) / 3
    assert closeness(first(method, span(FIRST, LAST)).scores, expected) < 1e-9
    loss = first(method, lambda o: F.cross_entropy(rows(o), labels()))
    assert closeness(loss.scores, -expected) < 1e-9


def test_the_gradient_is_that_of_the_log_probability():
    model, ids = models.llama(), IDS[:1]
    x = model.get_input_embeddings()(ids).detach().requires_grad_()
    z = model(inputs_embeds=x).logits[0, FIRST - 1 : LAST]
    y = z.log_softmax(-1).gather(1, labels()[:, None]).mean()
    gradient = torch.autograd.grad(y, x)[0]
    for target in (span(FIRST, LAST), SPELLINGS["gather"]):
        e = first("gradient_x_input", target)
        assert closeness(e.scores, (gradient * x.detach()).sum(-1)) < 1e-6
        assert closeness(e.output, y.detach()[None]) < 1e-6


def test_mixed_sums_and_single_terms():
    def mixed(o):
        return o.logits[0, 4].log_softmax(-1)[7] - 2 * o.logits[0, 5, 9]

    expected = first("lrp", (4, 7)).scores - 2 * first("lrp", (5, 9)).scores
    assert closeness(first("lrp", mixed).scores, expected) < 1e-9
    e = first("lrp", lambda o: F.cross_entropy(o.logits[0, 4:5], torch.tensor([7])))
    assert closeness(e.scores, -first("lrp", (4, 7)).scores) < 1e-9
    e = first(
        "lrp",
        lambda o: F.binary_cross_entropy_with_logits(
            o.logits[0, 4, 7], torch.ones((), dtype=torch.float64)
        ),
    )
    assert closeness(e.scores, -first("lrp", (4, 7)).scores) < 1e-9
    best = int(models.llama()(IDS[:1]).logits[0, 4].argmax())
    e = first("lrp", lambda o: o.logits[0, 4].log_softmax(-1).max())
    assert closeness(e.scores, first("lrp", (4, best)).scores) < 1e-9


def test_what_is_picked_by_value_differs_from_sample_to_sample():
    model, inputs = models.llama(), {"input_ids": IDS}
    e = explained(inputs, lambda o: o.logits[0, 4].log_softmax(-1).max(), "lrp")
    best = model(IDS).logits[:, 4].argmax(-1).tolist()
    plain = explained(inputs, [(4, k) for k in best], "lrp")
    assert closeness(e.scores, plain.scores) < 1e-9


def entropy(out):
    return torch.distributions.Categorical(logits=out.logits[0, -1]).entropy()


def written(out):
    return -(out.logits[0, -1].softmax(-1) * out.logits[0, -1].log_softmax(-1)).sum()


@pytest.mark.parametrize(
    "method", only(("gae", "gradcam", "input_gradient", "rollout", "occlusion"), sorted(NO_PICTURE))
)
@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
def test_any_differentiable_number_where_no_relevance_starts(method):
    y = entropy(models.llama()(IDS[:1]))
    for target in (entropy, written, SPELLINGS["cross_entropy"], lambda o: o.logits.std()):
        e = first(method, target)
        # gradcam keeps what is positive, which may be nothing
        assert torch.isfinite(e.scores).all() and (bool(e.scores.any()) or method == "gradcam")
        if target in (entropy, written):
            assert closeness(e.output, y.detach()[None]) < 1e-6


def test_rollout_of_an_entropy_is_that_of_its_position():
    assert closeness(first("rollout", written).row, first("rollout", (6, 3)).row) < 1e-9


@pytest.mark.parametrize("method", WITH_START)
def test_entropy_is_refused_by_name(method):
    with pytest.raises(
        TargetError, match=rf"'{method}'.*'written' is no sum(.|\n)*integrated_grad"
    ):
        first(method, written)


def test_comparing_leaves_out_what_has_no_start():
    methods = ["lrp", "gae", "gradient_x_input"]
    found = relprop.compare(models.llama(), {"input_ids": IDS[:1]}, methods, target=written)
    assert bool(found["gae"].scores.any()) and bool(found["gradient_x_input"].scores.any())
    with pytest.raises(OptionError, match="there are gae, gradient_x_input"):
        found["lrp"]


def test_a_constant_callable_is_refused():
    with pytest.raises(TargetError, match="does not depend on the model's output"):
        first("gae", lambda o: o.logits[0, -1].argmax().double())


def test_spans_answers_and_contrasts():
    one = {"input_ids": IDS[:1]}
    text = tokenizer().decode(IDS[0, FIRST : LAST + 1])
    by_text = explained(one, answer(text, tokenizer()), "lrp")
    assert by_text.target == (f"answer({text!r})",)
    assert closeness(by_text.scores, first("lrp", span(FIRST, LAST)).scores) < 1e-9
    both = first("lrp", contrast((4, 7), (4, 9)))
    assert both.target == ("(4, 7) rather than (4, 9)",)
    assert (
        closeness(both.scores, (first("lrp", (4, 7)).scores - first("lrp", (4, 9)).scores)) < 1e-9
    )
    e = explained(one, contrast(token(7), span(2, 3)), "lrp")
    expected = first("lrp", (6, 7)).scores - first("lrp", span(2, 3)).scores
    assert closeness(e.scores, expected) < 1e-9
    y = float(e.output)
    out = models.llama()(IDS[:1]).logits[0].detach()
    two = out.log_softmax(-1)[[1, 2], IDS[0, 2:4]].mean()
    assert y == pytest.approx(float(out[6, 7] - two), rel=1e-5)
    hidden = explained(one, span(2, 3), "occlusion")
    assert float(hidden.output) == pytest.approx(float(two), rel=1e-5) and bool(
        hidden.scores[0, :2].any()
    )


def test_spans_of_several_samples():
    inputs = {"input_ids": IDS}
    e = explained(inputs, [span(2, 3), span(FIRST, LAST)], "lrp")
    for i, target in enumerate((span(2, 3), span(FIRST, LAST))):
        alone = explained({"input_ids": IDS[i : i + 1]}, target, "lrp")
        assert closeness(e.scores[i : i + 1], alone.scores) < 1e-9
        assert closeness(e.output[i : i + 1], alone.output) < 1e-9


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (span(0, 2), "its tokens from 1 to 6"),
        (span(5, 7), "its tokens from 1 to 6"),
        (answer("nothing", tokenizer()), "the text of sample 0 does not have it"),
        (answer("w7"), "needs the tokenizer"),
        (contrast(token(7), token(7)), "their difference is 0"),
    ],
)
def test_what_is_no_span_is_refused(target, said):
    with pytest.raises(TargetError, match=said):
        first("lrp", target)


def test_a_model_that_predicts_no_next_token_has_no_spans():
    import transformers

    with pytest.raises(TargetError, match="predicts no next token"):
        relprop.explain(bert(transformers.BertForMaskedLM), {"input_ids": IDS}, span(2, 3))
    with pytest.raises(OptionError, match="deeplift is not defined"):
        first("deeplift", span(FIRST, LAST))


def walks(monkeypatch):
    """The terms that are walked one by one from now on."""
    seen, at_terms = [], Relevance.at_terms

    def counted(cls, *args):
        made = at_terms(*args)
        seen.extend(made.passings)
        return made

    monkeypatch.setattr(Relevance, "at_terms", classmethod(counted))
    return seen


@pytest.mark.parametrize("rules", only(["attnlrp"], ["lrp", "epsilon", "attnlrp", "cp_lrp"]))
def test_a_span_is_one_walk_by_linear_rules(rules, monkeypatch):
    def explained(target):
        return relprop.explain(
            models.llama(),
            {"input_ids": IDS},
            target,
            method="lrp",
            rules=rules,
            precision="float64",
            ledger=True,
        )

    rows = [
        explained([(k - 1, int(IDS[i, k])) for i in range(2)]).scores
        for k in range(FIRST, LAST + 1)
    ]
    seen = walks(monkeypatch)
    e = explained(span(FIRST, LAST))
    assert len(seen) == 1
    assert closeness(e.scores, sum(rows) / 3) < 1e-9 and e.ledger.balanced(1e-9)
    overlapping = explained(contrast(span(FIRST, LAST), span(FIRST + 1, LAST)))
    assert len(seen) == 2
    expected = sum(rows) / 3 - (rows[1] + rows[2]) / 2
    assert closeness(overlapping.scores, expected) < 1e-8


def test_with_lemma_2_each_token_is_walked_unless_they_start_together(monkeypatch):
    seen = walks(monkeypatch)
    own = first("transformer_attribution", span(FIRST, LAST))
    assert len(seen) == 3
    seen.clear()
    joint = first("transformer_attribution", span(FIRST, LAST, together=True))
    assert len(seen) == 1 and closeness(joint.output, own.output) < 1e-12
    assert closeness(joint.scores, own.scores) > 1e-3
    with pytest.raises(TargetError, match="a contrast has weights of both signs"):
        first("lrp", contrast(span(2, 3, together=True), span(FIRST, LAST)))
    text = tokenizer().decode(IDS[0, FIRST : LAST + 1])
    same = first("transformer_attribution", answer(text, tokenizer(), together=True))
    assert closeness(same.scores, joint.scores) < 1e-12
