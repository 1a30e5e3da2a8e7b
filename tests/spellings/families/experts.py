"""Experts as libraries run them: in a loop over masks, all of them as one product, or with the
weights of each token's own expert, picked by its number."""

import torch
from torch.nn import functional as F

from tests.spellings.bases import EXPERTS
from tests.spellings.model import WIDTH
from tests.spellings.spelling import spells


def _share(at, x):
    return at.router(x).softmax(-1).max(-1)


def _stacked(at):
    """The weights and the biases of both layers, each of all experts."""
    return [
        torch.stack([getattr(getattr(e, layer), name) for e in at.experts])
        for layer in ("up", "down")
        for name in ("weight", "bias")
    ]


@spells("experts", EXPERTS)
def masks_times_shares(at, x):
    share, top = _share(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        out = out + ((top == i).to(x.dtype) * share)[..., None] * expert(x)
    return out


@spells("experts", EXPERTS)
def results_times_masks_times_shares(at, x):
    share, top = _share(at, x)
    return sum(e(x) * (top == i)[..., None] * share[..., None] for i, e in enumerate(at.experts))


@spells("experts", EXPERTS)
def stacked_and_summed(at, x):
    shares = at.router(x).softmax(-1)
    chosen = torch.where(shares >= shares.amax(-1, keepdim=True), shares, 0)
    return torch.stack([chosen[..., i, None] * e(x) for i, e in enumerate(at.experts)]).sum(0)


@spells("experts", EXPERTS)
def tokens_repeated_for_all(at, x):
    """As Llama 4: every expert's product with all tokens, one ``bmm``."""
    shares = at.router(x).softmax(-1)
    up, ub, down, db = _stacked(at)
    share, top = shares.topk(1, -1)
    rows = x.reshape(-1, WIDTH).repeat(len(up), 1, 1)
    inner = F.gelu(torch.baddbmm(ub[:, None], rows, up.mT))
    outs = torch.baddbmm(db[:, None], inner, down.mT)
    chosen = torch.zeros_like(shares).scatter(-1, top, share).reshape(-1, len(up)).T
    return (outs * chosen[..., None]).sum(0).view_as(x)


@spells("experts", EXPERTS)
def tokens_with_their_weights(at, x):
    """As ``batched_mm`` in transformers."""
    share, top = at.router(x).softmax(-1).topk(1, -1)
    up, ub, down, db = (w[top.reshape(-1)] for w in _stacked(at))
    rows = x.reshape(-1, WIDTH)
    inner = F.gelu(torch.bmm(up, rows.unsqueeze(-1)).squeeze(-1) + ub)
    outs = torch.bmm(down, inner.unsqueeze(-1)).squeeze(-1) + db
    return (outs * share.reshape(-1, 1)).view(-1, 1, WIDTH).sum(1).view_as(x)


@spells("experts", EXPERTS)
def rows_times_weights_selected(at, x):
    share, top = _share(at, x)
    up, ub, down, db = (w.index_select(0, top.flatten()) for w in _stacked(at))
    inner = F.gelu(x.reshape(-1, 1, WIDTH) @ up.mT + ub[:, None])
    return (inner @ down.mT + db[:, None])[:, 0].view_as(x) * share[..., None]


@spells("experts", EXPERTS)
def einsum_of_weights_gathered(at, x):
    share, top = _share(at, x)
    up, ub, down, db = (w[top] for w in _stacked(at))
    inner = F.gelu(torch.einsum("bnd,bnhd->bnh", x, up) + ub)
    return torch.einsum("bn,bnd->bnd", share, torch.einsum("bnh,bndh->bnd", inner, down) + db)


@spells("experts", EXPERTS)
def products_with_weights_gathered(at, x):
    share, top = _share(at, x)
    up, ub, down, db = (w[top] for w in _stacked(at))
    inner = F.gelu((x[..., None, :] * up).sum(-1) + ub)
    return share[..., None] * ((inner[..., None, :] * down).sum(-1) + db)


@spells("experts", EXPERTS, either=True)
def tokens_found_by_one_hot(at, x):
    """As Mixtral's code, of one expert for each token."""
    share, top = _share(at, x)
    rows, out = x.reshape(-1, WIDTH), x.new_zeros(x[..., 0].numel(), WIDTH)
    chosen = F.one_hot(top.flatten(), len(at.experts)).permute(1, 0)
    for i, expert in enumerate(at.experts):
        (places,) = torch.where(chosen[i])
        own = expert(rows[None, places].reshape(-1, WIDTH))
        out.index_add_(0, places, own * share.reshape(-1, 1)[places])
    return out.view_as(x)


@spells("experts", EXPERTS)
def results_times_not_others(at, x):
    share, top = _share(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        out += expert(x) * (1 - (top != i).to(x.dtype))[..., None] * share[..., None]
    return out


@spells("experts", EXPERTS)
def results_copied_where_chosen(at, x):
    share, top = _share(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        out = torch.where((top == i)[..., None], expert(x) * share[..., None], out)
    return out


@spells("experts", EXPERTS, either=True)
def rows_set_by_mask(at, x):
    share, top = _share(at, x)
    out = torch.zeros_like(x)
    for i, expert in enumerate(at.experts):
        own = ~(top != i)
        out[own] = expert(x[own]) * share[own][:, None]
    return out


@spells("experts", EXPERTS)
def chosen_rows_of_all_added_by_index(at, x):
    share, top = _share(at, x)
    rows, every = x.reshape(-1, WIDTH), torch.arange(x[..., 0].numel())
    out = torch.zeros_like(rows)
    for i, expert in enumerate(at.experts):
        own = (top.flatten() == i)[:, None]
        out = out.index_add(0, every, torch.where(own, expert(rows) * share.reshape(-1, 1), 0))
    return out.view_as(x)


def _brought(at, x, bring):
    """Each expert's own tokens, and how its results come to their places."""
    share, top = _share(at, x)
    rows = x.reshape(-1, WIDTH)
    out = torch.zeros_like(rows)
    for i, expert in enumerate(at.experts):
        places = (top.flatten() == i).nonzero().flatten()
        out = bring(out, places, expert(rows[places]) * share.flatten()[places, None])
    return out.view_as(x)


@spells("experts", EXPERTS, either=True)
def tokens_added_by_scatter(at, x):
    return _brought(at, x, lambda out, i, y: out.scatter_add(0, i[:, None].expand_as(y), y))


@spells("experts", EXPERTS, either=True)
def tokens_put_onto_zeros_and_added(at, x):
    return _brought(at, x, lambda out, i, y: out + torch.zeros_like(out).index_put((i,), y))
