"""Inputs that differ in length alone: one or two are captured, and the graph of any other is made
of those, if the model itself agrees."""

import copy
import math

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    FunnelConfig,
    FunnelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import relprop
from relprop.tracer import bind, trace, trace_program
from tests.common.rows import marked

WIDTH = 8
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "initializer_range": 0.5,
}


def ids(length, **more):
    tokens = torch.randint(3, 50, (1, length), generator=torch.manual_seed(length))
    return {"input_ids": tokens, **more}


def masked(length):
    return ids(length, attention_mask=torch.ones(1, length, dtype=torch.long))


def two_texts(length):
    return ids(length, decoder_input_ids=torch.tensor([[0, 4]]))


def bert():
    return BertForSequenceClassification(BertConfig(**SMALL))


def llama():
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **SMALL))


def t5():
    config = T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=50, use_cache=False
    )
    return T5ForConditionalGeneration(config)


def funnel():
    """Pools by two: at odd lengths it has one position more than half."""
    config = FunnelConfig(
        d_model=16, block_sizes=[1, 1], n_head=2, d_head=8, d_inner=32, vocab_size=50
    )
    return FunnelForSequenceClassification(config)


class Attention(nn.Module):
    """Attention over vectors; ``scores`` and ``mixed`` are what a test does to the scores and the
    result."""

    def __init__(self, scores=lambda s: s, mixed=lambda x: x):
        super().__init__()
        self.scores, self.mixed = scores, mixed
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        attention = self.scores(q @ k.transpose(-2, -1)).softmax(-1)
        return self.out(self.mixed(x + attention @ v).mean(1))


def vectors(length):
    return torch.randn(1, length, WIDTH, generator=torch.manual_seed(length))


def window(scores):
    """From 9 tokens on, each sees its neighbours alone."""
    n = scores.shape[-1]
    if n < 9:
        return scores
    far = (torch.arange(n)[:, None] - torch.arange(n)).abs() > 2
    return scores.masked_fill(far, float("-inf"))


def by_logarithm(scores):
    """Scaled by a number that is on no line."""
    return scores * math.log(scores.shape[-1])


def in_pairs(x):
    """Padded to an even length, and pairs of tokens added."""
    return nn.functional.pad(x, (0, 0, 0, x.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2)


def as_squares(scores):
    """Through a shape that grows as the square of the length."""
    return scores.flatten(1).mul(0.5).unflatten(1, scores.shape[1:])


def all_but_the_last(x):
    """A number that is not the length, but one less."""
    return x[:, : x.shape[1] - 1] * 2


def gated(x):
    """An activation that is written out."""
    return x * torch.sigmoid(1.702 * x)


def gated_by_length(x):
    """One whose shape depends on the length."""
    return x * torch.sigmoid(math.log(x.shape[1]) * x)


def by_einsum(x):
    """A head by itself, and a row written in place."""
    x = torch.einsum("bnd,de->bne", x, torch.eye(WIDTH, dtype=x.dtype) * 0.5)
    x[:, -1] = x[:, 0]
    return x


SUBJECTS = {
    "bert": (bert, masked, 1),
    "llama": (llama, ids, (-1, 7)),
    "t5": (t5, two_texts, (-1, 7)),
    "funnel": (funnel, masked, 1),
    "a window that begins to matter": (lambda: Attention(window), vectors, 1),
    "a scale by the logarithm of the length": (lambda: Attention(by_logarithm), vectors, 1),
    "pairs of tokens": (lambda: Attention(mixed=in_pairs), vectors, 1),
    "an activation written out": (lambda: Attention(mixed=gated), vectors, 1),
    "an activation by the length": (lambda: Attention(mixed=gated_by_length), vectors, 1),
    "einsum and a row in place": (lambda: Attention(mixed=by_einsum), vectors, 1),
    "all but the last": (lambda: Attention(mixed=all_but_the_last), vectors, 1),
    "a shape that is a square": (lambda: Attention(as_squares), vectors, 1),
}


def scores(model, inputs, target):
    explained = relprop.explain(model, inputs, target, precision="float64")
    return {name: stream.scores for name, stream in explained.streams.items()}


#: Two lengths of what a number of the graph may be: the length, one less, on a line, on none.
QUICK = (
    "llama",
    "a window that begins to matter",
    "pairs of tokens",
    "einsum and a row in place",
    "all but the last",
)


@pytest.mark.parametrize("name", marked(SUBJECTS, QUICK))
def test_every_length_has_the_map_of_its_own_capture(name):
    make, inputs, target = SUBJECTS[name]
    torch.manual_seed(0)
    model = make().eval()
    lengths = (5, 7, 8, 12)
    among_others = [scores(model, inputs(n), target) for n in lengths]
    for n, found in list(zip(lengths, among_others, strict=True))[2:]:
        trace.forget(model)
        alone = scores(model, inputs(n), target)
        assert found.keys() == alone.keys()
        for stream, expected in alone.items():
            assert torch.allclose(found[stream], expected, rtol=1e-10, atol=1e-12), (n, stream)


def captured_for(name, lengths, captures):
    make, inputs, _ = SUBJECTS[name]
    model = make().eval()
    for n in lengths:
        trace_program(model, bind(inputs(n)))
    return len(captures)


@pytest.mark.slow
def test_two_hundred_lengths_take_two_captures(captures):
    assert captured_for("bert", range(3, 203), captures) <= 2


@pytest.mark.parametrize("name", marked(["bert", "llama", "t5"], ("bert",)))
def test_many_lengths_take_few_captures(name, captures):
    assert captured_for(name, range(3, 203, 29), captures) <= 2


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("a scale by the logarithm of the length", 3),
        ("an activation by the length", 3),
        ("an activation written out", 2),
        ("einsum and a row in place", 2),
        ("all but the last", 2),
    ],
)
def test_what_is_on_no_line_is_captured(name, count, captures):
    torch.manual_seed(0)
    assert captured_for(name, (5, 7, 9), captures) == count


def test_a_window_that_begins_to_matter_is_noticed(captures):
    torch.manual_seed(0)
    model = Attention(window).eval()
    found = {}
    for n in (4, 6, 8, 10, 12, 14, 7):
        before = len(captures)
        trace_program(model, bind(vectors(n)))
        found[n] = len(captures) - before
    assert found == {4: 1, 6: 1, 8: 0, 10: 1, 12: 1, 14: 0, 7: 0}


def test_decisions_on_values_are_captured_each_time(captures):
    def larger_half(x):
        return x if x.sum() > 0 else -x

    model = Attention(mixed=larger_half).eval()
    for n in (4, 8, 12):
        trace_program(model, bind(vectors(n)))
    assert len(captures) == 3


def test_a_changed_model_is_captured_anew(captures):
    model = Attention().eval()
    for n in (5, 7, 9):
        trace_program(model, bind(vectors(n)))
    model.scores = torch.tanh
    program = trace_program(model, bind(vectors(11)))
    assert len(captures) == 3
    assert any("tanh" in str(n.target) for n in program.graph.nodes)


def test_what_is_kept_of_a_model_that_changes_has_a_bound():
    model = Attention().eval()
    for i in range(12):
        model.times = i
        trace_program(model, bind(vectors(5)))
    assert len(trace._cache[model].captured) == 8


def test_a_graph_of_another_length_is_compared_where_the_answer_is(captures, monkeypatch):
    """No pass of its own compares it; a window that begins to matter is seen all the same. A guess
    that was wrong is not made again; where a line was, graphs are compared before they are used."""
    passes = []
    agrees = trace.agrees
    monkeypatch.setattr(trace, "agrees", lambda *a: passes.append(a) or agrees(*a))
    torch.manual_seed(0)
    model = Attention(window).eval()
    found = []
    for n in (4, 6, 8, 10, 12, 7):
        mine = relprop.explain(model, vectors(n), 1)
        found.append((len(captures), bool(passes)))
        assert (mine.facts["graph"] == "captured") == (n not in (6, 8))
        alone = relprop.explain(copy.deepcopy(model), vectors(n), 1)
        del captures[found[-1][0] :]
        assert torch.allclose(mine.scores, alone.scores, rtol=1e-5)
    assert found == [(1, False), (1, False), (1, False), (2, False), (3, False), (4, True)]


@pytest.mark.parametrize(("dtype", "count"), [(torch.float32, 1), (torch.bfloat16, 2)])
def test_nothing_is_guessed_of_outputs_that_round_much(dtype, count, captures):
    torch.manual_seed(0)
    model = Attention().eval().to(dtype)
    for n in (5, 7, 9):
        relprop.explain(model, vectors(n).to(dtype), 1)
    assert len(captures) == count


def far_tokens_have_no_gradient(x):
    """From 9 tokens on: the outputs do not tell."""
    return x if x.shape[1] < 9 else torch.cat([x[:, :-8].detach(), x[:, -8:]], 1)


def others_after_six(x):
    """A number that is a length by chance, and that the first token does not feel."""
    return torch.cat([x[:, :6] * 2, x[:, 6:] * -3], 1)


class First(nn.Module):
    """Reads its first token alone; ``inner`` sees all."""

    def __init__(self):
        super().__init__()
        self.project, self.inner = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        mixed = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.inner(others_after_six(x + mixed))[:, 0]


def test_a_gradient_that_stops_at_some_lengths_is_noticed():
    torch.manual_seed(0)
    model = Attention(mixed=far_tokens_have_no_gradient).eval()
    for n in (5, 12):
        found = relprop.explain(model, vectors(n), 1, method="gradient_x_input")
        alone = relprop.explain(copy.deepcopy(model), vectors(n), 1, method="gradient_x_input")
        assert torch.allclose(found.scores, alone.scores, rtol=1e-5)


def test_who_looks_inside_has_no_guessed_graph():
    torch.manual_seed(0)
    model = First().eval()
    for n in (6, 9):
        relprop.explain(model, vectors(n), 1)
    seen = relprop.instrument(model, vectors(9)).value("inner")
    expected = relprop.instrument(copy.deepcopy(model), vectors(9)).value("inner")
    torch.testing.assert_close(seen, expected)


def test_a_guess_that_does_not_run_is_captured():
    """A table of six, looked up by remainders."""

    class Remainders(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(6, WIDTH), Attention()

        def forward(self, x):
            return self.inner(x + self.table(torch.arange(x.shape[1]) % 6))

    torch.manual_seed(0)
    model = Remainders().eval()
    for n in (6, 9, 11):
        found = relprop.explain(model, vectors(n), 1)
        alone = relprop.explain(copy.deepcopy(model), vectors(n), 1)
        assert torch.allclose(found.scores, alone.scores, rtol=1e-5)


class Cut(nn.Module):
    """Its table of positions is looked up by how many there are; from 9 on it is another table."""

    def __init__(self):
        super().__init__()
        self.inner = Attention()
        self.table = nn.Parameter(torch.randn(8, WIDTH))

    def forward(self, x):
        n = x.shape[1]
        places = self.table[:n] if n < 9 else self.table.repeat(2, 1)[:n]
        return self.inner(x + places)


@pytest.mark.parametrize("precision", [None, "float64"])
def test_a_graph_that_does_not_run_at_another_length_is_captured(precision):
    torch.manual_seed(0)
    model = Cut().eval()
    for n in (5, 7, 8, 10, 12):
        mine = relprop.explain(model, vectors(n), 1, precision=precision)
        alone = relprop.explain(copy.deepcopy(model), vectors(n), 1, precision=precision)
        assert torch.allclose(mine.scores, alone.scores, rtol=1e-5)
        assert "equal to the model's own output" in mine.facts["compared"]
