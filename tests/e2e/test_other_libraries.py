"""Models of libraries that relprop has no line of code about: PyTorch's own layers, torchvision,
open_clip. One graph, whoever wrote the model.

Where two libraries have the same architecture, weights are copied from one to the other and the
explanations are compared.
"""

import pytest
import timm
import torch
from open_clip.transformer import TextTransformer
from open_clip.transformer import VisionTransformer as ClipTower
from torch import nn
from torchvision.models import MaxVit, VisionTransformer
from torchvision.models.swin_transformer import (
    PatchMergingV2,
    SwinTransformer,
    SwinTransformerBlockV2,
)

import relprop
from tests.common.models import closeness
from tests.common.rows import marked
from tests.e2e.test_adapted_models import randomised
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot

FEATURES, WIDTH, TOKENS = 6, 8, 5


def explained(model, x, **options):
    """Explanations of three classes, joined: they agree with the model's own outputs, leave it as
    it was, and keep samples apart.

    One class may have no positive evidence in a sample; each sample has some for one of them.
    """
    tensors = list(x.values()) if isinstance(x, dict) else [x]
    before = snapshot(model, tensors)
    found = relprop.explain_many(model, x, [0, 1, 2], **options)
    assert_undisturbed(before, snapshot(model, tensors))
    own = model(**x) if isinstance(x, dict) else model(x)
    assert closeness(torch.stack([e.output for e in found], 1), own[:, :3].detach()) <= 1e-9
    assert all(
        torch.isfinite(e.scores).all() and e.ledger.balanced(1e-9) and not e.facts["generic"]
        for e in found
    )
    assert torch.stack([e.scores for e in found]).any(0).any(1).all()
    alone = relprop.explain_many(
        model,
        {k: v[1:2] for k, v in x.items()} if isinstance(x, dict) else x[1:2],
        [0, 1, 2],
        **options,
    )
    assert all(
        closeness(a.scores, e.scores[1:2]) <= 1e-9 for a, e in zip(alone, found, strict=True)
    )
    return Found(found)


class Found(list):
    """Explanations of several classes, read as one: (classes, batch, ...)."""

    def __getattr__(self, name):
        return torch.stack([getattr(e, name) for e in self])


def pixels(size=16):
    return torch.randn(2, 3, size, size, dtype=torch.float64)


# PyTorch's own layers


class Attending(nn.Module):
    """``nn.MultiheadAttention`` used either way round, with its weights asked for or not."""

    def __init__(self, batch_first, need_weights, **options):
        super().__init__()
        self.embed, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 3)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first, **options)
        self.batch_first, self.need_weights = batch_first, need_weights

    def forward(self, x, pad=None):
        x = self.embed(x)
        y = x if self.batch_first else x.transpose(0, 1)
        y = self.attention(y, y, y, key_padding_mask=pad, need_weights=self.need_weights)[0]
        return self.head((x + (y if self.batch_first else y.transpose(0, 1)))[:, 0])


def plain_scores(model, x):
    return Found(relprop.explain_many(model, x, [0, 1, 2])).scores


def words():
    return torch.randn(2, TOKENS, FEATURES, dtype=torch.float64)


@pytest.mark.parametrize(
    "options",
    marked(
        [{}, {"bias": False}, {"add_zero_attn": True}, {"add_bias_kv": True}],
        (str({"bias": False}), str({"add_bias_kv": True})),
    ),
)
def test_multihead_attention_either_way_round(options):
    x = words()
    made = [
        explained(randomised(Attending(first, asked, **options)).double(), x)
        for first in (True, False)
        for asked in (True, False)
    ]
    assert all(closeness(e.scores, made[0].scores) <= 1e-9 for e in made)


def test_multihead_attention_with_padding():
    x, pad = words(), torch.tensor([[False] * TOKENS, [False] * 3 + [True] * 2])
    for asked in (True, False):
        model = randomised(Attending(True, asked)).double()
        e = explained(model, {"x": x, "pad": pad})
        assert not e.scores[:, 1, 3:].any()
        assert closeness(e.scores[:, 1:, :3], plain_scores(model, x[1:, :3])) <= 1e-9


class Encoding(nn.Module):
    """``nn.TransformerEncoder`` with a masked mean pool."""

    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, batch_first=True, **options)
        self.embed, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 3)
        self.encoder = nn.TransformerEncoder(
            layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=not options
        )

    def forward(self, x, pad=None):
        y = self.encoder(self.embed(x), src_key_padding_mask=pad)
        keep = torch.ones_like(x[..., :1]) if pad is None else (~pad)[..., None].to(x.dtype)
        return self.head((y * keep).sum(1) / keep.sum(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "options",
    [{}, {"norm_first": True}, {"activation": "gelu", "norm_first": True}, {"bias": False}],
    ids=str,
)
def test_the_transformer_encoder_and_its_fast_path(options):
    """In ``eval`` mode it runs as one fused operation; explained is what it computes, layer by
    layer."""
    model, x = randomised(Encoding(**options)).double(), words()
    e = explained(model, x)
    assert len(e[0].facts["attention_sites"]) == 2
    with torch.no_grad():
        assert torch.backends.mha.get_fastpath_enabled()
        assert closeness(e.output, model(x).T) <= 1e-9
    pad = torch.tensor([[False] * TOKENS, [False] * 3 + [True] * 2])
    padded = explained(model, {"x": x, "pad": pad})
    assert not padded.scores[:, 1, 3:].any()
    assert closeness(padded.scores[:, 1:, :3], plain_scores(model, x[1:, :3])) <= 1e-9
    with torch.no_grad():
        assert closeness(padded.output, model(x, pad).T) <= 1e-9


# torchvision


def vit():
    return randomised(
        VisionTransformer(
            image_size=16,
            patch_size=8,
            num_layers=2,
            num_heads=2,
            hidden_dim=WIDTH,
            mlp_dim=2 * WIDTH,
            num_classes=3,
        )
    ).double()


def test_torchvisions_vit_is_timms_vit():
    ours, x = vit(), pixels()
    theirs = (
        timm.models.VisionTransformer(
            img_size=16,
            patch_size=8,
            embed_dim=WIDTH,
            depth=2,
            num_heads=2,
            mlp_ratio=2,
            num_classes=3,
        )
        .double()
        .eval()
    )
    state = ours.state_dict()
    renamed = {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj",
        "encoder.ln": "norm",
        "heads.head": "head",
        "ln_1": "norm1",
        "ln_2": "norm2",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    for i in range(2):
        renamed[f"encoder.layers.encoder_layer_{i}"] = f"blocks.{i}"
    copied = {}
    for name, value in state.items():
        for old, new in renamed.items():
            name = name.replace(old, new)
        copied[name] = value
    theirs.load_state_dict(copied)
    e, f = explained(ours, x, keep="input"), explained(theirs, x, keep="input")
    assert (
        closeness(e.output, f.output) <= 1e-12
        and closeness(e.scores, f.scores) <= 1e-9
        and closeness(e.input, f.input) <= 1e-9
    )
    assert e[0].heatmap().shape == (2, 16, 16) and e[0].grid == f[0].grid


@pytest.mark.parametrize("second", marked([False, True], ("True",)))
def test_torchvisions_swin(second):
    options = (
        {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2} if second else {}
    )
    model = SwinTransformer(
        [2, 2], WIDTH, [2, 2], [2, 2], [4, 4], num_classes=3, stochastic_depth_prob=0.0, **options
    )
    e = explained(randomised(model).double(), pixels())
    assert len(e[0].facts["attention_sites"]) == 4 and e[0].heatmap().shape == (2, 16, 16)


@pytest.mark.slow
def test_torchvisions_maxvit():
    """Convolutions with gates between attentions over windows and over grids."""
    model = MaxVit((16, 16), WIDTH, 2, [WIDTH, WIDTH], [1, 1], 4, 0.0, num_classes=3)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.num_batches_tracked = None
    e = explained(randomised(model).double(), pixels())
    assert len(e[0].facts["attention_sites"]) == 4 and e[0].heatmap().shape == (2, 16, 16)


# open_clip


def test_an_open_clip_picture_tower():
    model = randomised(ClipTower(16, 8, WIDTH, 2, 2, 2.0, output_dim=3)).double()
    e = explained(model, pixels())
    assert len(e[0].facts["attention_sites"]) == 2 and e[0].heatmap().shape == (2, 16, 16)


def test_an_open_clip_tower_that_pools_by_attention():
    model = randomised(
        ClipTower(
            16,
            8,
            WIDTH,
            2,
            2,
            2.0,
            output_dim=4,
            attentional_pool=True,
            attn_pooler_queries=2,
            attn_pooler_heads=2,
        )
    ).double()
    assert len(explained(model, pixels())[0].facts["attention_sites"]) == 3


def test_an_open_clip_text_tower_reads_up_to_the_last_token():
    model = randomised(
        TextTransformer(
            context_length=6, vocab_size=20, width=WIDTH, heads=2, layers=2, output_dim=3
        )
    ).double()
    ids = torch.tensor([[18, 3, 4, 5, 19, 0], [18, 7, 19, 0, 0, 0]])  # the largest id ends a text
    e = explained(model, ids)
    assert not e.scores[:, 1, 3:].any() and e.scores[:, 0, 3].any() and not e.scores[:, 0, 5:].any()
