"""Train the small Vision Transformer that ``relprop demo`` explains, on two cores, and write its
weights.

    python examples/train_digit_scenes.py --steps 14000 --out relprop/demo/digit_scenes.safetensors

The digits used for the accuracy it prints are never seen in training.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import CLASSES, enlarged, make_scenes


def augmented(small: Tensor, generator: torch.Generator) -> Tensor:
    """Digits at twice their size, slightly rotated, scaled, sheared, moved, and dimmed."""
    n = len(small)

    def uniform(limit: float) -> Tensor:
        return (torch.rand(n, generator=generator) * 2 - 1) * limit

    theta = torch.empty(n, 2, 3)
    angle, scale, shear = uniform(0.25), 1 + uniform(0.15), uniform(0.2)
    theta[:, 0, 0], theta[:, 0, 1] = scale * angle.cos(), -scale * angle.sin() + shear
    theta[:, 1, 0], theta[:, 1, 1] = scale * angle.sin(), scale * angle.cos()
    theta[:, 0, 2], theta[:, 1, 2] = uniform(0.15), uniform(0.15)
    dimmed = 0.75 + 0.25 * torch.rand(n, 1, 1, 1, generator=generator)
    return enlarged(small, theta) * dimmed


def accuracy(model: torch.nn.Module, n: int = 2000) -> float:
    """Share of held-out scenes in which the two highest logits are exactly the two digits that are
    there."""
    model.eval()
    scenes = make_scenes(n, seed=10_000_019)
    with torch.no_grad():
        found = torch.cat(
            [model(part).topk(2).indices.sort().values for part in scenes.images.split(250)]
        )
    model.train()
    return (found == scenes.digits.sort().values).all(-1).float().mean().item()


def train(steps: int, batch: int, peak_rate: float, seed: int, out: Path, threads: int) -> None:
    """Train for ``steps`` steps (AdamW, one-cycle rate, binary cross-entropy on the ten logits),
    saving as it goes."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model = digit_scene_model(pretrained=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak_rate, total_steps=steps, pct_start=0.1
    )
    start, running = time.time(), 0.0
    for step in range(1, steps + 1):
        drawn = seed * 1_000_003 + step
        scenes = make_scenes(batch, seed=drawn, held_out=False, enlarge=augmented)
        labels = torch.zeros(batch, CLASSES).scatter_(1, scenes.digits, 1.0)
        loss = F.binary_cross_entropy_with_logits(model(scenes.images), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += loss.item()
        if step % 500 == 0 or step == steps:
            found = accuracy(model)
            print(
                (
                    f"step {step:6d}  loss {running / 500:.4f}  both digits found (held out) "
                    f"{found:.4f}  {time.time() - start:.0f} s"
                ),
                flush=True,
            )
            running = 0.0
            facts = {
                "steps": step,
                "batch": batch,
                "seed": seed,
                "held_out_accuracy": round(found, 4),
            }
            save_file(
                {k: v.contiguous() for k, v in model.state_dict().items()},
                out,
                metadata={"training": json.dumps(facts)},
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=14_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("relprop/demo/digit_scenes.safetensors"))
    options = parser.parse_args()
    train(options.steps, options.batch, options.rate, options.seed, options.out, options.threads)
