"""Train the small LLaVA that says in which quarter of a picture a disc is, on one core in some
minutes; write its weights and its numbers.

    python -m tools.train_quadrants --out relprop/demo

Pictures are drawn anew for every step, with more discs as training goes on, and each of their
discs is asked for; the loss is that of the answer's two words and of its end. What it prints is of
pictures of another seed: how many answers are right word by word, and how many follow when the disc
asked for changes places with another, and stay when two others do.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from relprop.demo.quadrant_model import (
    NUMBERS,
    PATCH,
    WEIGHTS,
    quadrant_model,
    vocabulary,
)
from relprop.demo.quadrants import HALF, SIDE, Quadrants, make_quadrants

HELD_OUT_SEED, PICTURES = 10_000_019, 24  # in a step
PATCHES = (SIDE // PATCH) ** 2


def encoded(drawn: Quadrants) -> tuple[dict[str, Tensor], Tensor]:
    """What the processor makes of pictures, questions and answers, padded on the left; and the last
    three ids of each, the answer's."""
    ids = vocabulary()
    rows = [
        [ids["<s>"], *[ids["<image>"]] * PATCHES, *(ids[w] for w in f"{q} {a} </s>".split())]
        for q, a in zip(drawn.questions, drawn.answers, strict=True)
    ]
    long = max(map(len, rows))
    padded = torch.tensor([[ids["<pad>"]] * (long - len(row)) + row for row in rows])
    mask = (padded != ids["<pad>"]).long()
    inputs = {"pixel_values": drawn.images * 2 - 1, "input_ids": padded, "attention_mask": mask}
    return inputs, padded[:, -3:]


def all_asked(drawn: Quadrants) -> Quadrants:
    """Every picture once for each of its discs, asked for in turn."""
    there = drawn.discs.any(-1).any(-1).nonzero()
    return replace(_part(drawn, there[:, 0]), asked=there[:, 1])


def right(model: Any, drawn: Quadrants) -> float:
    """The share of answers whose every word has the highest logit."""
    count = 0
    with torch.no_grad():
        for first in range(0, len(drawn.asked), 250):
            inputs, answers = encoded(_part(drawn, slice(first, first + 250)))
            found = model(**inputs, logits_to_keep=4).logits[:, :-1].argmax(-1)
            count += int((found == answers).all(1).sum())
    return count / len(drawn.asked)


def moved(drawn: Quadrants, *, asked: bool) -> Quadrants:
    """The same pictures, with the quarter asked for and the next exchanged, or the two that follow
    these."""
    places = torch.arange(4).repeat(len(drawn.asked), 1)
    first, second = ((drawn.asked + k) % 4 for k in ((0, 1) if asked else (1, 2)))
    rows = torch.arange(len(places))
    places[rows, first], places[rows, second] = second, first
    images = torch.empty_like(drawn.images)
    for quarter in range(4):
        down, across = divmod(quarter, 2)
        images[:, :, down * HALF :, across * HALF :][..., :HALF, :HALF] = _cut(
            drawn.images, places[:, quarter]
        )
    return replace(
        drawn,
        images=images,
        colours=drawn.colours.gather(1, places),
        asked=(places == drawn.asked[:, None]).long().argmax(1),
    )


def _cut(images: Tensor, quarters: Tensor) -> Tensor:
    parts = images.unfold(2, HALF, HALF).unfold(3, HALF, HALF).flatten(2, 3)
    return parts[torch.arange(len(images)), :, quarters]


def _part(drawn: Quadrants, rows: slice | Tensor) -> Quadrants:
    return replace(drawn, **{name: value[rows] for name, value in vars(drawn).items()})


def train(steps: int, rate: float, seed: int, out: Path, count: int) -> None:
    """Train by AdamW with a one-cycle rate; save the weights and what they are right about."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = quadrant_model(pretrained=False).train()
    with torch.no_grad():  # transformers' own weights are small: attention is even for long
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, weight[0].numel() ** -0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    start = time.process_time()
    for step in range(1, steps + 1):
        others = 0 if step < 0.05 * steps else 1 if step < 0.4 * steps else 3
        drawn = make_quadrants(PICTURES, seed=seed * 1_000_003 + step, others=others)
        inputs, answers = encoded(all_asked(drawn))
        logits = model(**inputs, logits_to_keep=4).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(
                f"step {step:5d}  loss {loss:.4f}  {time.process_time() - start:.0f} s", flush=True
            )
    _write(model.eval(), out, {"steps": steps, "pictures_in_a_step": PICTURES, "seed": seed}, count)


def _write(model: Any, out: Path, training: dict[str, int], count: int) -> None:
    """The weights, each once, and the numbers."""
    drawn = make_quadrants(count, seed=HELD_OUT_SEED)
    numbers = training | {
        "pictures": count,
        "right": right(model, drawn),
        "right_when_the_disc_has_moved": right(model, moved(drawn, asked=True)),
        "right_when_others_have_moved": right(model, moved(drawn, asked=False)),
    }
    print(json.dumps(numbers, indent=1))
    state = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(state, out / WEIGHTS.name)
    (out / NUMBERS.name).write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=int, default=500, help="how many the numbers are of")
    parser.add_argument("--out", type=Path, default=WEIGHTS.parent)
    options = parser.parse_args()
    train(options.steps, options.rate, options.seed, options.out, options.pictures)
