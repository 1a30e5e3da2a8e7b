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
MOVES |= {"ToCopy", "Unsqueeze", "Squeeze", "Split", "Unbind", "Select", "Alias"}
CHANGES = {"Slice", "Cat", "Stack", "ConstantPadNd", "Mul", "Div", "Add", "Sub", "MaskedFill"}
CHANGES |= {"Where", "Index", "Gather", "Convolution", "NativeLayerNorm"}


class Map(NamedTuple):
    """Each (batch, heads, queries, keys)."""

    attention: Tensor
    gradient: Tensor


class Seen(NamedTuple):
    """``products``: of each input gradient × input, or gradient × embedding of ids, element by
    element; ``None`` where y does not read the input, or no embedding the ids as they are."""

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
        together = zip(*(part.maps for part in parts), strict=True)
        maps = [Map(*map(torch.cat, zip(*same, strict=True))) for same in together]
        return Seen(maps, {k: torch.cat([p.products[k] for p in parts]) for k in inputs})
    leaves = {k: v.clone().requires_grad_() if _floating(v) else v for k, v in inputs.items()}
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), Unfused():
        output = model(**leaves) if isinstance(next(iter(leaves)), str) else model(*leaves.values())
    value = sum(of_sample(output, sample, target) for sample in range(_batch(inputs)))
    readers = _readers(value.grad_fn)
    forward = sorted(readers, key=lambda node: node._sequence_nr())
    places = [_place(node, readers, mixed) for node in forward if _kind(node) in SOFTMAX]
    places = [place for place in places if place]
    gradients = _gradients(value, [edge for edge, _, _ in places])
    maps = [
        Map(_laid_out(a, axis, _batch(inputs)), _laid_out(g, axis, _batch(inputs)))
        for (_, a, axis), g in zip(places, gradients, strict=True)
    ]
    return Seen(maps, {k: _product(value, leaf, readers) for k, leaf in leaves.items()})


def _batch(inputs):
    return next(len(v) for v in inputs.values() if isinstance(v, Tensor))


def _floating(value):
    return isinstance(value, Tensor) and value.is_floating_point()


def cut(inputs, sample):
    one = slice(sample, sample + 1)
    return {k: v[one] if isinstance(v, Tensor) else v for k, v in inputs.items()}


def of_sample(output, sample, target):
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
    map. ``mixed``: the first one mixes heads."""
    found, todo, passed = set(), [(node, r, False) for r in readers[node]], set()
    while todo:
        below, reader, changed = todo.pop()
        kind = _kind(reader)
        if kind in CONTRACTIONS and (changed or not mixed):
            found.add((reader, below, changed))
        elif kind in MOVES | CHANGES | (CONTRACTIONS if mixed else set()) and reader not in passed:
            passed.add(reader)
            todo += [(reader, above, changed or kind not in MOVES) for above in readers[reader]]
    return found


def _kind(node):
    return node.name().split("Backward")[0]


def _gradients(value, edges):
    grad = torch.autograd.grad
    return grad(value, edges, retain_graph=True, allow_unused=True) if edges else []


def _laid_out(tensor, keys, batch):
    """(batch, heads, queries, keys): whatever lies between the samples and the queries is heads."""
    tensor = tensor.detach().double().movedim(keys, -1)
    tensor = tensor.unsqueeze(1) if tensor.dim() == 2 else tensor
    return tensor.reshape(batch, -1, *tensor.shape[-2:])


def _product(value, leaf, readers):
    if _floating(leaf):
        [gradient] = _gradients(value, [leaf])
        return None if gradient is None else (gradient * leaf).detach()
    found = [n for n in readers if _kind(n) == "Embedding"]
    found = [n for n in found if torch.is_tensor(leaf) and n._saved_indices.equal(leaf)]
    tables = [node.next_functions[0][0].variable.detach() for node in found]
    gradients = _gradients(value, [GradientEdge(node, 0) for node in found])
    products = [g * table[leaf] for g, table in zip(gradients, tables, strict=True)]
    return sum(products) if products else None


# The roll-ups of a plain residual stack: one map behind the other, each beside a skip connection.


def scores(maps, method, reads, beside=1):
    """The row that is read, without what skip connections alone leave, (batch, tokens). ``reads``:
    a position, or a slice of positions, for the mean of their rows. ``beside``: so many maps, one
    after the other in ``maps``, are side by side in one sum."""
    tokens = max(m.attention.shape[-2] for m in maps)
    found = [_matrix(m, method) for m in maps]
    found = [m for m in found if m.shape[-2:] == (tokens, tokens)]
    found = [sum(found[i : i + beside]) for i in range(0, len(found), beside)]
    matrix = sum(found) if method == "attention_times_grad" else rolled_up(found)
    return read(matrix, reads)


def read(matrix, reads):
    return matrix[:, reads].mean(1) if isinstance(reads, slice) else matrix[:, reads]


def _matrix(one, method):
    """What stands beside I, (batch, tokens, tokens): the mean of A over heads, or of (A ⊙ ∇A)⁺.
    Learned keys stand before the tokens and are none."""
    weights = one.attention
    if method != "rollout":
        weights = (weights * one.gradient).clamp(min=0)
    return weights.mean(1)[..., -weights.shape[-2] :]


def rolled_up(found):
    """(I + E_L) ··· (I + E_1) − I."""
    eye = torch.eye(found[0].shape[-1], dtype=found[0].dtype)
    product = eye
    for matrix in found:
        product = (eye + matrix) @ product
    return product - eye
