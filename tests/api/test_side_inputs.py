"""Side inputs: what stands beside the tokens is a constant, said in ``facts``, and an explanation
is that of the model with the side input's numbers written into it; ``explain_inputs=`` chooses."""

import functools
import math
import warnings

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import OptionError, RelpropError, RollUpError, TargetError
from tests.common.models import closeness
from tests.common.rows import only

BATCH, N, D, HEADS = 2, 4, 8, 2
METHODS = (
    "transformer_attribution",
    "rollout",
    "gae",
    "gradcam_features",
    "attcat",
    "attention_norm",
    "value_zeroing",
    "lrp",
    "attnlrp",
    "gradient_x_input",
    "occlusion",
)


class Block(nn.Module):
    """Pre-norm self-attention; ``c`` (batch, 1, D) modulates the norm and gates the branch."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.condition = nn.Linear(D, 3 * D)
        self.memory = nn.MultiheadAttention(D, HEADS, batch_first=True)

    def attend(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        a = (q @ k.transpose(-2, -1) / math.sqrt(D // HEADS)).softmax(-1)
        return self.out((a @ v).transpose(1, 2).flatten(2))

    def forward(self, x, c=None, memory=None):
        if memory is not None:
            x = x + self.memory(x, memory, memory)[0]
        if c is None:
            return x + self.attend(self.norm(x))
        scale, shift, gate = self.condition(nn.functional.silu(c)).chunk(3, -1)
        return x + gate * self.attend(self.norm(x) * (1 + scale) + shift)


class Conditioned(nn.Module):
    """A sequence (batch, N, 3), and one side input that enters as ``how`` says."""

    def __init__(self, how, width=1):
        super().__init__()
        self.how = how
        self.embed, self.head = nn.Linear(3, D), nn.Linear(D, 3)
        self.table, self.wide = nn.Embedding(5, D), nn.Linear(width, D)
        self.picture = nn.Conv2d(2, D, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def waves(self, t):
        args = t.reshape(-1, 1).to(self.head.weight.dtype) * torch.arange(1, 1 + D // 2) / 7
        return torch.cat([args.cos(), args.sin()], -1)[:, None]

    def side(self, s):
        if self.how == "waves":
            return self.waves(s)
        if self.how in ("label", "tags"):
            return self.table(s).reshape(len(s), -1, D).mean(1, keepdim=True)
        if self.how == "picture":
            return self.picture(s).mean((2, 3))[:, None]
        return self.wide(s.reshape(len(s), -1)[:, None])

    def forward(self, x, s):
        x = self.embed(x)
        if self.how == "joined":
            x, c, memory = torch.cat([s, x], 1), None, None
        elif self.how == "joined label":
            x, c, memory = torch.cat([self.table(s)[:, None], x], 1), None, None
        elif self.how == "beside every token":
            x, c, memory = x + self.wide(s)[:, None].expand(-1, N, -1), None, None
        elif self.how == "repeated":
            x, c, memory = self.head.weight.mT[None, :1, :1] * s.repeat(1, N, 1) + x, None, None
        elif self.how == "times ones":
            x, c, memory = x * (s * s.new_ones(1, N, 1)), None, None
        elif self.how == "a memory of one":
            x, c, memory = x, None, s
        else:
            c, memory = self.side(s), None
        for block in self.blocks:
            x = block(x, c, memory)
        return self.head(x.mean(1))


class Held(nn.Module):
    """The model with the side input of one sample as its own numbers."""

    def __init__(self, model, s):
        super().__init__()
        self.model = model
        self.register_buffer("s", s)

    def forward(self, x):
        return self.model(x, self.s)


def floats(*shape):
    return torch.randn(shape, dtype=torch.float64)


SIDES = {
    "a timestep": ("waves", 1, lambda: torch.tensor([3.0, 40.0], dtype=torch.float64)),
    "whole timesteps": ("waves", 1, lambda: torch.tensor([3, 40])),
    "a column of timesteps": ("waves", 1, lambda: floats(BATCH, 1)),
    "a vector": ("wide", 6, lambda: floats(BATCH, 6)),
    "as many numbers as tokens": ("wide", N, lambda: floats(BATCH, N)),
    "a matrix": ("wide", 12, lambda: floats(BATCH, 3, 4)),
    "a label": ("label", 1, lambda: torch.tensor([1, 3])),
    "a column of labels": ("label", 1, lambda: torch.tensor([[1], [3]])),
    "two tags": ("tags", 1, lambda: torch.tensor([[1, 2], [3, 0]])),
    "a picture, pooled": ("picture", 1, lambda: floats(BATCH, 2, 3, 3)),
    "one embedding beside the tokens": ("joined", 1, lambda: floats(BATCH, 1, D)),
    "a label's token": ("joined label", 1, lambda: torch.tensor([1, 3])),
    "added to every token": ("beside every token", 6, lambda: floats(BATCH, 6)),
    "repeated for every token": ("repeated", 1, lambda: floats(BATCH, 1, D)),
    "a scale of every token": ("times ones", 1, lambda: floats(BATCH, 1, D)),
    "a memory of one token": ("a memory of one", 1, lambda: floats(BATCH, 1, D)),
}


#: One of each way in.
FEW = (
    "a timestep",
    "as many numbers as tokens",
    "one embedding beside the tokens",
    "added to every token",
    "a memory of one token",
)


@functools.cache
def made(side):
    """A model and its inputs, the same at every call: it is captured once for all methods."""
    torch.manual_seed(0)
    how, width, numbers = SIDES[side]
    return Conditioned(how, width).double().eval(), floats(BATCH, N, 3), numbers()


def explained(model, inputs, method, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return relprop.explain(model, inputs, 1, method=method, **options)


@pytest.mark.parametrize("side", only(FEW, SIDES))
def test_a_side_input_is_a_number_of_the_model(side):
    model, x, s = made(side)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = relprop.compare(model, (x, s), METHODS, 1)
        alone = [
            relprop.compare(Held(model, s[i : i + 1]), x[i : i + 1], METHODS, 1)
            for i in range(BATCH)
        ]
    assert found.refused == alone[0].refused and len(found.explanations) >= len(METHODS) - 3
    for method, e in found.explanations.items():
        assert list(e.streams) == ["input_0"] and list(e.facts["constant_inputs"]) == ["input_1"]
        expected = torch.cat([a.explanations[method].row for a in alone])
        assert bool(expected.any()) or method == "gradcam_features"
        assert closeness(e.row, expected) <= 1e-9, method
        assert e.ledger is None or e.ledger.balanced


class Turned(nn.Module):
    """The side input first, by keyword or not."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, side, tokens):
        return self.model(tokens, side)


def test_neither_name_nor_position_tell():
    model, x, s = made("a vector")
    plain = explained(model, (x, s), "transformer_attribution")
    for inputs in ((s, x), {"side": s, "tokens": x}, {"tokens": x, "side": s}):
        e = explained(Turned(model), inputs, "transformer_attribution")
        assert torch.equal(e.scores, plain.scores)
    assert e.stream == "tokens" and list(e.facts["constant_inputs"]) == ["side"]
    assert "no axis of tokens" in e.facts["constant_inputs"]["side"]
    assert "constant input: 'side' has no axis" in str(relprop.check(Turned(model), inputs))


def test_one_number_for_all_samples():
    model, x, _ = made("a timestep")
    e = explained(model, (x, torch.tensor(3.0).double()), "lrp")
    alone = explained(Held(model, torch.tensor(3.0).double()), x, "lrp")
    assert e.stream == "input_0" and closeness(e.scores, alone.scores) <= 1e-12


def test_what_a_side_input_takes_is_booked_under_its_name():
    model, x, s = made("added to every token")
    e = explained(model, (x, s), "attnlrp", ledger=True)
    absorbed = e.ledger.absorbed()
    assert absorbed["input input_1"].abs().min() > 0 and e.ledger.balanced
    named = explained(
        Turned(model), {"side": s, "tokens": x}, "attnlrp", ledger=True
    ).ledger.absorbed()
    assert torch.equal(named["input side"], absorbed["input input_1"])


class Columns(nn.Module):
    """Words, and numbers of which each becomes a token; or a vector that is made into tokens."""

    def __init__(self, prefix):
        super().__init__()
        self.prefix, self.words, self.head = prefix, nn.Embedding(9, D), nn.Linear(D, 3)
        self.each = nn.ModuleList(nn.Linear(1, D) for _ in range(3))
        self.all, self.block = nn.Linear(3, 2 * D), Block()

    def forward(self, ids, numbers):
        x = self.words(ids)
        if self.prefix:
            x = torch.cat([self.all(numbers).view(-1, 2, D), x], 1)
        else:
            more = [to(numbers[:, i : i + 1])[:, None] for i, to in enumerate(self.each)]
            x = torch.cat([*more, x], 1)
        return self.head(self.block(x).mean(1))


@pytest.mark.parametrize("prefix", [True, False])
def test_an_input_that_is_made_into_tokens_is_no_side_input(prefix):
    torch.manual_seed(0)
    model, inputs = Columns(prefix).double(), (torch.arange(10).view(2, 5) % 9, floats(2, 3))
    e = explained(model, inputs, "gradient_x_input")
    assert list(e.streams) == ["input_0", "input_1"] and e["input_1"].scores.abs().min() > 0
    assert e.facts["constant_inputs"] == {}


# -- explain_inputs=


@pytest.mark.parametrize("chosen", [["input_0"], (0, "input_0")])
def test_chosen_as_it_would_be(chosen):
    model, x, s = made("a timestep")
    for method in ("transformer_attribution", "attnlrp"):
        usual = explained(model, (x, s), method)
        e = explained(model, (x, s), method, explain_inputs=chosen)
        assert torch.equal(e.scores, usual.scores) and e.stream == "input_0"
        assert e.facts["constant_inputs"] == {"input_1": "is not among the inputs to explain"}


INPUT_LEVEL = (
    "lrp",
    "attnlrp",
    "gradient_x_input",
    "integrated_gradients",
    "occlusion",
    "deeplift",
)


@pytest.mark.parametrize(
    ("side", "scores"),
    only(
        [("a matrix", 3)],
        [("a timestep", 1), ("a label", 1), ("a vector", 6), ("a matrix", 3)],
    ),
)
def test_a_chosen_side_input_is_explained_at_the_input(side, scores):
    model, x, s = made(side)
    for method in INPUT_LEVEL:
        e = explained(model, (x, s), method, explain_inputs=[0, 1])
        assert e["input_1"].scores.shape == (BATCH, scores) and bool(e["input_1"].scores.any())
        assert e.ledger is None or e.ledger.balanced
        only = explained(model, (x, s), method, explain_inputs=[1])
        assert list(only.streams) == ["input_1"]
        if method in ("gradient_x_input", "occlusion"):
            assert closeness(only.scores, e["input_1"].scores) <= 1e-12
    for chosen in ([1], [0, 1]):
        with pytest.raises(RollUpError, match="'input_1' has no axis of tokens"):
            explained(model, (x, s), "rollout", explain_inputs=chosen)
    refused = relprop.compare(model, (x, s), ["rollout", "lrp"], 1, explain_inputs=[1]).refused
    assert "no axis of tokens" in refused["rollout"]


def test_gradient_of_a_chosen_timestep():
    model, x, s = made("a timestep")
    t = s.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(x, t)[:, 1].sum(), t)
    e = explained(model, (x, s), "gradient_x_input", explain_inputs=["input_1"])
    assert closeness(e.scores[:, 0], t.detach() * g) <= 1e-12


@pytest.mark.parametrize(
    "side",
    only(
        ["one embedding beside the tokens"],
        ["one embedding beside the tokens", "a label's token"],
    ),
)
def test_one_token_can_be_chosen_over_attention(side):
    """Its score is the one that the same token has in the whole sequence."""
    model, x, s = made(side)
    token = (s if s.is_floating_point() else model.table(s)[:, None]).detach()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = model.blocks, model.head

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    whole = torch.cat([token, model.embed(x).detach()], 1)
    for method in ("transformer_attribution", "rollout", "gae", "value_zeroing", "attcat"):
        e = explained(model, (x, s), method, explain_inputs=[0, 1])
        together = torch.cat([e["input_1"].row, e["input_0"].row], 1)
        assert closeness(together, explained(Whole(), whole, method).row) <= 1e-9, method


def test_what_cannot_be_chosen_is_refused_by_name():
    model, x, s = made("whole timesteps")
    for chosen, why in (
        ([1], "'input_1' cannot be explained: it holds int64 numbers that feed no embedding"),
        (["s"], "'s' is no tensor of the call; there are 'input_0', 'input_1'"),
        ([2], "2 is no tensor of the call"),
        ([], "it names no input"),
    ):
        with pytest.raises(OptionError, match=why):
            explained(model, (x, s), "lrp", explain_inputs=chosen)


class Apart(nn.Module):
    """Numbers that feed the target past attention, and some that feed nothing."""

    def __init__(self):
        super().__init__()
        self.model, self.tail = Conditioned("wide"), nn.Linear(4, 3)

    def forward(self, x, beside, unread):
        return self.model(x, x[:, 0, :1]) + self.tail(beside)


def test_a_chosen_input_without_a_part_is_refused_by_name():
    torch.manual_seed(0)
    model, inputs = Apart().double(), (floats(2, N, 3), floats(2, 4), floats(2, 4))
    assert explained(model, inputs, "lrp").stream == "input_0"
    assert explained(model, inputs, "lrp", explain_inputs=[0, 1])["input_1"].scores.any()
    with pytest.raises(RelpropError, match="'input_1' has no scores over attention"):
        explained(model, inputs, "gae", explain_inputs=[0, 1])
    with pytest.raises(TargetError, match="does not depend on input 'input_2'"):
        explained(model, inputs, "lrp", explain_inputs=[0, 2])


def test_the_other_doors_choose_too():
    model, x, s = made("a vector")
    assert list(relprop.trace(model, (x, s), explain_inputs=[1]).leaves) == ["input_1"]
    assert "no axis of tokens" in relprop.check(model, (x, s), explain_inputs=[1]).rollup_error
    with relprop.instrument(model, (x, s), 1, explain_inputs=[1]) as probe:
        assert probe.explanation(method="lrp").stream == "input_1"
    several = relprop.explain_many(model, (x, s), [0, 1], method="lrp", explain_inputs=[1])
    assert [e.stream for e in several] == ["input_1"] * 2
