"""Every picture of docs/pictures.md, with the two lines of code that stand there.

    python examples/pictures_gallery.py --out docs/pictures        # about a minute on two cores

The scene and its model are the shipped ones; the sentence's model is the small BERT of
``methods_gallery.py``, trained here for half a minute; the deep model is a ViT of 12 blocks with
random weights, which is enough to show that its ledger can be read.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from methods_gallery import trained, word_tokenizer

import relprop
from relprop import plot
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.evaluation.perturbation import ImagePerturbation

TEXT = (
    "the music was really clever and we saw it on a friday and the plot was not "
    "moving and the story was quite weak"
)
DPI = 80


def save(axes: Any, path: Path, dpi: int = DPI) -> None:
    """The figure that the axes are in."""
    first = axes[0] if isinstance(axes, list) else axes
    first.figure.savefig(path, dpi=dpi)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def draw_scene(out: Path) -> None:
    model, scenes = digit_scene_model(), make_scenes(1, seed=20_000_003)
    image, digits = scenes.images[0], scenes.digits[0].tolist()
    both = relprop.explain_many(model, scenes.images, digits, keep=("matrix", "blocks"))
    save(plot.heatmap(both[0], image), out / "picture-heatmap.png")
    save(plot.compare(both, image), out / "picture-compare-targets.png")
    found = relprop.compare(
        model,
        scenes.images,
        ["transformer_attribution", "rollout", "gradcam", "gradient_x_input"],
        digits[0],
    )
    save(plot.compare(found, image), out / "picture-compare.png")
    save(plot.heads(both[0], block=0, kind="attention"), out / "picture-heads.png", dpi=60)
    print(both[0].summary(), both[0].terminal(colour=False), sep="\n")


def draw_text(out: Path) -> None:
    tokenizer = word_tokenizer()
    model = trained(tokenizer)
    e = relprop.explain(model, TEXT, processor=tokenizer, keep="matrix")
    layered = relprop.explain(model, TEXT, processor=tokenizer, method="attcat", keep="layers")
    save(
        plot.text(relprop.explain(model, TEXT, processor=tokenizer, method="integrated_gradients")),
        out / "picture-text.png",
    )
    save(plot.matrix(e), out / "picture-matrix.png")
    save(plot.layers(layered), out / "picture-layers.png")
    print(e.summary(), e.terminal(colour=False), sep="\n")


def draw_ledger(out: Path) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", depth=12, num_classes=10).eval()
    save(
        plot.ledger(relprop.explain(model, torch.rand(1, 3, 224, 224), target=3, method="lrp")),
        out / "picture-ledger.png",
    )


def draw_curves(out: Path) -> None:
    model, scenes = digit_scene_model(), make_scenes(100, seed=7)
    curves, measure = {}, ImagePerturbation()
    for method in ("transformer_attribution", "rollout", "random"):
        e = relprop.explain(model, scenes.images, list(scenes.digits[:, 0]), method=method)
        curves[method] = measure(
            model,
            scenes.images,
            e.heatmap(),
            scenes.digits[:, 0],
            normalize=lambda x: x,
            others=scenes.digits[:, 1:].tolist(),
        )
    save(plot.curves(curves), out / "picture-curves.png")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    draw_scene(out)
    draw_ledger(out)
    draw_text(out)
    draw_curves(out)


if __name__ == "__main__":
    main()
