"""Draw, compare, and say which disagree.

python -m tools.rollup_graphs --draws 10000 --seed 0   # those that disagree; counts by their parts
python -m tools.rollup_graphs --only gate --draws 50   # only graphs with such a layer
python -m tools.rollup_graphs --show 17                # draw 17: its recipe, and both rows
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter

import numpy as np
import torch

from tools.rollup_graphs.drawing import Rows, Trial, drawn
from tools.rollup_graphs.layers import LAYERS
from tools.rollup_graphs.recording import recorded


def show(trial: Trial, found: Rows, wrong: str) -> None:
    """Print a recipe and both answers."""
    print(f"{', '.join(trial.kinds)}\n{trial.recipe.described()}\n  {wrong or 'agrees'}")
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
    given = parser.parse_args()
    torch.set_num_threads(1)
    np.set_printoptions(precision=5, suppress=True)
    tried, wrong, failed = Counter[str](), Counter[str](), list[int]()
    numbers = range(given.draws) if given.show is None else [given.show]
    with contextlib.nullcontext() if given.exported else recorded():
        for number in numbers:
            trial = drawn(number, given.seed, given.only)
            tried.update(set(trial.kinds))
            found, off = trial.compared()
            if off:
                failed.append(number)
                wrong.update(set(trial.kinds))
            if given.show is not None or (off and len(failed) <= 10):
                print(f"--show {number} --seed {given.seed}", end=": ")
                show(trial, found, off)
    for kind in sorted(tried, key=lambda kind: -wrong[kind] / tried[kind]):
        print(f"{kind:28} {wrong[kind]:6} of {tried[kind]}")
    print(f"{len(failed)} of {len(numbers)} disagree: {failed}")
    return min(len(failed), 255)


if __name__ == "__main__":
    sys.exit(main())
