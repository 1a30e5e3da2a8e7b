"""A recipe as a PyTorch module, and what is asked of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.rollup_graphs.recipes import Node, Recipe

Matrices = dict[int, Any]
POINTWISE: dict[str, Callable[..., Tensor]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "larger": torch.maximum,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "1 -": lambda x: 1 - x,
}


class Written(nn.Module):
    """A recipe in ordinary PyTorch. ``kept``: if not ``None``, its attention maps go there."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.kept: dict[int, Tensor] | None = None
        self.layers, self.learned = nn.ModuleDict(), nn.ParameterDict()
        for i in recipe.live:
            made = self.weights(recipe.nodes[i])
            if isinstance(made, nn.Module):
                self.layers[str(i)] = made
            elif made is not None:
                self.learned[str(i)] = made
        for weight in self.layers.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        last = recipe.width(recipe.reads[0][0])
        self.heads = nn.ModuleList(nn.Linear(last, n) for n in (3, 1, 1))

    def weights(self, node: Node) -> nn.Module | nn.Parameter | None:
        """What an operation has of them."""
        first = self.recipe.nodes[node.of[0]] if node.of else node
        match node.op, node.how:
            case "linear", _:
                return nn.Linear(first.width, node.width)
            case "norm", _:
                return nn.LayerNorm(node.width)
            case "mix", _:
                return nn.Linear(first.tokens, node.tokens)
            case "windows", ("convolution", kernel, stride, padding):
                return nn.Conv1d(first.width, node.width, kernel, stride, padding)
            case (("learned" | "weight"), _):
                return nn.Parameter(torch.randn(1, node.tokens, node.width))
        return None

    def run(self, *inputs: Tensor) -> Any:
        """All operations in order, and the output that is asked about."""
        found = dict[int, Any]()
        for i in self.recipe.live:
            node = self.recipe.nodes[i]
            of = [found[o] for o in node.of] or inputs
            found[i] = self.result(i, node, *of)
        read, place = found[self.recipe.reads[0][0]], self.recipe.reads[0][1]
        match self.recipe.form:
            case "class":
                return self.heads[0](read[:, place])
            case "span":
                starts, ends = (head(read).squeeze(-1) for head in self.heads[1:])
                return {"start_logits": starts, "end_logits": ends}
        return read if self.recipe.form == "feature" else self.heads[0](read)

    def mixing(self, *inputs: Tensor) -> tuple[Matrices, Matrices]:
        """The mean over the heads of each map, (batch, queries, keys), and the constant matrices
        over tokens, of a run on these inputs."""
        self.kept = {}
        with torch.no_grad():
            self.run(*inputs)
        maps = {i: made.mean(1).numpy() for i, made in self.kept.items()}
        self.kept = None
        layers = {i: self.layers.get_submodule(str(i)) for i in self.recipe.of_kind("mix")}
        weights = {i: layer.get_parameter("weight").detach() for i, layer in layers.items()}
        return maps, {i: weight.numpy() for i, weight in weights.items()}

    def result(self, i: int, node: Node, x: Any, *others: Any) -> Any:
        """What an operation makes of its operands."""
        match node.op, node.how:
            case "input", which:
                return (x, *others)[which]
            case "learned", _:
                return self.learned[str(i)].expand(len(x), -1, -1)
            case "weight", _:
                return self.learned[str(i)][0]
            case "columns", (first, last):
                return F.linear(x, others[0][:, first:last])
            case (("linear" | "norm"), _):
                return self.layers[str(i)](x)
            case "mix", _:
                return self.layers[str(i)](x.mT).mT
            case "scale", factor:
                return x * factor
            case "features", (first, last):
                return x[..., first:last]
            case "cat", _:
                return torch.cat([x, *others], -1)
            case "join", _:
                return torch.cat([x, *others], 1)
            case "move", how:
                return moved(x, how)
            case "windows", how:
                return self.brought_together(i, x, how)
            case "map", (heads, fused):
                return self.map(i, heads, fused, x, *others)
            case "use", _:
                return contraction(x, *others)
        return POINTWISE[node.how if node.op == "act" else node.op](x, *others)

    def map(self, i: int, heads: int, fused: bool, *projected: Tensor) -> Any:
        """An attention map, or the queries and keys of which its use will make one."""
        q, k = (split(t, heads) for t in projected)
        if fused and self.kept is None:
            return q, k
        made = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        if self.kept is not None:
            self.kept[i] = made
        return made

    def brought_together(self, i: int, x: Tensor, how: tuple[str, int, int, int]) -> Tensor:
        """A convolution or a pooling."""
        match how:
            case "convolution", *_:
                made: Tensor = self.layers[str(i)](x.mT)
                return made.mT
            case "average", kernel, stride, _:
                return F.avg_pool1d(x.mT, kernel, stride).mT
        return x.mean(1, keepdim=True)


class OneInput(Written):
    """A recipe that takes one input."""

    def forward(self, x: Tensor) -> Any:
        return self.run(x)


class TwoInputs(Written):
    """A recipe that takes two."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.run(x, y)


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) by heads, (batch, heads, tokens, features)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def contraction(made: Tensor | tuple[Tensor, Tensor], values: Tensor) -> Tensor:
    """Values as an attention map mixes them."""
    heads = (made[0] if isinstance(made, tuple) else made).shape[1]
    v = split(values, heads)
    if isinstance(made, tuple):
        mixed = F.scaled_dot_product_attention(*made, v)
    else:
        mixed = made @ v
    return mixed.transpose(1, 2).flatten(2)


def moved(x: Tensor, how: tuple[Any, ...]) -> Tensor:
    """Tokens at other places."""
    match how:
        case "slice", first, last, step:
            return x[:, first:last:step]
        case "roll", by:
            return x.roll(by, 1)
        case "flip", *_:
            return x.flip(1)
        case "pad", before, after:
            return F.pad(x, (0, 0, before, after))
    return x[:, list(how[1])]
