"""Every canonicalising pass, on a model of a few lines: the canonical graph equals the model on two
inputs, and the pass did what it says."""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from relprop.operations import name_of
from relprop.tracer.binding import bind
from relprop.tracer.constants import Constants
from relprop.tracer.editing import drop_unused, emit, is_live
from relprop.tracer.facts import Facts, know
from relprop.tracer.passes.functions import by_probing
from relprop.tracer.passes.lanes.merging import merge_lanes
from relprop.tracer.passes.lanes.same import Numbers
from relprop.tracer.passes.products.factors import join_factors
from relprop.tracer.passes.sums.terms import terms_of
from relprop.tracer.run import execute
from relprop.tracer.surroundings import undisturbed
from relprop.tracer.trace import trace_program

WIDTH, HEADS, TOKENS = 8, 2, 5


class Model(nn.Module):
    """``body(model, x)`` with a few layers to use."""

    def __init__(self, body, train=False):
        super().__init__()
        self.body = body
        self.linear, self.wide, self.dropout = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Dropout(0.5),
        )
        self.matrix, self.bias = (
            nn.Parameter(torch.randn(WIDTH, WIDTH)),
            nn.Parameter(torch.randn(WIDTH)),
        )
        self.bank = nn.Parameter(torch.randn(1, TOKENS, TOKENS))
        self.train(train)

    def forward(self, *inputs):
        return self.body(self, *inputs)


def sample():
    return torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)


def heads(x, count=HEADS):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def equals(model, *inputs):
    """The program of ``inputs``' first sample, and that it equals the model on both samples of
    these and of other inputs."""
    model = model.double()
    program = traced(model, *inputs)
    for given in (
        inputs,
        tuple(
            torch.randn_like(t) if t.is_floating_point() and torch.isfinite(t).all() else t
            for t in inputs
        ),
    ):
        bound = bind(given)
        with undisturbed(model), torch.no_grad():
            mine = execute(program, model, bound, set(program.output_nodes))[
                program.output_nodes[0]
            ]
            for i in range(bound.batch):
                args, _ = bound.rebuild(bound.samples(i, i + 1))
                eager = model(*args)
                assert (mine[i] - eager).abs().max() <= 1e-12 * eager.abs().max()
    return program


def traced(model, *inputs):
    with undisturbed(model), torch.no_grad():
        return trace_program(model, bind(inputs), None)


def ops(program):
    return [name_of(n) for n in program.graph.nodes if n.op == "call_function"]


def has(program, **counts):
    found = ops(program)
    for name, count in counts.items():
        assert found.count(name) == count, f"{name} is there {found.count(name)} times in {found}"


IN_PLACE = {
    "add_": (lambda m, x: m.linear(x).add_(1) * 2, {"add": 1}),
    "chain": (lambda m, x: m.linear(x).mul_(2).relu_().add_(x), {"mul": 1, "relu": 1, "add": 1}),
    "operator": (lambda m, x: add_to(m.linear(x), x), {"add": 1}),
    "read again later": (lambda m, x: (y := m.linear(x)) + y.relu_() + y, {"relu": 1}),
    "fill_": (lambda m, x: m.linear(x) + torch.empty_like(x).fill_(3), {}),
    "zero_": (lambda m, x: m.linear(x) + m.linear(x).zero_(), {}),
    "copy_": (lambda m, x: m.linear(x) + torch.empty_like(x).copy_(x), {}),
    "masked_fill_": (lambda m, x: m.linear(x).masked_fill_(x > 0, 0.5), {"masked_fill": 1}),
    "clamp_": (lambda m, x: m.linear(x).clamp_(-1, 1), {"clamp": 1}),
    "dropout in place": (
        lambda m, x: F.dropout(m.linear(x), 0.5, m.training, inplace=True),
        {"linear": 1},
    ),
    "through a slice": (lambda m, x: write(m.linear(x), lambda y: y[:, 1:3].mul_(2)), {}),
    "through a select": (lambda m, x: write(m.linear(x), lambda y: y[:, 0].add_(1)), {}),
    "assignment": (
        lambda m, x: write(m.linear(x), lambda y: y.__setitem__((slice(None), 2), x[:, 0])),
        {},
    ),
    "through a transposed view": (
        lambda m, x: write(m.linear(x), lambda y: y.mT[:, 1].mul_(3)),
        {},
    ),
    "a view read after its base is written": (lambda m, x: view_after(m.linear(x)), {}),
    "into zeros": (lambda m, x: into_zeros(m, x), {}),
}


def add_to(y, x):
    y += x
    return y


def test_a_sum_of_sizes_is_a_sum():
    def body(m, x):
        return x * torch.norm(m.linear(x)[..., :3], p=1, dim=-1, keepdim=True)

    has(equals(Model(body), sample()), abs=1, sum=1, linalg_vector_norm=0)


def test_a_detach_that_only_comparisons_read_is_gone():
    step = lambda x: torch.heaviside(x.detach() - 0.5, x.new_zeros(()))  # noqa: E731
    has(equals(Model(lambda m, x: (y := m.linear(x)) * step(y)), sample()), detach=0, heaviside=0)
    has(equals(Model(lambda m, x: (y := m.linear(x)) * y.detach()), sample()), detach=1)


FOURIER = {
    "one axis": lambda x: torch.fft.fft(x, dim=1).real,
    "all axes": lambda x: torch.fft.fft2(x, norm="ortho").imag,
    "a filter": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * (1 + 0.5j), n=5, dim=1),
    "a filter of both axes": lambda x: torch.fft.irfft2(
        torch.fft.rfft2(x, norm="ortho") * (1 - 2j), s=x.shape[1:], norm="ortho"
    ),
    "a low pass": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1)[:, :2], n=5, dim=1),
    "of conjugates": lambda x: torch.fft.hfft(x + 0.5j * x.flip(1), n=WIDTH, dim=-1),
    "sizes": lambda x: torch.fft.fftshift(torch.fft.fft(x, dim=-1, norm="forward"), dim=-1).abs(),
}


@pytest.mark.parametrize("name", FOURIER)
def test_a_fourier_transform_is_linear_maps(name):
    program = equals(Model(lambda m, x: FOURIER[name](m.linear(x))), sample())
    assert not any("fft" in op for op in ops(program))
    assert ops(program).count("linear") > 1


def write(y, change):
    change(y)
    return y * 1.5


def view_after(y):
    view = y[:, 1:]
    y.mul_(2)
    return view + 1


def into_zeros(m, x):
    out = torch.zeros_like(x)
    out[:, :2] = m.linear(x)[:, :2]
    out[:, 2:] += x[:, 2:]
    return out


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_ops_become_functions(name):
    body, counts = IN_PLACE[name]
    program = equals(Model(body), sample())
    assert not [op for op in ops(program) if op.endswith("_") and not op.endswith("__")]
    has(program, **counts)


@pytest.mark.parametrize("train", [True, False])
def test_dropout_is_dropped_and_the_model_stays_in_its_mode(train):
    model = Model(lambda m, x: F.dropout(m.dropout(m.linear(x)), 0.3, m.training), train=train)
    has(equals(model, sample()), dropout=0, linear=1)
    assert model.training is train and model.dropout.training is train


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


PIECES = {
    "chunk": (lambda m, x: attend(*(heads(t) for t in m.wide(x).chunk(3, -1))), "chunk"),
    "uneven chunk": (lambda m, x: torch.cat(m.wide(x).chunk(5, -1)[::-1], -1), "chunk"),
    "split": (lambda m, x: attend(*(heads(t) for t in m.wide(x).split(WIDTH, -1))), "split"),
    "split by sizes": (
        lambda m, x: torch.cat(m.wide(x).split([4, 8, 12], 2)[1:], -1),
        "split_with_sizes",
    ),
    "unbind": (
        lambda m, x: attend(
            *heads(m.wide(x).unflatten(-1, (3, WIDTH)).movedim(2, 0).flatten(0, 1))
            .unflatten(0, (3, -1))
            .unbind()
        ),
        "unbind",
    ),
    "unbind, last axis": (
        lambda m, x: (p := m.linear(x).unflatten(-1, (4, 2)).unbind(-1))[0] * p[-1],
        "unbind",
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_are_slices(name):
    body, op = PIECES[name]
    program = equals(Model(body), sample())
    has(program, **{op: 0, "getitem": 0})
    assert {"slice", "select"} & set(ops(program))


PRODUCTS = {
    "x @ P": (lambda m, x: x @ m.matrix, {"linear": 1, "matmul": 0}),
    "x @ P + b": (lambda m, x: x @ m.matrix + m.bias, {"linear": 1, "matmul": 0, "add": 0}),
    "b + x @ P": (lambda m, x: m.bias + x @ m.matrix, {"linear": 1, "add": 0}),
    "x @ P.T": (lambda m, x: x @ m.matrix.T, {"linear": 1, "matmul": 0}),
    "x @ f(P)": (lambda m, x: x @ (m.matrix * 2 + 1), {"linear": 1, "matmul": 0}),
    "addmm, as GPT-2 has it": (
        lambda m, x: torch.addmm(m.bias, x.reshape(-1, WIDTH), m.matrix).reshape(x.shape),
        {"linear": 1, "addmm": 0, "add": 0},
    ),
    "addmm with factors": (
        lambda m, x: torch.addmm(m.bias, x[:, 0], m.matrix, beta=0.5, alpha=2.0),
        {},
    ),
    "a bias that is used twice": (
        lambda m, x: (y := x @ m.matrix) + m.bias + y,
        {"linear": 1, "add": 0, "sum_of": 1},
    ),
    "a bias per token is no bias": (
        lambda m, x: m.linear(x) + m.bank[:, :, :1],
        {"linear": 1, "add": 1},
    ),
    "baddbmm": (
        lambda m, x: torch.baddbmm(m.bank.expand(len(x), -1, -1), x, x.mT),
        {"matmul": 1, "baddbmm": 0, "add": 1},
    ),
    "baddbmm with factors": (
        lambda m, x: torch.baddbmm(m.bank.expand(len(x), -1, -1), x, x.mT, beta=0.5, alpha=0.25),
        {"matmul": 1, "mul": 2, "add": 1},
    ),
    "baddbmm, beta 0": (
        lambda m, x: torch.baddbmm(m.bank.expand(len(x), -1, -1), x, x.mT, beta=0, alpha=0.25),
        {"matmul": 1, "mul": 1, "add": 0},
    ),
    "add with alpha": (
        lambda m, x: torch.add(m.linear(x), x, alpha=3) - torch.sub(x, m.linear(x), alpha=0.5),
        {"mul": 2},
    ),
    "einsum of two": (
        lambda m, x: torch.einsum("bqd,bkd->bqk", x, m.linear(x)),
        {"einsum": 0, "matmul": 1},
    ),
    "einsum, axes in another order": (
        lambda m, x: torch.einsum("bqhd,bkhd->hqbk", (t := x.unflatten(-1, (2, 4))), t.relu()),
        {"einsum": 0, "matmul": 1},
    ),
    "einsum without an arrow": (lambda m, x: torch.einsum("bqd,bkd", x, m.linear(x)), {}),
    "einsum with an ellipsis": (
        lambda m, x: torch.einsum("...qd,...kd->...qk", x, m.linear(x)),
        {},
    ),
    "einsum with a sum": (lambda m, x: torch.einsum("bqd,bkd->bq", x, m.linear(x)), {}),
    "einsum with a parameter": (
        lambda m, x: torch.einsum("bqd,de->bqe", x, m.matrix),
        {"einsum": 0},
    ),
    "transposes": (
        lambda m, x: x[0].t().T.mT.adjoint()[None] + 0 * m.linear(x).sum(),
        {"t": 0, "numpy_T": 0, "mT": 0, "adjoint": 0},
    ),
    "views": (
        lambda m, x: m.linear(x).view(len(x), -1).view(len(x), TOKENS, WIDTH).contiguous().clone(),
        {"view": 0, "clone": 0, "contiguous": 0},
    ),
    "casts to the same type": (
        lambda m, x: m.linear(x).to(torch.float64).type_as(x),
        {"to": 0, "type_as": 0},
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_and_sums(name):
    body, counts = PRODUCTS[name]
    has(equals(Model(body), sample()), **counts)


def causal(x):
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


FUSED = {
    "no mask": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v),
    "scale": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    "causal": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "causal, fewer queries": lambda m, q, k, v: F.scaled_dot_product_attention(
        q[:, :, :3], k, v, is_causal=True
    ),
    "bool mask": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, causal(q)),
    "float mask": lambda m, q, k, v: F.scaled_dot_product_attention(
        q, k, v, torch.zeros(TOKENS, TOKENS, dtype=q.dtype).masked_fill(~causal(q), float("-inf"))
    ),
    "learned bias": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, m.bank[:, None]),
    "rows masked throughout, bool": lambda m, q, k, v: F.scaled_dot_product_attention(
        q, k, v, causal(q).flip(0).tril(-1)
    ),
    "rows masked throughout, float": lambda m, q, k, v: F.scaled_dot_product_attention(
        q,
        k,
        v,
        torch.zeros(TOKENS, TOKENS, dtype=q.dtype).masked_fill(~causal(q).tril(-2), float("-inf")),
    ),
    "grouped": lambda m, q, k, v: F.scaled_dot_product_attention(
        q, k[:, :1], v[:, :1], enable_gqa=True
    ),
    "dropout in training": lambda m, q, k, v: F.scaled_dot_product_attention(
        q, k, v, dropout_p=0.5 if m.training else 0.0
    ),
    "without heads": lambda m, q, k, v: F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0])[
        :, None
    ],
    "other values' width": lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v[..., :2]),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_attention_is_split_so_that_its_map_is_a_node(name):
    model = Model(
        lambda m, x: FUSED[name](m, *(heads(t) for t in m.wide(x).chunk(3, -1))),
        train=name == "dropout in training",
    )
    program = equals(model, sample())
    has(program, scaled_dot_product_attention=0, matmul=2)
    assert sum("softmax" in op for op in ops(program)) == 1
    assert len(program.sites) == 1
    assert program.no_sites == ()


def test_a_mask_that_comes_as_an_input():
    def body(m, x, mask):
        return F.scaled_dot_product_attention(
            *(heads(t) for t in m.wide(x).chunk(3, -1)), attn_mask=mask[:, None, None]
        )

    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]]).bool()
    model = Model(body)
    equals(model, sample(), mask)
    equals(model, sample(), ~mask)


@pytest.mark.parametrize("amounts", [(0, 0, 1, -1), (0, 0, -1, 1), (-2, 2, -1, 1)])
def test_what_is_padded_at_one_end_and_cut_at_the_other_has_moved(amounts):
    program = equals(Model(lambda m, x: m.linear(F.pad(x, amounts)) + x), sample())
    has(program, constant_pad_nd=1)


def test_padding_with_nothing_is_dropped():
    has(equals(Model(lambda m, x: m.linear(F.pad(x, (0, 0)))), sample()), constant_pad_nd=0)


@pytest.mark.parametrize(
    ("choice", "count"),
    [(torch.amax, 2), (torch.amin, 3), (lambda t, axis: t.median(axis)[0], 5)],
)
def test_the_choice_among_a_few_numbers_is_no_place(choice, count):
    """Wherever numbers that it is tried with happen to have it."""
    body = lambda m, x: choice(m.linear(x).mean(1)[:, None, None, :count], -1)  # noqa: E731
    has(equals(Model(body), sample()), select=0)


def test_ways_of_any_length_are_followed():
    graph, long = torch.fx.Graph(), 3 * sys.getrecursionlimit()
    live, held = graph.placeholder("x"), graph.call_function(torch.ops.aten.ones.default, ([1],))
    know(held, Facts(torch.ones(1, device="meta")))
    for _ in range(long):
        live, held = (graph.call_function(torch.ops.aten.neg.default, (n,)) for n in (live, held))
        know(held, Facts(torch.ones(1, device="meta")))
    assert is_live(live) and not is_live(held)
    assert Constants().number(held) == (-1) ** long


def test_what_is_made_of_whole_numbers_has_the_type_that_the_program_runs_in():
    def body(m, x):
        places = (torch.arange(TOKENS) / 2)[:, None]
        return m.linear(x) * F.linear(places, m.bias[:, None])

    model, x = Model(body), sample().float()
    program = replace(traced(model, x), dtype=torch.float64)
    node = program.output_nodes[0]
    found = execute(program, model, bind((x,)), {node})[node][:, 0]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), model(x))


SPREADS = {
    "std": lambda y: y.std(-1, unbiased=False, keepdim=True),
    "std_mean": lambda y: torch.std_mean(y, -1, correction=1, keepdim=True)[0],
}


@pytest.mark.parametrize("name", SPREADS)
def test_a_deviation_has_a_slope_where_all_values_are_equal(name):
    def body(m, x):
        y = m.linear(x) * (torch.arange(TOKENS) > 0)[:, None]
        return (y - SPREADS[name](y)).relu()

    model, x = Model(body).double(), sample()
    program = equals(model, x)
    node, given = program.output_nodes[0], x.requires_grad_()
    made = execute(program, model, bind((given,)), {node}, attached=True)[node]
    assert torch.autograd.grad(made.sum(), given)[0].isfinite().all()


CASTS = {
    "to truth values": lambda y: y.masked_fill(y.relu().bool(), 2.0),
    "of truth values": lambda y: y * ((y > 0).to(y) + (y < 1).to(y)),
    "to whole numbers": lambda y: y * (5 * y).long(),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts_inside_a_function_written_out_say_what_they_do(name):
    program = equals(Model(lambda m, x: CASTS[name](m.linear(x))), sample())
    has(program, written_function=1)


def test_truth_values_that_a_function_reads_stay_truth_values_in_half_precision():
    def body(m, x):
        even = torch.arange(WIDTH) % 2 == 0
        return torch.where(even, (y := m.linear(x)) * y.sin(), y)

    has(traced(Model(body).bfloat16(), sample().bfloat16()), written_function=1)


def hand_made():
    """A graph of one input, to be filled before its end."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    know(x, Facts(torch.ones(1, 2, 2, device="meta")))
    return graph, x, graph.output(x)


def test_lanes_of_any_length_are_merged():
    (graph, x, end), long = hand_made(), sys.getrecursionlimit()
    lanes = [emit(end, torch.ops.aten.slice.Tensor, x, 1, i, i + 1, 1) for i in (0, 1)]
    for _ in range(long):
        lanes = [emit(end, torch.ops.aten.softmax.int, n, -1) for n in lanes]
    end.args = (emit(end, torch.ops.aten.cat.default, lanes, 1),)
    merge_lanes(graph)
    drop_unused(graph)
    assert [name_of(n) for n in graph.nodes if n.op == "call_function"] == ["softmax"] * long


def test_sums_and_products_of_any_length_are_one():
    (graph, x, end), long = hand_made(), sys.getrecursionlimit()
    total = product = x
    for _ in range(long):
        total = emit(end, torch.ops.aten.sub.Tensor, x, total)
        product = emit(end, torch.ops.aten.div.Tensor, x, product)
    end.args = ((total, product),)
    signs = [1, *([-1, 1] * long)[:long]]
    assert terms_of(total) == [(sign, x) for sign in signs]
    join_factors(graph)
    drop_unused(graph)
    assert not any(name_of(n) == "div" and n.args[1] is not x for n in graph.nodes)


def test_gradient_mode_switches_are_inlined():
    def body(m, x):
        with torch.no_grad():
            angle = x.sum(-1, keepdim=True).sin()
        return m.linear(x) * angle

    program = equals(Model(body), sample())
    assert not [op for op in ops(program) if "grad" in op]


def test_checks_are_dropped():
    def body(m, x):
        torch._assert(x.shape[1] == TOKENS, "length")
        return m.linear(x)

    assert ops(equals(Model(body), sample())) == ["linear"]


def test_scale_of_fused_attention_is_one_over_the_root_of_the_width():
    program = traced(
        Model(lambda m, x: attend(*(heads(t) for t in m.wide(x).chunk(3, -1)))).double(), sample()
    )
    scale = next(n.args[1] for n in program.graph.nodes if name_of(n) == "mul")
    assert scale == pytest.approx(1 / math.sqrt(WIDTH // HEADS))


def test_a_sum_is_the_same_in_another_order_and_another_multiple_is_not():
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    sums = [graph.call_function(torch.ops.aten.add.Tensor, pair) for pair in ((a, b), (b, a))]
    multiples = [
        graph.call_function(torch.ops.aten.add.Tensor, pair, {"alpha": 2})
        for pair in ((a, b), (b, a))
    ]
    twice = graph.call_function(torch.ops.aten.add.Tensor, (a, a))
    numbers = Numbers()
    assert numbers.same(sums) and not numbers.same(multiples) and not numbers.same([sums[0], twice])


def test_what_was_found_of_one_block_holds_for_the_next_of_its_form(monkeypatch):
    """Four norms by hand, of two forms: two are tried, and each is a norm with its own ε."""
    tried, recognise = [], by_probing._norm
    monkeypatch.setattr(by_probing, "_norm", lambda p: tried.append(p) or recognise(p))

    def norm(x, eps):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)

    def body(model, x):
        for eps in (1e-3, 1e-5, 1e-3, 1e-5):
            x = x + model.linear(norm(x, eps)).tanh()
        return x

    program = equals(Model(body).double(), sample())
    norms = [n for n in program.graph.nodes if name_of(n) == "layer_norm"]
    assert [n.args[4] for n in norms] == [1e-3, 1e-5, 1e-3, 1e-5]
    assert len({p.form for p in tried}) == len(tried) >= 2
