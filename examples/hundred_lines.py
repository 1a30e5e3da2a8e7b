"""relprop in a hundred lines: the whole method, for plain models, in one file.

What a class-specific explanation of a transformer is (Chefer, Gur and Wolf, CVPR 2021), step by
step, with nothing but PyTorch. Each step says in which file of relprop the same is done for every
model. The numbers are relprop's own: a test compares the two on eight models
(``tests/core/test_hundred_lines.py``). Run it: ``python examples/hundred_lines.py``.

The question is which tokens made one number y of the model large: the logit of a class. An
attention map A says how much each token took from each other one, and not whether that helped the
class. So each entry of A is weighed by its *relevance* R, the part of y that passed through it, and
by its *gradient* ∂y/∂A; what is positive of the product is a map for this class, and the maps of
all blocks are multiplied into one row, the scores of the tokens.
"""

import operator
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, fx, nn

aten = torch.ops.aten


# 1. A graph. torch.export runs the model once and writes down every operation: nodes that read the
# nodes before them. Attention must be visible: the fused operation is written out as a product, a
# softmax, a product.
# For every model: relprop/tracer/capture.py and relprop/tracer/passes/attention/fused.py


def capture(model: nn.Module, inputs: tuple[Tensor, ...]) -> fx.GraphModule:
    graph = torch.export.export(model.eval(), inputs).module()

    def call(op: Callable, *args: object) -> fx.Node:
        return graph.graph.call_function(op, args)

    for node in list(graph.graph.nodes):
        with graph.graph.inserting_before(node):
            if node.target is operator.getitem:  # x.unbind(d)[i] is x.select(d, i)
                source, axis = (*node.args[0].args, 0)[:2]
                part = call(aten.select.int, source, axis, node.args[1])
                part.meta = node.meta
                node.replace_all_uses_with(part)
            if node.target is aten.scaled_dot_product_attention.default:
                query, key, value, mask, *options = (*node.args, None)
                if any(options):
                    raise NotImplementedError(f"attention with dropout, or causal: {options}")
                scale = node.kwargs.get("scale") or query.meta["val"].shape[-1] ** -0.5
                product = call(aten.matmul.default, query, call(aten.transpose.int, key, -2, -1))
                scores = call(aten.mul.Tensor, product, scale)
                if mask is not None:  # of booleans: which keys a query may read
                    hidden = call(aten.logical_not.default, mask)
                    scores = call(aten.masked_fill.Scalar, scores, hidden, -float("inf"))
                weights = call(aten.softmax.int, scores, -1)
                node.replace_all_uses_with(call(aten.matmul.default, weights, value))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


# 2. Rules. Relevance starts at the output and is handed back, operation by operation: a rule says
# which part of the relevance R of an operation's output each operand gets. Every rule gives each
# operand in proportion to what it contributed.
# For every model: relprop/rules/presets.py and relprop/rules/closed.py; yours: docs/write-a-rule.md

RULES: dict[object, Callable[..., tuple[Tensor, ...]]] = {}


def rule(*operations: object) -> Callable:
    """Register a function (R, output, *operands) -> the relevance of each operand."""

    def register(function: Callable) -> Callable:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


def divide(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))


@rule(aten.linear.default)
def linear(R: Tensor, out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None) -> tuple:
    """Eq. 5: of the terms x_j·w_ji of each sum, the positive ones get R_i in proportion."""
    plus, minus = (x.clamp(min=0), w.clamp(min=0)), (x.clamp(max=0), w.clamp(max=0))
    share = divide(R, plus[0] @ plus[1].T + minus[0] @ minus[1].T)
    return (plus[0] * (share @ plus[1]) + minus[0] * (share @ minus[1]),)


@rule(aten.matmul.default)
def matmul(R: Tensor, out: Tensor, u: Tensor, v: Tensor) -> tuple:
    """Eq. 6: both operands of a product get it in proportion to their terms."""
    share = divide(R, out)
    return conserved(R, u * (share @ v.mT), v * (u.mT @ share))


@rule(aten.add.Tensor)
def add(R: Tensor, out: Tensor, u: Tensor, v: Tensor) -> tuple:
    """Eq. 6 for a residual connection."""
    share = divide(R, out)
    return conserved(R, u * share, v.expand_as(out) * share)


@rule(aten.mean.dim)
def mean(R: Tensor, out: Tensor, x: Tensor, axes: list[int], keeps: bool = False) -> tuple:
    """Eq. 5 for a mean over tokens, whose weights are all alike."""
    positive, R = x.clamp(min=0), R if keeps else R.unsqueeze(axes[0])
    return (positive * divide(R, positive.sum(axes, keepdim=True)),)


@rule(aten.gelu.default, aten.tanh.default, aten.softmax.int, aten.layer_norm.default)
@rule(aten.mul.Tensor, aten.div.Tensor, aten.dropout.default, aten.masked_fill.Scalar)
def carried(R: Tensor, out: Tensor, x: Tensor, *rest: object) -> tuple:
    """Functions of each number, and norms: relevance passes as it is."""
    return (R,)


# 3. Lemma 2. Two operands that both depend on the input get their relevance by Eq. 6, and the sums
# explode: 1000 − 999 hands 1000·R to one and −999·R to the other. So each is scaled until both
# together have what arrived, divided by their sizes; sample by sample, which is what makes a batch
# possible.
# For every model: relprop/rules/sums.py


def conserved(R: Tensor, *shares: Tensor) -> tuple[Tensor, ...]:
    def total(t: Tensor) -> Tensor:  # of every sample
        return t.flatten(1).sum(1)

    size = sum(total(s).abs() for s in shares)
    scales = (divide(total(s).abs(), size) * divide(total(R), total(s)) for s in shares)
    both = zip(shares, scales, strict=True)
    return tuple(s * scale.view(-1, *[1] * (s.dim() - 1)) for s, scale in both)


# 4. Operations that move numbers and change none: relevance goes back where each number came from,
# which is what autograd does with a gradient of such an operation.
# For every model: relprop/rules/moves.py

MOVES = {aten.select.int, aten.transpose.int, aten.permute.default, aten.view.default}
MOVES |= {aten.reshape.default, aten.slice.Tensor, aten.cat.default, aten.unbind.int}
MOVES |= {aten.alias.default, aten.contiguous.default}


def moved(node: fx.Node, R: Tensor, values: dict[fx.Node, Tensor]) -> tuple[Tensor, ...]:
    leaves = {n: values[n].detach().requires_grad_() for n in node.all_input_nodes}
    with torch.enable_grad():
        out = node.target(*fx.node.map_arg(node.args, leaves.get), **node.kwargs)
    return torch.autograd.grad(out, list(leaves.values()), R, allow_unused=True)


# 5. The model runs once, and autograd gives the gradient of y at every attention map.
# For every model: relprop/interpreter/forward.py


class Run(fx.Interpreter):
    def run_node(self, node: fx.Node) -> object:
        value = super().run_node(node)
        maps = node.target is aten.softmax.int
        return value.requires_grad_() if maps and not value.requires_grad else value


# 6. The walk, from the output back to every map. Where several operations read one tensor, it gets
# the sum of what they hand back. What no rule is for is refused.
# For every model: relprop/interpreter/walk.py


def walk(graph: fx.Graph, values: dict[fx.Node, Tensor], start: Tensor) -> dict[fx.Node, Tensor]:
    """The relevance of every attention map."""
    after = set[fx.Node]()  # the maps, and what depends on one
    for node in graph.nodes:
        if node.target is aten.softmax.int or after.intersection(node.all_input_nodes):
            after.add(node)
    relevance = {graph.output_node().args[0][0]: start}
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node not in relevance or node not in after:
            continue
        R, operands = relevance[node], node.all_input_nodes
        if node.target in RULES:
            args = fx.node.map_arg(node.args, lambda n: values[n].detach())
            shares = RULES[node.target](R, values[node].detach(), *args)
        elif node.target in MOVES:
            shares = moved(node, R, values)
        else:
            raise NotImplementedError(f"no rule for {node.target}")
        for operand, share in zip(operands, shares, strict=False):
            if share is not None and operand in after:
                relevance[operand] = relevance.get(operand, 0) + share
    return relevance


# 7. The roll-up (Eq. 13 and 14): a block's map is the mean over its heads of (∇A ⊙ R)⁺; tokens pass
# the block by it, or by the skip connection, which is the identity: C ← C + Ā·C. The rows of the
# tokens that the head of the model reads say what came from where; without the identity itself,
# which says only that a token is its own, these are the scores.
# For every model, whatever its residual connections: relprop/rollup/ and relprop/runner/rollup.py


def explain(
    model: nn.Module, inputs: tuple[Tensor, ...], target: int, reads: Iterable[int] = (0,)
) -> Tensor:
    """The scores of the tokens for class ``target``, (batch, tokens). ``reads``: the tokens that
    the model's head reads: 0 is the class token."""
    graph = capture(model, inputs)
    run = Run(graph, garbage_collect_values=False)
    with torch.enable_grad():
        y = run.run(*inputs)
        y = y if isinstance(y, Tensor) else y[0]
    values, maps = run.env, [n for n in graph.graph.nodes if n.target is aten.softmax.int]
    gradients = torch.autograd.grad(y[:, target].sum(), [values[n] for n in maps])
    with torch.no_grad():
        start = torch.zeros_like(y).index_fill(1, torch.tensor(target), 1)
        relevance = walk(graph.graph, values, start)
        identity = torch.eye(gradients[0].shape[-1], dtype=y.dtype)
        C = identity.expand(len(y), -1, -1)
        for node, gradient in zip(maps, gradients, strict=True):
            C = C + (gradient * relevance[node]).clamp(min=0).mean(1) @ C
        return (C - identity)[:, list(reads)].mean(1)


if __name__ == "__main__":
    import relprop
    from relprop.demo.model import digit_scene_model
    from relprop.demo.scenes import make_scenes

    model, images = digit_scene_model(), make_scenes(3, seed=8).images
    mine, theirs = explain(model, (images,), 2), relprop.explain(model, images, 2).scores
    apart = float((mine - theirs).abs().max() / theirs.abs().max())
    print(f"{len(images)} pictures, {mine.shape[1]} tokens each; the largest difference from")
    print(f"relprop.explain is {apart:.1e} of the largest score (in float32).")
