"""Ids, tokens and windows in another order, or cut one by one: the scores are those of the
positions as they are given, whatever order the model sees them in."""

from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import relprop
from relprop.errors import TargetError
from tests.common.rows import marked

LENGTH, WIDTH, SAMPLES = 6, 8, 2
ORDER = torch.tensor([3, 1, 0, 5, 2, 4])
NUMBERS = torch.arange(20) * 7 % 20
BACK = NUMBERS.argsort()
METHODS = ("transformer_attribution", "rollout", "attcat", "lrp", "gradient_x_input")


class Model(nn.Module):
    """Two attentions over ``first(what)``, and the tokens' mean of ``last(tokens)``."""

    def __init__(self, embed, first, last):
        super().__init__()
        self.embed, self.first, self.last = embed(), first, last
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)) for _ in range(2)
        )
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, what):
        x = self.last(self.embed(self.first(what)), what)
        for query, key, value, out in self.layers:
            weights = (query(x) @ key(x).mT / WIDTH**0.5).softmax(-1)
            x = x + out(weights @ value(x))
        return self.head(x[:, 0])


@cache
def seeded(make, *parts):
    """``make(*parts)``, of one seed, made once for all methods, so that it is captured once."""
    torch.manual_seed(0)
    return make(*parts).double().eval()


@cache
def found_by(methods, made, what):
    """By method, the scores of ``made``'s model."""
    given = relprop.compare(seeded(*made), what(), methods, 1)
    assert not given.refused
    return {method: e.scores for method, e in given.explanations.items()}


def same_scores(what, one, other, methods=METHODS):
    """Two models of one function say the same of ``what()``, by every method; returned is what the
    first of them says."""
    found, plain = (found_by(tuple(methods), made, what) for made in (one, other))
    for method in methods:
        torch.testing.assert_close(found[method], plain[method], rtol=1e-9, atol=1e-12, msg=method)
    return found


def scores(method, embed, first, last, what):
    return relprop.explain(seeded(Model, embed, first, last), what, 1, method=method).scores


def same(x, _=None):
    return x


def ids():
    return torch.randint(0, 20, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))


def numbers(*shape):
    source = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, *shape, dtype=torch.float64, generator=source)


def vectors():
    return numbers(LENGTH, WIDTH)


def table():
    return nn.Embedding(20, WIDTH)


def rows(x, places):
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


#: What is done to the ids, and what is done to their rows, which makes it good.
MOVED = {
    "reversed": (lambda i: i.flip(1), lambda x, i: x.flip(1)),
    "rolled": (lambda i: i.roll(2, 1), lambda x, i: x.roll(-2, 1)),
    "a permutation": (lambda i: i[:, ORDER], lambda x, i: x[:, ORDER.argsort()]),
    "halves exchanged": (
        lambda i: torch.cat([i[:, 3:], i[:, :3]], 1),
        lambda x, i: torch.cat([x[:, 3:], x[:, :3]], 1),
    ),
    "pairs reversed": (
        lambda i: i.reshape(-1, 3, 2).flip(2).reshape(-1, LENGTH),
        lambda x, i: x.reshape(-1, 3, 2, WIDTH).flip(2).reshape(-1, LENGTH, WIDTH),
    ),
    "time first": (lambda i: i.T, lambda x, i: x.transpose(0, 1)),
    "reversed and clamped": (lambda i: i.flip(1).clamp(min=0), lambda x, i: x.flip(1)),
    "reversed, some of it hidden": (
        lambda i: torch.where(i.flip(1) > 99, 0, i.flip(1)),
        lambda x, i: x.flip(1),
    ),
    "sorted": (
        lambda i: i.sort(1).values,
        lambda x, i: rows(x, i.sort(1).indices.argsort(1)),
    ),
    "by another order of values": (
        lambda i: i.gather(1, (i * 7 % 20).argsort(1)),
        lambda x, i: rows(x, (i * 7 % 20).argsort(1).argsort(1)),
    ),
    "a start token that is dropped": (
        lambda i: torch.cat([i.new_ones(len(i), 1), i], 1),
        lambda x, i: x[:, 1:],
    ),
    "padded": (lambda i: F.pad(i, (2, 1)), lambda x, i: x[:, 2:-1]),
    "other numbers, and back": (lambda i: BACK[NUMBERS[i]], same),
    "other numbers, gathered": (lambda i: BACK.expand(len(i), -1).gather(1, NUMBERS[i]), same),
    "other numbers, reversed": (lambda i: BACK[NUMBERS[i]].flip(1), lambda x, i: x.flip(1)),
}


QUICK = (
    "rolled",
    "a permutation",
    "pairs reversed",
    "sorted",
    "a start token that is dropped",
    "other numbers, reversed",
)


@pytest.mark.parametrize("name", marked(MOVED, QUICK))
def test_ids_are_explained_where_they_are_given(name):
    same_scores(ids, (Model, table, *MOVED[name]), (Model, table, same, same))


class InParts(nn.Module):
    """Each part of the ids goes its own way after its own lookup, or after one lookup of all."""

    def __init__(self, cuts, at_once):
        super().__init__()
        self.table, self.cuts, self.at_once = table(), cuts, at_once
        self.ways = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in cuts)

    def forward(self, ids):
        whole = self.table(ids) if self.at_once else None
        parts = [self.table(ids[:, c]) if whole is None else whole[:, c] for c in self.cuts]
        return torch.cat([way(x).tanh() for way, x in zip(self.ways, parts, strict=True)], 1)


PARTS = {
    "halves": (slice(0, 3), slice(3, 6)),
    "a prompt and one more": (slice(0, 5), slice(5, 6)),
    "one by one": tuple(slice(i, i + 1) for i in range(LENGTH)),
    "even and odd": (slice(0, 6, 2), slice(1, 6, 2)),
    "a part, and all": (slice(4, 6), slice(0, 6)),
    "all, and a part": (slice(0, 6), slice(0, 2)),
    "all, again and again": (slice(0, 6), slice(0, 6)),
}


@cache
def in_parts(name, at_once):
    return partial(InParts, PARTS[name], at_once)


def both_ends(x, _):
    return x[:, :LENGTH] + x[:, -LENGTH:].flip(1)


@pytest.mark.parametrize("name", marked(PARTS, ("halves", "even and odd", "all, and a part")))
def test_ids_that_are_looked_up_in_parts_are_all_explained(name):
    parts, whole = ((Model, in_parts(name, at_once), same, both_ends) for at_once in (False, True))
    found = same_scores(ids, parts, whole)
    assert all((scores != 0).any(0).all() for scores in found.values())


class Twice(nn.Module):
    """An encoder and a decoder of the same ids, which the decoder gets shifted by one."""

    def __init__(self, shifted):
        super().__init__()
        self.table, self.shifted, self.head = table(), shifted, nn.Linear(WIDTH, 3)
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3)) for _ in range(2)
        )

    def forward(self, ids):
        encoded, decoded = self.table(ids), self.shifted(self.table, ids)
        for i, (query, key, value) in enumerate(self.layers):
            found = (query(decoded if i else encoded) @ key(encoded).mT).softmax(-1)
            if i:
                decoded = decoded + found @ value(encoded)
            else:
                encoded = encoded + found @ value(encoded)
        return self.head(decoded[:, -1])


def written(embed, ids):
    """As Hugging Face shifts labels: what is no word becomes one."""
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = 3
    return embed(shifted.masked_fill_(shifted == -100, 1))


SHIFTED = {
    "the rows": lambda embed, i: torch.cat(
        [embed(i.new_full((len(i), 1), 3)), embed(i)[:, :-1]], 1
    ),
    "the ids": lambda embed, i: embed(torch.cat([i.new_full((len(i), 1), 3), i[:, :-1]], 1)),
    "by roll": lambda embed, i: embed(
        torch.where(torch.arange(LENGTH) == 0, torch.tensor(3), i.roll(1, 1))
    ),
    "by pad": lambda embed, i: embed(F.pad(i[:, :-1], (1, 0), value=3)),
    "written": written,
}


@pytest.mark.parametrize("name", marked(SHIFTED, ("the ids", "written")))
def test_ids_of_encoder_and_decoder_are_explained_in_both(name):
    found = same_scores(ids, (Twice, SHIFTED["the rows"]), (Twice, SHIFTED[name]))
    for scores in found.values():
        assert (scores[:, -2] != 0).all()  # the last token of the decoder, which is read


def test_a_lookup_that_is_not_followed_is_told():
    """Ids that change place by their own values."""
    torch.manual_seed(0)
    model = Twice(lambda embed, i: embed(torch.where(i.flip(1) < 3, i, i.flip(1)))).double().eval()
    with pytest.warns(relprop.RelpropWarning, match="only the first lookup is explained"):
        found = relprop.explain(model, ids(), 1, method="lrp")
    assert "'input_0' at table" in found.facts["constant_lookups"][0]


def test_shifted_ids_score_at_their_own_places():
    """A start token stands before the ids, and the last of them is never looked up."""
    found = scores(
        "gradient_x_input",
        table,
        lambda i: torch.cat([i.new_zeros(len(i), 1), i[:, :-1]], 1),
        same,
        ids(),
    )
    assert found.shape == (SAMPLES, LENGTH)
    assert not found[:, -1].any()
    assert (found[:, :-1] != 0).all()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (lambda i: torch.where(i.flip(1) < 3, i, i.flip(1)), "is looked up out of order"),
        (lambda i: torch.from_numpy(i.numpy().copy()), "takes values of its inputs into Python"),
    ],
    ids=["out of order", "by numpy"],
)
@pytest.mark.parametrize("method", ["lrp", "transformer_attribution"])
def test_ids_that_are_not_followed_are_refused_with_the_reason(first, why, method):
    with pytest.raises(TargetError, match=why):
        scores(method, table, first, same, ids())


#: What puts tokens in another order, and back.
ORDERS = {
    "reversed": (lambda x: x.flip(1), lambda x: x.flip(1)),
    "rolled": (lambda x: x.roll(2, 1), lambda x: x.roll(-2, 1)),
    "a permutation": (lambda x: x[:, ORDER], lambda x: x[:, ORDER.argsort()]),
    "a matrix": (
        lambda x: torch.eye(LENGTH, dtype=x.dtype)[ORDER] @ x,
        lambda x: torch.eye(LENGTH, dtype=x.dtype)[ORDER.argsort()] @ x,
    ),
    "cut and joined": (
        lambda x: torch.cat([x[:, 2:], x[:, :2].flip(1)], 1),
        lambda x: torch.cat([x[:, 4:].flip(1), x[:, :4]], 1),
    ),
}


class Between(nn.Module):
    """Blocks with a mask and places, between an order and the way back."""

    def __init__(self, there, back):
        super().__init__()
        self.there, self.back = there, back
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.register_buffer("places", torch.randn(LENGTH, WIDTH))
        self.register_buffer("allowed", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):
        places = self.there(self.places[None])
        allowed = self.there(self.there(self.allowed[None].to(x.dtype)).mT).mT > 0.5
        x = self.there(x) + places
        for query, key, value, out in self.layers:
            y = self.norm(x)
            found = (query(y) @ key(y).mT / WIDTH**0.5).masked_fill(~allowed, -torch.inf)
            x = x + out(found.softmax(-1) @ value(y))
        return self.head(self.back(x)[:, -1])


@pytest.mark.parametrize("name", marked(ORDERS, ("a matrix", "cut and joined")))
def test_tokens_in_another_order_score_where_they_are_given(name):
    methods = [*METHODS, "attention_norm", "value_zeroing", "gradcam"]
    same_scores(vectors, (Between, *ORDERS[name]), (Between, same, same), methods)


#: Windows of four, two apart, of a sequence of 14.
WINDOWS = {
    "stacked": lambda x: torch.stack([x[:, i : i + 4] for i in range(0, 11, 2)], 1),
    "stacked behind": lambda x: torch.stack([x[:, i : i + 4] for i in range(0, 11, 2)], -1).mT,
    "offsets stacked": lambda x: torch.stack([x[:, j : j + 11 : 2] for j in range(4)], -1),
    "by indices": lambda x: x[:, torch.arange(0, 11, 2)[:, None] + torch.arange(4)],
    "joined": lambda x: torch.cat([x[:, None, i : i + 4] for i in range(0, 11, 2)], 1),
}


def unfolded(x):
    return x.unfold(1, 4, 2)


def of_four():
    return nn.Linear(4, WIDTH)


@pytest.mark.parametrize("name", marked(WINDOWS, ("offsets stacked", "by indices")))
def test_windows_cut_one_by_one_are_windows(name):
    one, other = ((Model, of_four, cut, same) for cut in (WINDOWS[name], unfolded))
    same_scores(partial(numbers, 14), one, other)


#: A tensor that is padded with its own values, and the positions that stand there then.
PADS = {
    "reflect": [2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 6],
    "replicate": [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7],
    "circular": [6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0],
}


def of_six():
    return nn.Linear(6, WIDTH)


@cache
def picked_and_padded(mode):
    """Windows of six of the positions, by their numbers and by PyTorch's function."""
    places = torch.tensor(PADS[mode])
    return (
        lambda x: x[:, places].unfold(1, 6, 1),
        lambda x: F.pad(x[:, None], (2, 1), mode)[:, 0].unfold(1, 6, 1),
    )


@pytest.mark.parametrize("mode", marked(PADS, ("reflect", "circular")))
def test_padding_with_own_values_is_positions_picked(mode):
    one, other = ((Model, of_six, way, same) for way in picked_and_padded(mode))
    same_scores(partial(numbers, 8), one, other, ["lrp", "rollout", "transformer_attribution"])


#: Numbers that Python reads, as terms and factors.
READ = {
    "a term": (lambda y, b: y + b[0].item(), lambda y, b: y + b[0]),
    "a factor": (lambda y, b: y * b.tolist()[1], lambda y, b: y * b[1]),
}


@cache
def changed(change):
    return partial(Changed, change, torch.tensor([0.3, 1.7], dtype=torch.float64))


@pytest.mark.parametrize("name", READ)
def test_a_number_that_python_reads_is_the_tensor_it_stands_in(name):
    one, other = ((Model, changed(change), same, same) for change in READ[name])
    same_scores(vectors, one, other)


class Changed(nn.Linear):
    """A linear map, then a function of its result and of some numbers."""

    def __init__(self, change, numbers):
        super().__init__(WIDTH, WIDTH)
        self.change = change
        self.register_buffer("numbers", numbers)

    def forward(self, x):
        return self.change(super().forward(x), self.numbers)
