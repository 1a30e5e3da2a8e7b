"""Eq. 13–14 on every shape of residual stream: the row that the walk finds equals a dense product
worked out by hand.

By hand: Ā = I + E_h(∇A ⊙ R)⁺ for one block with an identity and a site, and what the structure says
for the others; then the row of C = Ā(1)···Ā(B) that the head reads. ∇A and R are those of
``keep="blocks"``.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from tests.common.rows import marked
from tests.rollup import structures as s
from tests.rollup.structures import Block, Stack

TOLERANCE = 1e-9
SAMPLES = 2

# how the parts of a block meet, and by hand: Ā from the identity and the matrices of its sites
ONE_SITE = {
    "sequential pre-norm": lambda b, x: (y := x + b.attention(b.norm1(x))) + b.mlp(b.norm2(y)),
    "sequential post-norm": lambda b, x: b.norm2((y := b.norm1(x + b.attention(x))) + b.mlp(y)),
    "branch first": lambda b, x: b.mlp(b.norm2(y := b.attention(b.norm1(x)) + x)) + y,
    "(x + attention) + mlp": lambda b, x: (x + b.attention(n := b.norm1(x))) + b.mlp(n),
    "(x + mlp) + attention": lambda b, x: (x + b.mlp(n := b.norm1(x))) + b.attention(n),
    "x + (attention + mlp)": lambda b, x: x + (b.attention(n := b.norm1(x)) + b.mlp(n)),
    "x + (mlp + attention)": lambda b, x: x + (b.mlp(n := b.norm1(x)) + b.attention(n)),
    "(mlp + attention) + x": lambda b, x: (b.mlp(n := b.norm1(x)) + b.attention(n)) + x,
    "parallel, a norm per branch": lambda b, x: x + b.attention(b.norm1(x)) + b.mlp(b.norm2(x)),
    "parallel, a norm per branch, nested": lambda b, x: (
        x + (b.attention(b.norm1(x)) + b.mlp(b.norm2(x)))
    ),
    "nested sums": lambda b, x: x + (b.mlp(x) + (b.attention(x) + b.shortcut(x))),
    "nested sums, other side": lambda b, x: ((b.shortcut(x) + b.attention(x)) + b.mlp(x)) + x,
    "projected shortcut": lambda b, x: b.shortcut(x) + b.attention(b.norm1(x)),
    "projected shortcut, right": lambda b, x: b.attention(b.norm1(x)) + b.shortcut(x),
    "projected shortcut of two parts": lambda b, x: (
        (b.shortcut(x) + b.mlp(x)) + b.attention(b.norm1(x))
    ),
    "minus": lambda b, x: x - b.attention(b.norm1(x)),
    "gate on the left": lambda b, x: x + b.gate(x).sigmoid() * b.attention(x),
    "gate on the right": lambda b, x: x + b.attention(x) * b.gate(x).sigmoid(),
    "gate from the branch": lambda b, x: x + b.attention(n := b.norm1(x)) * b.gate(n).sigmoid(),
    "attention as a gate": lambda b, x: x + x * b.attention(x).sigmoid(),
    "gated mlp": lambda b, x: (y := x + b.attention(x)) + b.gate(y).sigmoid() * b.mlp(y),
    "highway": lambda b, x: (t := b.gate(x).sigmoid()) * b.attention(x) + (1 - t) * x,
    "highway, other side": lambda b, x: x * (1 - (t := b.gate(x).sigmoid())) + t * b.attention(x),
    "cat + linear": lambda b, x: b.wide(torch.cat([x, b.attention(x)], -1)),
    "cat + linear, three parts": lambda b, x: b.wider(torch.cat([b.mlp(x), b.attention(x), x], -1)),
    "stack + sum": lambda b, x: torch.stack([x, b.attention(x), b.mlp(x)]).sum(0),
    "stack + mean, last axis": lambda b, x: torch.stack([b.attention(x), x], -1).mean(-1),
    "LayerScale": lambda b, x: (
        (y := x + b.scale1 * b.attention(b.norm1(x))) + b.mlp(b.norm2(y)) * b.scale2
    ),
    "drop path that keeps all": lambda b, x: (
        x + b.attention(b.norm1(x)).div(0.9) * torch.ones(len(x), 1, 1, dtype=x.dtype)
    ),
    "in place": lambda b, x: b.attention(b.norm1(x)).add_(x),
    "transposed and back": lambda b, x: (x.mT.contiguous() + b.attention(x).mT).mT + b.mlp(x),
}
OTHER = {
    "two attentions summed": (
        lambda b, x: x + (b.attention(x) + b.second(b.norm1(x))),
        lambda i, m: i + m[0] + m[1],
    ),
    "two attentions in turn": (
        lambda b, x: (y := x + b.attention(x)) + b.second(b.norm2(y)),
        lambda i, m: (i + m[1]) @ (i + m[0]),
    ),
    "attention of attention": (
        lambda b, x: x + b.second(b.attention(x)),
        lambda i, m: i + m[1] @ m[0],
    ),
    "dense skips": (
        lambda b, x: x + (y := x + b.attention(x)) + b.second(y),
        lambda i, m: (i + m[1]) @ (i + m[0]),
    ),
    "no skip": (lambda b, x: b.attention(x), lambda i, m: m[0]),
    "skip twice": (lambda b, x: x + (x + b.attention(x)), lambda i, m: i + m[0]),
    "mlp only": (
        lambda b, x: (y := x + b.attention(x)) + b.mlp(b.mlp(y)) + b.shortcut(y),
        lambda i, m: i + m[0],
    ),
}
STRUCTURES = {**{name: (join, lambda i, m: i + m[0]) for name, join in ONE_SITE.items()}, **OTHER}
#: Of these the fast suite has one of every kind of merge.
QUICK = (
    "sequential pre-norm",
    "sequential post-norm",
    "x + (mlp + attention)",
    "nested sums, other side",
    "projected shortcut of two parts",
    "minus",
    "gate on the left",
    "attention as a gate",
    "highway, other side",
    "cat + linear, three parts",
    "stack + mean, last axis",
    "LayerScale",
    "in place",
    "two attentions in turn",
    "dense skips",
    "no skip",
)
ATTENTIONS = {
    "separate": s.Attention,
    "fused": s.Fused,
    "fused, unbound": s.FusedParameter,
    "einsum": s.Einsum,
    "values first": s.ValuesFirst,
    "talking heads": s.TalkingHeads,
    "grouped, fused": lambda: s.Grouped("fused"),
    "grouped, interleave": lambda: s.Grouped("interleave"),
    "grouped, expand": lambda: s.Grouped("expand"),
}
POOLS = {
    "first token": (lambda x: x[:, 0], lambda n: torch.eye(n)[0]),
    "last token": (lambda x: x[:, -1], lambda n: torch.eye(n)[-1]),
    "mean": (lambda x: x.mean(1), lambda n: torch.ones(n).double() / n),
    "mean of a range": (
        lambda x: x[:, 1:4].mean(1),
        lambda n: torch.tensor([0, 1, 1, 1, 0]).double() / 3,
    ),
    "sum": (lambda x: x.sum(1), lambda n: torch.ones(n).double() / n),
    "two tokens": (
        lambda x: x[:, 0] + x[:, 2],
        lambda n: (torch.eye(n)[0] + torch.eye(n)[2]).double() / 2,
    ),
    "index": (
        lambda x: x[torch.arange(len(x)), torch.full((len(x),), 3)],
        lambda n: torch.eye(n)[3],
    ),
}


READ = torch.tensor([1, 1, 1, 0, 0]).double() / 3  # what Stack's head reads unless told otherwise


def inputs():
    return torch.randn(SAMPLES, s.TOKENS, 3, dtype=torch.float64)


def explained(model, x=None, **options):
    return relprop.explain(
        model.double(),
        inputs() if x is None else x,
        target=[1, 2],
        keep=("blocks", "matrix"),
        **options,
    )


def matrices(e):
    """E_h(∇A ⊙ R)⁺ of every site, (batch, queries, keys), in forward order."""
    return [(block.gradient * block.relevance).clamp(min=0).mean(1) for block in e.blocks]


def agree(found, by_hand, cancelled=0.0):
    """Equal to 1e-9 of the largest magnitude; a difference of ``cancelled``-sized numbers cannot be
    better than their last digits."""
    scale = float(by_hand.abs().max())
    assert scale > 0, "the case by hand is empty"
    assert float((found - by_hand).abs().max()) <= TOLERANCE * scale + 4e-15 * cancelled, (
        f"found {found}, by hand {by_hand}"
    )


def check(e, product, read):
    """``product(i, m)`` is C by hand from the identity and the sites' matrices, ``read`` the
    weights of the positions that the head reads."""
    m = matrices(e)
    assert all(float(one.max()) > 0 for one in m), "a site with an empty matrix tests nothing"
    i = torch.eye(m[0].shape[-1], dtype=torch.float64).expand_as(m[0])
    read = read.double()
    c, skips = product(i, m), product(i, [torch.zeros_like(one) for one in m])
    agree(e.row, read @ c)
    assert ((e.identity - read @ skips).abs() <= TOLERANCE).all()
    agree(e.scores, read @ (c - skips), cancelled=float(e.row.abs().max()))
    return c


@pytest.mark.parametrize("name", marked(STRUCTURES, QUICK))
def test_two_blocks_of_every_structure(name):
    join, by_hand = STRUCTURES[name]
    e = explained(Stack(Block(join), Block(join)))
    count = len(e.blocks) // 2
    c = check(e, lambda i, m: by_hand(i, m[count:]) @ by_hand(i, m[:count]), READ)
    agree(e.matrix, c)


class Both(nn.Module):
    """Two attentions of one input as one: their projections side by side, the heads of both."""

    def __init__(self, *parts):
        super().__init__()
        self.q, self.k, self.v = (
            self.beside([getattr(p, name) for p in parts]) for name in ("q", "k", "v")
        )
        self.out = nn.Linear(2 * s.WIDTH, s.WIDTH)
        self.out.weight = nn.Parameter(torch.cat([p.out.weight for p in parts], 1))
        self.out.bias = nn.Parameter(parts[0].out.bias + parts[1].out.bias)

    @staticmethod
    def beside(layers):
        made = nn.Linear(s.WIDTH, 2 * s.WIDTH)
        for name in ("weight", "bias"):
            setattr(made, name, nn.Parameter(torch.cat([getattr(m, name) for m in layers])))
        return made

    def forward(self, x):
        q, k, v = (s.split(m(x), 2 * s.HEADS) for m in (self.q, self.k, self.v))
        return self.out(s.merged(F.scaled_dot_product_attention(q, k, v)))


@pytest.mark.parametrize("beside", [lambda b, x: 0, lambda b, x: b.mlp(x) + b.gate(x)])
def test_two_modules_that_are_added_count_whole(beside):
    """x + a(x) + b(x) is I + A + B, twice the mean over the heads of both; heads of one module are
    a mean, whatever else stands in the sum."""
    apart = Stack(Block(lambda b, x: x + b.attention(x) + beside(b, x) + b.second(x))).double()
    one = Block(lambda b, x: x + b.both(x) + beside(b, x))
    whole = Stack(one)
    whole.load_state_dict(apart.state_dict())
    one.both = Both(apart.blocks[0].attention, apart.blocks[0].second)
    x = inputs()
    a, b = explained(whole, x), explained(apart, x)
    assert len(a.blocks) == len(b.blocks) == 1
    agree(a.matrix, check(a, lambda i, m: i + m[0], READ))
    agree(b.matrix, 2 * a.matrix - torch.eye(s.TOKENS, dtype=torch.float64))
    agree(b.scores, 2 * a.scores)


@pytest.mark.parametrize(
    "attention",
    marked(ATTENTIONS, ("fused, unbound", "einsum", "talking heads", "grouped, expand")),
)
def test_every_way_to_write_attention(attention):
    join = ONE_SITE["sequential pre-norm"]
    e = explained(Stack(*(Block(join, ATTENTIONS[attention]) for _ in range(2))))
    agree(e.matrix, check(e, lambda i, m: (i + m[1]) @ (i + m[0]), READ))


@pytest.mark.parametrize(
    ("norm", "structure"),
    [
        (s.Rms, "sequential post-norm"),
        (torch.nn.Identity, "parallel, a norm per branch"),
        (lambda: torch.nn.RMSNorm(s.WIDTH), "gate from the branch"),
    ],
    ids=["RMSNorm written out", "none", "RMSNorm"],
)
def test_norms_are_transparent(norm, structure):
    join = ONE_SITE[structure]
    check(
        explained(Stack(*(Block(join, norm=norm) for _ in range(2)))),
        lambda i, m: (i + m[1]) @ (i + m[0]),
        READ,
    )


@pytest.mark.parametrize("pool", marked(POOLS, ("last token", "mean of a range", "two tokens")))
def test_the_head_selects_the_row(pool):
    function, read = POOLS[pool]
    join = ONE_SITE["sequential pre-norm"]
    check(
        explained(Stack(Block(join), Block(join), pool=function)),
        lambda i, m: (i + m[1]) @ (i + m[0]),
        read(s.TOKENS),
    )


def test_class_token():
    join = ONE_SITE["sequential pre-norm"]
    e = explained(Stack(Block(join), Block(join), prefix=True, pool=lambda x: x[:, 0]))
    check(e, lambda i, m: (i + m[1]) @ (i + m[0]), torch.eye(s.TOKENS + 1)[0])
    assert e.scores.shape == (SAMPLES, s.TOKENS + 1)
    assert e.source.tolist() == [-1, 0, 1, 2, 3, 4]


def test_fused_and_separate_projections_are_the_same():
    join = ONE_SITE["sequential pre-norm"]
    separate, fused = (
        Stack(Block(join, kind), Block(join, kind)) for kind in (s.Attention, s.Fused)
    )
    fused.load_state_dict(separate.state_dict())
    x = inputs()
    agree(explained(fused, x).scores, explained(separate, x).scores)


@pytest.mark.parametrize("layers", [[-1], slice(0, 1)])
def test_layers_left_out_keep_their_skip(layers):
    join = ONE_SITE["sequential post-norm"]
    model, x = Stack(Block(join), Block(join)), inputs()
    whole = matrices(explained(model, x))
    chosen = set(range(2)[layers] if isinstance(layers, slice) else [k % 2 for k in layers])
    first, second = (m if k in chosen else 0 * m for k, m in enumerate(whole))
    i = torch.eye(s.TOKENS, dtype=torch.float64)
    agree(explained(model, x, layers=layers).row, READ @ ((i + second) @ (i + first)))


@pytest.mark.parametrize(
    "structure",
    ["sequential post-norm", "x + (attention + mlp)"],
)
def test_normalised_rows_sum_to_one(structure):
    join = ONE_SITE[structure]
    e = explained(Stack(Block(join), Block(join)), normalize_rows=True)

    def rows(a):
        return a / a.sum(-1, keepdim=True)

    i = torch.eye(s.TOKENS, dtype=torch.float64)
    first, second = matrices(e)
    agree(e.row, READ @ (rows(i + second) @ rows(i + first)))
    agree(e.row.sum(-1), torch.ones(SAMPLES, dtype=torch.float64))


def test_rollout_is_the_same_walk_with_attention_itself():
    join = ONE_SITE["sequential pre-norm"]
    e = explained(Stack(Block(join), Block(join)), method="rollout")
    first, second = (block.attention.mean(1) for block in e.blocks)
    i = torch.eye(s.TOKENS, dtype=torch.float64)
    agree(e.row, READ @ ((i + second) @ (i + first)))


def test_without_gradient_attention_takes_its_place():
    join = ONE_SITE["sequential pre-norm"]
    e = explained(Stack(Block(join), Block(join)), use_gradient=False)
    first, second = ((block.attention * block.relevance).clamp(min=0).mean(1) for block in e.blocks)
    i = torch.eye(s.TOKENS, dtype=torch.float64)
    agree(e.row, READ @ ((i + second) @ (i + first)))


def test_scores_are_not_lost_beside_the_identity_in_float32():
    """Scores of 1e-9 beside an identity of 1/5, of which float32 keeps 1e-8: they are carried
    apart, never as a difference."""
    join = ONE_SITE["sequential pre-norm"]
    model, x = Stack(Block(join), Block(join), pool=lambda x: x.mean(1)), inputs().float()
    with torch.no_grad():
        model.head.weight.mul_(1e-6)
    single, double = (
        relprop.explain(model, x, target=1, precision=p) for p in ("float32", "float64")
    )
    assert 0 < double.scores.abs().max() < 1e-8
    assert (single.scores - double.scores).abs().max() <= 1e-2 * double.scores.abs().max()
    assert (single.row == single.scores + single.identity).all()


MASK = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 0, 0]])
MASKED_POOLS = {
    "product, sum, divide": lambda x, mask: (
        (x * (w := mask.unsqueeze(-1).to(x.dtype))).sum(1) / w.sum(1)
    ),
    "expanded, clamped": lambda x, mask: (
        (x * (w := mask.unsqueeze(-1).expand(x.shape).to(x.dtype))).sum(1)
        / w.sum(1).clamp(min=1e-9)
    ),
    "integer mask": lambda x, mask: (mask[..., None] * x).sum(1) / mask.sum(1, keepdim=True),
    "masked_fill": lambda x, mask: (
        x.masked_fill(mask[..., None] == 0, 0).sum(1) / mask.sum(1, keepdim=True)
    ),
    "where": lambda x, mask: (
        torch.where(mask[..., None] == 1, x, 0).sum(1) / mask.sum(1, keepdim=True)
    ),
    "weights that sum to one": lambda x, mask: (
        x * (mask / mask.sum(1, keepdim=True))[..., None].to(x.dtype)
    ).sum(1),
    "mean": lambda x, mask: (x * mask[..., None]).mean(1),
    "matrix product": lambda x, mask: ((mask / mask.sum(1, keepdim=True)).to(x.dtype)[:, None] @ x)[
        :, 0
    ],
}


class Padded(Stack):
    """A stack whose input comes with a mask."""

    def forward(self, x, mask):
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(self.norm(x), mask))


@pytest.mark.parametrize(
    "pool", marked(MASKED_POOLS, ("expanded, clamped", "where", "matrix product"))
)
def test_masked_pooling_gives_padding_nothing(pool):
    join = ONE_SITE["sequential pre-norm"]
    e = explained(
        Padded(Block(join), Block(join), pool=MASKED_POOLS[pool]), {"x": inputs(), "mask": MASK}
    )
    read = MASK.double() / MASK.sum(1, keepdim=True)
    i = torch.eye(s.TOKENS, dtype=torch.float64)
    first, second = matrices(e)
    agree(e.row, (read[:, None] @ (i + second) @ (i + first))[:, 0])
    agree(e.identity, read)
