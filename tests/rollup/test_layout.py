"""Which token came from where: grid, source and content of images, and where a patch's score lands
on the heat map."""

import dataclasses

import pytest
import timm
import torch

import relprop

SIZE, PATCH = (32, 48), 8
GRID = (SIZE[0] // PATCH, SIZE[1] // PATCH)
PATCHES = GRID[0] * GRID[1]
MODELS = {
    "class token": ({}, 1),
    "no class token, mean": ({"global_pool": "avg", "class_token": False}, 0),
    "class token, mean": ({"global_pool": "avg"}, 1),
    "registers": ({"reg_tokens": 2}, 3),
    "registers, no position for the prefix": ({"reg_tokens": 2, "no_embed_class": True}, 3),
    "norm before": ({"pre_norm": True}, 1),
}


def vit(**options):
    return (
        timm.models.VisionTransformer(
            img_size=SIZE,
            patch_size=PATCH,
            embed_dim=16,
            depth=2,
            num_heads=2,
            num_classes=5,
            **options,
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize("name", MODELS)
def test_grid_source_and_content(name):
    options, prefix = MODELS[name]
    e = relprop.explain(vit(**options), torch.randn(2, 3, *SIZE, dtype=torch.float64), target=1)
    assert (e.grid, e.image) == (GRID, SIZE)
    assert e.source.tolist() == [-1] * prefix + list(range(PATCHES))
    assert e.content.tolist() == [[False] * prefix + [True] * PATCHES] * 2
    assert e.scores.shape == (2, prefix + PATCHES)


@pytest.mark.parametrize("place", [(0, 0), (0, 5), (3, 0), (2, 4)])
def test_a_patch_lands_at_its_place_of_the_heat_map(place):
    e = relprop.explain(vit(reg_tokens=2), torch.randn(1, 3, *SIZE, dtype=torch.float64), target=1)
    scores = torch.zeros_like(e.scores)
    scores[:, 3 + place[0] * GRID[1] + place[1]] = 1
    marked = {e.stream: dataclasses.replace(e.streams[e.stream], scores=scores)}
    heat = dataclasses.replace(e, streams=marked).heatmap()[0]
    assert heat.shape == SIZE
    assert tuple(int(k) // PATCH for k in torch.unravel_index(heat.argmax(), heat.shape)) == place


def test_the_patch_that_matters_is_where_the_image_says():
    """Tokens that are all equal but one: only the odd patch can stand out, at the place of its
    pixels."""
    model = vit(global_pool="avg", class_token=False)
    torch.nn.init.zeros_(model.pos_embed)
    image = torch.zeros(1, 3, *SIZE, dtype=torch.float64)
    image[:, :, 2 * PATCH : 3 * PATCH, 4 * PATCH : 5 * PATCH] = torch.randn(
        3, PATCH, PATCH, dtype=torch.float64
    )
    e = relprop.explain(model, image, target=1)
    grid = e.scores.reshape(GRID)
    others = grid.flatten()[torch.arange(PATCHES) != 2 * GRID[1] + 4]
    assert (others - others[0]).abs().max() <= 1e-9 * grid.abs().max()
    assert (grid[2, 4] - others[0]).abs() > 1e-3 * grid.abs().max()


def test_a_model_that_transposes_its_patches_is_laid_out_by_their_origin():
    class Columns(torch.nn.Module):
        """Patches in column order."""

        def __init__(self):
            super().__init__()
            self.patches, self.attention, self.head = (
                torch.nn.Conv2d(3, 8, PATCH, PATCH),
                torch.nn.MultiheadAttention(8, 2, batch_first=True),
                torch.nn.Linear(8, 4),
            )

        def forward(self, image):
            x = self.patches(image).permute(0, 3, 2, 1).flatten(1, 2)
            return self.head((x + self.attention(x, x, x)[0]).mean(1))

    e = relprop.explain(Columns().double(), torch.randn(2, 3, *SIZE, dtype=torch.float64), target=1)
    assert e.grid == GRID
    assert e.source.tolist() == [r * GRID[1] + c for c in range(GRID[1]) for r in range(GRID[0])]


def test_text_has_no_grid_and_counts_from_zero():
    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.attention, self.head = (
                torch.nn.Embedding(10, 8),
                torch.nn.MultiheadAttention(8, 2, batch_first=True),
                torch.nn.Linear(8, 4),
            )

        def forward(self, ids):
            x = self.words(ids)
            return self.head((x + self.attention(x, x, x)[0])[:, 0])

    e = relprop.explain(Words().double(), torch.randint(0, 10, (2, 6)), target=1)
    assert e.grid is None and e.image is None
    assert e.source.tolist() == list(range(6))
    with pytest.raises(relprop.errors.OptionError, match="no patch grid"):
        e.heatmap()
