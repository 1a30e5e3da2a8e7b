"""Functions of functions inside a model: ``torch.vmap`` in other ways than one function's, calls of
a module with given weights, derivatives, and PyTorch's flexible attention."""

import copy
import math

import torch
from torch import nn
from torch.func import functional_call, stack_module_state
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.spellings.bases import (
    BOTH,
    CAUSAL,
    EXPERTS,
    GROUPED,
    IDS,
    LLAMA,
    PADDED,
    PLAIN,
    RELATIVE,
    SILU,
)
from tests.spellings.families.attentions import attend_plainly
from tests.spellings.spelling import spell, spells

# Flexible attention: no derivative on a CPU.


@spells("attend", CAUSAL, inference=True)
def flexible_by_blocks(parts, q, k, v, allowed):
    def seen(batch, head, query, key):
        return query >= key

    n = q.shape[2]
    return flex_attention(q, k, v, block_mask=create_block_mask(seen, None, None, n, n, "cpu"))


@spells("attend", PADDED, BOTH, inference=True)
def flexible_by_blocks_of_samples(parts, q, k, v, allowed):
    allowed = allowed[:, 0].expand(-1, q.shape[2], -1)

    def seen(batch, head, query, key):
        return allowed[batch, query, key]

    b, _, n, _ = q.shape
    return flex_attention(q, k, v, block_mask=create_block_mask(seen, b, None, n, n, "cpu"))


@spells("attend", BOTH, inference=True)
def flexible_by_blocks_and_scores(parts, q, k, v, allowed):
    kept = allowed[:, 0, -1]

    def hidden(score, batch, head, query, key):
        return score + torch.where(kept[batch, key], 0.0, -math.inf)

    n = q.shape[2]
    blocks = create_block_mask(lambda b, h, i, j: j <= i, None, None, n, n, "cpu")
    return flex_attention(q, k, v, score_mod=hidden, block_mask=blocks)


@spells("attend", RELATIVE, inference=True)
def flexible_with_biases(parts, q, k, v, allowed):
    def biased(score, batch, head, query, key):
        return score + allowed[head, query, key]

    return flex_attention(q, k, v, biased)


@spells("attend", PLAIN, inference=True)
def flexible_scaled_afterwards(parts, q, k, v, allowed):
    return flex_attention(q, k, v, lambda score, *place: score * 0.5, scale=1.0)


def _unshared(at, x):
    q = at.parts.split(at.query(x), at.heads)
    return q, *(at.parts.split(f(x), at.groups) for f in (at.key, at.value))


@spells("attention", GROUPED, inference=True)
def flexible_grouped(at, x, allowed):
    y = flex_attention(*_unshared(at, x), enable_gqa=True)
    return at.out(at.parts.join(y))


# Several functions at once.


@spells("attend", CAUSAL)
def heads_by_vmap_and_a_mask(parts, q, k, v, allowed):
    return torch.vmap(attend_plainly, (1, 1, 1, None), 1)(q, k, v, allowed)


@spells("attend", PADDED, BOTH)
def samples_by_vmap_and_their_masks(parts, q, k, v, allowed):
    return torch.vmap(attend_plainly)(q, k, v, allowed)


@spells("attend", PLAIN)
def heads_by_vmap_in_chunks(parts, q, k, v, allowed):
    return torch.vmap(attend_plainly, 1, 1, chunk_size=1)(q, k, v)


@spells("attend", PLAIN, CAUSAL)
def samples_by_vmap_and_fused(parts, q, k, v, allowed):
    causal = allowed is not None
    return torch.vmap(lambda *one: F.scaled_dot_product_attention(*one, is_causal=causal))(q, k, v)


@spells("attend", PLAIN)
def heads_by_vmap_of_a_dict(parts, q, k, v, allowed):
    given = {"q": q, "k": k, "v": v}
    return torch.vmap(lambda at: {"o": attend_plainly(**at)}, 1, 1)(given)["o"]


@spells("rotate", LLAMA)
def heads_by_vmap_written_in_place(x, angles):
    def one(head):
        cos, sin = angles.cos(), angles.sin()
        out = torch.empty_like(head)
        out[..., :2] = head[..., :2] * cos - head[..., 2:] * sin
        out[..., 2:] = head[..., :2] * sin + head[..., 2:] * cos
        return out

    return torch.vmap(one, 1, 1)(x)


@spells("experts", EXPERTS)
def experts_by_vmap(at, x):
    shares = at.router(x).softmax(-1)
    best = shares.max(-1, keepdim=True).values
    chosen = torch.where(shares == best, shares, 0.0)
    like = copy.copy(at.experts[0])
    given, buffers = stack_module_state(list(at.experts))
    each = torch.vmap(lambda w, b: functional_call(like, (w, b), (x,)))(given, buffers)
    return (chosen.movedim(-1, 0)[..., None] * each).sum(0)


@spells("mlp", PLAIN, IDS)
def called_with_its_weights(at, x):
    inner = functional_call(at.up, dict(at.up.named_parameters()), (x,))
    return at.down(at.parts.activation(inner))


class LinearByVmap(nn.Module):
    """A module's forward, one token at a time."""

    def __init__(self, weight, bias=None):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], len(weight), bias is not None, dtype=weight.dtype)
        with torch.no_grad():
            self.linear.weight.copy_(weight)
            if bias is not None:
                self.linear.bias.copy_(bias)

    def forward(self, x):
        return torch.func.vmap(torch.func.vmap(self.linear))(x)


spell("project", PLAIN, LLAMA, module_by_vmap=LinearByVmap)

# Derivatives.

spell(
    "activation",
    SILU,
    slope_of_softplus=lambda x: x * torch.func.grad(lambda t: F.softplus(t).sum())(x),
    change_along_itself=lambda x: torch.func.jvp(F.softplus, (x,), (x,))[1],
)
