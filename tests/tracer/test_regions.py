"""Regions inside a model: gradient modes and autocast of its own. The graph equals the model, its
casts included, or the region is refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.errors import CaptureError
from relprop.operations import name_of
from relprop.tracer.editing import val
from relprop.tracer.program import place
from relprop.tracer.weights import weight
from tests.common.models import closeness

WIDTH, TOKENS = 8, 5
BF16 = torch.bfloat16


class Model(nn.Module):
    """Attention and a convolution inside a region; ``branch`` makes ``torch.export`` refuse, so
    that the concrete trace captures it."""

    def __init__(self, region, inner=None, branch=False):
        super().__init__()
        self.qkv, self.conv, self.head = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
            nn.Linear(WIDTH, 4),
        )
        self.region, self.inner, self.branch = region, inner, branch

    def attend(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.einsum("bij,bkj->bik", q, k).softmax(-1) @ v

    def forward(self, x):
        if self.branch and x.sum() > 1e6:
            x = -x
        with self.region():
            y = torch.cat([x, self.attend(x)], 1)
            if self.inner is not None:
                with self.inner(), torch.no_grad():
                    y = self.attend(y.float()).float()
            y = F.layer_norm(self.conv(y.mT).mT, (WIDTH,))
        return self.head(x + y[:, -TOKENS:]).mean(1)


def casting(dtype=BF16, device="cpu", enabled=True):
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


def off():
    return torch.autocast("cpu", enabled=False)


def run_plainly(program, model, x):
    """The graph's output for one sample, node by node, without ``vmap``."""
    values = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node] = x
        elif node.op == "get_attr":
            values[node] = weight(program, model, node)
        elif node.op == "call_function":
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
            values[node] = node.target(*args, **kwargs)
    return values[program.output_nodes[0]]


REGIONS = {
    "off": (Model, (off,), False),
    "on, for another device": (Model, (casting(torch.float16, "cuda"),), False),
    "bfloat16": (Model, (casting(),), True),
    "float16": (Model, (casting(torch.float16),), True),
    "off inside bfloat16": (Model, (casting(), off), True),
    "bfloat16 inside off": (Model, (off, casting()), True),
    "no gradient": (Model, (torch.no_grad,), False),
    "bfloat16 inside no gradient": (Model, (torch.no_grad, casting()), True),
}


@pytest.mark.parametrize("branch", [False, True], ids=["export", "concrete"])
@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.filterwarnings("ignore:.*autocast.*")
def test_the_graph_equals_the_model(name, branch):
    kind, regions, casts = REGIONS[name]
    model, x = kind(*regions, branch=branch).eval(), torch.randn(3, TOKENS, WIDTH)
    program = relprop.trace(model, x)
    assert program.front_end == ("concrete" if branch else "export")
    kinds = {val(n).dtype for n in program.graph.nodes if name_of(n) in ("linear", "conv1d")}
    assert (kinds != {torch.float32}) == casts
    with torch.no_grad():
        assert run_plainly(program, model, x[:1]).equal(model(x[:1]))
    e = relprop.explain(model, x, 1)
    assert torch.isfinite(e.scores).all() and e.scores.any() and e.ledger.balanced(1e-5)
    assert closeness(e.output, model(x)[:, 1].detach()) <= (
        2 * torch.finfo(BF16).eps if casts else 1e-6
    )


def test_casts_are_where_autocast_makes_them():
    program = relprop.trace(Model(casting()).eval(), torch.randn(1, TOKENS, WIDTH))
    by_name = {}
    for node in program.graph.nodes:
        by_name.setdefault(name_of(node), val(node))
    assert by_name["linear"].dtype == by_name["softmax"].dtype == BF16
    assert by_name["cat"].dtype == torch.float32  # the wider of its operands
    assert by_name["layer_norm"].dtype == BF16


def test_nodes_of_a_region_say_where_they_come_from():
    program = relprop.trace(Model(off).eval(), torch.randn(1, TOKENS, WIDTH))
    assert [place(n).path for n in program.graph.nodes if name_of(n) in ("linear", "conv1d")] == [
        "qkv",
        "conv",
        "head",
    ]
    softmax = next(n for n in program.graph.nodes if name_of(n) == "softmax")
    assert place(softmax).source.startswith("test_regions.py:")


def test_casts_that_cannot_be_written_down_are_refused():
    class Chain(nn.Module):
        def forward(self, x):
            with casting()():
                return torch.linalg.multi_dot([x[0], x[0].mT, x[0]])[None]

    with pytest.raises(
        CaptureError,
        match=(
            r"autocast region to bfloat16, and what it casts inside "
            r"aten.linalg_multi_dot.default"
        ),
    ) as caught:
        relprop.trace(Chain(), torch.randn(1, TOKENS, WIDTH))
    assert "explain the model without the inner autocast" in str(caught.value)


def test_the_callers_autocast_does_not_matter():
    model, x = Model(off).eval(), torch.randn(2, TOKENS, WIDTH)
    expected = relprop.explain(model, x, 1).scores
    with torch.autocast("cpu", dtype=BF16):
        inside = relprop.explain(model, x, 1)
    assert inside.scores.equal(expected) and inside.output.dtype == torch.float32
