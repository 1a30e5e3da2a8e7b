"""A small transformer every part of which can be written in another way.

A ``Base`` says *which function* is computed, ``Parts`` say *how*: one callable per part, by default
the plain library way. A part with weights is a function of its input and its weights, or a class of
module that is made of the weights and may store them as it likes. Weights are drawn in one layout
and one order, so that all spellings of a base have the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, WIDTH, HIDDEN, FEATURES, VOCABULARY, CLASSES = 5, 8, 16, 10, 11, 7
#: Real positions of the samples of a padded batch: the first sample has padding, too.
LENGTHS = (4, 5, 3)
EPS = 1e-5

Part = Callable[..., Any]
Weights = Sequence[Tensor | None]


@dataclass(frozen=True)
class Base:
    """The function: what the model computes, whatever it is written like.

    ``ids``: the input is ids, else vectors. ``start``: a class token is put in front. ``groups``:
    how many heads have keys and values. ``weigh``: what is done to the attention map (``WEIGHS``).
    ``gated``: the MLP's activation gates a second projection. ``experts``: every token goes to the
    one of so many MLPs that a router finds likeliest. ``rotary``: which features make a
    pair, ``"halves"`` or ``"pairs"``. ``relative``: a number for each head and distance is added to
    the scores. ``beside``: the softmax sees a score of 0 beside those of the keys.
    """

    name: str
    ids: bool = False
    start: bool = False
    causal: bool = False
    padded: bool = False
    norm: str = "layer"
    post: bool = False
    activation: str = "gelu"
    gated: bool = False
    experts: int = 0
    pool: str = "mean"
    rotary: str = ""
    relative: bool = False
    beside: bool = False
    table: bool = True
    bias: bool = True
    heads: int = 2
    groups: int = 2
    weigh: str = ""
    scale: float = 1.0
    blocks: int = 2
    seed: int = 0

    @property
    def length(self) -> int:
        """How many positions the blocks see."""
        return TOKENS + self.start

    def inputs(self, batch: int = 3) -> tuple[Tensor, ...]:
        """The model's arguments for the first ``batch`` of three different samples."""
        source = torch.Generator().manual_seed(1)
        x = torch.randn(3, TOKENS, FEATURES, generator=source, dtype=torch.float64)
        if self.ids:
            x = torch.randint(1, VOCABULARY, (3, TOKENS), generator=source)
        if not self.padded:
            return (x[:batch],)
        kept = torch.arange(TOKENS) < torch.tensor(LENGTHS)[:, None]
        return (torch.where(kept, x, 0) if self.ids else x)[:batch], kept[:batch]


# The reference: every part the plain library way.


def embed(ids: Tensor, table: Tensor) -> Tensor:
    return F.embedding(ids, table)


def begin(x: Tensor, token: Tensor) -> Tensor:
    """A class token in front."""
    return torch.cat([token.expand(len(x), -1, -1), x], 1)


def position(x: Tensor, table: Tensor) -> Tensor:
    return x + table


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, EPS)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, EPS)


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) → (batch, heads, tokens, width of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(x: Tensor) -> Tensor:
    """The reverse of ``split``."""
    return x.transpose(1, 2).flatten(2)


def rotate_halves(x: Tensor, angles: Tensor) -> Tensor:
    """Feature i turns with feature i + d/2."""
    a, b = x.chunk(2, -1)
    turned = torch.cat([-b, a], -1)
    cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
    return x * cos + turned * sin


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Feature 2i turns with feature 2i + 1."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def bias(length: int, table: Tensor) -> Tensor:
    """(heads, queries, keys) from a table of (heads, distances), that of the last key from the
    first query first."""
    places = torch.arange(length)
    return table[:, places[:, None] - places + length - 1]


def share(x: Tensor, times: int) -> Tensor:
    """Every head's keys or values for the ``times`` heads of its group."""
    return x.repeat_interleave(times, 1)


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])


def causal(length: int) -> Tensor:
    """Which keys (last axis) each query may see."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def hide(s: Tensor, allowed: Tensor) -> Tensor:
    return s.masked_fill(~allowed, -math.inf)


def add_bias(s: Tensor, given: Tensor) -> Tensor:
    """What hides keys where biases are given in place of a mask."""
    return s + given


def softmax(s: Tensor) -> Tensor:
    return F.softmax(s, -1)


def softmax_beside_zero(s: Tensor) -> Tensor:
    """A softmax that may attend to nothing."""
    return F.softmax(torch.cat([s, torch.zeros_like(s[..., :1])], -1), -1)[..., :-1]


def normalise(parts: Parts, s: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores to attention: hide, then softmax."""
    return parts.softmax(s if allowed is None else parts.hide(s, allowed))


def contract(a: Tensor, v: Tensor) -> Tensor:
    return a @ v


def attend(parts: Parts, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None) -> Tensor:
    """(batch, heads, tokens, width of a head), thrice, to the same, once."""
    return parts.contract(parts.weigh(parts.normalise(parts, parts.scores(q, k), allowed)), v)


def queries_keys_values(at: Attention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What ``attend`` takes, from what an ``Attention`` sees."""
    parts = at.parts
    q = parts.split(at.query(x), at.heads)
    k, v = (parts.split(f(x), at.groups) for f in (at.key, at.value))
    if at.angles is not None:
        q, k = parts.rotate(q, at.angles), parts.rotate(k, at.angles)
    if at.groups < at.heads:
        k, v = (parts.share(t, at.heads // at.groups) for t in (k, v))
    return q, k, v


def attention(at: Attention, x: Tensor, allowed: Tensor | None) -> Tensor:
    q, k, v = at.parts.queries_keys_values(at, x)
    given = allowed if at.bias is None else at.bias(x.shape[1])
    return at.out(at.parts.join(at.parts.attend(at.parts, q, k, v, given)))


def gate(a: Tensor, b: Tensor) -> Tensor:
    return a * b


def mlp(at: Mlp, x: Tensor) -> Tensor:
    inner = at.parts.activation(at.up(x))
    if at.gate is not None:
        inner = at.parts.gate(inner, at.gate(x))
    return at.down(inner)


def experts(at: Experts, x: Tensor) -> Tensor:
    """Every expert sees every token; all but the token's own are multiplied by 0."""
    shares = at.router(x).softmax(-1)
    top = shares.argmax(-1, keepdim=True)
    chosen = torch.zeros_like(shares).scatter(-1, top, shares.gather(-1, top))
    return sum(chosen[..., i, None] * expert(x) for i, expert in enumerate(at.experts))


def residual(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def block(at: Block, x: Tensor, allowed: Tensor | None) -> Tensor:
    add = at.parts.residual
    if at.post:
        x = at.norm1(add(x, at.attention(x, allowed)))
        return at.norm2(add(x, at.mlp(x)))
    x = add(x, at.attention(at.norm1(x), allowed))
    return add(x, at.mlp(at.norm2(x)))


def blocks(layers: Sequence[Block], x: Tensor, allowed: Tensor | None) -> Tensor:
    for layer in layers:
        x = layer(x, allowed)
    return x


def mean_of_kept(x: Tensor, kept: Tensor) -> Tensor:
    return (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)


def same(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Part] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).pow(2),
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "mish": F.mish,
}
POOLS: dict[str, Part] = {
    "mean": lambda x: x.mean(1),
    "class": lambda x: x[:, 0],
    "last": lambda x: x[:, -1],
    "largest": lambda x: x.amax(1),
    "kept": mean_of_kept,
    "end": lambda x, kept: x[torch.arange(len(x)), kept.sum(1) - 1],
}
#: What is done to the attention map. Thresholds lie where no weight of the samples is.
WEIGHS: dict[str, Part] = {
    "": same,
    "square": lambda a: a**2,
    "root": lambda a: a**0.5,
    "threshold": lambda a: torch.where(a > 0.15, a, 0),
    "renormalised": lambda a: a**2 / (a**2).sum(-1, keepdim=True),
    "half": lambda a: 0.5 * a,
}


@dataclass(frozen=True)
class Parts:
    """How the function is written: one callable per part (see the functions of the same names)."""

    embed: Part = embed
    patch: Part = project
    scale: Part = same
    begin: Part = begin
    position: Part = position
    norm: Part = layer_norm
    project: Part = project
    split: Part = split
    join: Part = join
    rotate: Part = same
    share: Part = share
    bias: Part = bias
    scores: Part = scores
    causal: Part = causal
    hide: Part = hide
    softmax: Part = softmax
    normalise: Part = normalise
    weigh: Part = same
    contract: Part = contract
    attend: Part = attend
    queries_keys_values: Part = queries_keys_values
    attention: Part = attention
    gate: Part = gate
    activation: Part = F.gelu
    mlp: Part = mlp
    experts: Part = experts
    residual: Part = residual
    block: Part = block
    blocks: Part = blocks
    pool: Part = POOLS["mean"]
    head: Part = project


def reference(base: Base) -> Parts:
    """The plain way to write ``base``."""
    return Parts(
        scale=same if base.scale == 1 else lambda x: x * base.scale,
        norm={"layer": layer_norm, "rms": rms_norm}[base.norm],
        hide=add_bias if base.relative else hide,
        rotate={"": same, "halves": rotate_halves, "pairs": rotate_pairs}[base.rotary],
        softmax=softmax_beside_zero if base.beside else softmax,
        weigh=WEIGHS[base.weigh],
        activation=ACTIVATIONS[base.activation],
        pool=POOLS[base.pool],
    )


class Spelled(nn.Module):
    """A function as a module: its weights are the module's parameters."""

    def __init__(self, function: Part, *weights: Tensor | None) -> None:
        super().__init__()
        self.function, self.names = function, ("weight", "bias")[: len(weights)]
        for name, value in zip(self.names, weights, strict=True):
            self.register_parameter(name, None if value is None else nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *(getattr(self, name) for name in self.names))


def module(part: Part, *weights: Tensor | None) -> nn.Module:
    """A part with weights as a module: a class is made of the weights, a function gets them."""
    return part(*weights) if isinstance(part, type) else Spelled(part, *weights)


class Attention(nn.Module):
    """Four projections, and ``parts.attention`` to run them."""

    def __init__(self, base: Base, parts: Parts, weights: Mapping[str, Weights]) -> None:
        super().__init__()
        self.parts, self.heads, self.groups = parts, base.heads, base.groups
        self.query, self.key, self.value, self.out = (
            module(parts.project, *weights[name]) for name in ("query", "key", "value", "out")
        )
        self.bias = module(parts.bias, *weights["bias"]) if base.relative else None
        self.register_buffer("angles", angles(base) if base.rotary else None)

    def forward(self, x: Tensor, allowed: Tensor | None) -> Tensor:
        return self.parts.attention(self, x, allowed)


class Mlp(nn.Module):
    """Two projections, or three if it is gated, and ``parts.mlp`` to run them."""

    def __init__(self, parts: Parts, weights: Mapping[str, Weights]) -> None:
        super().__init__()
        self.parts = parts
        self.up, self.down = (module(parts.project, *weights[name]) for name in ("up", "down"))
        self.gate = module(parts.project, *weights["gate"]) if "gate" in weights else None

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.mlp(self, x)


class Experts(nn.Module):
    """Several MLPs and a router, and ``parts.experts`` to run them."""

    def __init__(self, parts: Parts, weights: Mapping[str, Weights], count: int) -> None:
        super().__init__()
        self.parts, self.router = parts, module(parts.project, *weights["router"])
        named = [{n: weights[f"{n}{i}"] for n in ("up", "down")} for i in range(count)]
        self.experts = nn.ModuleList(Mlp(parts, some) for some in named)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts.experts(self, x)


class Block(nn.Module):
    """Attention and an MLP, each with a norm and a skip connection."""

    def __init__(self, base: Base, parts: Parts, weights: Mapping[str, Weights]) -> None:
        super().__init__()
        self.parts, self.post = parts, base.post
        self.norm1, self.norm2 = (module(parts.norm, *weights[n]) for n in ("norm1", "norm2"))
        self.attention = made(parts.attention, Attention, base, parts, weights)
        self.mlp = (
            Experts(parts, weights, base.experts)
            if base.experts
            else made(parts.mlp, Mlp, parts, weights)
        )

    def forward(self, x: Tensor, allowed: Tensor | None) -> Tensor:
        return self.parts.block(self, x, allowed)


def made(part: Part, default: type, *arguments: Any) -> nn.Module:
    """``part`` itself if it is a class of module, else the default one, which calls it."""
    return (part if isinstance(part, type) else default)(*arguments)


class Model(nn.Module):
    """(batch, tokens) ids or (batch, tokens, features) vectors in, (batch, classes) logits out."""

    def __init__(self, base: Base, **changes: Part) -> None:
        super().__init__()
        self.base, self.parts = base, replace(reference(base), **changes)
        parts, draw = self.parts, Draw(base)
        self.embed = (
            module(parts.embed, draw.matrix(VOCABULARY, WIDTH))
            if base.ids
            else module(parts.patch, *draw.linear(WIDTH, FEATURES))
        )
        self.start = module(parts.begin, draw.matrix(1, WIDTH)) if base.start else None
        table = draw.matrix(base.length, WIDTH)
        self.position = module(parts.position, table) if base.table else None
        self.blocks = nn.ModuleList(
            made(parts.block, Block, base, parts, draw.block()) for _ in range(base.blocks)
        )
        self.norm = None if base.post else module(parts.norm, *draw.norm())
        self.head = module(parts.head, *draw.linear(CLASSES, WIDTH))

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        x = self.parts.scale(self.embed(x))
        if self.start is not None:
            x = self.start(x)
        if self.position is not None:
            x = self.position(x)
        x = self.parts.blocks(self.blocks, x, self.allowed(kept))
        if self.norm is not None:
            x = self.norm(x)
        return self.head(self.parts.pool(x) if kept is None else self.parts.pool(x, kept))

    def allowed(self, kept: Tensor | None) -> Tensor | None:
        """Which keys each query may see: (tokens, tokens), (batch, 1, 1, tokens), or both at
        once."""
        seen = self.parts.causal(self.base.length) if self.base.causal else None
        if kept is None:
            return seen
        return kept[:, None, None] if seen is None else kept[:, None, None] & seen


class Draw:
    """Weights from one generator, norms around 1, the rest large enough for attention to be far
    from uniform."""

    def __init__(self, base: Base) -> None:
        self.base, self.source = base, torch.Generator().manual_seed(base.seed)

    def matrix(self, *shape: int, size: float = 0.5) -> Tensor:
        return size * torch.randn(shape, generator=self.source, dtype=torch.float64)

    def linear(self, outputs: int, inputs: int) -> Weights:
        return self.matrix(outputs, inputs), self.matrix(outputs) if self.base.bias else None

    def norm(self) -> Weights:
        weight = 1 + self.matrix(WIDTH, size=0.2)
        return (weight, self.matrix(WIDTH, size=0.2)) if self.base.norm == "layer" else (weight,)

    def block(self) -> dict[str, Weights]:
        narrow = WIDTH // self.base.heads * self.base.groups
        weights = {
            "norm1": self.norm(),
            "query": self.linear(WIDTH, WIDTH),
            "key": self.linear(narrow, WIDTH),
            "value": self.linear(narrow, WIDTH),
            "out": self.linear(WIDTH, WIDTH),
            "norm2": self.norm(),
            "up": self.linear(HIDDEN, WIDTH),
            "down": self.linear(WIDTH, HIDDEN),
        }
        if self.base.gated:
            weights["gate"] = self.linear(HIDDEN, WIDTH)
        if self.base.relative:
            weights["bias"] = (self.matrix(self.base.heads, 2 * self.base.length - 1),)
        if self.base.experts:
            weights["router"] = self.linear(self.base.experts, WIDTH)
        for i in range(self.base.experts):
            weights[f"up{i}"] = self.linear(HIDDEN, WIDTH)
            weights[f"down{i}"] = self.linear(WIDTH, HIDDEN)
        return weights


def angles(base: Base) -> Tensor:
    """How far each pair of features turns at each position, (tokens, pairs)."""
    pairs = WIDTH // base.heads // 2
    speed = 10 ** -torch.arange(pairs, dtype=torch.float64)
    return torch.arange(base.length, dtype=torch.float64)[:, None] * speed
