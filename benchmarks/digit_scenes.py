"""Do the maps fall on the digit they explain? The shipped model on scenes of digits never seen in
training.

    python benchmarks/digit_scenes.py --scenes 500      # about 2 minutes on two cores python
    benchmarks/digit_scenes.py --scenes 100 --methods lrp lrp/epsilon attnlrp      # any methods,
    each with a rule set if one is named

For every scene both digits are explained. Printed: the model's accuracy, and the share of the heat
map (its positive part) on the explained digit's 16×16 box, on the other digit's, and elsewhere,
with bootstrap 95 % intervals over scenes. Each box is 25 % of the picture.
"""

from __future__ import annotations

import argparse

import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import Scenes, make_scenes

CHOICES = (
    ("transformer_attribution, paper", {}),
    ("transformer_attribution, stable", {"rules": "stable"}),
    ("transformer_attribution, no gradient", {"use_gradient": False}),
    ("rollout", {"method": "rollout"}),
)


def accuracy(model: torch.nn.Module, scenes: Scenes) -> float:
    """Share of scenes in which the two highest logits are exactly the two digits that are there."""
    with torch.no_grad():
        found = model(scenes.images).topk(2).indices.sort().values
    return (found == scenes.digits.sort().values).all(-1).float().mean().item()


def shares(model: torch.nn.Module, scenes: Scenes, **options: object) -> torch.Tensor:
    """(scenes, 2): the share on the explained digit and on the other, averaged over the two
    explanations of a scene."""
    both = relprop.explain_many(
        model, scenes.images, [scenes.digits[:, 0], scenes.digits[:, 1]], batch_size=100, **options
    )
    found = []
    for which, explanation in enumerate(both):
        heat = explanation.heatmap().clamp(min=0)
        whole = heat.sum((1, 2)).clamp(min=1e-12)
        found.append(
            torch.stack(
                [(heat * scenes.mask(k)).sum((1, 2)) / whole for k in (which, 1 - which)], 1
            )
        )
    return torch.stack(found).mean(0)


def interval(values: torch.Tensor, draws: int = 2000) -> tuple[float, float]:
    """A bootstrap 95 % interval of the mean."""
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(values), (draws, len(values)), generator=generator)
    means = values[picks].mean(1)
    return means.quantile(0.025).item(), means.quantile(0.975).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=20_000_003)
    parser.add_argument("--methods", nargs="*", metavar="METHOD[/RULES]")
    options = parser.parse_args()
    chosen = (
        [
            (named, dict(zip(("method", "rules"), named.split("/"), strict=False)))
            for named in options.methods
        ]
        if options.methods
        else CHOICES
    )
    model, scenes = digit_scene_model(), make_scenes(options.scenes, seed=options.seed)
    print(f"{options.scenes} held-out scenes; both digits found: {accuracy(model, scenes):.1%}\n")
    print(f"{'':<40}{'on the explained digit':>30}{'on the other digit':>30}")
    for name, choice in chosen:
        values = shares(model, scenes, **choice)
        cells = [
            f"{v.mean():.1%} [{interval(v)[0]:.1%}, {interval(v)[1]:.1%}]" for v in values.unbind(1)
        ]
        print(f"{name:<40}{cells[0]:>30}{cells[1]:>30}", flush=True)


if __name__ == "__main__":
    main()
