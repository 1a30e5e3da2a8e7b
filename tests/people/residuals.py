"""What people change around attention: squared ReLU, gated feed-forwards, norms that are only a
length, norms on both sides, scaled residuals, parallel branches; against the plain spelling."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, INNER, CLASSES = 11, 6, 8, 2, 2, 12, 3


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim**0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class ScaleNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(1) * dim**0.5)

    def forward(self, x):
        norm = torch.linalg.norm(x, dim=-1, keepdim=True)
        return x / norm.clamp(min=1e-12) * self.g


class ReluSquared(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class GLU(nn.Module):
    def __init__(self, dim_in, dim_out, activation):
        super().__init__()
        self.act = activation
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, x):
        x, gate = self.proj(x).chunk(2, dim=-1)
        return x * self.act(gate)


class FeedForward(nn.Module):
    def __init__(self, kind):
        super().__init__()
        if kind == "glu":
            project_in = GLU(DIM, INNER, nn.GELU())
        elif kind == "relu squared":
            project_in = nn.Sequential(nn.Linear(DIM, INNER), ReluSquared())
        else:
            project_in = nn.Sequential(nn.Linear(DIM, INNER), nn.GELU())
        self.ff = nn.Sequential(project_in, nn.LayerNorm(INNER), nn.Linear(INNER, DIM))

    def forward(self, x):
        return self.ff(x)


class Attention(nn.Module):
    """One projection for all three, cut by ``chunk``."""

    def __init__(self):
        super().__init__()
        self.to_qkv = nn.Linear(DIM, DIM * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.1))

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, HEADS, -1).transpose(1, 2) for t in qkv)
        dots = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class Residual(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.residual_scale = nn.Parameter(torch.ones(DIM)) if scaled else None

    def forward(self, x, residual):
        if self.residual_scale is not None:
            return torch.addcmul(x, residual, self.residual_scale)
        return x + residual


class Layer(nn.Module):
    def __init__(self, fn, norm, sandwich, scaled):
        super().__init__()
        self.norm, self.fn = norm(DIM), fn
        self.post_norm = norm(DIM) if sandwich else None
        self.residual = Residual(scaled)

    def forward(self, x):
        out = self.fn(self.norm(x))
        if self.post_norm is not None:
            out = self.post_norm(out)
        return self.residual(out, x)


class XTransformer(nn.Module):
    """``parallel``: attention and feed-forward read the same tokens, and all three are stacked and
    summed."""

    def __init__(
        self, ff="gelu", norm_of=nn.LayerNorm, sandwich=False, scaled=False, parallel=False
    ):
        super().__init__()
        self.token_emb = nn.Embedding(VOCABULARY, DIM)
        self.pos_emb = nn.Parameter(torch.zeros(TOKENS, DIM))
        kinds = [fn for _ in range(DEPTH) for fn in (Attention(), FeedForward(ff))]
        self.layers = nn.ModuleList(Layer(fn, norm_of, sandwich, scaled) for fn in kinds)
        self.final_norm = norm_of(DIM)
        self.to_logits = nn.Linear(DIM, CLASSES)
        self.parallel = parallel

    def forward(self, x):
        n = x.shape[1]
        x = self.token_emb(x)
        x = x + self.pos_emb[:n]
        if self.parallel:
            for attn, ff in zip(self.layers[::2], self.layers[1::2], strict=True):
                branches = [attn.fn(attn.norm(x)), ff.fn(ff.norm(x)), x]
                x = torch.stack(branches).sum(dim=0)
        else:
            for layer in self.layers:
                x = layer(x)
        return self.to_logits(self.final_norm(x[:, 0]))


class Normed(nn.Module):
    """A feed-forward with a norm inside; ``gated`` multiplies two maps."""

    def __init__(self, activation, gated):
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(DIM, INNER),
            nn.Linear(INNER, DIM),
            nn.LayerNorm(INNER),
        )
        self.gate = nn.Linear(DIM, INNER) if gated else None
        self.activation = activation

    def forward(self, x):
        if self.gate is None:
            return self.down(self.norm(self.activation(self.up(x))))
        return self.down(self.norm(self.up(x) * self.activation(self.gate(x))))


class Step(nn.Module):
    """A skip connection beside a part, with a scale and a second norm where there are some."""

    def __init__(self, part, norm, sandwich=False, scaled=False):
        super().__init__()
        self.norm, self.part = norm(), part
        self.post_norm = norm() if sandwich else nn.Identity()
        self.scale = nn.Parameter(torch.ones(DIM)) if scaled else None

    def branch(self, x):
        return self.post_norm(self.part(self.norm(x)))

    def forward(self, x):
        return (x if self.scale is None else x * self.scale) + self.branch(x)


class Parallel(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = nn.ModuleList(steps)

    def forward(self, x):
        return x + self.steps[0].branch(x) + self.steps[1].branch(x)


def twin_weights(model):
    """The plain names: projections apart, gates apart, scales of norms as weights."""
    weights = renamed(
        model,
        ("token_emb", "embed"),
        ("pos_emb", "position.weight"),
        ("final_norm", "norm"),
        ("to_logits", "head"),
        ("layers", "blocks"),
        ("fn.ff.0.0", "part.up"),
        ("fn.ff.0.proj", "part.proj"),
        ("fn.ff.1", "part.norm"),
        ("fn.ff.2", "part.down"),
        ("fn.to_out.0", "part.out"),
        ("fn.to_qkv", "part.to_qkv"),
        ("residual.residual_scale", "scale"),
        ("norm.g", "norm.weight"),
    )
    weights = plain.thirds(weights, "to_qkv", ("q", "k", "v"))
    for name in [n for n in weights if "part.proj" in n]:
        up, gate = weights.pop(name).chunk(2)
        weights[name.replace("proj", "up")], weights[name.replace("proj", "gate")] = up, gate
    return weights


def variant(norm=lambda: nn.LayerNorm(DIM), activation=F.gelu, gated=False, change=None, **options):
    """A model with options and its plain twin; ``change`` turns weights that are not only named
    otherwise."""
    model = drawn(XTransformer(**options))

    def steps():
        attention = plain.Attention(DIM, HEADS, bias=False)
        flags = {k: options.get(k, False) for k in ("sandwich", "scaled")}
        return [Step(part, norm, **flags) for part in (attention, Normed(activation, gated))]

    pairs = [steps() for _ in range(DEPTH)]
    parallel = options.get("parallel")
    blocks = [Parallel(p) for p in pairs] if parallel else [s for p in pairs for s in p]
    twin = plain.Language(
        VOCABULARY, TOKENS, DIM, blocks, norm, classes=CLASSES, read=lambda x: x[:, 0]
    )
    weights = twin_weights(model)
    if parallel:
        weights = {n if "blocks" not in n else in_steps(n): w for n, w in weights.items()}
    filled(twin, weights if change is None else change(weights))
    leaves = (model.token_emb.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, leaves=leaves)


def in_steps(name):
    """``blocks.3.…`` is the second step of the second parallel block."""
    _, number, rest = name.split(".", 2)
    return f"blocks.{int(number) // 2}.steps.{int(number) % 2}.{rest}"


@pair
def x_relu_squared():
    return variant(ff="relu squared", activation=lambda x: F.relu(x) ** 2)


@pair
def x_glu():
    return variant(ff="glu", gated=True)


@pair
def x_rms_norm():
    return variant(norm=lambda: nn.RMSNorm(DIM, 0.0), norm_of=RMSNorm)


@pair
def x_scale_norm():
    """A norm with one scale for all features, √d of it in the weights of an RMS norm."""

    def spread(weights):
        return {n: (w / DIM**0.5).expand(DIM) if w.shape == (1,) else w for n, w in weights.items()}

    return variant(norm=lambda: nn.RMSNorm(DIM, 0.0), norm_of=ScaleNorm, change=spread)


@pair
def x_sandwich_norm():
    return variant(sandwich=True)


@pair
def x_scaled_residual():
    return variant(scaled=True)


@pair
def x_parallel_stacked():
    return variant(parallel=True)
