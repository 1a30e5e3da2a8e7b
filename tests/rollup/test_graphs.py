"""The roll-up against its definition on residual graphs drawn by chance: ``tools.rollup_graphs``,
whose oracle multiplies its own recipe by hand (``tests/tools/test_rollup_graphs.py``)."""

import pytest

from tools.rollup_graphs.drawing import drawn, shrunk
from tools.rollup_graphs.recording import recorded

DRAWS, EACH = 300, 20


@pytest.mark.parametrize("first", range(0, DRAWS, EACH))
def test_every_row_is_the_definitions(first):
    for number in range(first, first + EACH):
        trial = drawn(number, seed=0)
        with recorded():
            least = shrunk(trial) if trial.wrong else trial
        if least.wrong:
            raise AssertionError(
                f"python -m tools.rollup_graphs --show {number}: {least.wrong}\n"
                f"{', '.join(least.draw.kinds)}\n{least.recipe.said()}"
            )
