"""Which softmaxes are attention sites, and the reasons given for those that are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import relprop
from relprop.tracer.atoms import is_token
from relprop.tracer.editing import val
from relprop.tracer.program import place
from tests.common.rows import marked

WIDTH, HEADS, TOKENS = 8, 2, 5


class Model(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.router, self.head = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 4)
        self.experts = nn.Parameter(torch.randn(3, WIDTH, WIDTH))
        self.heads, self.query = nn.Linear(HEADS, HEADS), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.sink = nn.Parameter(torch.randn(1, HEADS, 1, 1))

    def forward(self, *inputs):
        return self.body(self, *inputs)

    def split(self, x):
        return [m(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)]

    def attend(self, x):
        q, k, v = self.split(x)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def program(body, *inputs):
    return relprop.trace(Model(body), inputs or torch.randn(2, TOKENS, WIDTH))


def after_softmax(change):
    """Attention with something between its softmax and the values."""

    def body(m, x):
        q, k, v = m.split(x)
        return m.out(
            (change(m, (q @ k.transpose(-1, -2)).softmax(-1)) @ v).transpose(1, 2).flatten(2)
        )

    return body


def with_sink(m, x):
    q, k, v = m.split(x)
    scores = torch.cat([q @ k.transpose(-1, -2), m.sink.expand(len(x), -1, TOKENS, -1)], -1)
    return m.out((scores.softmax(-1)[..., :-1] @ v).transpose(1, 2).flatten(2))


def keys_first(m, x):
    q, k, v = m.split(x)
    return (v.transpose(-1, -2) @ (k @ q.transpose(-1, -2)).softmax(-2)).flatten(2)


SITES = {
    "fused": lambda m, x: m.attend(x),
    "scaled after": after_softmax(lambda m, a: a * 0.5),
    "dropout": after_softmax(lambda m, a: F.dropout(a, 0.5, m.training)),
    "masked after": after_softmax(
        lambda m, a: a.masked_fill(torch.ones(TOKENS, TOKENS).tril() == 0, 0)
    ),
    "normalised again": after_softmax(lambda m, a: a / a.sum(-1, keepdim=True)),
    "minus the mean": after_softmax(lambda m, a: a - a.mean(-1, keepdim=True)),
    "a linear over heads": after_softmax(
        lambda m, a: m.heads(a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    ),
    "reshaped to one batch axis": after_softmax(
        lambda m, a: a.flatten(0, 1).unflatten(0, (-1, HEADS))
    ),
    "a sink cut off": with_sink,
    "keys first": keys_first,
    "a learned query": lambda m, x: F.scaled_dot_product_attention(
        m.query.expand(len(x), -1, -1), m.k(x), m.v(x)
    ),
    "einsum": lambda m, x: torch.einsum(
        "bqk,bkd->bqd", torch.einsum("bqd,bkd->bqk", m.q(x), m.k(x)).softmax(-1), m.v(x)
    ),
}


@pytest.mark.parametrize("name", SITES)
def test_attention_is_found(name):
    p = program(SITES[name])
    assert len(p.sites) == 1
    assert p.no_sites == ()
    site = p.sites[0]
    shape = val(site.attention).shape
    assert shape[-2 if site.transposed else -1] == TOKENS
    assert site.transposed is (name == "keys first")


LEARNED_VALUES = {
    "matmul": lambda a, v: a @ v,
    "linear": lambda a, v: F.linear(a, v.mT),
    "einsum": lambda a, v: torch.einsum("bqk,kd->bqd", a, v),
    "queries first": lambda a, v: (v.mT @ a.mT).mT,
}


@pytest.mark.parametrize("way", marked(LEARNED_VALUES, ("einsum",)))
def test_values_that_no_input_reaches_are_values(way):
    """Queries and keys come from the input, values are learned: attention over tokens, however its
    product is written, and every method says the same of it."""

    def body(m, x, way=LEARNED_VALUES[way]):
        x = x + m.attend(x)
        scores = m.query @ m.k(x).mT if m.pooled else m.q(x) @ m.k(x).mT
        return m.head(way(scores.softmax(-1), m.v(m.places)) + x.mean(1, keepdim=True)).mean(1)

    x, found = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64), []
    for pooled in (True, False):
        for written in (body, lambda m, x: body(m, x, LEARNED_VALUES["matmul"])):
            torch.manual_seed(0)
            model = Model(written).eval().double()
            model.pooled, model.places = pooled, nn.Parameter(torch.randn(TOKENS, WIDTH).double())
            traced = relprop.trace(model, x)
            assert len(traced.sites) == 2 and traced.no_sites == ()
            methods = ("transformer_attribution", "rollout", "gae", "attnlrp", "attcat")
            found.append([relprop.explain(model, x, 1, method=m).scores for m in methods])
        for mine, plain in zip(*found[-2:], strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-9, atol=1e-12)


def test_a_linear_map_of_features_is_no_attention():
    p = program(lambda m, x: m.heads(m.heads(m.attend(x).mean(1)[:, :HEADS]).softmax(-1)))
    assert len(p.sites) == 1 and len(p.no_sites) == 1


def test_cross_attention_takes_its_values_from_the_memory():
    p = program(
        lambda m, x, memory: F.scaled_dot_product_attention(m.q(x), m.k(memory), m.v(memory)),
        torch.randn(1, 3, WIDTH),
        torch.randn(1, TOKENS, WIDTH),
    )
    assert len(p.sites) == 1
    assert tuple(val(p.sites[0].attention).shape) == (1, 3, TOKENS)


def test_the_map_that_meets_the_values_is_the_site_not_the_softmax():
    p = program(SITES["a linear over heads"])
    assert p.sites[0].attention is not p.sites[0].softmax


def soft_router(m, x):
    weights = m.router(x).softmax(-1)
    return m.head(
        m.attend(x) + torch.stack([x @ e for e in m.experts], -1).mul(weights[:, :, None]).sum(-1)
    )


def mixing_router(m, x):
    weights = m.router(x).softmax(-1)
    return m.head(
        m.attend(x) + (weights[:, :, None] @ torch.stack([x @ e for e in m.experts], 2))[:, :, 0]
    )


def at_once(logits):
    """The weights of the two likeliest experts, and which they are."""
    chosen, places = logits.topk(2, -1)
    return chosen.softmax(-1), places


def in_turn(logits):
    """The same by two softmaxes: that of the second choice is over what the first left."""
    first = logits.max(-1, keepdim=True).indices
    left = logits.scatter(-1, first, -torch.inf)
    second = left.max(-1, keepdim=True).indices
    weights = [logits.softmax(-1).gather(-1, first), left.softmax(-1).gather(-1, second)]
    return torch.cat(weights, -1), torch.cat([first, second], -1)


def copying_router(m, x, copies=lambda t: t.repeat_interleave(2, 0), choose=at_once):
    """Every token once for each of its two experts, as the libraries dispatch them."""
    weights, places = choose(m.router(x.flatten(0, 1)))
    each = torch.bmm(copies(x.flatten(0, 1))[:, None], m.experts[places.flatten()])
    mixed = (each.view(-1, 2, WIDTH) * weights[:, :, None]).sum(1)
    return m.head(m.attend(x) + mixed.view_as(x))


def channel_attention(m, x):
    q, k, v = (
        F.normalize(t, dim=-2) if i < 2 else t
        for i, t in enumerate(t.transpose(-1, -2) for t in m.split(x))
    )
    mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    return m.head(m.attend(x) + mixed.transpose(-1, -2).transpose(1, 2).flatten(2))


def recurrence(m, x):
    """A gated state for each token, in a loop, written into a buffer."""
    gate, state, states = m.q(x).sigmoid(), torch.zeros_like(x[:, 0]), torch.zeros_like(x)
    for i in range(x.shape[1]):
        state = gate[:, i] * state + x[:, i]
        states[:, i] = state
    return states


def test_the_states_of_a_loop_over_tokens_are_tokens():
    p = program(lambda m, x: m.head(m.attend(recurrence(m, x))))
    assert len(p.sites) == 1 and not p.no_sites


def steps_of_a_cache(m, x):
    """Two layers over one token after another, which attend to those before."""
    keys, values = [[], []], [[], []]
    for i in range(x.shape[1]):
        state = x[:, i : i + 1]
        for layer in range(2):
            q, k, v = m.split(state)
            keys[layer].append(k)
            values[layer].append(v)
            k, v = torch.cat(keys[layer], 2), torch.cat(values[layer], 2)
            state = state + m.out(
                F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            )
    return m.head(state)


def test_the_keys_of_a_cache_are_tokens():
    """Of the second layer only the last step counts, which has every key."""
    p = program(steps_of_a_cache)
    assert not p.no_sites and len(p.sites) == TOKENS + 1
    assert [val(s.attention).shape[-1] for s in p.sites] == [1, 2, 3, 4, 5, 5]


def hyper_connections(m, x, mixed=lambda weights, streams: weights.mT @ streams):
    """Two copies of the stream, mixed by weights that a softmax makes of each token (mHC)."""
    streams = x[:, :, None].expand(-1, -1, 2, -1)
    weights = m.heads(streams[..., :HEADS]).softmax(-2)
    return m.head(m.attend(mixed(weights, streams).sum(2)))


def inverted(m, x):
    """The inverse of a softmax by iterations of which each reads it again (Nyströmformer)."""
    q, k, v = m.split(x)
    a = (q @ k.mT).softmax(-1)
    z = a.mT / a.sum(-2).amax()
    for _ in range(3):
        z = 0.25 * z @ (13 * torch.eye(TOKENS) - a @ z @ (15 * torch.eye(TOKENS) - a @ z))
    return m.head(m.attend(x) + (z @ v).transpose(1, 2).flatten(2))


def first_of_layers(m, x):
    """The softmax over the layers there are, of which the first has one (LIMe)."""
    hidden = torch.stack([x, m.q(x)], 0)
    every = m.router(x)[..., :2].softmax(-1)
    x = x + torch.einsum("bnl,lbnd->bnd", every, hidden)
    return m.head(m.attend(x))


NO_SITES = {
    "residual streams": (hyper_connections, "copies of one token"),
    "residual streams by einsum": (
        lambda m, x: hyper_connections(m, x, lambda w, s: torch.einsum("bnst,bnsd->bntd", w, s)),
        "copies of one token",
    ),
    "an inverse": (inverted, "made of it alone"),
    "layers": (first_of_layers, "channels, not tokens"),
    "a softmax at the output": (
        lambda m, x: m.head(m.attend(x)[:, 0]).softmax(-1),
        "no contraction",
    ),
    "a router's weights": (soft_router, "channels, not tokens"),
    "a router that mixes by a product": (mixing_router, "channels, not tokens"),
    "a router of copies": (copying_router, "copies of one token"),
    "a router that chooses in turn": (
        lambda m, x: copying_router(m, x, choose=in_turn),
        "copies of one token",
    ),
    "a router of expanded copies": (
        lambda m, x: copying_router(m, x, lambda t: t[:, None].expand(-1, 2, -1).flatten(0, 1)),
        "copies of one token",
    ),
    "attention over channels": (channel_attention, "channels, not tokens"),
    "a softmax over heads": (
        lambda m, x: m.head(m.attend(x) * m.q(x).unflatten(-1, (HEADS, -1)).softmax(-2).flatten(2)),
        "no contraction",
    ),
    "a product with itself": (
        lambda m, x: m.head(m.attend(x) + (s := (x @ x.mT).softmax(-1)) @ s @ x[:, :, :WIDTH]),
        "descend",
    ),
}


@pytest.mark.parametrize("name", NO_SITES)
def test_a_softmax_that_is_no_site_has_a_reason(name):
    body, reason = NO_SITES[name]
    p = program(body)
    reasons = [why for _, why in p.no_sites]
    assert len(p.sites) == 1, [place(s.contraction).source for s in p.sites]
    assert reasons and all(reason in why for why in reasons)


def test_a_token_that_is_the_only_query_of_its_only_key_is_no_site():
    def body(m, x):
        each = x.flatten(0, 1)[:, None]
        return m.head(m.attend(x) + m.attend(each).view_as(x))

    assert len(program(body).sites) == 1


def test_attention_among_copies_that_differ_since_is_a_site():
    """One vector at every place, with places added: a decoder whose queries are copies."""

    def body(m, x):
        places = torch.arange(TOKENS * WIDTH).view(TOKENS, WIDTH) / 10
        return m.head(m.attend(x.mean(1, keepdim=True).expand_as(x) + places))

    assert len(program(body).sites) == 1


def test_a_model_without_attention_is_told_why():
    model = Model(lambda m, x: m.head(x).mean(1).softmax(-1))
    with pytest.raises(
        relprop.errors.NoAttentionError, match="enters no contraction over its own axis"
    ):
        relprop.explain(model, torch.randn(2, TOKENS, WIDTH), target=1)


def test_queries_with_keys_of_their_own_are_where_the_batches_are():
    """Values sampled for each query: its map has one row, and the batches number the queries."""
    points = 3

    class Sampling(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.q = nn.Linear(WIDTH, 2 * points), nn.Linear(WIDTH, WIDTH)
            self.k, self.v = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(2))

        def forward(self, x, image):
            at = self.places(x).unflatten(-1, (points, 2)).tanh()
            k, v = (
                F.grid_sample(m(image), at, align_corners=False).permute(0, 2, 3, 1)
                for m in (self.k, self.v)
            )
            a = (self.q(x)[:, :, None] @ k.mT).softmax(-1)
            return (a @ v)[:, :, 0]

    inputs = torch.randn(1, TOKENS, WIDTH), torch.randn(1, WIDTH, 4, 6)
    found = relprop.trace(Sampling().eval(), inputs)
    (site,) = found.sites
    assert val(site.attention).shape[-2:] == (1, points)
    queries = val(site.attention).shape.index(TOKENS)
    assert is_token(found.axes[site.attention][queries])


def test_a_gate_is_no_attention_whichever_factor_it_is():
    """Pieces of a series that are mixed, each times its share of a softmax, and mixed again."""

    class Mixer(nn.Module):
        def __init__(self, product):
            super().__init__()
            self.enter, self.norm, self.product = nn.Linear(2, WIDTH), nn.LayerNorm(WIDTH), product
            self.one, self.share, self.other = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            x = self.enter(x.mT.unfold(-1, 2, 2))
            y = self.one(self.norm(x).mT)
            x = self.product(y, self.share(y).softmax(-1)).mT + x
            return (x + self.other(self.norm(x).mT).mT).mean((1, 2))

    first, last = (
        relprop.trace(Mixer(f).eval(), torch.randn(2, WIDTH, 3)).graph
        for f in (lambda y, g: y * g, lambda y, g: g * y)
    )
    assert [n.target for n in first.nodes if n.args] == [n.target for n in last.nodes if n.args]


def test_methods_that_need_a_tokens_own_query_refuse_landmarks():
    """Queries that are means of several tokens (Nyströmformer)."""

    def body(m, x):
        q, k, v = m.split(x[:, :4])
        few = q.unflatten(2, (2, 2)).mean(3)
        seen = (few @ k.mT).softmax(-1) @ v
        return m.head(x[:, :4] + ((q @ few.mT).softmax(-1) @ seen).transpose(1, 2).flatten(2))

    x = torch.randn(2, 4, WIDTH)
    assert len(program(body, x).sites) == 2
    with pytest.raises(relprop.errors.OptionError, match="are not the tokens of its layer's"):
        relprop.explain(Model(body).eval(), x, (1, 2), method="value_zeroing")
