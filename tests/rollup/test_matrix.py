"""``keep="matrix"``: all rows of C at once are what one walk per row finds, with a number at every
place of every tensor; and the walk of all rows is small."""

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import relprop
from relprop.interpreter import walk as walking
from relprop.rules.coarse import finer
from relprop.runner import rollup
from relprop.tracer.editing import val
from tests.common.rows import marked
from tests.rollup import structures as s
from tests.rollup.hand import SAMPLES, Layer, normal
from tests.rollup.structures import Block, Stack
from tests.rollup.test_structures import ATTENTIONS, ONE_SITE, STRUCTURES
from tests.rollup.test_windows import GRID, REDUCTIONS, Grid, Reduced, SwinLayer

EQUAL = 1e-12
HEADS = 4
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "vocab_size": 40,
}


@pytest.fixture
def row_by_row(monkeypatch):
    """One walk per row, and in it every field with a number at every place."""

    def apply(step, relevance, values, extra):
        split = coarsely(step, relevance, values, extra)
        if not step.rule.hands_on_fields:
            return split
        shares = [
            None if share is None else finer(share, val(operand).shape).contiguous()
            for share, operand in zip(split.shares, step.operands, strict=True)
        ]
        return type(split)(tuple(shares), split.lost)

    coarsely = walking.apply
    with monkeypatch.context() as patched:
        yield lambda: (
            patched.setattr(walking, "apply", apply),
            patched.setattr(rollup, "MATRIX_ROWS", 1),
        )


def agree(explain, row_by_row):
    """The matrix of ``explain()``, all rows at once and row by row."""
    at_once = explain()
    row_by_row()
    each = explain()
    apart = each.matrix - torch.diag_embed(each.matrix.diagonal(dim1=1, dim2=2))
    assert float(apart.abs().max()) > 0, "no attention in it"
    for name in ("matrix", "row", "scores", "identity"):
        one, other = getattr(at_once, name), getattr(each, name)
        assert one.shape == other.shape
        assert float((one - other).abs().max()) <= EQUAL * float(other.abs().max()), name


def explained(model, x, **options):
    return relprop.explain(model.double().eval(), x, target=[1, 2], keep="matrix", **options)


#: Each kind of merge; ``test_structures`` holds all structures' matrices against those by hand.
MERGES = (
    "sequential post-norm",
    "gate from the branch",
    "highway",
    "cat + linear, three parts",
    "attention of attention",
)


@pytest.mark.parametrize("name", marked(MERGES, ("gate from the branch", "attention of attention")))
def test_structures(name, row_by_row):
    join, _ = STRUCTURES[name]
    model, x = Stack(Block(join), Block(join)), normal(SAMPLES, s.TOKENS, 3)
    agree(lambda: explained(model, x), row_by_row)


OPTIONS = [
    {"head_fusion": "max"},
    {"normalize_rows": True},
    {"method": "rollout", "discard_ratio": 0.5},
]


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in ("einsum", "values first", "talking heads")]
    + [(name, o) for name in ("fused", "grouped, fused") for o in OPTIONS],
    ids=lambda part: part if isinstance(part, str) else "".join(part) or "plain",
)
def test_attentions_and_options(name, options, row_by_row):
    join, x = ONE_SITE["sequential pre-norm"], normal(SAMPLES, s.TOKENS, 3)
    model = Stack(*(Block(join, ATTENTIONS[name]) for _ in range(2)), prefix=True)
    agree(lambda: explained(model, x, **options), row_by_row)


GRIDS = {
    "windows": lambda: (SwinLayer(s.WIDTH, GRID, 0, False), SwinLayer(s.WIDTH, GRID, 1, False)),
    "windows, norms behind": lambda: (SwinLayer(s.WIDTH, GRID, 1, True), Layer()),
    **{
        name: lambda reduction=reduction: (Layer(lambda: Reduced(reduction())), Layer())
        for name, reduction in REDUCTIONS.items()
    },
}


@pytest.mark.parametrize("name", marked(GRIDS, ("windows, norms behind",)))
def test_tokens_on_a_grid(name, row_by_row):
    model, x = Grid(*GRIDS[name]()), normal(SAMPLES, 3, 8, 8)
    agree(lambda: explained(model, x), row_by_row)


def bert():
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, num_labels=3)
    )


def gpt():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=HEADS, vocab_size=40, num_labels=3, pad_token_id=0
    )
    return transformers.GPT2ForSequenceClassification(config)


def llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, num_labels=3, pad_token_id=0)
    return transformers.LlamaForSequenceClassification(config)


@pytest.mark.parametrize("make", marked([bert, gpt, llama], ("llama",), lambda f: f.__name__))
def test_padded_batches_of_the_families(make, row_by_row):
    model = make().double().eval()
    ids = torch.randint(1, 40, (SAMPLES, 7))
    mask = torch.ones_like(ids)
    ids[1, 5:] = mask[1, 5:] = 0
    agree(
        lambda: relprop.explain(
            model, {"input_ids": ids, "attention_mask": mask}, target=[1, 2], keep="matrix"
        ),
        row_by_row,
    )


def test_more_rows_than_one_walk_takes(row_by_row, monkeypatch):
    monkeypatch.setattr(rollup, "MATRIX_ROWS", 3)
    model, x = Stack(Block(ONE_SITE["sequential pre-norm"])), normal(SAMPLES, s.TOKENS, 3)
    agree(lambda: explained(model, x), row_by_row)


class Largest(TorchDispatchMode):
    """The largest memory that a tensor made in it takes, in bytes."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("make", marked([bert, llama], ("llama",), lambda f: f.__name__))
def test_the_walk_of_all_rows_has_no_axis_of_features(make, monkeypatch):
    """No tensor in it has more than a number per row, token and head."""
    model, ids = make().double().eval(), torch.randint(1, 40, (1, 33))
    within, whole = Largest(), rollup.RollUp.matrix

    def matrix(self, *given):
        with within:
            return whole(self, *given)

    monkeypatch.setattr(rollup.RollUp, "matrix", matrix)
    e = relprop.explain(model, ids, target=1, keep="matrix")
    assert e.matrix.shape == (1, 33, 33)
    assert 33 * 33 * 8 <= within.bytes <= 34 * 33 * HEADS * 8
