"""What depends on values: real tokens picked out and put back, ids read in Python, experts that see
only their tokens. The answer has to be right for every sample, or refused; it may not be that of
the sample the model was captured with."""

import torch
from torch.nn import functional as F

from tests.spellings.bases import EXPERTS, IDS, PADDED, PLAIN, THRESHOLDED
from tests.spellings.model import WIDTH
from tests.spellings.model import blocks as plain
from tests.spellings.model import mlp as plain_mlp
from tests.spellings.spelling import OTHER_MAP, spell, spells

# Ids that leave the graph.

spell(
    "embed",
    IDS,
    PADDED,
    either=True,
    ids_in_lists=lambda ids, w: torch.stack(
        [torch.stack([w[i] for i in row]) for row in ids.tolist()]
    ),
    ids_by_item=lambda ids, w: torch.stack(
        [torch.stack([w[i.item()] for i in row]) for row in ids]
    ),
    ids_by_numpy=lambda ids, w: w[torch.from_numpy(ids.numpy().copy())],
    ids_made_unique=lambda ids, w: (lambda found, inverse: w[found][inverse])(
        *ids.unique(return_inverse=True)
    ),
    ids_sorted=lambda ids, w: (
        lambda found: w[found.values].gather(
            1, found.indices.argsort(1)[..., None].expand(-1, -1, WIDTH)
        )
    )(ids.sort(1)),
    ids_counted=lambda ids, w: torch.stack(
        [
            torch.stack([torch.bincount(i[None], minlength=len(w)).to(w.dtype) @ w for i in s])
            for s in ids
        ]
    ),
    words_of_a_dict=lambda ids, w: _words(ids, w),
    masks_that_are_skipped=lambda ids, w: _skipped(ids, w),
    nonzero=lambda ids, w: _found(ids, w),
)


def _words(ids, w):
    table = dict(enumerate(w))
    return torch.stack([torch.stack([table[int(i)] for i in row]) for row in ids])


def _skipped(ids, w):
    """Only words that occur are looked up."""
    out = w.new_zeros(*ids.shape, WIDTH)
    for i in range(len(w)):
        mask = ids == i
        if mask.any():
            out = torch.where(mask[..., None], w[i], out)
    return out


def _found(ids, w):
    """The places of every word, found and written."""
    out = w.new_zeros(*ids.shape, WIDTH)
    for i in range(len(w)):
        rows, columns = torch.where(ids == i)
        out[rows, columns] = w[i]
    return out


# Padding that is left out.


def _lengths(kept):
    return kept.sum(1).tolist()


spell(
    "pool",
    PADDED,
    either=True,
    lengths_in_python=lambda x, m: torch.stack(
        [s[:n].mean(0) for s, n in zip(x, _lengths(m), strict=True)]
    ),
    lengths_by_item=lambda x, m: torch.stack(
        [x[i, : m[i].sum().item()].sum(0) / m[i].sum() for i in range(len(x))]
    ),
    picked=lambda x, m: torch.stack([s[k].mean(0) for s, k in zip(x, m, strict=True)]),
    picked_by_nonzero=lambda x, m: torch.stack(
        [s[k.nonzero()[:, 0]].mean(0) for s, k in zip(x, m, strict=True)]
    ),
    picked_by_masked_select=lambda x, m: torch.stack(
        [s.masked_select(k[:, None]).view(-1, WIDTH).mean(0) for s, k in zip(x, m, strict=True)]
    ),
    picked_from_all=lambda x, m: _from_all(x, m),
    split_by_lengths=lambda x, m: torch.stack([p.mean(0) for p in x[m].split(_lengths(m))]),
    picked_in_one_row=lambda x, m: torch.stack(
        [x[i : i + 1][m[i : i + 1]].sum(0) / m[i].sum() for i in range(len(x))]
    ),
    picked_and_convolved=lambda x, m: torch.stack(
        [F.avg_pool1d(s[k].T, int(k.sum()))[:, 0] for s, k in zip(x, m, strict=True)]
    ),
    picked_and_counted=lambda x, m: torch.stack(
        [s[k].sum(0) / len(s[k]) for s, k in zip(x, m, strict=True)]
    ),
    picked_and_multiplied=lambda x, m: torch.stack(
        [(x.new_ones(1, int(k.sum())) @ s[k])[0] / k.sum() for s, k in zip(x, m, strict=True)]
    ),
    picked_and_summed_up=lambda x, m: torch.stack(
        [s[k].cumsum(0)[-1] / k.sum() for s, k in zip(x, m, strict=True)]
    ),
    a_branch_without_padding=lambda x, m: (
        x.mean(1) if bool(m.all()) else (x * m[..., None]).sum(1) / m.sum(1, keepdim=True)
    ),
)


def _from_all(x, m):
    """The real tokens of all samples in one row, and sums by sample."""
    rows = torch.where(m)[0]
    return x.new_zeros(len(x), WIDTH).index_add(0, rows, x[m]) / m.sum(1, keepdim=True)


spell(
    "pool",
    PADDED,
    lengths_as_a_mask=lambda x, m: (
        (x * (torch.arange(x.shape[1]) < m.sum(1, keepdim=True))[..., None]).sum(1)
        / m.sum(1, keepdim=True)
    ),
    sums_up_to_the_last=lambda x, m: (
        x.cumsum(1).gather(1, (m.sum(1) - 1)[:, None, None].expand(-1, 1, WIDTH))[:, 0]
        / m.sum(1, keepdim=True)
    ),
    sums_up_to_the_last_by_index=lambda x, m: (
        x.cumsum(1)[torch.arange(len(x)), m.sum(1) - 1] / m.sum(1)[:, None]
    ),
)


@spells("blocks", PADDED, either=True, apart=OTHER_MAP)
def samples_without_their_padding(layers, x, allowed):
    """Each sample is cut to its length, goes through alone, and is padded again."""
    lengths = allowed[:, 0, 0].sum(1).tolist()
    out = [plain(layers, s[None, :n], None)[0] for s, n in zip(x, lengths, strict=True)]
    padded = [F.pad(s, (0, 0, 0, x.shape[1] - len(s))) for s in out]
    return torch.stack(padded)


@spells("blocks", PADDED, either=True, apart=OTHER_MAP)
def cut_to_the_longest(layers, x, allowed):
    longest = int(allowed[:, 0, 0].sum(1).max())
    y = plain(layers, x[:, :longest], allowed[..., :longest])
    return F.pad(y, (0, 0, 0, x.shape[1] - longest))


# Values that are compared, or decide what runs.

spell(
    "blocks",
    PLAIN,
    either=True,
    allclose=lambda ls, x, m: x if torch.allclose(plain(ls, x, m), x) else plain(ls, x, m),
    equal=lambda ls, x, m: plain(ls, x, m) if not torch.equal(x, x + 1) else x,
    sum_is_positive=lambda ls, x, m: plain(ls, x, m) if x.sum() > -1e9 else x,
    first_value=lambda ls, x, m: (
        plain(ls, x * 2, m) if x[0, 0, 0].item() > 1e9 else plain(ls, x, m)
    ),
    sign_of_every_sample=lambda ls, x, m: torch.cat(
        [plain(ls, s[None], m) if s.sum() > 0 else plain(ls, 1 * s[None], m) for s in x]
    ),
)

spell(
    "weigh",
    THRESHOLDED,
    either=True,
    picked_and_put_back=lambda a: torch.zeros_like(a).masked_scatter(a > 0.15, a[a > 0.15]),
    index_put_of_the_picked=lambda a: torch.zeros_like(a).index_put((a > 0.15,), a[a > 0.15]),
    places_found=lambda a: torch.zeros_like(a).index_put(
        torch.where(a > 0.15), a[torch.where(a > 0.15)]
    ),
    sparse=lambda a: torch.where(a > 0.15, a, 0).to_sparse().to_dense(),
)


# Experts.


def _shares(at, x):
    shares = at.router(x).softmax(-1)
    return (shares, *shares.max(-1))


@spells("experts", EXPERTS)
def all_stacked_and_gathered(at, x):
    _, share, top = _shares(at, x)
    outs = torch.stack([e(x) for e in at.experts], 2)
    own = outs.gather(2, top[..., None, None].expand(-1, -1, 1, WIDTH)).squeeze(2)
    return own * share[..., None]


@spells("experts", EXPERTS)
def all_stacked_and_one_hot(at, x):
    _, share, top = _shares(at, x)
    outs = torch.stack([e(x) for e in at.experts], -1)
    chosen = F.one_hot(top, len(at.experts)).to(x.dtype) * share[..., None]
    return torch.einsum("bnde,bne->bnd", outs, chosen)


@spells("experts", EXPERTS)
def where_it_is_the_likeliest(at, x):
    _, share, top = _shares(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        out = torch.where((top == i)[..., None], share[..., None] * expert(x), out)
    return out


@spells("experts", EXPERTS)
def masks_of_floats(at, x):
    shares, share, _ = _shares(at, x)
    best = (shares == share[..., None]).to(x.dtype) * shares
    return sum(best[..., i : i + 1] * e(x) for i, e in enumerate(at.experts))


@spells("experts", EXPERTS)
def topk_of_one(at, x):
    shares = at.router(x).softmax(-1)
    share, top = shares.topk(1, dim=-1)
    weights = torch.zeros_like(shares).scatter(-1, top, share)
    return sum(weights[..., i].unsqueeze(-1) * e(x) for i, e in enumerate(at.experts))


@spells("experts", EXPERTS)
def sorted_shares(at, x):
    shares = at.router(x).softmax(-1)
    share, order = shares.sort(-1, descending=True)
    outs = torch.stack([e(x) for e in at.experts], 2)
    places = order[..., :1, None].expand(-1, -1, 1, WIDTH)
    return share[..., :1] * outs.gather(2, places)[:, :, 0]


@spells("experts", EXPERTS)
def weights_stacked(at, x):
    """All experts as one product with a weight per expert."""
    _, share, top = _shares(at, x)
    up, ub, down, db = (
        torch.stack([getattr(getattr(e, layer), name) for e in at.experts])
        for layer in ("up", "down")
        for name in ("weight", "bias")
    )
    h = F.gelu(torch.einsum("bnd,ehd->bneh", x, up) + ub)
    outs = torch.einsum("bneh,edh->bned", h, down) + db
    chosen = F.one_hot(top, len(up)).to(x.dtype) * share[..., None]
    return (outs * chosen[..., None]).sum(2)


@spells("experts", EXPERTS, either=True)
def weights_gathered(at, x):
    """Every token multiplies with the weights of its own expert, picked by its index."""
    _, share, top = _shares(at, x)
    up, ub, down, db = (
        torch.stack([getattr(getattr(e, layer), name) for e in at.experts])[top]
        for layer in ("up", "down")
        for name in ("weight", "bias")
    )
    h = F.gelu((up @ x[..., None]).squeeze(-1) + ub)
    return ((down @ h[..., None]).squeeze(-1) + db) * share[..., None]


@spells("experts", EXPERTS, either=True)
def only_its_own_tokens(at, x):
    """As Mixtral's first code: each expert gets the tokens that are its own."""
    _, share, top = _shares(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        rows, columns = torch.where(top == i)
        out[rows, columns] = expert(x[rows, columns]) * share[rows, columns, None]
    return out


@spells("experts", EXPERTS, either=True)
def only_its_own_tokens_by_mask(at, x):
    _, share, top = _shares(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        mask = top == i
        if mask.any():
            out[mask] = expert(x[mask]) * share[mask][:, None]
    return out


@spells("experts", EXPERTS, either=True)
def only_its_own_tokens_by_index_add(at, x):
    _, share, top = _shares(at, x)
    flat, out = x.reshape(-1, WIDTH), x.new_zeros(x.shape[0] * x.shape[1], WIDTH)
    for i in top.flatten().unique().tolist():
        places = (top.flatten() == i).nonzero().squeeze(1)
        out = out.index_add(0, places, at.experts[i](flat[places]) * share.reshape(-1, 1)[places])
    return out.view_as(x)


@spells("experts", EXPERTS, either=True)
def token_by_token(at, x):
    shares = at.router(x).softmax(-1)
    rows = []
    for sample, own in zip(x, shares, strict=True):
        tokens = [
            at.experts[int(s.argmax())](t) * s.max() for t, s in zip(sample, own, strict=True)
        ]
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


@spells("experts", EXPERTS)
def dispatched_by_products(at, x):
    """As Switch and GShard: tokens are dealt out and gathered by products with masks."""
    _, share, top = _shares(at, x)
    dealt = torch.einsum("bnd,bne->ebnd", x, F.one_hot(top, len(at.experts)).to(x.dtype))
    outs = torch.stack([e(t) for e, t in zip(at.experts, dealt, strict=True)])
    combine = F.one_hot(top, len(at.experts)).to(x.dtype) * share[..., None]
    return torch.einsum("ebnd,bne->bnd", outs, combine)


@spells("mlp", PLAIN, either=True)
def large_and_small_tokens_apart(at, x):
    """Tokens in two groups by their size: both groups go the same way."""
    large = x.square().sum(-1) > WIDTH
    out = torch.zeros_like(x)
    out[large] = plain_mlp(at, x[large])
    out[~large] = plain_mlp(at, x[~large])
    return out
