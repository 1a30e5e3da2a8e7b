"""A photograph explained by a network that was really trained: README's picture.

    python examples/two_photographs.py --out docs/pictures/two-photographs.png    # about a minute

No package carries a vision transformer trained on photographs, so a small one is trained here, on
crops of the two photographs that scikit-learn ships (a temple in China, a flower). It says which of
the two are in a picture; the picture that is explained is put together from parts of them that it
was not trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F

import relprop
from relprop.views.figure import figure, show_heatmap, show_image

SIDE, STEPS, BATCH = 64, 400, 48
NAMES = ("temple", "flower")


def photographs() -> list[Tensor]:
    """Each (3, 427, 640) in [0, 1]: the temple, the flower."""
    return [torch.tensor(image).movedim(-1, 0) / 255 for image in load_sample_images().images]


def crop(photo: Tensor, held_out: bool, draw: torch.Generator) -> Tensor:
    """A square part, (3, 64, 64): of the left three fifths for training, of the right two else."""
    size = int(torch.randint(130, 230, (), generator=draw))
    first, last = (384, 640) if held_out else (0, 384)
    left = int(torch.randint(first, last - size + 1, (), generator=draw))
    top = int(torch.randint(0, 427 - size + 1, (), generator=draw))
    part = photo[None, :, top : top + size, left : left + size]
    return F.interpolate(part, (SIDE, SIDE), mode="bilinear", antialias=True)[0]


def scenes(n: int, held_out: bool, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures (n, 3, 64, 128) whose halves are crops or grey noise, and which photographs are in
    each, (n, 2)."""
    photos = photographs()
    images, there = torch.zeros(n, 3, SIDE, 2 * SIDE), torch.zeros(n, 2)
    for i in range(n):
        for half in range(2):
            which = int(torch.randint(3, (), generator=draw))
            place = slice(half * SIDE, (half + 1) * SIDE)
            if which == 2:
                images[i, :, :, place] = torch.rand(1, SIDE, SIDE, generator=draw)
            else:
                images[i, :, :, place] = crop(photos[which], held_out, draw)
                there[i, which] = 1
    return images, there


def trained() -> torch.nn.Module:
    """A ViT of four blocks, trained on crops of the photographs' left parts."""
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(
        img_size=(SIDE, 2 * SIDE), patch_size=8, num_classes=2, embed_dim=96, depth=4, num_heads=4
    )
    adam = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    draw = torch.Generator().manual_seed(0)
    images, there = scenes(1500, False, draw)
    for step in range(STEPS):
        for group in adam.param_groups:
            group["lr"] = 1e-3 * min(1, step / 40, (STEPS - step) / 100)
        chosen = torch.randint(len(images), (BATCH,), generator=draw)
        loss = F.binary_cross_entropy_with_logits(model(images[chosen]), there[chosen])
        adam.zero_grad()
        loss.backward()
        adam.step()
    return model.eval()


def main() -> None:
    """Train, say how right it is on parts it has not seen, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("two-photographs.png"))
    out = parser.parse_args().out
    model, draw = trained(), torch.Generator().manual_seed(1)
    images, there = scenes(200, True, draw)
    with torch.no_grad():
        right = float(((model(images) > 0) == there.bool()).all(1).float().mean())
    picture = torch.cat([crop(p, True, draw) for p in photographs()], -1)[None]
    maps = relprop.explain_many(model, picture, [0, 1])
    fig, axes = figure(3, 3.2, 2.2)
    show_image(axes[0], picture[0], "the picture")
    for k, (e, name) in enumerate(zip(maps, NAMES, strict=True)):
        show_heatmap(axes[k + 1], e.heatmap()[0], f"why {name}?", picture[0])
        heat = e.heatmap()[0].clamp(min=0)
        on = float(heat[:, k * SIDE : (k + 1) * SIDE].sum() / heat.sum())
        print(f"{name}: {on:.0%} of the map lies on the {name}")
    print(f"both right in {right:.0%} of 200 pictures of parts not seen in training")
    fig.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
