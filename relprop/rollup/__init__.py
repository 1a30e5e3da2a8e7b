"""Where the roll-up starts and ends, what each operand of a merge carries, and which axes are
tokens: read off the program's structure.

The rules themselves are in ``rules/rollup.py``; this is what only the whole graph can tell them.
"""

from relprop.rollup.layers import (
    block_input,
    last_stream,
    layer_outputs,
    skip_of,
    token_axes,
    tokens_of,
)
from relprop.rollup.planning import RollUpPlan, level_of, rollup_plan, rollup_plan_through
from relprop.rollup.streams import Stream

__all__ = [
    "RollUpPlan",
    "Stream",
    "block_input",
    "last_stream",
    "layer_outputs",
    "level_of",
    "rollup_plan",
    "rollup_plan_through",
    "skip_of",
    "token_axes",
    "tokens_of",
]
