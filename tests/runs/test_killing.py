"""Runs that are really killed, with SIGKILL, at random moments, until they are done: nothing is
lost, nothing is done twice."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from relprop.runs import read_run, run
from tests.runs.sources import Pictures, patches
from tests.runs.works import Numbers, committed, explained_in_a_process, numbers_in_a_process, same

#: Either command, on 400 samples in 200 shards.
COMMANDS = {
    "explain": ("--method", "rollout", "--target", "label", "--limit", "400"),
    "evaluate": ("--method", "rollout", "--measure", "segmentation", "--samples", "400"),
}


def start(target, *arguments):
    """A process of its own, forked from a server that has imported what it needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "tests.runs.works",
            "tests.runs.sources",
            "relprop.runs",
            "pyarrow.parquet",
            "tests.runs.warm",
        ]
    )
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def killed_until_done(start_one, folder, delays, kills):
    """How often it was killed before it was done, and the number of shards each kill left."""
    left = []
    while len(left) < kills:
        before = committed(folder)
        process = start_one()
        while (
            len(left) % 3 and committed(folder) == before and process.exitcode is None
        ):  # two in three are hit at work, one wherever it is by then
            time.sleep(0.001)
        time.sleep(next(delays) * (1 if len(left) % 3 else 2))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        left.append(committed(folder))
    return left


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_that_is_killed_again_and_again(tmp_path, seed):
    options = {"samples": 400, "pause": 0.002, "rows": 2}  # at least 0.8 s of work
    run(Numbers(400, rows=2), tmp_path / "whole", batch_size=4, progress=False)
    draw = random.Random(seed)
    folder = tmp_path / "killed"
    left = killed_until_done(
        lambda: start(numbers_in_a_process, folder, 4, options),
        folder,
        iter(lambda: draw.uniform(0.0, 0.06), None),
        kills=10,
    )
    assert len(left) >= 4 and left == sorted(left)  # the first four leave it 0.36 s at the most
    assert any(0 < shards < 100 for shards in left)
    process = start(numbers_in_a_process, folder, 4, options)
    process.join()
    assert process.exitcode == 0
    results = read_run(folder)
    assert results.complete and same(results, read_run(tmp_path / "whole"))
    assert committed(folder) == 100  # every batch is there once, cut as in the uninterrupted run
    assert len(list((folder / "shards").iterdir())) == 200 and {
        p.name for p in folder.iterdir()
    } == {"run.json", "shards"}


def test_explanations_of_a_run_that_is_killed(tmp_path):
    from relprop.runs import ExplainWork

    run(ExplainWork(patches(), Pictures(48)), tmp_path / "whole", batch_size=4, progress=False)
    draw, folder = random.Random(2), tmp_path / "killed"
    left = killed_until_done(
        lambda: start(explained_in_a_process, folder, 4, 48),
        folder,
        iter(lambda: draw.uniform(0.0, 0.1), None),
        kills=3,
    )
    process = start(explained_in_a_process, folder, 4, 48)
    process.join()
    assert process.exitcode == 0 and left and left[0] < 12
    assert same(read_run(folder), read_run(tmp_path / "whole"))


class Command:
    """The command line as a person types it, in a process that can be killed."""

    def __init__(self, name, folder):
        options = ("--data", "demo:digits", "--model", "demo:digits", "--batch-size", "2")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "relprop", name, *options, *COMMANDS[name]]
            + ["--out", str(folder), "--resume"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self.process.pid

    @property
    def exitcode(self):
        return self.process.poll()

    def join(self):
        self.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_is_killed_fifty_times(tmp_path, name):
    whole, folder, draw = tmp_path / "whole", tmp_path / "killed", random.Random(name)
    alone = Command(name, whole)
    alone.join()
    assert alone.exitcode == 0 and committed(whole) == 200
    # one in three while it starts, which takes some seconds; two in three just after a shard
    delays = (draw.uniform(0, 0.1 if i % 3 else 3) for i in itertools.count())
    left = killed_until_done(lambda: Command(name, folder), folder, delays, kills=52)
    assert len(left) >= 50 and left == sorted(left) and any(0 < shards < 200 for shards in left)
    last = Command(name, folder)
    last.join()
    assert last.exitcode == 0
    results = read_run(folder)
    assert results.complete and same(results, read_run(whole)) and committed(folder) == 200
    if name == "evaluate":
        for table in ("table.md", "table.json"):
            assert (folder / table).read_bytes() == (whole / table).read_bytes()
