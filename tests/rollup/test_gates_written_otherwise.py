"""What lies between two tensors, what is left of one, signs and gates, however they are written."""

import pytest
import torch
from torch.nn import functional as F

from tests.rollup.test_sums_written_otherwise import WIDTH, explained


def stream(mix):
    """Each block's attention is mixed into the stream by a share of its own."""

    def way(m, x):
        for block in m.blocks:
            z = F.linear(x, block.wide.weight[:WIDTH], block.wide.bias[:WIDTH])
            x = mix(x, block.attention(x), z)
            x = x + block.mlp(x)
        return m.head(x[:, 0])

    return way


def parameter(mix):
    """The same by a share that is a parameter."""

    def way(m, x):
        for block in m.blocks:
            x = mix(x, block.attention(x), block.out.bias.sigmoid())
            x = x + block.mlp(x)
        return m.head(x[:, 0])

    return way


def gated(gate):
    """An MLP of two layers, one of which gates the other."""

    def way(m, x):
        for block in m.blocks:
            x = x + block.attention(x)
            x = x + F.linear(gate(*block.wide(x).chunk(2, -1)), block.out.weight)
        return m.head(x[:, 0])

    return way


def turned(z):
    return torch.where(z > 0, z + 1, z.exp())


share = stream(lambda x, y, z: z.sigmoid() * y + (1 - z.sigmoid()) * x)
SHARES = {
    "a difference": lambda x, y, z: x + z.sigmoid() * (y - x),
    "the other difference": lambda x, y, z: y + (1 - z.sigmoid()) * (x - y),
    "a difference turned": lambda x, y, z: x - z.sigmoid() * (x - y),
    "what is left": lambda x, y, z: x - z.sigmoid() * x + z.sigmoid() * y,
    "addcmul": lambda x, y, z: torch.addcmul(x, z.sigmoid(), y - x),
    "lerp": lambda x, y, z: torch.lerp(x, y, z.sigmoid()),
    "two gates": lambda x, y, z: (-z).sigmoid() * x + y * z.sigmoid(),
}
fixed = parameter(lambda x, y, w: x * (1 - w) + y * w)
FIXED = {
    "lerp": lambda x, y, w: torch.lerp(x, y, w),
    "a difference": lambda x, y, w: x + w * (y - x),
    "two differences": lambda x, y, w: (lambda d: x + d * w)(y - x),
}
one = stream(lambda x, y, z: x * (1 - z[..., :1].sigmoid()) + y * z[..., :1].sigmoid())
ONE = {
    "repeated": lambda x, y, z: torch.lerp(x, y, z[..., :1].sigmoid().expand_as(x)),
    "repeated before": lambda x, y, z: torch.lerp(x, y, z[..., :1].expand_as(x).sigmoid()),
}
scaled = parameter(lambda x, y, w: x + w * y)
SCALED = {
    "to the sum": lambda x, y, w: torch.lerp(x, x + y, w),
    "to the sum, repeated": lambda x, y, w: torch.lerp(x, y + x, w.expand_as(x)),
    "a difference": lambda x, y, w: x + w * ((x + y) - x),
}
multiple = parameter(lambda x, y, _: x - 0.7 * y)
MULTIPLES = {
    "alpha": lambda x, y, _: torch.add(x, y, alpha=-0.7),
    "a negative number": lambda x, y, _: x + (-0.7) * y,
    "turned first": lambda x, y, _: x + 0.7 * -y,
    "turned last": lambda x, y, _: -(0.7 * y - x),
    "turned twice": lambda x, y, _: torch.sub(x, y.neg().neg(), alpha=0.7),
}
sigmoid = gated(lambda a, b: a.sigmoid() * b)
SIGMOIDS = {
    "a tangent": lambda a, b: 0.5 * b * (1 + torch.tanh(a / 2)),
    "less what it leaves": lambda a, b: b - b * torch.sigmoid(-a),
    "one less another": lambda a, b: b * (1 - torch.sigmoid(-a)),
}


def modulated(change):
    """Norms whose scale and shift are made from the mean of all tokens."""

    def way(m, x):
        for block in m.blocks:
            x = x + block.attention(x)
            s, b = block.wide(x.mean(1, keepdim=True)).chunk(2, -1)
            x = x + block.mlp(change(F.layer_norm(x, x.shape[-1:]), s, b))
        return m.head(x[:, 0])

    return way


modulation = modulated(lambda y, s, b: y * (1 + s) + b)
MODULATIONS = {
    "a product added": lambda y, s, b: y + y * s + b,
    "addcmul": lambda y, s, b: torch.addcmul(y, y, s) + b,
    "the shift first": lambda y, s, b: (y + b) + s * y,
}
grown = gated(lambda a, b: (F.elu(a) + 1) * b)
SAME = {
    share: {f"share by {n}": stream(f) for n, f in SHARES.items()},
    one: {f"one number {n}": stream(f) for n, f in ONE.items()},
    fixed: {f"parameter by {n}": parameter(f) for n, f in FIXED.items()},
    scaled: {f"scale by {n}": parameter(f) for n, f in SCALED.items()},
    multiple: {f"multiple by {n}": parameter(f) for n, f in MULTIPLES.items()},
    sigmoid: {f"gate by {n}": gated(f) for n, f in SIGMOIDS.items()},
    modulation: {f"modulated by {n}": modulated(f) for n, f in MODULATIONS.items()},
    grown: {"a function and a number": gated(lambda a, b: b * turned(a))},
}


@pytest.fixture(scope="module")
def usual():
    return {way: explained(way) for way in SAME}


@pytest.mark.parametrize(
    ("way", "reference"),
    [
        pytest.param(way, r, id=name, marks=pytest.mark.slow if place else ())
        for r, ways in SAME.items()
        for place, (name, way) in enumerate(ways.items())
    ],
)
def test_the_gate_is_the_same(way, reference, usual):
    for method, found in explained(way).items():
        wanted = usual[reference][method]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9 * float(wanted.abs().max()))
