"""A recipe as a PyTorch module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tools.rollup_graphs.recipes import Node, Recipe

Matrices = dict[int, Any]
ACTS: dict[str, Callable[[Tensor], Tensor]] = {
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

    def forward(self, x: Tensor, y: Tensor | None = None) -> Any:
        """All operations in order, and the output that is asked about."""
        found = dict[int, Any]()
        for i in self.recipe.live:
            node = self.recipe.nodes[i]
            found[i] = self.result(i, node, *([found[o] for o in node.of] or (x, y)))
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
            self(*inputs)
        maps = {i: made.mean(1).numpy() for i, made in self.kept.items()}
        self.kept = None
        layers = {i: self.layers.get_submodule(str(i)) for i in self.recipe.of_kind("mix")}
        return maps, {i: m.get_parameter("weight").detach().numpy() for i, m in layers.items()}

    def result(self, i: int, node: Node, x: Any, *others: Any) -> Any:
        """What an operation makes of its operands."""
        match node.op, node.how:
            case "input", which:
                return (x, *others)[which]
            case (("learned" | "weight"), _):
                return self.learned[str(i)].expand(len(x) if node.op == "learned" else 1, -1, -1)
            case "columns", (first, last):
                return F.linear(x, others[0][0, :, first:last])
            case (("linear" | "norm"), _):
                return self.layers[str(i)](x)
            case ("mix", _) | ("windows", ("convolution", *_)):
                return self.layers[str(i)](x.mT).mT
            case "windows", ("average", kernel, stride, _):
                return F.avg_pool1d(x.mT, kernel, stride).mT
            case "windows", _:
                return x.mean(1, keepdim=True)
            case "scale", factor:
                return x * factor
            case "features", (first, last):
                return x[..., first:last]
            case (("cat" | "join"), _):
                return torch.cat([x, *others], -1 if node.op == "cat" else 1)
            case "move", how:
                return moved(x, how)
            case "map", (heads, fused):
                q, k = (split(t, heads) for t in (x, *others))
                made: Any = q, k  # for one function with the use
                if not fused or self.kept is not None:
                    made = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
                if self.kept is not None:
                    self.kept[i] = made
                return made
            case "use", _ if isinstance(x, tuple):
                q, k = x
                v = split(others[0], q.shape[1])
                return merged(F.scaled_dot_product_attention(q, k, v))
            case "use", _:
                return merged(x @ split(others[0], x.shape[1]))
            case "act", name:
                return ACTS[name](x)
        return getattr(torch, node.op)(x, *others)


def split(x: Tensor, heads: int) -> Tensor:
    """(batch, tokens, width) by heads, (batch, heads, tokens, features)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """Heads side by side."""
    return x.transpose(1, 2).flatten(2)


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
