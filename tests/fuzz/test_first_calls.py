"""What only the first call of a process does: imports of libraries that draw at their import."""

import subprocess
import sys

CODE = """
import random, torch, relprop
from relprop.evaluation import digit_scenes
from relprop.demo.model import digit_scene_model
before = random.getstate()
digit_scenes(2).source[0]
relprop.explain(digit_scene_model(), torch.rand(2, 1, 32, 32), 1, batch_size=1, progress=True)
assert "rich.style" in __import__("sys").modules
assert random.getstate() == before
"""


def test_pythons_random_numbers_are_as_they_were():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
