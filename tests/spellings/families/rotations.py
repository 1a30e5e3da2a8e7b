"""Rotary positions: features in halves or in pairs, in real or complex numbers, by matrices."""

import torch

from tests.spellings.bases import LLAMA, PAIRS
from tests.spellings.spelling import spell


def _half(x):
    """The second half of the features, turned, before the first."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def _both(angles):
    """Cosines and sines once per feature, halves one after the other."""
    whole = torch.cat((angles, angles), -1)
    return whole.cos(), whole.sin()


def _turns(angles):
    """cos + i sin."""
    return torch.polar(torch.ones_like(angles), angles)


def _matrices(angles):
    """A matrix of two by two per position and pair."""
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)


def _recomputed(x):
    """The angles anew, from positions and speeds."""
    speed = 1.0 / 10 ** (torch.arange(0, x.shape[-1], 2, dtype=x.dtype) / 2)
    return torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), speed)


def _llama(x, angles):
    cos, sin = _both(angles)
    return (x * cos) + (_half(x) * sin)


spell(
    "rotate",
    LLAMA,
    llama=_llama,
    llama_unsqueezed=lambda x, a: (
        x * _both(a)[0][None, None] + _half(x) * _both(a)[1].unsqueeze(0).unsqueeze(1)
    ),
    angles_computed=lambda x, a: _llama(x, _recomputed(x)),
    angles_by_einsum=lambda x, a: _llama(
        x, torch.einsum("n,d->nd", torch.arange(len(a)).to(a), a[1])
    ),
    halves_by_chunk=lambda x, a: _by_halves(*x.chunk(2, -1), a),
    halves_by_slices=lambda x, a: _by_halves(x[..., :2], x[..., 2:], a),
    halves_by_split=lambda x, a: _by_halves(*x.split(2, -1), a),
    halves_by_view=lambda x, a: _by_halves(*x.unflatten(-1, (2, -1)).unbind(-2), a),
    halves_by_index=lambda x, a: _by_halves(x[..., [0, 1]], x[..., [2, 3]], a),
    half_by_roll=lambda x, a: (
        x * _both(a)[0] + x.roll(2, -1) * torch.tensor([-1.0, -1, 1, 1]).to(x) * _both(a)[1]
    ),
    half_by_stack=lambda x, a: (
        x * _both(a)[0] + torch.stack([-x[..., 2:], x[..., :2]], -2).flatten(-2) * _both(a)[1]
    ),
    half_by_matmul=lambda x, a: (
        x * _both(a)[0] + x @ torch.eye(4, dtype=x.dtype).roll(2, 1).mul(_signs(x)) * _both(a)[1]
    ),
    half_by_flip=lambda x, a: (
        x * _both(a)[0] + x.unflatten(-1, (2, -1)).flip(-2).flatten(-2) * _signs(x) * _both(a)[1]
    ),
    stacked=lambda x, a: _stacked_halves(x, a),
    complex=lambda x, a: _joined(torch.complex(*x.chunk(2, -1)) * _turns(a)),
    complex_by_exp=lambda x, a: _joined(torch.complex(*x.chunk(2, -1)) * torch.exp(1j * a)),
    complex_by_view=lambda x, a: torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (2, -1)).mT.contiguous()) * _turns(a)
    ).mT.flatten(-2),
    matrices=lambda x, a: (
        (_matrices(a) @ x.unflatten(-1, (2, -1)).mT[..., None]).squeeze(-1).mT.flatten(-2)
    ),
    matrices_by_einsum=lambda x, a: torch.einsum(
        "npij,bhnjp->bhnip", _matrices(a), x.unflatten(-1, (2, -1))
    ).flatten(-2),
    one_matrix_per_position=lambda x, a: _by_large_matrices(x, a),
    in_place=lambda x, a: _rotated_in_place(x, a),
    into_slices=lambda x, a: _into_slices(x, a),
    token_by_token=lambda x, a: torch.stack(
        [_llama(x[:, :, i], a[i]) for i in range(x.shape[2])], 2
    ),
    head_by_head=lambda x, a: torch.stack([_llama(h, a) for h in x.unbind(1)], 1),
    addcmul=lambda x, a: torch.addcmul(x * _both(a)[0], _half(x), _both(a)[1]),
    vmap=lambda x, a: torch.vmap(lambda s: _llama(s, a))(x),
    features_first=lambda x, a: (x.mT * _both(a)[0].T + _half(x).mT * _both(a)[1].T).mT,
    some_features_unturned=lambda x, a: torch.cat([_llama(x, a), x[..., :0]], -1),
    sines_as_shifted_cosines=lambda x, a: (
        x * _both(a)[0] + _half(x) * (torch.cat([a, a], -1) - torch.pi / 2).cos()
    ),
)


def _signs(x):
    return torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=x.dtype)


def _by_halves(x, y, angles):
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([x * cos - y * sin, y * cos + x * sin], -1)


def _stacked_halves(x, angles):
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, -1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -2).reshape(x.shape)


def _joined(z):
    return torch.cat([z.real, z.imag], -1)


def _by_large_matrices(x, angles):
    """One matrix of the width of a head per position, as RoFormer's paper writes it."""
    rows = torch.stack([torch.block_diag(*m) for m in _matrices(angles)])
    order = torch.tensor([0, 2, 1, 3])
    return torch.einsum("nij,bhnj->bhni", rows[:, order][..., order], x)


def _rotated_in_place(x, angles):
    cos, sin = _both(angles)
    out = x * cos
    out += _half(x) * sin
    return out


def _into_slices(x, angles):
    cos, sin = angles.cos(), angles.sin()
    out = torch.empty_like(x)
    out[..., :2] = x[..., :2] * cos - x[..., 2:] * sin
    out[..., 2:] = x[..., :2] * sin + x[..., 2:] * cos
    return out


def _neighbours(x):
    return x.unflatten(-1, (-1, 2))


spell(
    "rotate",
    PAIRS,
    complex=lambda x, a: torch.view_as_real(
        torch.view_as_complex(_neighbours(x).contiguous()) * _turns(a)
    ).flatten(-2),
    complex_as_llama=lambda x, a: (
        torch.view_as_real(
            torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2)) * _turns(a)[None, None]
        )
        .flatten(3)
        .type_as(x)
    ),
    complex_by_parts=lambda x, a: (lambda z: torch.stack([z.real, z.imag], -1).flatten(-2))(
        torch.complex(x[..., ::2], x[..., 1::2]) * torch.complex(a.cos(), a.sin())
    ),
    complex_by_exp=lambda x, a: torch.view_as_real(
        torch.view_as_complex(_neighbours(x).contiguous()) * (1j * a).exp()
    ).flatten(-2),
    complex_by_einsum=lambda x, a: torch.view_as_real(
        torch.einsum("bhnp,np->bhnp", torch.view_as_complex(_neighbours(x).contiguous()), _turns(a))
    ).flatten(-2),
    rotate_every_two=lambda x, a: (
        x * a.cos().repeat_interleave(2, -1)
        + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        * a.sin().repeat_interleave(2, -1)
    ),
    rotate_every_two_by_view=lambda x, a: (
        x * torch.stack([a, a], -1).flatten(-2).cos()
        + torch.stack((-_neighbours(x)[..., 1], _neighbours(x)[..., 0]), -1).view_as(x)
        * torch.stack([a, a], -1).flatten(-2).sin()
    ),
    unbound=lambda x, a: _pair(*_neighbours(x).unbind(-1), a),
    split=lambda x, a: _pair(*(t[..., 0] for t in _neighbours(x).split(1, -1)), a),
    indexed=lambda x, a: _pair(x[..., torch.arange(0, 4, 2)], x[..., torch.arange(1, 4, 2)], a),
    matrices=lambda x, a: (_matrices(a) @ _neighbours(x)[..., None])[..., 0].flatten(-2),
    matrices_by_einsum=lambda x, a: torch.einsum(
        "npij,bhnpj->bhnpi", _matrices(a), _neighbours(x)
    ).flatten(-2),
    matrices_product_and_sum=lambda x, a: (
        (_matrices(a) * _neighbours(x)[..., None, :]).sum(-1).flatten(-2)
    ),
    one_matrix_per_position=lambda x, a: torch.einsum(
        "nij,bhnj->bhni", torch.stack([torch.block_diag(*m) for m in _matrices(a)]), x
    ),
    one_matrix_by_matmul=lambda x, a: (
        torch.stack([torch.block_diag(*m) for m in _matrices(a)]) @ x[..., None]
    ).squeeze(-1),
    into_slices=lambda x, a: _into_steps(x, a),
    in_place=lambda x, a: _turned_in_place(x, a),
    halves_of_reordered=lambda x, a: _by_halves(x[..., ::2], x[..., 1::2], a)[..., [0, 2, 1, 3]],
    token_by_token=lambda x, a: torch.stack(
        [_pair(x[:, :, i, ::2], x[:, :, i, 1::2], a[i]) for i in range(x.shape[2])], 2
    ),
    cache_of_both=lambda x, a: _from_cache(x, torch.stack([a.cos(), a.sin()], -1)),
    vmap=lambda x, a: torch.vmap(torch.vmap(lambda s: _pair(s[..., ::2], s[..., 1::2], a)))(x),
)


def _pair(x, y, angles):
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1).flatten(-2)


def _from_cache(x, cache):
    """As torchtune: cosines and sines from one table."""
    x = _neighbours(x)
    return torch.stack(
        [
            x[..., 0] * cache[..., 0] - x[..., 1] * cache[..., 1],
            x[..., 1] * cache[..., 0] + x[..., 0] * cache[..., 1],
        ],
        -1,
    ).flatten(3)


def _into_steps(x, angles):
    cos, sin = angles.cos(), angles.sin()
    out = torch.zeros_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def _turned_in_place(x, angles):
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    out = x.clone().mul_(angles.cos().repeat_interleave(2, -1))
    return out.addcmul_(turned, angles.sin().repeat_interleave(2, -1))
