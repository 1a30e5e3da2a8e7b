"""The sum of a stream and what a layer adds to it."""

import functools
import itertools
import operator

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import IDS, PLAIN
from tests.spellings.model import Block
from tests.spellings.spelling import OTHER_TERMS, spell, spells


def _even(x):
    """Every second feature."""
    return torch.arange(x.shape[-1]) % 2 == 0


def _eyes(x):
    eye = torch.eye(x.shape[-1], dtype=x.dtype)
    return torch.cat([eye, eye], 1)


spell(
    "residual",
    PLAIN,
    IDS,
    the_other_way=lambda x, y: y + x,
    stacked_and_summed=lambda x, y: torch.stack([x, y]).sum(0),
    twice_the_mean=lambda x, y: 2 * torch.stack([x, y]).mean(0),
    less_the_negative=lambda x, y: x - (-y),
    in_place=lambda x, y: x.clone().add_(y),
    identity_matrices=lambda x, y: F.linear(torch.cat([x, y], -1), _eyes(x)),
)

spell(
    "residual",
    PLAIN,
    method=lambda x, y: x.add(y),
    operator=operator.add,
    augmented=lambda x, y: operator.iadd(x * 1, y),
    alpha=lambda x, y: torch.add(x, y, alpha=1),
    half_of_alpha_two=lambda x, y: torch.add(x, y / 2, alpha=2),
    in_place_onto_the_new=lambda x, y: y.add_(x),
    in_place_onto_zeros=lambda x, y: torch.zeros_like(x).add_(x).add_(y),
    stacked_last=lambda x, y: torch.stack([x, y], -1).sum(-1),
    stacked_between=lambda x, y: torch.stack((x, y), dim=2).sum(2),
    joined_and_summed=lambda x, y: torch.cat([x[None], y[None]]).sum(dim=0),
    joined_features_summed=lambda x, y: torch.cat([x, y], -1).unflatten(-1, (2, -1)).sum(2),
    joined_tokens_summed=lambda x, y: torch.cat([x, y], 1).view(len(x), 2, *x.shape[1:]).sum(1),
    sum_of_a_list=lambda x, y: sum([x, y]),
    sum_from_zeros=lambda x, y: sum([x, y], start=torch.zeros_like(x)),
    sum_of_three=lambda x, y: torch.stack([x, y, torch.zeros_like(x)]).sum(0),
    reduced=lambda x, y: functools.reduce(torch.add, [x, y]),
    accumulated=lambda x, y: list(itertools.accumulate([x, y]))[-1],
    cumsum=lambda x, y: torch.stack([x, y]).cumsum(0)[1],
    cumsum_last=lambda x, y: torch.stack([x, y], -1).cumsum(-1)[..., -1],
    einsum=lambda x, y: torch.einsum("sbnd->bnd", torch.stack([x, y])),
    einsum_with_ones=lambda x, y: torch.einsum(
        "sbnd,s->bnd", torch.stack([x, y]), torch.ones(2, dtype=x.dtype)
    ),
    matmul_with_ones=lambda x, y: (
        torch.stack([x, y], -1) @ torch.ones(2, 1, dtype=x.dtype)
    ).squeeze(-1),
    tensordot_with_ones=lambda x, y: torch.tensordot(
        torch.ones(2, dtype=x.dtype), torch.stack([x, y]), 1
    ),
    nansum=lambda x, y: torch.stack([x, y]).nansum(0),
    average_pool=lambda x, y: (
        2 * F.avg_pool1d(torch.stack([x, y], -1).flatten(0, 1), 2).squeeze(-1).view_as(x)
    ),
    convolution=lambda x, y: F.conv2d(
        torch.stack([x, y], 1), torch.ones(1, 2, 1, 1, dtype=x.dtype)
    )[:, 0],
    addcmul=lambda x, y: torch.addcmul(x, y, torch.ones_like(y)),
    addcmul_of_a_vector=lambda x, y: torch.addcmul(x, torch.ones(8, dtype=x.dtype), y),
    addcdiv=lambda x, y: torch.addcdiv(x, y, torch.ones_like(x)),
    lerp=lambda x, y: 2 * torch.lerp(x, y, 0.5),
    lerp_by_a_tensor=lambda x, y: torch.lerp(x, y, torch.full_like(x, 0.5)) / 0.5,
    sub_with_alpha=lambda x, y: torch.sub(x, y, alpha=-1),
    rsub=lambda x, y: torch.rsub(-x, y),
    negatives_added=lambda x, y: -(-x - y),
    negative_of_a_difference=lambda x, y: -(-y - x),
    scaled=lambda x, y: (3 * x + 3 * y) / 3,
    scaled_halves=lambda x, y: 2 * (x / 2 + y / 2),
    with_a_zero=lambda x, y: x + 0.0 + y,
    of_dropout=lambda x, y: x + F.dropout(y, 0.1, training=False),
    of_drop_path=lambda x, y: x + y * torch.ones(len(x), 1, 1, dtype=x.dtype),
    of_a_scale_of_ones=lambda x, y: x + torch.ones(x.shape[-1], dtype=x.dtype) * y,
    of_a_weight=lambda x, y: 1.0 * x + 1.0 * y,
    baddbmm=lambda x, y: torch.baddbmm(x, y, torch.eye(8, dtype=x.dtype).expand(len(x), -1, -1)),
    addmm=lambda x, y: torch.addmm(
        x.flatten(0, 1), y.flatten(0, 1), torch.eye(8, dtype=x.dtype)
    ).view_as(x),
    matmul_with_an_eye=lambda x, y: x + y @ torch.eye(8, dtype=x.dtype),
    identity_matrices_by_matmul=lambda x, y: torch.cat([x, y], -1) @ _eyes(x).T,
    bilinear_in_two=lambda x, y: torch.cat([x, y], 1).unflatten(1, (2, -1)).sum(1),
    complex=lambda x, y: (torch.complex(x, y) * (1 - 1j)).real,
    complex_parts=lambda x, y: (lambda z: z.real + z.imag)(torch.complex(x, y)),
    vmap=lambda x, y: torch.vmap(torch.add)(x, y),
    vmap_over_features=lambda x, y: torch.vmap(torch.add, -1, -1)(x, y),
    token_by_token=lambda x, y: torch.stack(
        [a + b for a, b in zip(x.unbind(1), y.unbind(1), strict=True)], 1
    ),
    features_apart=lambda x, y: torch.cat([x[..., :3] + y[..., :3], x[..., 3:] + y[..., 3:]], -1),
    written_in_two_steps=lambda x, y: _written(x, y),
    written_by_rows=lambda x, y: _by_rows(x, y),
    index_add=lambda x, y: x.index_add(1, torch.arange(x.shape[1]), y),
    index_add_alpha=lambda x, y: x.index_add(2, torch.arange(x.shape[2]), y / 2, alpha=2),
    scatter_add=lambda x, y: x.scatter_add(
        1, torch.arange(x.shape[1])[None, :, None].expand_as(x), y
    ),
    index_put=lambda x, y: x.index_put(
        (torch.arange(len(x))[:, None], torch.arange(x.shape[1])), y, accumulate=True
    ),
    differences_along_an_axis=lambda x, y: torch.stack([-x, y]).diff(dim=0)[0],
    trapezoid=lambda x, y: 2 * torch.trapezoid(torch.stack([x, y], -1), dim=-1),
    windows_summed=lambda x, y: torch.stack([x, y], 2).flatten(1, 2).unfold(1, 2, 2).sum(-1),
    masked_and_filled=lambda x, y: torch.where(_even(x), x, y) + torch.where(_even(x), y, x),
    in_another_order=lambda x, y: (
        (x.mT.flip(1).flatten(1) + y.mT.flip(1).flatten(1)).unflatten(1, (8, -1)).flip(1).mT
    ),
    where_always=lambda x, y: torch.where(torch.ones_like(x, dtype=torch.bool), x + y, x),
    transposed=lambda x, y: (x.mT + y.mT).mT,
    broadcast=lambda x, y: (x[:, None] + y[:, None]).squeeze(1),
    flattened=lambda x, y: (x.flatten() + y.flatten()).view_as(x),
    in_place_module=lambda x, y: nn.Identity()(x).clone().__iadd__(y),
)


spell(
    "residual",
    PLAIN,
    apart=OTHER_TERMS,
    differences=lambda x, y: x + (x + y) - x,
)
# Every sample's stream is added to every sample's change, and those of the same sample are kept.
spell(
    "residual",
    PLAIN,
    either=True,
    diagonal_of_all_pairs=lambda x, y: (x[:, None] + y).diagonal(dim1=0, dim2=1).movedim(-1, 0),
)


def _written(x, y):
    out = torch.empty_like(x)
    out[...] = x
    out += y
    return out


def _by_rows(x, y):
    out = torch.zeros_like(x)
    for i in range(x.shape[1]):
        out[:, i] = x[:, i] + y[:, i]
    return out


# Sum and projection in one operation: the stream is the first operand.


class _Fused(Block):
    """A block whose last projections add to the stream themselves."""

    def forward(self, x, allowed):
        x = self.written(x, self.mixed(self.norm1(x), allowed), self.attention.out)
        return self.written(x, self.inner(self.norm2(x)), self.mlp.down)

    def mixed(self, x, allowed):
        """What attention hands to its last projection."""
        at, parts = self.attention, self.parts
        return parts.join(parts.attend(parts, *parts.queries_keys_values(at, x), allowed))

    def inner(self, x):
        return self.parts.activation(self.mlp.up(x))


@spells("block", PLAIN)
class Baddbmm(_Fused):
    def written(self, x, y, layer):
        return torch.baddbmm(x, y, layer.weight.T.expand(len(x), -1, -1)) + layer.bias


@spells("block", PLAIN)
class BaddbmmOntoTheBias(_Fused):
    def written(self, x, y, layer):
        return torch.baddbmm(x + layer.bias, y, layer.weight.T.expand(len(x), -1, -1))


@spells("block", PLAIN)
class Addmm(_Fused):
    def written(self, x, y, layer):
        flat = torch.addmm(x.flatten(0, 1), y.flatten(0, 1), layer.weight.t())
        return flat.view_as(x) + layer.bias


@spells("block", PLAIN)
class BiasLast(_Fused):
    def written(self, x, y, layer):
        return x + F.linear(y, layer.weight) + layer.bias


@spells("block", PLAIN)
class BiasFirst(_Fused):
    def written(self, x, y, layer):
        return (x + layer.bias) + y @ layer.weight.T


@spells("block", PLAIN)
class StreamAmongTheInputs(_Fused):
    """One projection of stream and layer together, whose weight holds an eye."""

    def written(self, x, y, layer):
        weight = torch.cat([torch.eye(8, dtype=x.dtype), layer.weight], 1)
        return F.linear(torch.cat([x, y], -1), weight, layer.bias)


@spells("block", PLAIN)
class StreamBehindTheInputs(_Fused):
    """The same by a product, the stream last."""

    def written(self, x, y, layer):
        weight = torch.cat([layer.weight.T, torch.eye(8, dtype=x.dtype)])
        return torch.cat([y, x], -1) @ weight + layer.bias


@spells("block", PLAIN)
class HeadsAddedOneByOne(_Fused):
    """Every head's share of the last projection is added to the stream by itself."""

    def written(self, x, y, layer):
        shares = zip(y.chunk(2, -1), layer.weight.chunk(2, 1), strict=True)
        return x + (sum(F.linear(part, w) for part, w in shares) + layer.bias)


# The stream as a list of everything that was added to it.


@spells("blocks", PLAIN)
def list_of_all_summed_anew(layers, x, allowed):
    """Python's sum adds from the left, so the sums are those of the plain way."""
    added = [x]
    for layer in layers:
        added.append(layer.attention(layer.norm1(sum(added)), allowed))
        added.append(layer.mlp(layer.norm2(sum(added))))
    return sum(added)


@spells("blocks", PLAIN)
def stack_of_all_summed_anew(layers, x, allowed):
    """One sum of many terms where the plain way has sums of two, one inside the other."""
    added = [x]
    for layer in layers:
        added.append(layer.attention(layer.norm1(torch.stack(added).sum(0)), allowed))
        added.append(layer.mlp(layer.norm2(torch.stack(added).sum(0))))
    return torch.stack(added).sum(0)
