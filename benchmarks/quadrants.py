"""Do maps of the shipped model of pictures and words lie where its answer says?

    python -m benchmarks.quadrants --pictures 30

The answer ("top left") is explained, both words at once. Of each method the share of the heat map
(its positive part; the words have scores of their own) that lies on the quarter of the picture that
the answer names, and on the disc itself; means over pictures of another seed than training's with
bootstrap 95 % intervals. Chance is what these parts are of the picture. A map without any positive
part counts 0.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from torch import Tensor

import relprop
from benchmarks.reviews import interval
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import Quadrants, make_quadrants

METHODS = (
    "transformer_attribution gae rollout raw_attention attention_times_grad attcat "
    "attnlrp lrp gradient_x_input integrated_gradients random"
).split()
SEED = 40_000_003


def shares(model, processor, drawn: Quadrants, methods: list[str]) -> dict[str, Tensor]:
    """For each method (pictures, 2): the shares on the quarter and on the disc, of maps of the sum
    of both words' log-probabilities."""
    parts = [drawn.quarters, drawn.discs[torch.arange(len(drawn.asked)), drawn.asked]]
    texts = [f"<image> {q} {a}" for q, a in zip(drawn.questions, drawn.answers, strict=True)]
    found = relprop.compare(
        model,
        {"images": drawn.pictures(), "text": texts},
        methods,
        [relprop.targets.answer(answer) for answer in drawn.answers],
        processor=processor,
    )
    shares = {}
    for method in methods:
        heat = found[method]["pixel_values"].heatmap().clamp(min=0)
        whole = heat.sum((1, 2)).clamp(min=1e-30)
        shares[method] = torch.stack([(heat * part).sum((1, 2)) / whole for part in parts], 1)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, processor = quadrant_model(), quadrant_processor()
    drawn = make_quadrants(options.pictures, seed=SEED)
    disc = drawn.discs[torch.arange(len(drawn.asked)), drawn.asked].float().mean((1, 2))
    print(f"chance: the quarter 25 %, the disc {interval(disc)} of the picture\n")
    print("| method | on the quarter | on the disc |\n|---|---|---|")
    for method, found in shares(model, processor, drawn, options.methods).items():
        print(f"| `{method}` | {interval(found[:, 0])} | {interval(found[:, 1])} |")


if __name__ == "__main__":
    main()
