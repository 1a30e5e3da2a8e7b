"""Quantus' metrics of relprop's methods on the shipped digit model: a judge from outside.

pip install "relprop[quantus]"
python -m tools.outside_judges --samples 32
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np

from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.errors import OptionError
from relprop.interop import quantus_explainer

METHODS = ("transformer_attribution", "gae", "rollout", "attnlrp", "gradient_x_input", "random")


def metrics() -> Mapping[str, Any]:
    """Quantus' metrics by name: where the largest pixel is, how much of the map and of its largest
    pixels lies on the digit, how few pixels hold the map (larger is better), and the class's mean
    probability while pixels are taken away (smaller is better).

    Raises ``OptionError`` without Quantus."""
    try:
        import quantus
    except ImportError:
        raise OptionError('Quantus is needed: pip install "relprop[quantus]"') from None
    how = {"disable_warnings": True, "display_progressbar": False}
    sizes = how | {"abs": True}  # of a signed map, the sum inside is no part of the whole sum
    flips = {"features_in_step": 32, "perturb_baseline": "black"}
    return {
        "PointingGame": quantus.PointingGame(**sizes),
        "RelevanceMassAccuracy": quantus.RelevanceMassAccuracy(**sizes),
        "RelevanceRankAccuracy": quantus.RelevanceRankAccuracy(**sizes),
        "Sparseness": quantus.Sparseness(**how),
        "PixelFlipping": quantus.PixelFlipping(**flips, **how),
    }


def table(samples: int) -> dict[str, dict[str, float]]:
    """The mean of each metric for each method, over scenes with the class of their first digit."""
    model, scenes = digit_scene_model(), make_scenes(samples, seed=0)
    x, y = scenes.images.numpy(), scenes.digits[:, 0].numpy()
    masks = scenes.mask(0)[:, None].numpy()
    measures, found = metrics(), {}
    for method in METHODS:
        explain = quantus_explainer(method=method)
        given = {"model": model, "x_batch": x, "y_batch": y, "device": "cpu"}
        given |= {"a_batch": explain(model, x, y), "s_batch": masks}
        found[method] = {
            name: float(np.nanmean(np.asarray(measure(**given), dtype=float)))
            for name, measure in measures.items()
        }
    return found


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=32)
    found = table(parser.parse_args().samples)
    names = list(next(iter(found.values())))
    print(f"| method | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for method, row in found.items():
        print(f"| {method} | {' | '.join(f'{row[n]:.3f}' for n in names)} |")


if __name__ == "__main__":
    main()
