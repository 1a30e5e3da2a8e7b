"""Relevance, the roll-up's field and the gradient pass the head at the positions and classes of the
target alone, and every number is that of the whole head."""

import gc
import itertools

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import relprop
from relprop.interpreter import points, reading
from relprop.runner import memory, needing, needs, rollup, verification
from relprop.runner import run as runs
from relprop.runner.conditions import Conditions
from relprop.runner.needing import needs_of
from relprop.runner.question import Question
from relprop.runner.session import open_session
from relprop.targets import span, token
from relprop.tracer import bind, model_comparison, readout
from tests.common.rows import diagonal, only

from .test_chunks import IDS, MASK, TINY, gap, lively

EXACT = 1e-12
METHODS = ("transformer_attribution", "partial_lrp", "attnlrp", "lrp", "gradient_x_input")
WORDS = TINY["vocab_size"]


def _text(kind, config):
    return kind(config).eval(), {"input_ids": IDS, "attention_mask": MASK}


def _llama(**more):
    config = transformers.LlamaConfig(**TINY, num_key_value_heads=2, **more)
    return _text(transformers.LlamaForCausalLM, config)


def _gemma():
    config = transformers.Gemma2Config(
        **TINY, num_key_value_heads=2, head_dim=4, final_logit_softcapping=2.0
    )
    return _text(transformers.Gemma2ForCausalLM, config)


def _bert():
    return _text(transformers.BertForMaskedLM, transformers.BertConfig(**TINY))


class Behind(nn.Module):
    """A language model whose scores are changed at the end."""

    def __init__(self, change):
        super().__init__()
        self.base, _ = _llama(attention_bias=True)
        self.change = change
        self.scale = nn.Parameter(torch.ones(WORDS))

    def forward(self, input_ids):
        return self.change(self.base(input_ids).logits, self.scale)


def _behind(change):
    return lambda: (Behind(change).eval(), IDS)


MODELS = {
    "head of its own": _llama,
    "tied": lambda: _llama(tie_word_embeddings=True),
    "softcapped and tied": _gemma,
    "with a bias": _bert,
    "logarithms": _behind(lambda scores, scale: scores.log_softmax(-1)),
    "rows and classes left out": _behind(lambda scores, scale: (scores * scale)[:, 2:, 1:-3:2]),
    "words that cannot be": _behind(
        lambda scores, scale: torch.where(torch.arange(WORDS) % 5 == 2, -9.0, scores / scale)
    ),
}


@pytest.fixture(
    params=only(("tied", "with a bias", "rows and classes left out"), MODELS), scope="module"
)
def case(request):
    torch.manual_seed(0)
    model, inputs = MODELS[request.param]()
    return lively(model), inputs


@pytest.fixture(scope="module")
def text_case():
    """A language model and a padded batch, captured once for the tests that read it."""
    torch.manual_seed(0)
    return lively(_llama()[0]), {"input_ids": IDS, "attention_mask": MASK}


def explained(case, target, method="transformer_attribution", **options):
    options = {"precision": "float64", "ledger": True, **options}
    return relprop.explain(*case, target, method=method, **options)


@pytest.fixture
def passed(monkeypatch):
    """How often relevance or a field passes a head at few elements, from now on."""
    seen, begun = [], reading.Reading.begun

    def counted(self, seed, **more):
        seen.append(self)
        return begun(self, seed, **more)

    monkeypatch.setattr(reading.Reading, "begun", counted)
    return seen


def whole_head(monkeypatch):
    """From now on every head is passed whole."""
    for room in (needing, rollup):
        monkeypatch.setattr(room, "reading_of", lambda *_: None)
    monkeypatch.setattr(needs, "readout_of", lambda output: None)


@pytest.fixture
def excerpts(monkeypatch):
    """The places at which outputs are made in part, from now on."""
    seen, made = [], runs.made_at

    def counted(readout, values, cut, dtype, *forms):
        if not forms:  # else what the pass has made is read again, for its gradient
            seen.append([None if there is None else there.tolist() for there in cut])
        return made(readout, values, cut, dtype, *forms)

    monkeypatch.setattr(runs, "made_at", counted)
    return seen


def assert_same(one, other):
    for name in one.streams:
        assert gap(one[name].scores, other[name].scores) < EXACT
        assert gap(one[name].row, other[name].row) < EXACT
    assert gap(one.output, other.output) < EXACT
    if one.ledger is None:
        return
    assert other.ledger.balanced(1e-12)
    books, theirs = ({a.key: a for a in e.ledger.accounts} for e in (one, other))
    assert books.keys() == theirs.keys()
    scale = max(float(a.absolute.max()) for a in books.values())
    for key, a in books.items():
        b = theirs[key]
        assert a.absorbed.keys() == b.absorbed.keys() and a.lost.keys() == b.lost.keys()
        pairs = [(a.arrived, b.arrived), (a.to_inputs, b.to_inputs), (a.unread, b.unread)]
        pairs += [(a.absorbed[k], b.absorbed[k]) for k in a.absorbed]
        pairs += [(a.lost[k], b.lost[k]) for k in a.lost]
        assert all((x - y).abs().max() < EXACT * scale for x, y in pairs)
    ends, others = (e.ledger.reached for e in (one, other))
    assert ends.keys() == others.keys()
    assert all((ends[k] - others[k]).abs().max() < EXACT * scale for k in ends)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize(("target", "method"), diagonal([(4, 3), [(4, 3), (6, 20)]], METHODS))
def test_few_elements_are_the_whole_head(case, method, target, passed, monkeypatch):
    few = explained(case, target, method)
    assert bool(passed) == (method != "gradient_x_input")
    whole_head(monkeypatch)
    count = len(passed)
    assert_same(explained(case, target, method), few)
    assert len(passed) == count


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize(
    "rules",
    only(("reference", "epsilon"), ["stable", "reference", "reference_lrp", "epsilon", "attnlrp"]),
)
def test_by_other_rules(case, rules, passed, monkeypatch):
    few = explained(case, (4, 3), rules=rules, keep="input")
    assert passed
    whole_head(monkeypatch)
    assert_same(explained(case, (4, 3), rules=rules, keep="input"), few)


def test_what_is_said_of_words_positions_and_batches(text_case, passed, monkeypatch):
    targets = [None, token(7), token(7, position=2), [(4, 3), token(9)]]
    few = [explained(text_case, target) for target in targets]
    assert len(passed) >= 2 * len(targets)
    whole_head(monkeypatch)
    for target, one in zip(targets, few, strict=True):
        assert_same(explained(text_case, target), one)


MOVES = {
    "one position": (lambda scores, scale: scores[:, 4] * scale, 3),
    "another axis": (lambda scores, scale: (scores * scale).unsqueeze(2), (4, 0, 3)),
    "sliced and flat": (lambda scores, scale: scores[:, 4:5].flatten(1)[:, 2:], 3),
}


@pytest.mark.parametrize(
    ("move", "method"), diagonal(MOVES, ["transformer_attribution", "attnlrp"])
)
def test_moves_behind_the_head(move, method, passed, monkeypatch):
    change, target = MOVES[move]
    torch.manual_seed(0)
    case = lively(Behind(change).eval()), IDS
    few = explained(case, target, method)
    assert passed
    whole_head(monkeypatch)
    assert_same(explained(case, target, method), few)


@pytest.mark.filterwarnings("ignore::relprop.errors.JointStartWarning")
@pytest.mark.parametrize(
    "method",
    only(["transformer_attribution"], ["transformer_attribution", "attnlrp", "gae"]),
)
def test_callables_that_are_sums_pass_term_by_term_and_others_whole(method, passed, monkeypatch):
    torch.manual_seed(0)
    model, inputs = _llama()
    case = lively(model), inputs
    sums = [
        lambda out: out.logits[0, 4, 3] - 2 * out.logits[0, 5, 5],
        lambda out: 3 * out.logits[0, 4, 3],
        lambda out: out.logits[0, 4, 3:30].sum(),
        lambda out: out.logits[0, 4].log_softmax(-1)[3],
    ]
    others = [lambda out: out.logits.mean()]
    found = [explained(case, target, method) for target in sums]
    assert len(passed) >= len(sums)
    passed.clear()
    found += [explained(case, target, method) for target in others]
    assert not passed
    with monkeypatch.context() as patch:
        whole_head(patch)
        for target, one in zip(sums + others, found, strict=True):
            assert_same(explained(case, target, method), one)


def test_two_outputs_of_one_linear_map_pass_whole(passed):
    torch.manual_seed(0)
    model, inputs = _text(transformers.BertForQuestionAnswering, transformers.BertConfig(**TINY))
    found = explained((lively(model), inputs), span(2, 5))
    assert found.ledger.balanced(1e-12) and not passed


def test_terms_at_one_output_are_one_field():
    index = (torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([4, 6]))
    one = reading.Points(index, torch.tensor([2.0, 3.0]), (2, 1, 9)).marked()
    other = reading.Points(index[:0] + tuple(i[:1] for i in index), torch.tensor([5.0]), (2, 1, 9))
    both = one.joined(other.marked()).whole()
    assert both[:, 0].sum((1, 2)).tolist() == [7, 3] and both[:, 1].sum((1, 2)).tolist() == [1, 1]
    assert both.shape == (2, 2, 1, 9) and both[0, :, 0, 4].tolist() == [7, 1]


@pytest.mark.parametrize(
    ("make", "method"), diagonal([_llama, _gemma], ["transformer_attribution", "attnlrp"])
)
def test_half_precision_is_no_worse(make, method, monkeypatch):
    torch.manual_seed(0)
    case = lively(make()[0]), make()[1]
    exact = explained(case, (4, 3), method).scores
    case[0].bfloat16()
    few = relprop.explain(*case, (4, 3), method=method).scores
    whole_head(monkeypatch)
    whole = relprop.explain(*case, (4, 3), method=method).scores
    assert gap(exact, few) < 1.5 * gap(exact, whole)


def test_a_rule_that_is_not_said_to_split_parts_gets_the_whole_head(passed):
    seen = []

    @relprop.rules.rule(family="custom")
    def own(relevance, call):
        seen.append(tuple(relevance.shape))
        return relprop.rules.PAPER.for_op(call.op).function(relevance, call)

    torch.manual_seed(0)
    case = lively(_llama()[0]), IDS
    found = explained(case, (4, 3), rules=relprop.rules.PAPER.with_rule("lm_head", own))
    assert seen == [(1, 11, WORDS)]
    assert found.ledger.balanced(1e-12)
    assert {r.plan.rules.name for r in passed} == {"rollup"}


def test_relevance_at_the_output_itself_can_be_seen_and_changed():
    torch.manual_seed(0)
    with relprop.instrument(lively(_llama()[0]).double(), IDS, (4, 3)) as probe:
        name = probe.names("lm_head*")[0]
        assert probe.relevance(name)[name].shape == (2, 11, WORDS)
        plain, seen = probe.explanation(), []
        probe.hook(name, lambda r: seen.append(r) or 2 * r)
        twice = probe.explanation()
    assert seen[-1].shape[-2:] == (11, WORDS)
    for key, amount in plain.ledger.reached.items():
        assert gap(2 * amount, twice.ledger.reached[key]) < EXACT


class Made(TorchDispatchMode):
    """How many tensors of a size are made."""

    def __init__(self, least):
        super().__init__()
        self.least, self.count = least, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        before = {self._place(t) for t in tree_leaves((args, kwargs)) if self._real(t)}
        for t in tree_leaves(made):
            if self._real(t) and t.untyped_storage().nbytes() >= self.least:
                self.count += self._place(t) not in before
        return made

    def _real(self, t):
        fake = not isinstance(t, torch.Tensor) or isinstance(t, FakeTensor)
        return not fake and t.device.type != "meta"

    def _place(self, t):
        return t.untyped_storage().data_ptr()


SIZES = {"weight": (600, 128, 40), "logits": (4000, 16, 200)}


@pytest.mark.parametrize(
    ("size", "verify", "dtype", "method"),
    only(
        [
            ("logits", True, torch.float32, "transformer_attribution"),
            ("logits", False, torch.float16, "gradient_x_input"),
            ("weight", True, torch.float16, "attnlrp"),
        ],
        itertools.product(
            SIZES,
            (True, False),
            (torch.float32, torch.float16),
            ("transformer_attribution", "attnlrp", "gradient_x_input"),
        ),
    ),
)
def test_nothing_as_large_is_made(size, verify, dtype, method):
    """Neither copies of the head's weight nor tensors of positions × classes, nor by the model when
    it verifies."""
    words, features, tokens = SIZES[size]
    sizes = {**TINY, "vocab_size": words, "hidden_size": features}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).eval().to(dtype)
    ids = torch.randint(3, words, (1, tokens))

    def call():
        relprop.explain(model, ids, (tokens - 1, 3), method=method, verify=verify)

    call()
    large = Made(max(features, tokens) * words * dtype.itemsize)
    with large:
        call()
    assert large.count == 0


def test_a_model_that_is_asked_for_few_logits_makes_no_others():
    """What ``docs/models.md`` advises for a large vocabulary."""
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 4000, "hidden_size": 16})
    model, tokens = transformers.LlamaForCausalLM(config).eval(), 200
    inputs = {"input_ids": torch.randint(3, 4000, (1, tokens)), "logits_to_keep": 1}
    few = relprop.explain(model, inputs, (-1, 3))
    large = Made(tokens * 4000 * torch.float32.itemsize)
    with large:
        relprop.explain(model, inputs, (-1, 3))
    assert large.count == 0
    assert gap(relprop.explain(model, inputs["input_ids"], (-1, 3)).scores, few.scores) < 1e-5


NEXT = [[None, [7, 10], None]]  # of MASK's two samples
READ = {
    "predicted": (None, NEXT),
    "token": (token(), NEXT),
    "class": (7, NEXT),
    "position": (token(7, position=2), [[None, [2], None]]),
    "per sample": ([(4, 3), token(9)], [[None, [4, 7], None]]),
    "last": ([(-1, 3), (10, 5)], [[None, [10], None]]),
    "callable": (lambda out: out.logits[0, 4, 3], []),
}


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize(("read", "method"), diagonal(READ, METHODS))
def test_an_output_is_made_at_the_places_that_are_read(
    text_case, read, method, excerpts, monkeypatch
):
    target, places = READ[read]
    few = explained(text_case, target, method)
    assert excerpts[: len(places)] == places and bool(excerpts) == bool(places)
    excerpts.clear()
    in_segments = explained(text_case, target, method, memory=0)
    assert in_segments.facts["segments"] > 1 and bool(excerpts) == bool(places)
    excerpts.clear()
    whole_head(monkeypatch)
    whole = explained(text_case, target, method)
    assert not excerpts
    for one in (few, in_segments):
        assert one.target == whole.target and gap(one.output, whole.output) < EXACT
        assert gap(one.scores, whole.scores) < 10 * EXACT


def test_several_targets_share_what_is_made(text_case, excerpts):
    for targets, places in (
        ([(4, 3), (6, 20), None], [4, 6, 7, 10]),
        ([(i, 3) for i in range(11)], None),
        ([(4, 3), lambda out: out.logits[0, 6, 20]], None),
    ):
        found = relprop.explain_many(*text_case, targets, precision="float64")
        assert excerpts == ([] if places is None else [[None, places, None]])
        excerpts.clear()
        for target, one in zip(targets, found, strict=True):
            assert gap(explained(text_case, target).scores, one.scores) < EXACT
        excerpts.clear()


def test_a_generation_makes_its_own_positions(excerpts):
    torch.manual_seed(0)
    ids = torch.tensor([[5, 6], [7, -1]])
    prompt = {"input_ids": IDS[:, :4], "attention_mask": MASK[:, :4]}
    relprop.explain_generation(lively(_llama()[0]), prompt, output_ids=ids)
    assert excerpts == [[None, [3, 4], None]]
    excerpts.clear()
    ended = {"input_ids": IDS[:1, :4], "attention_mask": MASK[:1, :4]}
    relprop.explain_generation(lively(_llama()[0]), ended, output_ids=ids[:1])
    assert excerpts == [[None, [3, 4], None]]


@pytest.mark.parametrize("verify", [True, False])
def test_the_model_is_the_judge_at_these_places(verify, monkeypatch):
    """At one that is wrong there, not where it is another; its output is let go before ours is
    made, but for these."""
    torch.manual_seed(0)
    case, made = (lively(_llama()[0]), IDS), runs.made_at
    held = []

    def wrong(readout, values, cut, dtype, *forms):
        if forms:  # what the pass has made is read again, for its gradient
            return made(readout, values, cut, dtype, *forms)
        held.append([t for t in gc.get_objects() if torch.is_tensor(t) and t.shape == whole])
        found = made(readout, values, cut, dtype)
        return torch.where((cut[1] == 4)[:, None], 1.01 * found, found)

    whole = torch.Size([2, 11, WORDS])
    relprop.explain(*case, (4, 3))
    monkeypatch.setattr(runs, "made_at", wrong)
    said = relprop.explain(*case, (6, 3), verify=verify).facts["compared"]
    assert said.startswith("equal to the model's own output" if verify else "not compared")
    if verify:
        with pytest.raises(relprop.errors.CaptureError, match="differs from the model"):
            relprop.explain(*case, (4, 3))
    assert not any(held)


class Twice(nn.Module):
    """A language model that reads its scores off the features, and off others, too."""

    def __init__(self):
        super().__init__()
        self.base, _ = _llama()

    def forward(self, input_ids):
        out = self.base(input_ids, output_hidden_states=True)
        return out.logits, self.base.lm_head(out.hidden_states[1])


class Longer(nn.Module):
    """A language model whose head reads one position more than its output has."""

    def __init__(self):
        super().__init__()
        self.base, _ = _llama()

    def forward(self, input_ids):
        features = self.base.model(input_ids).last_hidden_state
        return self.base.lm_head(torch.cat([features, features[:, :1]], 1))[:, :-1]


def _doubled():
    """A hook sees which scores are there."""
    model, _ = _llama()
    model.lm_head.register_forward_hook(lambda module, args, out: out * out.shape[1])
    return model


@pytest.mark.parametrize("make", [Twice, Longer, _doubled], ids=["twice", "longer", "hooked"])
def test_a_head_that_must_run_whole_is_compared_whole(make, monkeypatch):
    torch.manual_seed(0)
    model = lively(make().eval())
    seen, compare = [], verification.gaps

    def compared(program, values, expected, *more):
        seen.extend(e.rows for e in expected.values())
        return compare(program, values, expected, *more)

    monkeypatch.setattr(verification, "gaps", compared)
    targets = relprop.targets.output(0)[6, 3] if make is Twice else (6, 3)
    for _ in range(2):
        found = relprop.explain(model, IDS, targets)
        assert found.facts["compared"].startswith("equal to the model's own output for the batch")
    assert seen and all(rows is not None for rows in seen)


def test_what_differs_at_few_positions_is_compared_whole(monkeypatch):
    torch.manual_seed(0)
    case = lively(_llama()[0]), IDS
    monkeypatch.setattr(readout.Head, "of_few", lambda self, features: features[:, :1])
    said = relprop.explain(*case, (6, 3)).facts["compared"]
    assert said.startswith("equal to the model's own output for the batch")


def test_places_that_parts_of_a_batch_read_are_found_among_those_that_were_heard(excerpts):
    torch.manual_seed(0)
    case = lively(_llama()[0]), IDS
    assert len(IDS) == 2
    whole = relprop.explain(*case, [(6, 3), (4, 3)])
    parts = relprop.explain(*case, [(6, 3), (4, 3)], batch_size=1)
    assert gap(whole.scores, parts.scores) < 1e-5
    assert parts.facts["compared"].startswith("equal to the model's own output")
    assert [None, [6], None] in excerpts and [None, [4, 6], None] in excerpts


def test_what_was_not_made_is_not_read():
    value = torch.arange(24.0).reshape(2, 1, 4, 3)
    part = points.Excerpt(value[:, :, [1, 3]], (None, torch.tensor([1, 3]), None), (2, 1, 4, 3))
    index = torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([3, 1])
    assert torch.equal(part[index], value[index])
    full = (*index, torch.tensor([2, 0]))
    assert torch.equal(part[full], value[full])
    with pytest.raises(IndexError, match=r"made at \[1, 3\], not at \[3, 2\]"):
        part[index[0], index[1], torch.tensor([3, 2])]


def test_the_estimate_leaves_out_what_is_not_made():
    config = transformers.LlamaConfig(**{**TINY, "vocab_size": 4000})
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(3, 4000, (1, 64))
    session = open_session(model, bind(ids), "paper", Conditions())
    asked = Question("gradient_x_input")
    whole = memory.taken(needs_of(session, asked, [(63, 3)]), 1)
    indices = needs.indices_of(session, bind(ids), [(63, 3)], None)
    few = memory.taken(needs_of(session, asked, [(63, 3)], indices=indices), 1)
    assert whole - few >= 64 * 4000 * 4


def test_outputs_are_compared_in_pieces_as_whole(monkeypatch):
    mine = torch.arange(22.0).reshape(2, 11)
    theirs = mine.clone()
    theirs[0, 7] += 0.5
    mine[1, 2] = theirs[1, 2] = torch.inf
    assert model_comparison.difference(mine, theirs) == (0.5, 21)
    monkeypatch.setattr(model_comparison, "PIECE", 3)
    assert model_comparison.difference(mine, theirs) == (0.5, 21)
    theirs[1, 10] = torch.nan
    assert model_comparison.difference(mine, theirs) == (torch.inf, 20)


def test_gradients_are_compared_without_the_scores_that_nobody_reads(monkeypatch):
    """The model's own run that is differentiated makes those of one position alone."""
    seen, linear = [], nn.Linear.forward

    def forward(self, x):
        if self.out_features == 50 and torch.is_grad_enabled() and x.requires_grad:
            seen.append(x.shape[1])
        return linear(self, x)

    model, _ = _llama()
    assert model.lm_head.out_features == 50
    monkeypatch.setattr(nn.Linear, "forward", forward)
    found = relprop.explain(model.eval(), IDS[:1], (6, 3))
    assert "gradients equal to autograd's" in found.facts["compared"] and seen == [1]
