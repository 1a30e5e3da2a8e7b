"""Functions of functions inside a model are captured as plain operations: the graph equals the
model on other inputs, too, and PyTorch is left as it was."""

import pytest
import torch
from torch import nn
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.nn.attention import flex_attention as flexible

import relprop
from relprop.operations import Kind, kind
from relprop.tracer.transforms import seen_through
from tests.common.rows import diagonal

WIDTH, TOKENS = 8, 5


class Model(nn.Module):
    """One attention, by ``core``; ``branch`` makes ``torch.export`` refuse."""

    def __init__(self, core, branch=False):
        super().__init__()
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)
        self.core, self.branch = core, branch

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = self.core(self, q, k, v).transpose(1, 2).flatten(2)
        if self.branch and bool(y.abs().max() > 1e6):
            y = y * 2
        return self.head(y.mean(1))


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 2, -1) @ v


def nested(model, q, k, v):
    """Both axes mapped, with a tensor of the model's and one made inside."""
    scale = model.head.bias.exp()[0]

    def one(q, k, v):
        return attend(q * scale, k + torch.ones(4), v)

    return torch.vmap(torch.vmap(one))(q, k, v)


def derived(model, q, k, v):
    """Values times the slope of a function at them."""
    return attend(q, k, v * torch.func.grad(lambda t: t.exp().sum())(v))


def flex(model, q, k, v):
    slopes = model.head.weight[0]

    def leaning(score, batch, head, query, key):
        return score + slopes[head] * (query - key)

    mask = flexible.create_block_mask(
        lambda b, h, i, j: i - j < 3, None, None, TOKENS, TOKENS, "cpu"
    )
    return flexible.flex_attention(q, k, v, leaning, mask)


def picked(model, q, k, v):
    """Scores that a function of places finds in a table, as masks are written."""
    table = model.qkv.bias
    with TransformGetItemToIndex():
        leaning = torch.vmap(lambda j: table[j] * model.head.weight[0][j])(torch.arange(TOKENS))
    return torch.softmax(q @ k.mT / 2 + leaning, -1) @ v


class Doubled(torch.autograd.Function):
    """A backward of its own, which is the derivative of the forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def of_its_own(model, q, k, v):
    return attend(torch.vmap(Doubled.apply)(q), k, v)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(
    ("core", "branch"), diagonal((nested, derived, flex, picked, of_its_own), (True, False))
)
def test_what_is_inside_is_seen(core, branch):
    torch.manual_seed(0)
    model = Model(core, branch).eval().requires_grad_(False)
    x = torch.randn(3, TOKENS, WIDTH)
    program = relprop.trace(model, x[:1])
    assert program.front_end == ("concrete" if branch else "export")
    assert len(program.sites) == 1
    assert all(kind(n) is not Kind.UNKNOWN for n in program.graph.nodes if n.op == "call_function")
    found = relprop.explain(model, x, target=1).scores
    alone = [relprop.explain(model, one[None], target=1).scores for one in x]
    torch.testing.assert_close(found, torch.cat(alone))


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_rows_that_see_nothing_attend_to_nothing():
    def core(model, q, k, v):
        return flexible.flex_attention(
            q, k, v, lambda s, b, h, i, j: torch.where(i == 0, -torch.inf, s)
        )

    model = Model(core).eval().requires_grad_(False)
    explanation = relprop.explain(model, torch.randn(1, TOKENS, WIDTH), target=0, keep="blocks")
    assert not explanation.blocks[0].attention[..., 0, :].any()


def test_torch_is_left_as_it_was():
    before = ProxyTorchDispatchMode.__torch_dispatch__, flexible.flex_attention_hop
    with pytest.raises(KeyError), seen_through():
        assert flexible.flex_attention_hop is not before[1]
        raise KeyError
    assert (ProxyTorchDispatchMode.__torch_dispatch__, flexible.flex_attention_hop) == before
