"""A text's scores are the same however far its batch is padded, and padding scores exactly 0: by
every method, however the padding is told."""

import math

import pytest
import torch
import transformers
from torch import nn

import relprop
from tests.common.models import closeness
from tests.common.rows import only

LEFT_OUT = {
    "vit_cx": "for images",
    "deeplift": "refused here",
    **dict.fromkeys(
        ("random", "smoothgrad", "gradient_shap"), "draws as many numbers as the padded input has"
    ),
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 40,
        "num_labels": 3,
        "initializer_range": 0.4,
    }
    return (
        transformers.BertForSequenceClassification(transformers.BertConfig(**sizes)).double().eval()
    )


@pytest.mark.filterwarnings("ignore::relprop.errors.RelpropWarning")
def test_padding_changes_nothing(model):
    ids = torch.randint(5, 40, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    methods = [m.name for m in relprop.methods.available() if m.name not in LEFT_OUT]
    short, long = (
        relprop.compare(
            model,
            {
                "input_ids": nn.functional.pad(ids, (0, n)),
                "attention_mask": nn.functional.pad(mask, (0, n)),
            },
            methods,
            1,
        ).explanations
        for n in (0, 4)
    )
    padding = nn.functional.pad(mask, (0, 4)) == 0
    for method in methods:
        e, expected = long[method], short[method].scores
        assert expected.abs().max() > 0, method
        assert closeness(e.scores[:, :7], expected) <= 1e-9, method
        assert (e.scores[padding] == 0).all() and torch.equal(e.content, ~padding), method


WIDTH, HEADS, WORDS, PAD = 8, 2, 12, 0


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))

    def forward(self, x, hidden):
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        a = scores + hidden if hidden.is_floating_point() else scores.masked_fill(hidden, -1e30)
        x = x + self.out((a.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.other(x))


class Reader(nn.Module):
    """A text, with a mask as ``how`` says; the mean over its words is read."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.embed = nn.Linear(3, WIDTH) if how == "frames" else nn.Embedding(WORDS, WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(WIDTH, 3)
        self.library = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, batch_first=True, dropout=0.0)

    def absent(self, x, mask):
        """Which words are padding, (batch, tokens), bool."""
        if self.how in ("ids", "library"):
            return x == PAD
        if self.how == "frames":
            return (x == 0).all(-1)
        if self.how == "inverted":
            return mask == 1
        if self.how in ("added", "added, 4-d", "times -1e4"):
            return mask.flatten(1) < 0
        return (mask == 0).flatten(1) if mask.dim() != 3 else (mask == 0)[:, 0]

    def forward(self, x, mask=None):
        absent = self.absent(x, mask)
        hidden = absent[:, None, None]
        if self.how in ("added", "added, 4-d"):
            hidden = mask.reshape(len(mask), 1, 1, -1)
        if self.how == "times -1e4":
            hidden = -1e4 * absent[:, None, None].double()
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, hidden)
        if self.how == "library":
            x = self.library(x, src_key_padding_mask=absent)
        there = (~absent)[..., None].double()
        return self.head((x * there).sum(1) / there.sum(1))


def lengths(n):
    """Texts of 6 and 4 words, in a batch of n."""
    return torch.arange(n) < torch.tensor([[6], [4]])


HOW = {
    "0 and 1": lambda there: there.long(),
    "bool": lambda there: there,
    "inverted": lambda there: (~there).long(),
    "3-d": lambda there: there[:, None].expand(-1, there.shape[1], -1),
    "4-d": lambda there: there[:, None, None],
    "added": lambda there: torch.zeros(there.shape).double().masked_fill(~there, -math.inf),
    "added, 4-d": lambda there: -1e9 * (~there)[:, None, None].double(),
    "times -1e4": lambda there: -1.0 * (~there).double(),
    "ids": None,
    "library": None,
    "frames": None,
}
FEWER = {
    "integrated_gradients": {"n_steps": 3},
    "gradient_shap": {"n_samples": 2},
    "smoothgrad": {"n_samples": 2},
}
ANYWHERE = [
    (m.name, FEWER.get(m.name, {}))
    for m in relprop.methods.available()
    if m.name not in ("random", "vit_cx")
]
DRAWN = ("gradient_shap", "smoothgrad")  # as many numbers as the padded input has


def read(how, n, by_name):
    """The model, and its inputs with texts padded to n words."""
    torch.manual_seed(1)
    reader = Reader(how).double().eval()
    there = lengths(n)
    x = torch.randint(1, WORDS, (2, 9))[:, :n] * there
    if how == "frames":
        x = torch.randn(2, 9, 3).double()[:, :n] * there[..., None]
    make = HOW[how]
    if make is None:
        return reader, x
    return reader, ({"mask": make(there), "x": x} if by_name else (x, make(there)))


@pytest.mark.parametrize("how", only(("bool", "added, 4-d", "ids", "library", "frames"), HOW))
@pytest.mark.filterwarnings("ignore")
def test_however_padding_is_told(how):
    model, inputs = read(how, 6, by_name=False)
    _, padded = read(how, 9, by_name=True)
    # noise on frames of zeros, which this model takes for padding, would make words of them
    methods = [entry for entry in ANYWHERE if how != "frames" or entry[0] != "smoothgrad"]
    short = relprop.compare(model, inputs, methods, 1)
    long = relprop.compare(model, padded, methods, 1)
    assert long.refused.keys() == short.refused.keys() <= {"deeplift", "leave_one_out"}
    for method, e in long.explanations.items():
        expected = short.explanations[method].scores
        assert bool(expected.any()), method
        # that runs the model without them, in a batch of another size: on some processors
        # rounding is left
        most = 1e-12 * expected.abs().max() if method == "leave_one_out" else 0
        assert (e.scores[~lengths(9)].abs() <= most).all(), method
        assert (expected[~lengths(6)].abs() <= most).all(), method
        if method not in DRAWN:
            assert closeness(e.scores[:, :6], expected) <= 1e-9, method


class Leaking(Reader):
    """Attention does not see padding, the mean does."""

    def forward(self, x, mask):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, (mask == 0)[:, None, None])
        return self.head(h.mean(1))


@pytest.mark.filterwarnings("ignore")
def test_what_the_model_reads_is_no_padding():
    """Nothing is claimed of words that a mask names and the target depends on all the same."""
    torch.manual_seed(0)
    model = Leaking("0 and 1").double().eval()
    there = lengths(6)
    e = relprop.explain(
        model, (torch.randint(1, WORDS, (2, 6)), there.long()), 1, method="gradient_x_input"
    )
    assert (e.scores[~there] != 0).all()
