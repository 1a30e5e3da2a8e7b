"""Attention, its gradient and hand-made scores from a model's own forward pass. Nothing of relprop
is imported.

The model runs as it is, in double precision, with gradients; fused attention takes PyTorch's plain
path, which makes the map. The autograd graph is walked from y to every softmax whose result a
contraction reads: the node keeps A, and the gradient of y at its output edge is ∇A. The roll-ups
are products of dense matrices (Eq. 13–16 with the method's own E)."""

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

SOFTMAX = {"Softmax", "SafeSoftmax"}
CONTRACTIONS = {"Bmm", "Baddbmm", "Mm", "Addmm", "Mv", "Dot"}
#: What may stand between a softmax and the contraction that reads it. Moves leave A as it is;
#: others (a sink cut off, heads mixed) make another map, which is the contraction's operand.
MOVES = {"View", "UnsafeView", "ReshapeAlias", "Expand", "Transpose", "Permute", "T", "Clone"}
MOVES |= {"ToCopy", "Unsqueeze", "Squeeze", "Split", "Unbind", "Select"}
CHANGES = {"Slice", "Cat", "Stack", "ConstantPadNd", "Mul", "Div", "Add", "Sub", "MaskedFill"}
CHANGES |= {"Where", "Index", "Convolution", "NativeLayerNorm"}


class Map(NamedTuple):
    """One attention map and its gradient, each (batch, heads, queries, keys)."""

    attention: Tensor
    gradient: Tensor


class Seen(NamedTuple):
    """What was found in the graph. ``products``: for each input gradient × input, or gradient ×
    embedding of ids, element by element; ``None`` where y does not read the input, or no embedding
    reads the ids as they are."""

    value: Tensor
    maps: list[Map]
    products: dict[str | int, Tensor | None]


class Unfused(TorchFunctionMode):
    """Fused attention takes the path that makes the map, also where a model chooses another."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        with sdpa_kernel(SDPBackend.MATH):
            return function(*args, **(kwargs or {}))


def see(model, inputs, target, mixed=False, alone=False):
    """``inputs``: by name, or by position. ``target``: an index into one sample's output, or a
    function of it. ``mixed``: heads are mixed behind the softmax. ``alone``: the model mixes the
    samples of a batch, so that each is run alone."""
    if alone:
        parts = [see(model, cut(inputs, i), target, mixed) for i in range(_batch(inputs))]
        values, maps, products = zip(*parts, strict=True)
        maps = [Map(*map(torch.cat, zip(*same, strict=True))) for same in zip(*maps, strict=True)]
        products = {k: torch.cat([p[k] for p in products]) for k in inputs}
        return Seen(torch.cat(values), maps, products)
    leaves = {k: v.clone().requires_grad_() if _floating(v) else v for k, v in inputs.items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), Unfused():
        output = model(**leaves) if isinstance(next(iter(leaves)), str) else model(*leaves.values())
    values = [_of_sample(output, sample, target) for sample in range(_batch(inputs))]
    value = torch.stack(values).sum()
    readers = _readers(value.grad_fn)
    found = [n for n in readers if _kind(n) in SOFTMAX]
    found.sort(key=lambda node: node._sequence_nr())
    places = [place for node in found if (place := _place(node, readers, mixed))]
    gradients = _gradients(value, [edge for edge, _, _ in places])
    maps = [
        Map(*(_laid_out(t, axis, _batch(inputs)) for t in (attention, gradient)))
        for (_, attention, axis), gradient in zip(places, gradients, strict=True)
    ]
    products = {k: _product(value, leaf, readers) for k, leaf in leaves.items()}
    return Seen(torch.stack(values).detach(), maps, products)


def _batch(inputs):
    return next(len(v) for v in inputs.values() if isinstance(v, Tensor))


def _floating(value):
    return isinstance(value, Tensor) and value.is_floating_point()


def cut(inputs, sample):
    one = slice(sample, sample + 1)
    return {k: v[one] if isinstance(v, Tensor) else v for k, v in inputs.items()}


def _of_sample(output, sample, target):
    if callable(target):
        return target(tree_map(lambda t: t[sample : sample + 1] if t.dim() else t, output))
    output = getattr(output, "logits", output)
    return output[(sample, *(target if isinstance(target, tuple) else (target,)))]


def _readers(root):
    """Every node below ``root``, with the nodes that read it."""
    readers, todo = defaultdict(list, {root: []}), [root]
    while todo:
        node = todo.pop()
        for below, _ in node.next_functions:
            if below is not None:
                if below not in readers:
                    todo.append(below)
                readers[below].append(node)
    return readers


def _place(node, readers, mixed):
    """Where a softmax's map is: the edge that its gradient arrives at, the map, its axis of keys;
    nothing where no contraction reads it."""
    contractions = _contractions(node, readers, mixed)
    if len(contractions) == 1:
        [(reader, below, changed)] = contractions
        if changed and _kind(reader) == "Bmm":
            side = [edge[0] for edge in reader.next_functions].index(below)
            operand = reader._saved_self if side == 0 else reader._saved_mat2
            return GradientEdge(*reader.next_functions[side]), operand, -1 - side
    axis = node._saved_dim
    axis -= 2**64 if axis >= 2**63 else 0
    return contractions and (GradientEdge(node, 0), node._saved_result, axis)


def _contractions(node, readers, mixed):
    """The contractions that read this softmax, each with its operand, and whether that is another
    map than the softmax's. ``mixed``: the first one mixes heads."""
    found, todo, passed = set(), [(node, r, False) for r in readers[node]], set()
    while todo:
        below, reader, changed = todo.pop()
        kind = _kind(reader)
        summed = kind == "Mul" and any(r.name() == "SumBackward1" for r in readers[reader])
        if (kind in CONTRACTIONS or summed) and (changed or not mixed):
            found.add((reader, below, changed))
        elif kind in MOVES | CHANGES | (CONTRACTIONS if mixed else set()) and reader not in passed:
            passed.add(reader)
            todo += [(reader, above, changed or kind not in MOVES) for above in readers[reader]]
    return found


def _kind(node):
    return node.name().split("Backward")[0]


def _gradients(value, edges):
    if not edges:
        return []
    return torch.autograd.grad(value, edges, retain_graph=True, allow_unused=True)


def _laid_out(tensor, keys, batch):
    """(batch, heads, queries, keys): whatever lies between the samples and the queries is heads."""
    tensor = tensor.detach().double().movedim(keys, -1)
    tensor = tensor.unsqueeze(1) if tensor.dim() == 2 else tensor
    return tensor.reshape(batch, -1, *tensor.shape[-2:])


def _product(value, leaf, readers):
    if not isinstance(leaf, Tensor):
        return None
    if leaf.is_floating_point():
        [gradient] = _gradients(value, [leaf])
        return None if gradient is None else (gradient * leaf).detach()
    found = [n for n in readers if n.name() == "EmbeddingBackward0"]
    found = [n for n in found if torch.equal(n._saved_indices, leaf)]
    edges = [GradientEdge(node, 0) for node in found]
    tables = [node.next_functions[0][0].variable.detach() for node in found]
    products = [g * t[leaf] for g, t in zip(_gradients(value, edges), tables, strict=True)]
    return sum(products) if products else None


# The roll-ups of a plain residual stack: one map behind the other, each beside a skip connection.


def scores(maps, method, reads, beside=1):
    """The row that is read, without what skip connections alone leave, (batch, tokens). ``reads``:
    a position, or a slice of positions, for the mean of their rows. ``beside``: so many maps, one
    after the other in ``maps``, are side by side in one sum."""
    tokens = max(m.attention.shape[-2] for m in maps)
    found = [_matrix(m, method, reads, tokens) for m in maps]
    found = [m for m in found if m.shape[-2:] == (tokens, tokens)]
    found = [sum(found[i : i + beside]) for i in range(0, len(found), beside)]
    matrix = sum(found) if method == "attention_times_grad" else rolled_up(found)
    return read(matrix, reads)


def read(matrix, reads):
    return matrix[:, reads].mean(1) if isinstance(reads, slice) else matrix[:, reads]


def _matrix(one, method, reads, tokens):
    """What stands beside I, (batch, tokens, tokens): the mean of A over heads, or of (A ⊙ ∇A)⁺.
    Learned keys stand before the tokens and are none; a map of one query is that of the row that is
    read."""
    weights = one.attention
    if method != "rollout":
        weights = (weights * one.gradient).clamp(min=0)
    weights = weights.mean(1)[..., -tokens:]
    if weights.shape[-2] > 1 or isinstance(reads, slice):
        return weights
    square = torch.zeros(len(weights), tokens, weights.shape[-1], dtype=weights.dtype)
    square[:, reads] = weights[:, 0]
    return square


def rolled_up(found):
    """(I + E_L) ··· (I + E_1) − I."""
    eye = torch.eye(found[0].shape[-1], dtype=found[0].dtype)
    product = eye
    for matrix in found:
        product = (eye + matrix) @ product
    return product - eye
