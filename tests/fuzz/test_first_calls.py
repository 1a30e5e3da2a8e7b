"""What only the first call of a process does: imports of libraries that draw at their import."""

import subprocess
import sys

import pytest

CODE = """
import random, sys, torch, relprop
from relprop.evaluation import digit_scenes, evaluate
from relprop.demo.model import digit_scene_model
before, theirs = random.getstate(), torch.get_rng_state()
digit_scenes(2).source[0]
CALL
assert "rich.style" in sys.modules
assert random.getstate() == before and torch.get_rng_state().equal(theirs)
"""
CALLS = [
    "relprop.explain(digit_scene_model(), torch.ones(2, 1, 32, 32), batch_size=1, progress=True)",
    "evaluate(digit_scenes(2), ['rollout'])",
]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_random_numbers_are_as_they_were(call):
    code = CODE.replace("CALL", call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
