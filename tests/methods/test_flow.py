"""Attention flow against networkx's maximum flow, on little networks and on models."""

import networkx
import pytest
import torch
from torch import nn

import relprop
from relprop.errors import OptionError
from relprop.methods.flow import SCALE, flows
from tests.rollup.hand import SAMPLES, Layer, normal
from tests.rollup.structures import TOKENS, WIDTH, Block, Stack
from tests.rollup.test_streams import EncoderDecoder, both
from tests.spellings.bases import PLAIN
from tests.spellings.model import Model, attend


def by_networkx(maps, read):
    """Abnar & Zuidema's graph, whole numbers of 2⁻²⁰ for capacities: one node per layer and token,
    edges from a key up to its query."""
    layers, s = maps.shape[:2]
    graph = networkx.DiGraph()
    for layer in range(layers):
        for query in range(s):
            for key in range(s):
                graph.add_edge(
                    (layer, key),
                    (layer + 1, query),
                    capacity=round(float(maps[layer, query, key]) * SCALE),
                )
    for token in range(s):
        graph.add_edge(
            (layers, token), "sink", capacity=round(float(read[token] / read.max()) * SCALE)
        )
    return torch.tensor(
        [networkx.maximum_flow_value(graph, (0, key), "sink") / SCALE for key in range(s)],
        dtype=torch.float64,
    )


def with_residual(a):
    return 0.5 * a.double() + 0.5 * torch.eye(a.shape[-1], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("read", ["one", "mean", "weighted"])
def test_little_networks(seed, read):
    torch.manual_seed(seed)
    layers, s = 1 + seed % 3, 2 + seed % 5
    maps = with_residual(
        (3 * torch.randn(layers, s, s)).softmax(-1) if seed else torch.eye(s).repeat(layers, 1, 1)
    )
    weights = {"one": torch.eye(s)[0], "mean": torch.ones(s) / s, "weighted": torch.rand(s) + 0.1}[
        read
    ].double()
    found = flows(maps, weights)
    assert torch.equal(found, by_networkx(maps, weights))
    assert found.max() > 0 and (found <= weights.sum() / weights.max() + 1e-5).all()


def test_one_layer_by_hand():
    """With one layer the flow from a token to the class token is the edge between them; to two
    tokens it is the sum of two edges."""
    a = with_residual(torch.tensor([[[0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [1.0, 0.0, 0.0]]]))
    assert torch.allclose(
        flows(a, torch.tensor([1.0, 0, 0]).double()),
        torch.tensor([0.6, 0.15, 0.25]).double(),
        atol=2 / SCALE,
    )
    assert torch.allclose(
        flows(a, torch.tensor([0.5, 0.5, 0]).double()),
        torch.tensor([0.65, 1.05, 0.3]).double(),
        atol=4 / SCALE,
    )
    assert torch.allclose(
        flows(a, torch.tensor([1.0, 0.5, 0]).double()),
        torch.tensor([0.65, 0.65, 0.3]).double(),
        atol=4 / SCALE,
    )


def test_two_layers_by_hand():
    """Two ways of which one edge each is the narrowest: their widths add."""
    a = torch.tensor([[0.9, 0.1], [0.4, 0.6]]).double()
    assert torch.allclose(
        flows(torch.stack([a, a]), torch.tensor([1.0, 0]).double()),
        torch.tensor([1.0, 0.2]).double(),
        atol=4 / SCALE,
    )


class Classifier(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.embed, self.layers, self.head, self.pool = (
            nn.Linear(3, WIDTH),
            nn.ModuleList(Layer() for _ in range(2)),
            nn.Linear(WIDTH, 4),
            pool,
        )

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.pool(x))


POOLS = {
    "the first token": (lambda x: x[:, 0], lambda s: torch.eye(s)[0]),
    "the mean": (lambda x: x.mean(1), lambda s: torch.ones(s)),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("layers", [None, [-1]])
def test_a_model(pool, layers):
    function, read = POOLS[pool]
    model, x = Classifier(function).double().eval(), normal(SAMPLES, TOKENS, 3)
    e = relprop.explain(model, x, [1, 2], method="attention_flow", layers=layers, keep="blocks")
    for sample in range(SAMPLES):
        maps = torch.stack([with_residual(b.attention[sample].mean(0)) for b in e.blocks])
        assert torch.allclose(
            e.scores[sample], by_networkx(maps, read(TOKENS).double()), atol=1e-5, rtol=0
        )
    assert torch.equal(
        e.scores[1:],
        relprop.explain(model, x[1:], 3, method="attention_flow", layers=layers).scores,
    )  # no sample leaks, no class matters


REFUSED = {
    "two inputs": (
        lambda: EncoderDecoder().double().eval(),
        both,
        "depends on 2 inputs: 'source', 'target'",
    ),
    "beside each other": (
        lambda: Stack(Block(lambda b, x: x + b.attention(x) + b.second(x).tanh())).double().eval(),
        lambda: normal(1, TOKENS, 3),
        "beside each other",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sequence_of_layers_is_refused(name):
    model, inputs, said = REFUSED[name]
    with pytest.raises(OptionError, match=said):
        relprop.explain(model(), inputs(), 1, method="attention_flow")


def groups_by_einsum(parts, q, k, v, allowed):
    """Both heads' queries on the first head's keys, by an axis of their own."""
    s = torch.einsum("bhid,bjd->bhij", q, k[:, 0]) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bjd->bhid", s.softmax(-1), v[:, 0])


def test_heads_as_queries_of_one_map_are_refused_or_explained():
    (x,) = PLAIN.inputs()

    def shared(parts, q, k, v, allowed):
        return attend(parts, q, k[:, :1].expand_as(k), v[:, :1].expand_as(v), allowed)

    wanted = relprop.explain(Model(PLAIN, attend=shared).eval(), x, 1, method="attention_flow")
    model = Model(PLAIN, attend=groups_by_einsum).eval()
    try:
        found = relprop.explain(model, x, 1, method="attention_flow").scores
    except OptionError as error:
        assert "heads are queries of one map" in str(error)
    else:
        assert torch.allclose(found, wanted.scores, rtol=1e-6)


def test_windows_are_refused():
    import timm

    model = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        window_size=7,
        embed_dim=8,
        depths=(1, 1),
        num_heads=(1, 1),
        num_classes=3,
    ).eval()
    with pytest.raises(OptionError, match="attention_flow needs one input whose tokens all attend"):
        relprop.explain(model, torch.randn(1, 3, 56, 56), 1, method="attention_flow")


def test_without_scipy_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.sparse.csgraph", None)
    with pytest.raises(OptionError, match=r'pip install "relprop\[flow\]"'):
        relprop.explain(
            Classifier(lambda x: x[:, 0]), torch.randn(1, TOKENS, 3), 1, method="attention_flow"
        )
