"""In-place writes: into zeros and empty tensors, through every view, by every operation. What is
written is always the sum of tokens and positions."""

import torch

from tests.spellings.bases import PLAIN, START
from tests.spellings.model import TOKENS, WIDTH
from tests.spellings.spelling import spell, spells


def _through(view):
    """Zeros that are written through ``view``."""

    def way(x, t):
        out = torch.zeros_like(x)
        view(out).copy_(view(x + t))
        return out

    return way


def _added_through(view):
    """Positions added in place, through ``view`` of a copy."""

    def way(x, t):
        out = x.clone()
        seen = view(out)
        seen += view(t.expand_as(x))
        return out

    return way


def _blocks(t):
    return t.view(len(t), TOKENS, 2, WIDTH // 2)


VIEWS = {
    "transpose": lambda t: t.transpose(1, 2),
    "transpose_of_samples": lambda t: t.transpose(0, 1),
    "swapaxes": lambda t: t.swapaxes(-1, -2),
    "swapdims": lambda t: t.swapdims(1, 2),
    "movedim": lambda t: t.movedim(-1, 0),
    "moveaxis": lambda t: torch.moveaxis(t, 0, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "mT": lambda t: t.mT,
    "mH": lambda t: t.mH,
    "adjoint": lambda t: t.adjoint(),
    "flatten": lambda t: t.flatten(1),
    "ravel": lambda t: t.contiguous().ravel(),
    "view": lambda t: t.contiguous().view(len(t), -1),
    "view_as": lambda t: t.contiguous().view_as(t),
    "reshape": lambda t: t.reshape(-1, WIDTH),
    "unflatten": lambda t: t.unflatten(-1, (2, -1)),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t[:, None].squeeze(1),
    "squeeze_of_all": lambda t: t[:, :, None, :, None].squeeze((2, 4)),
    "slice_of_everything": lambda t: t[:],
    "ellipsis": lambda t: t[..., :],
    "none": lambda t: t[:, None, :],
    "select": lambda t: _blocks(t).select(2, 0),
    "narrow": lambda t: t.narrow(1, 0, TOKENS),
    "alias": lambda t: torch.ops.aten.alias(t),
    "as_strided": lambda t: t.contiguous().as_strided((len(t), 40), (40, 1)),
    "unfold": lambda t: t.unfold(-1, 2, 2),
    "unfold_of_tokens": lambda t: t.unfold(1, 1, 1),
    "view_of_a_transpose": lambda t: t.transpose(1, 2).unflatten(1, (2, -1)),
    "slice_of_a_permute": lambda t: t.permute(1, 0, 2)[0:TOKENS],
    "views_of_views": lambda t: t.unsqueeze(0).mT.movedim(0, -1).flatten(-2).permute(0, 2, 1),
    "atleast_3d": lambda t: torch.atleast_3d(t),
    "expand_as_itself": lambda t: t.expand_as(t),
    "t_of_the_flattened": lambda t: t.flatten(1).t(),
    "as_real_of_complex": lambda t: torch.view_as_real(
        torch.view_as_complex(t.unflatten(-1, (-1, 2)))
    ),
}

WHOLE = {n: v for n, v in VIEWS.items() if n != "select"}
spell("position", PLAIN, **{f"copied_through_{n}": _through(v) for n, v in WHOLE.items()})
spell("position", PLAIN, **{f"added_through_{n}": _added_through(v) for n, v in WHOLE.items()})


# Views of parts, each taken when it is written.


def _parts(pieces, into=torch.zeros_like):
    """A buffer that is written part by part: ``pieces`` yields views of equal places."""

    def way(x, t):
        out, whole = into(x), x + t
        for place, part in zip(pieces(out), pieces(whole), strict=True):
            place.copy_(part)
        return out

    return way


PIECES = {
    "tokens_by_index": lambda t: (t[:, i] for i in range(TOKENS)),
    "tokens_by_negative_index": lambda t: (t[:, -i] for i in range(1, TOKENS + 1)),
    "tokens_by_slice": lambda t: (t[:, i : i + 1] for i in range(TOKENS)),
    "tokens_by_select": lambda t: (t.select(1, i) for i in range(TOKENS)),
    "tokens_by_narrow": lambda t: (t.narrow(1, i, 1) for i in range(TOKENS)),
    "features_by_index": lambda t: (t[..., i] for i in range(WIDTH)),
    "features_by_slice": lambda t: (t[..., i] for i in (slice(3), slice(3, None))),
    "features_by_steps": lambda t: (t[..., i::2] for i in range(2)),
    "features_of_columns": lambda t: (t.mT[:, i] for i in range(WIDTH)),
    "samples_by_index": lambda t: (t[i] for i in range(len(t))),
    "samples_and_tokens": lambda t: (t[i, j] for i in range(len(t)) for j in range(TOKENS)),
    "chained_indices": lambda t: (t[i][j] for i in range(len(t)) for j in range(TOKENS)),
    "single_numbers": lambda t: (t[:, i, j] for i in range(TOKENS) for j in range(WIDTH)),
    "blocks": lambda t: (_blocks(t)[:, :, i] for i in range(2)),
    "selects_of_blocks": lambda t: (_blocks(t).select(2, i) for i in range(2)),
    "squares": lambda t: (
        t[:, a, b] for a in (slice(2), slice(2, 5)) for b in (slice(4), slice(4, 8))
    ),
    "diagonals": lambda t: (t.diagonal(i, 1, 2) for i in range(1 - TOKENS, WIDTH)),
    "windows": lambda t: (t.unfold(-1, 2, 2)[:, :, i] for i in range(4)),
    "tokens_of_a_transpose": lambda t: (t.transpose(0, 1)[i] for i in range(TOKENS)),
    "rows_of_the_flattened": lambda t: (t.flatten(1)[:, 8 * i : 8 * i + 8] for i in range(TOKENS)),
}
spell("position", PLAIN, **{f"pieces_{n}": _parts(p) for n, p in PIECES.items()})
spell(
    "position",
    PLAIN,
    **{
        f"empty_{n}": _parts(PIECES[n], torch.empty_like)
        for n in ("tokens_by_index", "features_by_slice", "blocks", "diagonals")
    },
)

# PyTorch has no derivative of a write into one of several views, or one that is older than another
# write.
spell(
    "position",
    PLAIN,
    inference=True,
    **{
        f"pieces_{name}": _parts(pieces)
        for name, pieces in {
            "chunk": lambda t: t.chunk(3, 1),
            "chunk_of_features": lambda t: t.chunk(2, -1),
            "split": lambda t: t.split(2, 1),
            "split_of_sizes": lambda t: t.split([1, 4], 1),
            "split_of_features": lambda t: torch.split(t, [3, 3, 2], dim=-1),
            "tensor_split": lambda t: torch.tensor_split(t, 3, 1),
            "tensor_split_at": lambda t: torch.tensor_split(t, [1, 3], dim=2),
            "hsplit": lambda t: torch.hsplit(t, [2]),
            "dsplit": lambda t: torch.dsplit(t, 4),
            "unbind": lambda t: t.unbind(1),
            "unbind_of_features": lambda t: torch.unbind(t, -1),
            "unpacked": lambda t: list(t.transpose(0, 1)),
            "tokens_all_views_first": lambda t: [t[:, i] for i in range(TOKENS)],
            "features_all_views_first": lambda t: [t[..., i::2] for i in range(2)],
        }.items()
    },
)

# PyTorch's own gradient of a write into an unsafe chunk leaves the write out.
spell(
    "position",
    PLAIN,
    either=True,
    inference=True,
    pieces_unsafe_chunk=_parts(lambda t: torch.unsafe_chunk(t, 2, -1)),
)


# Every operation that writes.


def _order(x):
    return torch.arange(x.shape[1])


def _where(x):
    """The index of every place along the tokens."""
    return _order(x)[:, None].expand_as(x)


def _even(x):
    return _order(x) % 2 == 0


spell(
    "position",
    PLAIN,
    add=lambda x, t: x.clone().add_(t),
    add_alpha=lambda x, t: x.clone().add_(t / 2, alpha=2),
    sub=lambda x, t: x.clone().sub_(-t),
    mul_and_div=lambda x, t: (x + t).mul_(2).div_(2),
    fill_and_add=lambda x, t: torch.empty_like(x).fill_(0).add_(x).add_(t),
    zero_and_add=lambda x, t: x.clone().zero_().add_(x + t),
    addcmul=lambda x, t: x.clone().addcmul_(t, torch.ones_like(t)),
    addcdiv=lambda x, t: x.clone().addcdiv_(t, torch.ones_like(t)),
    lerp=lambda x, t: x.clone().lerp_(x + 2 * t, 0.5),
    baddbmm=lambda x, t: x.clone().baddbmm_(
        torch.eye(TOKENS, dtype=x.dtype).expand(len(x), -1, -1), t.expand(len(x), -1, -1)
    ),
    index_copy=lambda x, t: torch.zeros_like(x).index_copy_(1, _order(x), x + t),
    index_copy_of_features=lambda x, t: torch.empty_like(x).index_copy_(
        2, torch.arange(WIDTH), x + t
    ),
    index_add=lambda x, t: x.clone().index_add_(1, _order(x), t.repeat(len(x), 1, 1)),
    index_add_onto_zeros=lambda x, t: torch.zeros_like(x).index_add_(1, _order(x), x + t),
    index_fill=lambda x, t: x.clone().index_fill_(1, _order(x), 0.0).add_(x + t),
    scatter=lambda x, t: torch.zeros_like(x).scatter_(1, _where(x), x + t),
    scatter_add=lambda x, t: x.clone().scatter_add_(1, _where(x), t.expand_as(x)),
    scatter_reduce=lambda x, t: x.clone().scatter_reduce_(1, _where(x), t.expand_as(x), "sum"),
    masked_fill=lambda x, t: (x + t).masked_fill_(torch.zeros(TOKENS, 1).bool(), 7.0),
    masked_fill_and_add=lambda x, t: (x.masked_fill(_even(x)[:, None], 0)).add_(
        x * _even(x)[:, None] + t
    ),
    masked_scatter=lambda x, t: torch.zeros_like(x).masked_scatter_(
        torch.ones_like(x, dtype=torch.bool), x + t
    ),
    index_put=lambda x, t: torch.zeros_like(x).index_put_(
        (torch.arange(len(x))[:, None], _order(x)), x + t
    ),
    index_put_accumulate=lambda x, t: x.clone().index_put_(
        (torch.arange(len(x))[:, None], _order(x)), t.expand_as(x), accumulate=True
    ),
    index_put_accumulate_of_tokens=lambda x, t: (
        x.transpose(0, 1)
        .clone()
        .index_put_((_order(x),), t[:, None].expand(-1, len(x), -1), accumulate=True)
        .transpose(0, 1)
    ),
    put_accumulated=lambda x, t: x.clone().put_(
        torch.arange(x.numel()).view_as(x), t.expand_as(x).contiguous(), accumulate=True
    ),
    powers=lambda x, t: (x + t).pow_(1).float_power_(1.0),
    t_of_each=lambda x, t: torch.stack([(a + t).mT.contiguous().t_() for a in x]),
    swapped=lambda x, t: (x + t).mT.contiguous().swapaxes_(1, 2),
    put=lambda x, t: torch.zeros_like(x).put_(torch.arange(x.numel()).view_as(x), x + t),
    relu_of_both_signs=lambda x, t: (x + t).relu_().clone().sub_((-x - t).relu_()),
    neg_twice=lambda x, t: (x + t).neg_().neg_(),
    exp_and_log=lambda x, t: (x + t).exp_().clone().log_(),
    clamp=lambda x, t: (x + t).clamp_(-1e9, 1e9),
    transpose=lambda x, t: (x + t).mT.contiguous().transpose_(1, 2),
    unsqueeze=lambda x, t: (x + t).unsqueeze_(1).squeeze_(1),
)


@spells("position", PLAIN)
def one_feature_more_and_less(x, t):
    y = x + t
    y[..., 0] += 1
    y[..., 0] -= 1
    return y


@spells("position", PLAIN)
def one_token_scaled(x, t):
    y = x + t
    y[:, 0] *= 2
    y[:, 0] /= 2
    return y


@spells("position", PLAIN)
def features_one_by_one(x, t):
    y = x.clone()
    for i in range(WIDTH):
        y[..., i] += t[:, i]
    return y


@spells("position", PLAIN)
def tokens_by_a_list(x, t):
    y = torch.zeros_like(x)
    y[:, [0, 2, 4]] = x[:, [0, 2, 4]] + t[[0, 2, 4]]
    y[:, [3, 1]] = x[:, [3, 1]] + t[[3, 1]]
    return y


@spells("position", PLAIN)
def tokens_by_a_tensor(x, t):
    y = torch.zeros_like(x)
    order = torch.tensor([4, 2, 0, 1, 3])
    y[:, order] = x[:, order] + t[order]
    return y


@spells("position", PLAIN)
def tokens_added_by_a_tensor(x, t):
    y = x.clone()
    y[:, torch.tensor([4, 2, 0, 1, 3])] += t[torch.tensor([4, 2, 0, 1, 3])]
    return y


@spells("position", PLAIN)
def tokens_by_a_mask(x, t):
    y = torch.zeros_like(x)
    for mask in (_even(x), ~_even(x)):
        y[:, mask] = x[:, mask] + t[mask]
    return y


@spells("position", PLAIN)
def places_by_a_mask(x, t):
    y, mask = x + t, torch.zeros(TOKENS, WIDTH, dtype=torch.bool)
    y[:, mask] = 0
    return y


@spells("position", PLAIN)
def every_second_token(x, t):
    y = torch.empty_like(x)
    y[:, ::2] = x[:, ::2] + t[::2]
    y[:, 1::2] = x[:, 1::2] + t[1::2]
    return y


@spells("position", PLAIN)
def written_twice(x, t):
    """What is written first is written over."""
    y = torch.zeros_like(x)
    y[:, :3] = 5.0
    y[:, :3] = x[:, :3]
    y[:, 2:] = x[:, 2:]
    y += t
    return y


@spells("position", PLAIN)
def seen_by_an_older_view(x, t):
    """A view taken before the write sees it."""
    y = x.clone()
    seen = y.transpose(1, 2)
    y += t
    return seen.transpose(1, 2)


@spells("position", PLAIN)
def written_through_two_views(x, t):
    y = x.clone()
    top, left = y[:, :2], y[..., :4]
    top += t[:2]
    left[:, 2:] += t[2:, :4]
    y[:, 2:, 4:] += t[2:, 4:]
    return y


@spells("position", PLAIN)
def a_copy_is_not_written(x, t):
    """A copy made before a write keeps what was there."""
    y = x + t
    kept = y.clone()
    y.zero_()
    return kept + y


@spells("position", PLAIN)
def a_reshape_that_copies(x, t):
    """The reshape of a transposed tensor is a copy: writing to it changes nothing."""
    y = x + t
    y.transpose(1, 2).reshape(len(x), -1).zero_()
    return y


@spells("position", PLAIN)
def two_tokens_exchanged(x, t):
    y = x + t
    for _ in range(2):
        first = y[:, 0].clone()
        y[:, 0] = y[:, 4]
        y[:, 4] = first
    return y


@spells("position", PLAIN)
def running_sums_undone(x, t):
    """Each token is added to the next, in place, and taken off again from behind."""
    y = x + t
    for i in range(1, TOKENS):
        y[:, i] += y[:, i - 1].clone()
    for i in reversed(range(1, TOKENS)):
        y[:, i] -= y[:, i - 1].clone()
    return y


@spells("position", PLAIN)
def a_buffer_that_is_longer(x, t):
    """As caches are: allocated for more than is there, written from the front, cut."""
    cache = torch.zeros(len(x), 16, WIDTH, dtype=x.dtype)
    cache[:, :TOKENS] = x + t
    return cache[:, :TOKENS]


@spells("position", PLAIN)
def a_buffer_at_an_offset(x, t):
    cache = torch.full((len(x), 16, WIDTH), 3.0, dtype=x.dtype)
    cache[:, 4 : 4 + TOKENS] = x
    cache[:, 4 : 4 + TOKENS] += t
    return cache[:, 4:9]


@spells("position", PLAIN)
def samples_into_a_list_of_buffers(x, t):
    rows = [torch.zeros_like(s) for s in x]
    for row, s in zip(rows, x, strict=True):
        row.copy_(s).add_(t)
    return torch.stack(rows)


@spells("position", PLAIN)
def a_row_at_an_index_tensor(x, t):
    """The index is a tensor without axes, as ``cache_position`` is."""
    y = torch.zeros_like(x)
    for i in torch.arange(TOKENS):
        y[:, i] = x[:, i] + t[i]
    return y


@spells("position", PLAIN)
def slices_of_positions(x, t):
    y = torch.zeros_like(x)
    for i in range(TOKENS):
        y.narrow(1, i, 1).add_(x.narrow(1, i, 1)).add_(t.narrow(0, i, 1))
    return y


@spells("position", PLAIN)
def imaginary_part(x, t):
    """Written into the imaginary part of complex zeros."""
    z = torch.zeros(x.shape, dtype=torch.complex128)
    z.imag = x + t
    return z.imag


@spells("position", PLAIN)
def real_and_imaginary_parts(x, t):
    """Halves of the features as the parts of complex numbers, written one after the other."""
    y = (x + t).unflatten(-1, (2, -1))
    z = torch.zeros(y[..., 0, :].shape, dtype=torch.complex128)
    z.real += y[..., 0, :]
    z.imag.copy_(y[..., 1, :])
    z.real[:, 0] *= 2
    z.real[:, 0] /= 2
    return torch.cat([z.real, z.imag], -1)


@spells("position", PLAIN)
def turned_in_place(x, t):
    """Read as complex numbers, turned a quarter to and fro; what was read sees it."""
    y = (x + t).unflatten(-1, (-1, 2))
    z = torch.view_as_complex(y)
    z *= 1j
    z.mul_(-1j)
    return y.flatten(-2)


@spells("position", PLAIN)
def added_through_a_conjugate(x, t):
    y = x.clone().unflatten(-1, (-1, 2))
    torch.view_as_complex(y).conj().add_(torch.view_as_complex(t.unflatten(-1, (-1, 2))).conj())
    return y.flatten(-2)


@spells("position", PLAIN)
def slices_at_index_tensors(x, t):
    """A run of positions that begins where a tensor says."""
    y = torch.zeros_like(x)
    for i in torch.tensor([0, 2, 4]):
        y[:, i : i + 2] = x[:, i : i + 2] + t[i : i + 2]
    return y


@spells("position", PLAIN)
def scatters_of_slices(x, t):
    y = torch.zeros_like(x)
    y = torch.slice_scatter(y, x[:, :2] + t[:2], 1, 0, 2)
    y = torch.slice_scatter(y, x[:, 2:4] + t[2:4], 1, 2, 4)
    return torch.select_scatter(y, x[:, 4] + t[4], 1, 4)


@spells("position", PLAIN)
def scatters_of_diagonals(x, t):
    y = x + t
    return torch.diagonal_scatter(y, y.diagonal(0, 1, 2) * 1, 0, 1, 2)


# A class token and its tokens, where a whole and its parts are read after the writes.


@spells("begin", START)
def read_between_writes(x, c):
    out = x.new_zeros(len(x), TOKENS + 1, WIDTH)
    out[:, 1:] = x
    mean = out.mean()
    out[:, 0] = c + (mean - mean)
    return out


@spells("begin", START)
def less_itself(x, c):
    out = torch.cat([c.expand(len(x), -1, -1), x], 1)
    top = out.amax()
    return out + torch.sub(top, top)


@spells("begin", START)
def written_from_behind(x, c):
    out = torch.zeros(len(x), WIDTH, TOKENS + 1, dtype=x.dtype).transpose(1, 2)
    out[:, 1:].copy_(x)
    out[:, :1].copy_(c)
    return out


# The stream itself, written by every layer.


@spells("blocks", PLAIN)
def stream_in_place(layers, x, allowed):
    x = x.clone()
    for layer in layers:
        x += layer.attention(layer.norm1(x.clone()), allowed)
        x += layer.mlp(layer.norm2(x.clone()))
    return x


@spells("blocks", PLAIN, inference=True)
def stream_in_place_without_copies(layers, x, allowed):
    for layer in layers:
        x += layer.attention(layer.norm1(x), allowed)
        x += layer.mlp(layer.norm2(x))
    return x


@spells("blocks", PLAIN)
def stream_written_by_token(layers, x, allowed):
    x = x.clone()
    for layer in layers:
        change = layer.attention(layer.norm1(x.clone()), allowed)
        for i in range(TOKENS):
            x[:, i] += change[:, i]
        x[:, :] += layer.mlp(layer.norm2(x.clone()))
    return x


@spells("blocks", PLAIN)
def streams_of_all_layers_in_one_buffer(layers, x, allowed):
    """As hidden states are collected: one tensor with an axis for layers."""
    states = x.new_zeros(len(layers) + 1, *x.shape)
    states[0] = x
    for i, layer in enumerate(layers):
        states[i + 1] = layer(states[i].clone(), allowed)
    return states[-1]
