"""Random transformers from a grammar of parts: attention in many spellings, feed-forward layers,
norms, ways around, changes of the tokens, stems and heads. A seed is a model.

Nothing here is used by other tests, nor was it looked at when a rule or a pass was written: it asks
what a model asks that nobody has seen.
"""

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CLASSES = 13, 4


def softmax_by_hand(s: Tensor) -> Tensor:
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


SOFTMAXES = {
    "method": lambda s: s.softmax(-1),
    "function": lambda s: F.softmax(s, dim=-1),
    "module": nn.Softmax(dim=-1),
    "by hand": softmax_by_hand,
    "by logarithm": lambda s: s.log_softmax(-1).exp(),
    "by logsumexp": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
}
PRODUCTS = {
    "matmul": (lambda q, k: q @ k.transpose(-2, -1), lambda a, v: a @ v),
    "einsum": (
        lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k),
        lambda a, v: torch.einsum("bhqk,bhkd->bhqd", a, v),
    ),
    "broadcast": (
        lambda q, k: (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1),
        lambda a, v: (a.unsqueeze(-1) * v.unsqueeze(-3)).sum(-2),
    ),
    "bmm": (
        lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).unflatten(0, q.shape[:2]),
        lambda a, v: torch.bmm(a.flatten(0, 1), v.flatten(0, 1)).unflatten(0, a.shape[:2]),
    ),
}


class Attend(nn.Module):
    """Attention of ``heads`` heads over ``tokens`` tokens, with what a draw adds to it."""

    def __init__(self, draw: random.Random, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.kv_heads = draw.choice([h for h in (1, heads // 2, heads) if h and heads % h == 0])
        self.softmax = SOFTMAXES[draw.choice(list(SOFTMAXES))]
        self.score, self.mix = PRODUCTS[draw.choice(list(PRODUCTS))]
        self.fused = draw.random() < 0.3
        self.causal = draw.random() < 0.25
        self.scale = draw.choice([self.each**-0.5, 1.0, 0.5])
        bias = draw.random() < 0.7
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(width, self.kv_heads * self.each, bias=bias and draw.random() < 0.8)
        self.v = nn.Linear(width, self.kv_heads * self.each, bias=bias)
        self.out = nn.Linear(width, width, bias=bias) if draw.random() < 0.9 else nn.Identity()
        self.options = {o for o in OPTIONS if draw.random() < 0.12}
        if "bias" in self.options:
            self.table = nn.Parameter(torch.empty(heads, 2 * tokens - 1))
            at = torch.arange(tokens)
            self.register_buffer("distance", at[:, None] - at[None] + tokens - 1)
        if "memory" in self.options:
            self.memory = nn.Parameter(torch.empty(2, 1, self.kv_heads, 2, self.each))
        if "norm" in self.options:
            self.q_norm, self.k_norm = nn.LayerNorm(self.each), nn.LayerNorm(self.each)
        if "gate" in self.options:
            self.gate = nn.Linear(width, width)
        if "talking" in self.options:
            self.talk = nn.Parameter(torch.empty(heads, heads))
        if "sink" in self.options:
            self.sink = nn.Parameter(torch.empty(1, heads, 1, 1))
        if "temperature" in self.options:
            self.temperature = nn.Parameter(torch.empty(heads, 1, 1))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.each)).transpose(1, 2)

    def added(self, queries: int, keys: int) -> Tensor | None:
        """What is added to the scores, (1 or heads, queries, keys)."""
        found = None
        if "bias" in self.options:
            found = F.pad(self.table[:, self.distance], (keys - queries, 0))
        if "alibi" in self.options:
            at = torch.arange(queries)
            slopes = 0.5 ** torch.arange(1, self.heads + 1)
            far = -(at[:, None] - at[None]).abs() * slopes[:, None, None]
            far = F.pad(far.to(self.q.weight), (keys - queries, 0))
            found = far if found is None else found + far
        if self.causal:
            later = torch.ones(queries, queries, dtype=torch.bool).triu(1)
            later = F.pad(later, (keys - queries, 0))
            found = torch.zeros(1, queries, keys).to(self.q.weight) if found is None else found
            found = found.masked_fill(later, float("-inf"))
        return found

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.split(self.q(x), self.heads), self.split(self.k(x), self.kv_heads)
        v = self.split(self.v(x), self.kv_heads)
        if "norm" in self.options:
            q, k = self.q_norm(q), self.k_norm(k)
        if "rotary" in self.options and self.each % 2 == 0:
            q, k = rotated(q), rotated(k)
        if "memory" in self.options:
            mk, mv = (m.expand(len(x), -1, -1, -1) for m in self.memory)
            k, v = torch.cat([mk, k], 2), torch.cat([mv, v], 2)
        if self.kv_heads != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        y = self.attended(q, k, v).transpose(1, 2).flatten(2)
        if "gate" in self.options:
            y = y * self.gate(x).sigmoid()
        return self.out(y)

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        added = self.added(q.shape[2], k.shape[2])
        if self.fused and not self.options & {"talking", "sink", "temperature", "cap"}:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=self.scale)
        s = self.score(q, k) * self.scale
        if "temperature" in self.options:
            s = s * self.temperature.exp()
        if "cap" in self.options:
            s = 5 * torch.tanh(s / 5)
        if added is not None:
            s = s + added
        if "sink" in self.options:
            a = self.softmax(torch.cat([s, self.sink.expand(len(s), -1, s.shape[2], 1)], -1))
            a = a[..., :-1]
        else:
            a = self.softmax(s)
        if "talking" in self.options:
            a = torch.einsum("bhqk,hg->bgqk", a, self.talk)
        return self.mix(a, v)


OPTIONS = (
    *("bias", "alibi", "memory", "norm", "rotary", "gate", "talking", "sink", "temperature"),
    "cap",
)


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[2]), 10.0 ** -torch.arange(half)).to(x)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Torchs(nn.Module):
    """PyTorch's own module of attention."""

    def __init__(self, draw: random.Random, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        extra = {"add_bias_kv": draw.random() < 0.2, "add_zero_attn": draw.random() < 0.2}
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True, dropout=0.1, **extra)
        self.weights = draw.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=self.weights)[0]


class Feed(nn.Module):
    """What follows attention: an MLP, gated or not, with experts, over neighbours, over tokens."""

    def __init__(self, draw: random.Random, width: int, tokens: int) -> None:
        super().__init__()
        self.kind = draw.choice(["mlp", "mlp", "glu", "experts", "neighbours", "tokens"])
        hidden = draw.choice([width, 2 * width, 3 * width - 1])
        self.act = draw.choice(
            [F.gelu, F.relu, F.silu, torch.tanh, F.elu, F.softplus, F.leaky_relu, F.mish, squared]
        )
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        if self.kind == "glu":
            self.gate = nn.Linear(width, hidden, bias=False)
        if self.kind == "experts":
            self.other, self.router = nn.Linear(width, width), nn.Linear(width, 2)
        if self.kind == "neighbours":
            self.conv = nn.Conv1d(hidden, hidden, 3, padding=1, groups=draw.choice([1, hidden]))
        if self.kind == "tokens":
            self.across = nn.Linear(tokens, tokens)

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.kind == "glu":
            return self.down(self.act(self.gate(x)) * h)
        if self.kind == "experts":
            shares = self.router(x).softmax(-1)
            return shares[..., :1] * self.down(self.act(h)) + shares[..., 1:] * self.other(x)
        if self.kind == "neighbours":
            h = self.conv(h.mT).mT
        if self.kind == "tokens":
            h = self.across(h.mT).mT
        return self.down(self.act(h))


def squared(x: Tensor) -> Tensor:
    return F.relu(x).square()


class Root(nn.Module):
    """Division by the root of the mean square, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight


class Tanh(nn.Module):
    """A norm that is none: tanh(αx)·γ + β."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1))
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.scale * x) * self.weight + self.bias


NORMS = (
    *(nn.LayerNorm, nn.LayerNorm, nn.RMSNorm, Root, Tanh),
    lambda width: nn.LayerNorm(width, elementwise_affine=False),
    lambda width: nn.Identity(),
)


class Around(nn.Module):
    """A part and the way around it."""

    def __init__(self, draw: random.Random, width: int, part: nn.Module) -> None:
        super().__init__()
        self.part, norm = part, draw.choice(NORMS)
        self.norm, self.last = norm(width), norm(width)
        self.kind = draw.choice(["pre", "pre", "post", "both", "scaled", "gated", "weighted"])
        if self.kind == "scaled":
            self.scale = nn.Parameter(torch.empty(width))
        if self.kind == "gated":
            self.gate = nn.Linear(width, width)
        if self.kind == "weighted":
            self.share = nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "post":
            return self.norm(x + self.part(x))
        y = self.part(self.norm(x))
        if self.kind == "both":
            return x + self.last(y)
        if self.kind == "scaled":
            return x + self.scale * y
        if self.kind == "gated":
            gate = torch.sigmoid(self.gate(x))
            return gate * y + (1 - gate) * x
        if self.kind == "weighted":
            share = self.share.sigmoid()
            return share * x + (1 - share) * y
        return x + y


class Beside(nn.Module):
    """Two parts side by side."""

    def __init__(self, width: int, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(width), one, two

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.one(h) + self.two(h)


class Windows(nn.Module):
    """A part that sees ``size`` neighbours at a time, shifted by one or not."""

    def __init__(self, draw: random.Random, size: int, part: nn.Module) -> None:
        super().__init__()
        self.size, self.part, self.shift = size, part, draw.choice([0, 1])

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        x = x.roll(-self.shift, 1).unflatten(1, (tokens // self.size, self.size)).flatten(0, 1)
        return self.part(x).unflatten(0, (batch, -1)).flatten(1, 2).roll(self.shift, 1)


class Registers(nn.Module):
    """Learned tokens, before or behind the others."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.empty(1, draw.choice([1, 2]), width))
        self.front = draw.random() < 0.7

    def forward(self, x: Tensor) -> Tensor:
        more = self.more.expand(len(x), -1, -1)
        return torch.cat([more, x] if self.front else [x, more], 1)


class Merged(nn.Module):
    """Two neighbours become one: their mean, or a linear map of both."""

    def __init__(self, draw: random.Random, width: int) -> None:
        super().__init__()
        self.kind = draw.choice(["linear", "mean", "pool", "strided"])
        self.linear = nn.Linear(2 * width, width)
        self.conv = nn.Conv1d(width, width, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "mean":
            return x.unflatten(1, (-1, 2)).mean(2)
        if self.kind == "pool":
            return F.avg_pool1d(x.mT, 2).mT
        if self.kind == "strided":
            return self.conv(x.mT).mT
        return self.linear(torch.cat([x[:, ::2], x[:, 1::2]], -1))


class Turned(nn.Module):
    """The tokens in another order."""

    def __init__(self, draw: random.Random, tokens: int) -> None:
        super().__init__()
        order = list(range(tokens))
        draw.shuffle(order)
        self.register_buffer("order", torch.tensor(order))
        self.kind = draw.choice(["flip", "roll", "gather"])

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "flip":
            return x.flip(1)
        return x.roll(1, 1) if self.kind == "roll" else x[:, self.order]


class Stem(nn.Module):
    """From ids, features or a picture to tokens, (batch, tokens, width)."""

    def __init__(self, draw: random.Random, width: int, tokens: int) -> None:
        super().__init__()
        self.kind = draw.choice(["ids", "features", "picture", "wave"])
        if self.kind == "ids":
            self.embed = nn.Embedding(VOCABULARY, width)
        elif self.kind == "features":
            self.embed = nn.Linear(5, width)
        elif self.kind == "picture":
            self.embed = nn.Conv2d(2, width, 4, 4)
        else:
            self.embed = nn.Conv1d(1, width, 6, stride=4, padding=1)
        self.tokens, self.scaled = tokens, draw.random() < 0.2
        self.places = draw.choice(["learned", "waves", "none"])
        if self.places == "learned":
            self.position = nn.Parameter(torch.empty(1, tokens, width))
        at = torch.arange(tokens)[:, None] * 10.0 ** (-torch.arange(width) / width)
        self.register_buffer("waves", at.sin().double())

    def example(self, batch: int, source: torch.Generator) -> Tensor:
        """Inputs drawn from ``source``. Where equal ids are equal tokens, there are none: rounding
        would decide which of them is the largest."""
        shapes = {
            "features": (self.tokens, 5),
            "picture": (2, 4, 4 * self.tokens),
            "wave": (1, 4 * self.tokens),
        }
        if self.kind == "ids" and self.places == "none":
            rows = (torch.randperm(VOCABULARY, generator=source) for _ in range(batch))
            return torch.stack([row[: self.tokens] for row in rows])
        if self.kind == "ids":
            return torch.randint(VOCABULARY, (batch, self.tokens), generator=source)
        return torch.randn(batch, *shapes[self.kind], generator=source, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x.flatten(2).mT if self.kind in ("picture", "wave") else x
        x = x * math.sqrt(x.shape[-1]) if self.scaled else x
        if self.places == "learned":
            return x + self.position
        return x + self.waves if self.places == "waves" else x


class Head(nn.Module):
    """From tokens to logits."""

    def __init__(self, draw: random.Random, width: int, tokens: int) -> None:
        super().__init__()
        self.kind = draw.choice(["first", "last", "mean", "largest", "asked", "all", "pooler"])
        self.norm = draw.choice(NORMS)(width)
        self.linear = nn.Linear(width * (tokens if self.kind == "all" else 1), CLASSES)
        self.query = nn.Linear(width, 1)
        self.dense = nn.Linear(width, width)
        self.form = draw.choice(["tensor", "tensor", "dict", "tuple"])

    def forward(self, x: Tensor) -> object:
        x = self.norm(x)
        pooled = {
            "first": lambda: x[:, 0],
            "last": lambda: x[:, -1],
            "mean": lambda: x.mean(1),
            "largest": lambda: x.amax(1),
            "asked": lambda: (self.query(x).softmax(1) * x).sum(1),
            "all": lambda: x.flatten(1),
            "pooler": lambda: torch.tanh(self.dense(x[:, 0])),
        }[self.kind]()
        logits = self.linear(pooled)
        if self.form == "dict":
            return {"logits": logits}
        return (logits, x) if self.form == "tuple" else logits


class Grown(nn.Module):
    """The model that a seed is."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        heads = draw.choice([1, 2, 3, 4])
        width, tokens = heads * draw.choice([2, 4, 5]), draw.choice([4, 6, 7, 8])
        self.stem, stages = Stem(draw, width, tokens), []
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.4:
                more, tokens = change(draw, width, tokens)
                stages.append(more)
            stages += block(draw, width, heads, tokens) * draw.choice([1, 1, 1, 2])  # shared
        self.stages = nn.Sequential(*stages)
        self.head = Head(draw, width, tokens)
        drawn_weights(self, seed)
        self.double().eval()

    def forward(self, x: Tensor) -> object:
        return self.head(self.stages(self.stem(x)))


def change(draw: random.Random, width: int, tokens: int) -> tuple[nn.Module, int]:
    """A change of the tokens, and how many there are after it."""
    kind = draw.choice(["registers", "merged", "turned"])
    if kind == "merged" and tokens % 2 == 0 and tokens > 2:
        return Merged(draw, width), tokens // 2
    if kind == "registers":
        more = Registers(draw, width)
        return more, tokens + more.more.shape[1]
    return Turned(draw, tokens), tokens


def block(draw: random.Random, width: int, heads: int, tokens: int) -> list[nn.Module]:
    """Attention and a feed-forward layer, one after the other or side by side."""
    size = draw.choice([2, 3, 4])
    windows = draw.random() < 0.15 and tokens % size == 0
    kind = Torchs if draw.random() < 0.2 else Attend
    attention: nn.Module = kind(draw, width, heads, size if windows else tokens)
    attention = Windows(draw, size, attention) if windows else attention
    feed = Feed(draw, width, tokens)
    if draw.random() < 0.2:
        return [Beside(width, attention, feed)]
    return [Around(draw, width, attention), Around(draw, width, feed)]


def drawn_weights(model: nn.Module, seed: int) -> None:
    """Every parameter from a generator of the model's own, scales of norms around 1."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = torch.randn(p.shape, generator=source, dtype=torch.float64)
            norm = p.ndim == 1 and name.endswith("weight")
            p.copy_(1 + 0.2 * drawn if norm else 0.5 * drawn)
