"""Runs that are really killed, with SIGKILL, at random moments, until they are done: nothing is
lost, nothing is done twice."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from relprop.runs import read_run, run
from tests.runs.sources import Pictures, patches
from tests.runs.works import Numbers, committed, explained_in_a_process, numbers_in_a_process, same


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
