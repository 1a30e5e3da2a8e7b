"""``compare``: one forward pass for all, what each method says alone, ranks, refusals, and the
search over heads and layers; a user's own methods."""

import re
from pathlib import Path

import pytest
import torch

import relprop
from relprop.errors import NoAttentionError, OptionError, UnforeseenError
from relprop.runner import run
from tests.common.models import closeness, sample, shared
from tests.common.rows import only
from tests.methods.table import MODELS, PATH, column

EXACT = 1e-10
NAMES = [
    "transformer_attribution",
    "rollout",
    "attention_grad",
    "attcat",
    "lrp",
    "gradient_x_input",
]


def test_each_is_what_explain_says_alone_from_one_forward_pass(monkeypatch):
    model, x, passes = shared(), sample(), []
    forward = run.forward
    monkeypatch.setattr(
        run, "forward", lambda *args, **more: passes.append(1) or forward(*args, **more)
    )
    together = relprop.compare(model, x, NAMES, target=[1, 0, 2])
    assert len(passes) == 1
    for name in NAMES:
        alone = relprop.explain(model, x, [1, 0, 2], method=name)
        assert closeness(together[name].scores, alone.scores) <= EXACT and together[
            name
        ].target == (1, 0, 2)


@pytest.mark.parametrize("ledger", [None, True, False])
def test_books_are_kept_as_explain_keeps_them(ledger):
    names = ("attnlrp", "lrp", "transformer_attribution", "rollout")
    found = relprop.compare(shared(), sample(), names, target=1, ledger=ledger)
    (many,) = relprop.explain_many(shared(), sample(), [1], method="attnlrp", ledger=ledger)
    for name in names:
        alone = relprop.explain(shared(), sample(), 1, method=name, ledger=ledger)
        assert (found[name].ledger is None) == (alone.ledger is None)
        assert found[name].facts.get("relevance") == alone.facts.get("relevance")
        assert torch.equal(found[name].scores, alone.scores)
    assert (found["attnlrp"].ledger is not None) == bool(ledger) == (many.ledger is not None)
    assert (found["lrp"].ledger is not None) == (ledger is not False)


def test_ranks_of_the_same_tokens():
    c = relprop.compare(shared(), sample(), NAMES, target=1)
    names, table = c.rank_correlations()
    assert names == tuple(NAMES[:4]), (
        "methods at the input score five vectors, those over attention six tokens"
    )
    assert torch.allclose(table.diagonal(), torch.ones(4, dtype=torch.float64)) and torch.equal(
        table, table.T
    )
    assert "6 methods, 3 samples" in str(
        c
    ) and "rank correlations of the scores of 'input_0'" in str(c)


def test_a_method_with_several_options_is_told_apart():
    c = relprop.compare(
        shared(),
        sample(),
        [("rollout", {"head_fusion": "max"}), "rollout", ("lrp", {"rules": "epsilon"})],
        target=1,
    )
    assert (
        list(c.explanations) == ["rollout(head_fusion='max')", "rollout", "lrp"]
        and c["lrp"].rules == "epsilon"
    )
    assert (
        closeness(
            c["rollout"].scores, relprop.explain(shared(), sample(), 1, method="rollout").scores
        )
        <= EXACT
    )
    with pytest.raises(OptionError, match="methods has rollout twice"):
        relprop.compare(shared(), sample(), ["rollout", "rollout"])
    with pytest.raises(OptionError, match=r"no method; there are .*attcat"):
        relprop.compare(shared(), sample(), ["roll_out"])
    with pytest.raises(OptionError, match=r"comparison\['gae'\]: there are rollout"):
        c["gae"]


def test_what_is_not_defined_is_listed():
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(40, 3)
    ).double()
    c = relprop.compare(model, sample(), ["rollout", "lrp"], target=1)
    assert list(c.explanations) == ["lrp"] and "no softmax attention" in c.refused["rollout"]
    assert "not defined here: rollout: the model has no softmax attention" in str(c)
    with pytest.raises(NoAttentionError):
        relprop.compare(model, sample(), ["rollout"], target=1)


def test_a_method_that_fails_is_listed():
    """A user's own: the others are compared, and alone it is raised."""
    relprop.methods.register("broken", lambda at: {}["nothing"])
    try:
        c = relprop.compare(shared(), sample(), ["broken", "rollout"], target=1)
        assert list(c.explanations) == ["rollout"]
        assert "code of yours raised KeyError: 'nothing'" in c.refused["broken"]
        with pytest.raises(UnforeseenError, match="code of yours raised KeyError") as caught:
            relprop.compare(shared(), sample(), ["broken"], target=1)
        assert isinstance(caught.value.__cause__, KeyError)
    finally:
        relprop.methods.remove("broken")


class Low:
    higher_is_better = False

    def __call__(self, e):
        return e.scores[:, 1]


def test_the_search_orders_by_the_metric():
    model, x = shared(), sample()
    trials = relprop.compare(model, x, ["rollout"], target=1, metric=Low()).trials
    assert len(trials) == 4 * 2 and [t.value for t in trials] == sorted(t.value for t in trials)
    best = trials[0]
    again = relprop.explain(model, x, 1, method=best.method, **best.options)
    assert (
        closeness(best.explanation.scores, again.scores) <= EXACT
        and abs(float(again.scores[:, 1].mean()) - best.value) <= EXACT
    )
    up = relprop.compare(
        model, x, ["rollout"], target=1, metric=lambda e: float(e.scores[:, 1].mean())
    ).trials
    assert [t.value for t in up] == sorted((t.value for t in up), reverse=True)
    with pytest.raises(
        OptionError, match="none of attcat has the options head_fusion= and layers="
    ):
        relprop.compare(model, x, ["attcat"], target=1, metric=Low())


def test_pictures():
    from relprop.demo.model import digit_scene_model

    images = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    c = relprop.compare(
        digit_scene_model(),
        images,
        ["transformer_attribution", "attcat", "gradient_x_input"],
        target=3,
    )
    assert len(c.plot(images[1], sample=1).axes) == 3
    assert len(relprop.compare(shared(), sample(), NAMES, target=1).plot().axes) == 1
    with pytest.raises(OptionError, match="sample=5: the explanations have 2 samples"):
        c.plot(sample=5)


@pytest.mark.slow  # tests/testing runs the page, too
def test_the_page_on_writing_a_method_runs(capsys):
    text = (Path(__file__).parents[2] / "docs/write-a-method.md").read_text()
    before, scope = list(relprop.methods.METHODS), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "write-a-method.md", "exec"), scope)
    said = capsys.readouterr().out
    assert (
        "torch.Size([2, 65])" in said
        and "tensor(True)" in said
        and "torch.Size([2, 32, 32])" in said
        and "3 methods, 2 samples" in said
    )
    assert list(relprop.methods.METHODS) == before


@pytest.mark.parametrize("model", only(("ViT", "BERT"), MODELS))
@pytest.mark.filterwarnings("ignore:.*Model config.*")
def test_every_method_on_every_kind_of_model(model):
    """Finite, batch-exact, the model untouched, or refused: as the page says, whose rows for this
    model are written from what holds."""
    page, found = PATH.read_text(), column(model)
    at = 2 + list(MODELS).index(model)
    sentences = dict(re.findall(r"^(\d+)\. (.*)$", page, re.M))
    rows = {
        line.split("|")[1].strip(" `"): line.split("|")[at].strip()
        for line in page.splitlines()
        if line.startswith("| `")
    }
    said = {m: sentences.get(cell, cell) for m, cell in rows.items()}
    assert dict.fromkeys(found, "yes") | said == found, "python -m tests.methods.table"
