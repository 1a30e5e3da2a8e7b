"""Small random transformers in plain ``torch.nn``, as users write them, and the Hypothesis strategy
over their settings.

Every weight is drawn from a generator of its own seed, biases and norms included, so that nothing
is zero or one by accident.
"""

import functools
import math
import random
from dataclasses import dataclass, replace

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}
TOKENS, FEATURES, VOCABULARY, CLASSES = 5, 6, 11, 4

#: What a recipe may be, in the order of its fields.
SETTINGS = {
    "depth": (1, 2, 3),
    "heads": (1, 2, 4),
    "width": (8,),
    "norm": ("pre", "post"),
    "activation": tuple(ACTIVATIONS),
    "bias": (True, False),
    "pool": ("class", "mean", "last"),
    "shared": (False, True),
    "tied": (False, True),
    "ids": (False, True),
    "parallel": (False, True),
    "fused": (True, False),
    "seed": tuple(range(1000)),
}


@dataclass(frozen=True)
class Recipe:
    """One small transformer. ``pool`` is what the head reads; ``shared`` calls one block ``depth``
    times; ``tied`` reuses the embedding as head."""

    depth: int = 2
    heads: int = 2
    width: int = 8
    norm: str = "pre"
    activation: str = "gelu"
    bias: bool = True
    pool: str = "class"
    shared: bool = False
    tied: bool = False
    ids: bool = False
    parallel: bool = False
    fused: bool = True
    seed: int = 0

    @property
    def tokens(self) -> int:
        """How many positions the blocks see."""
        return TOKENS + (self.pool == "class")

    @property
    def outputs(self) -> int:
        """How many logits the head gives."""
        return VOCABULARY if self.tied else CLASSES


def recipes(**fixed):
    """Any recipe; ``fixed`` settings stay as they are. In the fast suite it is one of a few, so
    that the tests share their models, each of which is captured once."""
    if settings().max_examples > 100:
        return _any_recipe(**fixed)
    few = (_fitting(recipe, fixed) for recipe in _few_recipes())
    return st.sampled_from(list(dict.fromkeys(few)))


@st.composite
def _any_recipe(draw, **fixed):
    return _fitting(Recipe(**{k: draw(st.sampled_from(v)) for k, v in SETTINGS.items()}), fixed)


def _fitting(recipe, fixed):
    recipe = replace(recipe, **fixed)
    return replace(recipe, tied=recipe.tied and recipe.ids)


def _few_recipes():
    """Twelve, with each value of a setting as often as any other of it."""
    source = random.Random(0)
    columns = [[v[i % len(v)] for i in range(12)] for v in SETTINGS.values()]
    for column in columns:
        source.shuffle(column)
    return [Recipe(*row) for row in zip(*columns, strict=True)]


class Attention(nn.Module):
    """Multi-head self-attention, by PyTorch's fused function or with its softmax written out."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.heads, self.fused = recipe.heads, recipe.fused
        self.qkv = nn.Linear(recipe.width, 3 * recipe.width, bias=recipe.bias)
        self.out = nn.Linear(recipe.width, recipe.width, bias=recipe.bias)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(batch, tokens, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = ((q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and an MLP, each beside a skip connection: norms before or after, one after the
    other or side by side."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.norm, self.parallel = recipe.norm, recipe.parallel
        self.norm1, self.norm2 = nn.LayerNorm(recipe.width), nn.LayerNorm(recipe.width)
        self.attention = Attention(recipe)
        self.mlp = nn.Sequential(
            nn.Linear(recipe.width, 2 * recipe.width, bias=recipe.bias),
            ACTIVATIONS[recipe.activation](),
            nn.Linear(2 * recipe.width, recipe.width, bias=recipe.bias),
            nn.Dropout(0.5),
        )

    def forward(self, x):
        if self.parallel:
            if self.norm == "pre":
                return x + self.attention(self.norm1(x)) + self.mlp(self.norm2(x))
            return self.norm1(x + self.attention(x) + self.mlp(x))
        if self.norm == "pre":
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Transformer(nn.Module):
    """What a ``Recipe`` describes: (batch, TOKENS) ids or (batch, TOKENS, FEATURES) floats in,
    (batch, outputs) logits out."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.embed = (
            nn.Embedding(VOCABULARY, recipe.width)
            if recipe.ids
            else nn.Linear(FEATURES, recipe.width, bias=recipe.bias)
        )
        self.position = nn.Parameter(torch.empty(1, recipe.tokens, recipe.width))
        self.cls = nn.Parameter(torch.empty(1, 1, recipe.width)) if recipe.pool == "class" else None
        self.blocks = nn.ModuleList(
            Block(recipe) for _ in range(1 if recipe.shared else recipe.depth)
        )
        self.norm = nn.LayerNorm(recipe.width)
        self.head = nn.Linear(recipe.width, recipe.outputs, bias=recipe.bias)
        if recipe.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        x = self.embed(x)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1)
        x = x + self.position
        for block in self.blocks:
            for _ in range(self.recipe.depth if self.recipe.shared else 1):
                x = block(x)
        x = self.norm(x)
        return self.head(
            {"class": lambda: x[:, 0], "mean": lambda: x.mean(1), "last": lambda: x[:, -1]}[
                self.recipe.pool
            ]()
        )


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter drawn anew, norms around 1, the rest at a size that keeps attention far from
    uniform."""
    source = torch.Generator().manual_seed(seed)
    norms = {id(m.weight) for m in model.modules() if isinstance(m, nn.LayerNorm)}
    with torch.no_grad():
        for p in model.parameters():
            drawn = torch.randn(p.shape, generator=source, dtype=torch.float64)
            p.copy_(1 + 0.2 * drawn if id(p) in norms else 0.6 * drawn)
    return model


def build(recipe: Recipe = Recipe(), dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    """The model of a recipe, in ``eval`` mode. ``changes`` are settings other than the recipe's."""
    recipe = replace(recipe, **changes)
    return randomise(Transformer(recipe), recipe.seed).to(dtype).eval()


def shared(recipe: Recipe = Recipe(), dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    """``build``'s model, the same object at every call, so that it is captured once: for tests that
    do not change it (one that does fails), and are not about how it is captured. Draws nothing from
    PyTorch's own generator."""
    return lent(_kept(replace(recipe, **changes), dtype))


@functools.lru_cache(64)
def _kept(recipe: Recipe, dtype: torch.dtype) -> Transformer:
    with torch.random.fork_rng([]):
        return build(recipe, dtype)


_lent: list[tuple[nn.Module, dict[str, object]]] = []


def lent(model: nn.Module) -> nn.Module:
    """A model that several tests use: ``changed`` tells what became of it."""
    if all(model is not other for other, _ in _lent):
        _lent.append((model, _state(model)))
    return model


def changed() -> list[str]:
    """What has been changed of the models that were lent since it was last asked."""
    found = [k for model, was in _lent for k, v in (was | _state(model)).items() if was.get(k) != v]
    _lent.clear()
    return found


def _state(model: nn.Module) -> dict[str, object]:
    """What a test may not leave changed: modules, modes, hooks, tensors and their gradients."""
    modules = {
        f"module {name!r}": (id(m), m.training, *m._forward_hooks, *m._forward_pre_hooks)
        for name, m in model.named_modules()
    }
    tensors = {
        f"tensor {name!r}": (id(t), str(t.detach().sum().item()), t.requires_grad, t.grad is None)
        for name, t in (*model.named_parameters(), *model.named_buffers())
    }
    return modules | tensors


def sample(
    recipe: Recipe = Recipe(),
    batch: int = 3,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
    **changes,
) -> torch.Tensor:
    """Inputs for the model of a recipe; every sample has content of its own."""
    source = torch.Generator().manual_seed(seed)
    if replace(recipe, **changes).ids:
        return torch.randint(0, VOCABULARY, (batch, TOKENS), generator=source)
    return torch.randn(batch, TOKENS, FEATURES, generator=source, dtype=torch.float64).to(dtype)


def made_once(make):
    """``make``, which draws from PyTorch's generator, without making the same thing twice: called
    again with the same arguments from the same state of the generator, it gives what it gave and
    leaves the generator as it left it. The model is then captured once for several tests, none of
    which may change it (one that does fails) or look for what is said once."""
    made = {}

    @functools.wraps(make)
    def once(*args, **options):
        key = (args, tuple(options.items()), torch.get_rng_state().numpy().tobytes())
        if key not in made:
            made[key] = (make(*args, **options), torch.get_rng_state())
        thing, after = made[key]
        torch.set_rng_state(after)
        for model in tree_leaves(thing):
            if isinstance(model, nn.Module):
                lent(model)
        return thing

    return once


def closeness(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, as a part of the largest magnitude: tolerances scale, they are never
    absolute."""
    assert a.shape == b.shape, f"{list(a.shape)} is not {list(b.shape)}"
    scale = max(float(a.abs().max()), float(b.abs().max()))
    gap = float((a - b).abs().max())
    assert gap == gap, "NaN"
    return gap / scale if scale else 0.0
