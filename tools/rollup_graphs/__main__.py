"""Draw, compare, and say which disagree.

python -m tools.rollup_graphs --draws 10000 --seed 0   # those that disagree, shrunk; counts
python -m tools.rollup_graphs --only gate --draws 50   # only graphs with such a layer
python -m tools.rollup_graphs --show 17                # draw 17: its recipe, and both rows
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

import numpy as np
import torch

from tools.rollup_graphs.drawing import Trial, drawn, shrunk
from tools.rollup_graphs.layers import LAYERS
from tools.rollup_graphs.recording import recorded


def show(trial: Trial) -> None:
    """Print a recipe and both answers."""
    np.set_printoptions(precision=5, suppress=True)
    print(f"{', '.join(trial.draw.kinds)}\n{trial.recipe.said()}\n  {trial.wrong or 'agrees'}")
    found = trial.found() if not trial.wrong.startswith("refused") else []
    for name, rows in (("by hand", trial.rows), ("found", found)):
        for scores, identity in rows:
            print(f"  {name:8} identity {identity[0]} scores {scores[0]}")


def main() -> int:
    """Print the draws that disagree, and how many there are by the kinds of their parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], choices=list(LAYERS), help="with these")
    parser.add_argument("--show", type=int, help="this draw alone, in full")
    parser.add_argument("--exported", action="store_true", help="capture by torch.export: slow")
    parser.add_argument("--shown", type=int, default=10, help="so many that disagree are shrunk")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.nullcontext() if given.exported else recorded():
        if given.show is not None:
            trial = drawn(given.show, given.seed, given.only)
            show(trial)
            return bool(trial.wrong)
        return compared(given)


def compared(given: argparse.Namespace) -> int:
    """Compare all that were asked for."""
    began, tried, wrong = time.monotonic(), Counter[str](), Counter[str]()
    failed = 0
    for number in range(given.draws):
        trial = drawn(number, given.seed, given.only)
        tried.update(set(trial.draw.kinds))
        if not trial.wrong:
            continue
        failed += 1
        wrong.update(set(trial.draw.kinds))
        if failed <= given.shown:
            print(f"--show {number} --seed {given.seed}: {trial.wrong}; the least of it:")
            show(shrunk(trial))
    for kind in sorted(tried, key=lambda kind: -wrong[kind] / tried[kind]):
        print(f"{kind:28} {wrong[kind]:6} of {tried[kind]}")
    took = (time.monotonic() - began) / max(given.draws, 1)
    print(f"{failed} of {given.draws} disagree; {1000 * took:.0f} ms a draw")
    return min(failed, 255)


if __name__ == "__main__":
    sys.exit(main())
