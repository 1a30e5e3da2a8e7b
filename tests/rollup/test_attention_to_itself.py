"""With the unit matrix for every attention map a row is the skip connections' own, once for each
chain of maps: whatever windows, shifts, pools and shared queries a model has, maps are spread over
its tokens as its skip connections are."""

import pytest
import timm
import torch
from timm.models.gcvit import GlobalContextVit

import relprop


def to_itself(at):
    return {
        v.site.contraction: torch.eye(v.attention.shape[-1], dtype=v.attention.dtype).expand_as(
            v.attention
        )
        for v in at.sites
    }


@pytest.fixture
def method():
    relprop.methods.register("to_itself", to_itself)
    yield "to_itself"
    relprop.methods.remove("to_itself")


def of_timm(name, **settings):
    return timm.create_model(name, img_size=64, num_classes=5, **settings)


SWIN = {"embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
MODELS = {
    "plain": lambda: of_timm("vit_tiny_patch16_224", patch_size=8, depth=2),
    "shifted windows": lambda: of_timm("swin_tiny_patch4_window7_224", **SWIN),
    "one query for all windows": lambda: GlobalContextVit(
        img_size=64, num_classes=5, embed_dim=16, num_heads=(2, 2, 4, 4), depths=(2, 1, 2, 1)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_spread_as_skip_connections_are(name, method):
    torch.manual_seed(0)
    model, x = MODELS[name]().double().eval(), torch.randn(1, 3, 64, 64, dtype=torch.float64)
    e = relprop.explain(model, x, 1, method=method)
    chains = 2 ** len(e.facts["attention_sites"]) - 1
    (stream,) = e.streams.values()
    torch.testing.assert_close(stream.scores, chains * stream.identity, rtol=1e-9, atol=0)
