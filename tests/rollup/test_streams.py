"""Several streams: encoder and decoder, two towers, co-attention, joined sequences. C is worked out
over the joint state of all tokens."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.common.rows import diagonal, marked
from tests.rollup.hand import (
    SAMPLES,
    Attention,
    Layer,
    agree,
    compare,
    explained,
    eye,
    matrices,
    normal,
    placed,
)
from tests.rollup.structures import WIDTH, Mlp

S, T = 4, 3  # source and target tokens
SOURCE, TARGET = range(S), range(S, S + T)
ONE = eye(S + T).double()


def onto(m, rows, columns):
    return placed(m, S + T, rows, columns)


def ids(n):
    return torch.randint(0, 9, (SAMPLES, n))


def both():
    return {"source": ids(S), "target": normal(SAMPLES, T, 3)}


class DecoderLayer(nn.Module):
    """Self-attention, attention to a memory, an MLP; each with a residual, the norm before or after
    it."""

    def __init__(self, post):
        super().__init__()
        self.own, self.cross, self.mlp = Attention(), Attention(), Mlp()
        self.norms, self.post = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)), post

    def forward(self, x, memory):
        own, cross = (lambda y: self.own(y, is_causal=True)), (lambda y: self.cross(y, memory))
        for norm, part in zip(self.norms, (own, cross, self.mlp), strict=True):
            x = norm(x + part(x)) if self.post else x + part(norm(x))
        return x


class EncoderDecoder(nn.Module):
    def __init__(self, post=False, pool=lambda x: x[:, -1]):
        super().__init__()
        self.source, self.target = nn.Embedding(9, WIDTH), nn.Linear(3, WIDTH)
        self.encoder = nn.ModuleList(Layer() for _ in range(2))
        self.decoder = nn.ModuleList(DecoderLayer(post) for _ in range(2))
        self.head, self.pool = nn.Linear(WIDTH, 5), pool

    def forward(self, source, target):
        memory, x = self.source(source), self.target(target)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.pool(x))


def encoder_decoder(e1, e2, own1, cross1, own2, cross2):
    steps = [
        onto(e1, SOURCE, SOURCE),
        onto(e2, SOURCE, SOURCE),
        onto(own1, TARGET, TARGET),
        onto(cross1, TARGET, SOURCE),
        onto(own2, TARGET, TARGET),
        onto(cross2, TARGET, SOURCE),
    ]
    c = ONE
    for step in steps:
        c = (ONE + step) @ c
    return c


@pytest.mark.parametrize("post", marked([False, True], ("True",)))
def test_encoder_and_decoder(post):
    e = explained(EncoderDecoder(post), both())
    compare(e, encoder_decoder, ONE[-1])
    assert (e["source"].identity == 0).all() and e["target"].identity.tolist() == [
        [0, 0, 1]
    ] * SAMPLES


def test_a_decoder_read_at_one_position():
    """A causal model read in its middle: what comes later receives exactly nothing."""
    e = explained(EncoderDecoder(pool=lambda x: x[:, 1]), both())
    compare(e, encoder_decoder, ONE[S + 1])
    assert (e["target"].row[:, 2] == 0).all()


def test_a_decoder_read_at_every_position():
    """A target position by index: logits of all positions, one taken by the target."""
    e = explained(EncoderDecoder(pool=lambda x: x), both(), target=lambda y: y[0, 1, 3])
    compare(e, encoder_decoder, ONE[S + 1])


PARALLEL = {
    "all at once": lambda m, x, y: x + m.own(n := m.norm(x)) + m.cross(n, y) + m.mlp(n),
    "another order": lambda m, x, y: (m.mlp(n := m.norm(x)) + m.cross(n, y)) + (m.own(n) + x),
    "the MLP with the memory's": lambda m, x, y: (
        x + (m.own(n := m.norm(x)) + (m.mlp(n) + m.cross(n, y)))
    ),
    "a projected shortcut": lambda m, x, y: (
        (m.short(x) + m.cross(m.norm(x), y)) + (m.own(x) + m.mlp(x))
    ),
}


class ParallelDecoder(nn.Module):
    """Self-attention, attention to a memory and an MLP beside each other: their sum has terms of
    one input and of both."""

    def __init__(self, join):
        super().__init__()
        self.own, self.cross, self.mlp, self.norm, self.join, self.short = (
            Attention(),
            Attention(),
            Mlp(),
            nn.LayerNorm(WIDTH),
            join,
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x, memory):
        return self.join(self, x, memory)


@pytest.mark.parametrize("name", marked(PARALLEL, ("a projected shortcut",)))
def test_a_parallel_decoder_carries_its_identity_once(name):
    model = EncoderDecoder()
    model.decoder = nn.ModuleList(ParallelDecoder(PARALLEL[name]) for _ in range(2))
    e = explained(model, both())
    order = [b.path.split(".")[-1] for b in e.blocks][2:4]

    def product(e1, e2, *beside):
        c = (ONE + onto(e2, SOURCE, SOURCE)) @ (ONE + onto(e1, SOURCE, SOURCE))
        for first, second in (beside[:2], beside[2:]):
            own, cross = (first, second) if order[0] == "own" else (second, first)
            c = (ONE + onto(own, TARGET, TARGET) + onto(cross, TARGET, SOURCE)) @ c
        return c

    compare(e, product, ONE[-1])


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers, self.head = (
            nn.Embedding(9, WIDTH),
            nn.ModuleList(Layer() for _ in range(3)),
            nn.Linear(WIDTH, 9, bias=False),
        )
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, is_causal=True)
        return self.head(x)


@pytest.mark.parametrize("position", marked(range(S), ("1",)))
def test_a_causal_language_model_with_a_tied_head(position):
    i = eye(S).double()
    e = explained(Decoder(), ids(S), target=lambda y: y[0, position, 2] - y[0, position, 3])
    m = matrices(e)
    assert all(float(one.max()) > 0 for one in m)
    c = i[position] @ ((i + m[2]) @ (i + m[1]) @ (i + m[0]))
    agree(e.row, c)
    agree(e.identity, i[position].expand(SAMPLES, -1))
    assert (e.row[:, position + 1 :] == 0).all()


class Towers(nn.Module):
    """Image and text towers; ``product`` compares what they end in."""

    def __init__(self, product, projected=True):
        super().__init__()
        self.patches, self.words = nn.Conv2d(1, WIDTH, 2, 2), nn.Embedding(9, WIDTH)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.image, self.text = (nn.ModuleList(Layer() for _ in range(2)) for _ in range(2))
        self.to_image, self.to_text = (
            (nn.Linear(WIDTH, 6, bias=False) if projected else nn.Identity()) for _ in range(2)
        )
        self.scale, self.product = nn.Parameter(torch.tensor(1.5)), product

    def forward(self, image, text):
        x = self.patches(image).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        y = self.words(text)
        for a, b in zip(self.image, self.text, strict=True):
            x, y = a(x), b(y, is_causal=True)
        x, y = self.to_image(x[:, 0]), self.to_text(y[:, -1])
        return self.product(self, x, y)


def clip(m, x, y):
    x, y = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return m.scale.exp() * x @ y.mT


SIMILARITIES = {
    "CLIP": clip,
    "functional normalize": lambda m, x, y: F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT,
    "elementwise": lambda m, x, y: (F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(
        -1, keepdim=True
    ),
    "plain product": lambda m, x, y: (x * y).sum(-1, keepdim=True),
    "einsum": lambda m, x, y: torch.einsum("bd,bd->b", x, y)[:, None],
    "sigmoid": lambda m, x, y: (
        F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT * m.scale.exp() + 1
    ).sigmoid(),
    "a hidden layer": lambda m, x, y: torch.cat([x, y], -1).mean(-1, keepdim=True),
}


@pytest.mark.parametrize("name", marked(SIMILARITIES, ("CLIP", "elementwise")))
def test_two_towers_each_whole(name):
    """Nothing joins the towers but their similarity: each is rolled up as if it were alone."""
    tokens, words = 5, 4
    e = explained(
        Towers(SIMILARITIES[name]),
        {"image": normal(SAMPLES, 1, 4, 4), "text": ids(words)},
        target=lambda y: y[0, 0],
    )
    i, image, text = eye(tokens + words).double(), range(tokens), range(tokens, tokens + words)

    def product(x1, y1, x2, y2):
        both = [
            placed(x, tokens + words, image, image) + placed(y, tokens + words, text, text)
            for x, y in ((x1, y1), (x2, y2))
        ]
        return (i + both[1]) @ (i + both[0])

    order = [b.path for b in e.blocks]
    assert order == [
        "image.0.attention",
        "text.0.attention",
        "image.1.attention",
        "text.1.attention",
    ]
    compare(e, product, i[0] + i[-1])
    assert e["image"].source.tolist() == [-1, 0, 1, 2, 3]


class CoLayer(nn.Module):
    """LXMERT: both streams attend to each other with the values before the update, one attention
    shared; then each to itself."""

    def __init__(self, shared):
        super().__init__()
        self.there = Attention()
        self.back = self.there if shared else Attention()
        self.own1, self.own2, self.norm1, self.norm2 = (
            Attention(),
            Attention(),
            nn.LayerNorm(WIDTH),
            nn.LayerNorm(WIDTH),
        )

    def forward(self, x, y):
        x, y = self.norm1(x + self.there(x, y)), self.norm2(y + self.back(y, x))
        return x + self.own1(x), y + self.own2(y)


class CoAttention(nn.Module):
    def __init__(self, shared, read):
        super().__init__()
        self.words, self.boxes = nn.Embedding(9, WIDTH), nn.Linear(3, WIDTH)
        self.layers, self.head, self.wide, self.read = (
            nn.ModuleList(CoLayer(shared) for _ in range(2)),
            nn.Linear(WIDTH, 5),
            nn.Linear(2 * WIDTH, 5),
            read,
        )

    def forward(self, words, boxes):
        x, y = self.words(words), self.boxes(boxes)
        for layer in self.layers:
            x, y = layer(x, y)
        return self.read(self, x, y)


def co_attention(*m):
    c = ONE
    for there, back, own1, own2 in (m[:4], m[4:]):
        c = (ONE + onto(there, SOURCE, TARGET) + onto(back, TARGET, SOURCE)) @ c
        c = (ONE + onto(own1, SOURCE, SOURCE) + onto(own2, TARGET, TARGET)) @ c
    return c


READS = {
    "both, concatenated": (
        lambda m, x, y: m.wide(torch.cat([x[:, 0], y.mean(1)], -1)),
        torch.cat([ONE[0, :S], torch.ones(T).double() / T]),
    ),
    "both, summed": (lambda m, x, y: m.head(x[:, 0] + y[:, 0]), ONE[0] + ONE[S]),
    "both, multiplied": (lambda m, x, y: m.head(x[:, 0] * y[:, 0]), ONE[0] + ONE[S]),
}


@pytest.mark.parametrize(("read", "shared"), diagonal(READS, (True, False)))
def test_co_attention_uses_the_values_before_the_update(read, shared):
    torch.manual_seed(1)
    function, weights = READS[read]
    e = explained(CoAttention(shared, function), {"words": ids(S), "boxes": normal(SAMPLES, T, 3)})
    compare(e, co_attention, weights.double())


def test_co_attention_read_in_one_stream():
    """The second layer's sites of the stream that nothing reads are no part of the target."""
    e = explained(
        CoAttention(False, lambda m, x, y: m.head(x[:, 1])),
        {"words": ids(S), "boxes": normal(SAMPLES, T, 3)},
    )
    there, back, own1, own2, there2, own12 = matrices(e)
    zero = torch.zeros(SAMPLES, T, T).double()
    c = co_attention(there, back, own1, own2, there2, torch.zeros_like(back), own12, zero)
    agree(torch.cat([e["words"].row, e["boxes"].row], 1), ONE[1] @ c)


class Joint(nn.Module):
    """ViLT: words and patches with types and a class token, one sequence; the streams end before
    the join."""

    def __init__(self, read):
        super().__init__()
        self.words, self.patches, self.types = (
            nn.Embedding(9, WIDTH),
            nn.Conv2d(1, WIDTH, 2, 2),
            nn.Embedding(2, WIDTH),
        )
        self.token, self.layers, self.head, self.read = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.ModuleList(Layer() for _ in range(2)),
            nn.Linear(WIDTH, 5),
            read,
        )

    def forward(self, words, image):
        x = self.words(words) + self.types(torch.zeros_like(words))
        y = self.patches(image).flatten(2).mT
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.types.weight[1]
        x = torch.cat([x, y], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.read(x))


@pytest.mark.parametrize(
    "read", marked(["first word", "the image's class token", "mean"], ("the image's class token",))
)
def test_a_joined_sequence_is_one_matrix(read):
    """4 words, a class token of the image, 4 patches: C is over all nine, each stream has its
    part."""
    at = {"first word": 0, "the image's class token": 4}.get(read)
    e = explained(
        Joint((lambda x: x.mean(1)) if at is None else (lambda x: x[:, at])),
        {"words": ids(4), "image": normal(SAMPLES, 1, 4, 4)},
    )
    assert [t.scores.shape[1] for t in e.streams.values()] == [4, 5]
    i = eye(9).double()
    compare(e, lambda m1, m2: (i + m2) @ (i + m1), i.mean(0) if at is None else i[at])


class MaskedFirst(nn.Module):
    """Padding is set to 0 before the blocks, which do not know of it, and what stands at its place
    later is pooled with the rest."""

    def __init__(self):
        super().__init__()
        self.embed, self.blocks, self.head = (
            nn.Linear(3, WIDTH),
            nn.ModuleList(Layer() for _ in range(2)),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, x, mask):
        x = self.embed(x).masked_fill(~mask[..., None], 0.0)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def test_what_is_masked_before_the_blocks_has_no_score():
    """The field at a masked position belongs to what stands there later; the input token has no
    part in it."""
    x, mask = normal(SAMPLES, S, 3), torch.ones(SAMPLES, S, dtype=torch.bool)
    mask[1, 2:] = False
    e = explained(MaskedFirst(), {"x": x, "mask": mask})
    m = matrices(e)
    c = (
        (torch.ones(1, S, dtype=torch.float64) / S * S)
        @ (torch.eye(S) + m[1])
        @ (torch.eye(S) + m[0])
    )
    ratio = c[:, 0] / e.row
    assert (e.row[~mask] == 0).all() and (e.row[mask] > 0).all()
    assert torch.allclose(ratio[mask], ratio[0, 0].expand_as(ratio[mask]), rtol=1e-9)


class Reader(nn.Module):
    """A text, and what stands beside its words: segments added to them, or a second text in a tower
    of its own."""

    def __init__(self, second):
        super().__init__()
        self.second = second
        self.words, self.more, self.norm = (
            nn.Embedding(9, WIDTH),
            nn.Embedding(9, WIDTH),
            nn.LayerNorm(WIDTH),
        )
        self.blocks, self.others, self.head = (
            nn.ModuleList(Layer() for _ in range(2)),
            nn.ModuleList(Layer() for _ in range(2)),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, words, more):
        x, y = self.words(words), self.more(more)
        if self.second == "segments":
            x = self.norm(x + 0.5 * y)
        for block in self.blocks:
            x = block(x)
        if self.second == "segments":
            return self.head(x.mean(1))
        for block in self.others:
            y = block(y)
        return self.head(
            x.mean(1) + y.mean(1) if self.second == "a sum of towers" else x.mean(1) * y.mean(1)
        )


@pytest.mark.parametrize(
    ("second", "streams"),
    [
        ("segments", ["words"]),
        ("a sum of towers", ["words", "more"]),
        ("a product of towers", ["words", "more"]),
    ],
)
def test_a_second_input_of_ids_is_explained_unless_it_is_only_added(second, streams):
    e = explained(Reader(second), {"words": ids(S), "more": ids(S)})
    assert list(e.streams) == streams and all((s.scores != 0).any() for s in e.streams.values())
    if len(streams) == 2:
        m = matrices(e)
        for name, (first, last) in zip(streams, ((m[0], m[1]), (m[2], m[3])), strict=True):
            c = (torch.eye(S) + last) @ (torch.eye(S) + first)
            agree(e[name].row, c.mean(1))  # each tower whole, as if it were alone
