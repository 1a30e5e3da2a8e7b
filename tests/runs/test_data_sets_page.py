"""docs/whole-data-sets.md: its examples run in order, and it names what there is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
import torch
from typer.testing import CliRunner

from relprop.cli import app
from relprop.commands.explain import ONE_INPUT

PAGE = (Path(__file__).parents[2] / "docs/whole-data-sets.md").read_text()


@pytest.fixture(scope="module")
def scope(tmp_path_factory):
    """What the page's examples leave behind, in a folder of their own."""
    torch.set_num_threads(1)  # a fixture of a module comes before that of every test
    folder, found = tmp_path_factory.mktemp("page"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
            exec(compile(block, "whole-data-sets.md", "exec"), found)
    return found | {"folder": folder}


def test_the_examples_do_what_they_say(scope):
    results = scope["results"]
    assert (
        results.complete
        and scope["table"].num_rows == 16
        and sorted(scope["mean"]["method"].to_pylist()) == ["rollout", "transformer_attribution"]
    )
    assert scope["scores"].shape == (65,) and scope["heat"].shape == (1, 32, 32)
    assert (
        scope["summary"].done == 10
        and json.loads((scope["folder"] / "brightness" / "run.json").read_text())["identity"][
            "work"
        ]
        == "brightness"
    )


def test_the_shards_are_an_ordinary_data_set(scope):
    (example,) = re.findall(r"`(pyarrow\.dataset\.dataset.*?)`", PAGE, re.S)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(scope["folder"])
        found = eval(example, {"pyarrow": pyarrow})
        assert found.count_rows() == 16 and found.to_table(columns=["output"]).num_rows == 16


def test_the_options_are_those_of_the_command():
    said = (
        CliRunner()
        .invoke(app, ["explain", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        .output
    )
    has = set(re.findall(r"--[a-z-]+", re.sub(r"\x1b\[[0-9;]*m", "", said))) - {"--help"}
    table = PAGE[PAGE.index("| option |") : PAGE.index("## In Python")]
    assert set(re.findall(r"`(--[a-z-]+)`", table)) == has - {*ONE_INPUT, "--no-ledger"}


MEASURED = """
import gc, sys, tracemalloc
from pathlib import Path
from relprop.runs import read_run, run
from tests.runs.works import Numbers

folder = Path(sys.argv[1])


def made(samples, name):
    run(Numbers(samples), folder / name, batch_size=16, progress=False)
    assert sum(1 for _ in read_run(folder / name).rows()) == samples * 3 // 4


made(2048, "warm")  # whatever is imported or made once
for samples in (256, 2048):
    gc.collect()
    tracemalloc.start()
    made(samples, str(samples))
    print(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
"""


@pytest.mark.slow
def test_the_memory_for_a_large_data_set_is_as_said(tmp_path):
    """In a process of its own: others' threads and leftovers are no part of it."""
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    root = Path(__file__).parents[2]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    small, large = map(int, said.split())
    assert large - small < 300 * (2048 - 256), said  # rows and tensors are some 1000 bytes a sample
