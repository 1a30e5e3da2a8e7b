"""Several processes, as Accelerate launches them (gloo here): each its share, one of them killed
and all launched again, the same as one alone."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from relprop.errors import OptionError, RelpropError
from relprop.runs import ExplainWork, read_run, run, running
from relprop.runs.processes import Processes, current
from tests.runs.sources import Pictures, patches
from tests.runs.works import Numbers, committed, same

ROOT = Path(__file__).parents[2]


def launch(
    count,
    folder,
    what="numbers",
    samples=240,
    pause=0.001,
    batch_size=4,
    *,
    hosts=1,
    host=0,
    port=0,
):
    """``accelerate launch`` with so many processes, on this one of ``hosts``; on a machine without
    GPUs ``--multi_gpu`` is what starts several, and gloo what they speak."""
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu" if count > 1 else "--cpu",
        "--num_processes",
        str(count),
        "--num_machines",
        str(hosts),
        "--machine_rank",
        str(host),
        *(("--main_process_ip", "127.0.0.1") if hosts > 1 else ()),
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        str(port),
        "-m",
        "tests.runs.works",
        str(folder),
        what,
        str(samples),
        str(pause),
        str(batch_size),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process, seconds=120):
    try:
        return process.communicate(timeout=seconds)[0]
    finally:
        process.kill()


def killed_and_launched_again(tmp_path, count, victim):
    folder = tmp_path / "run"
    process = launch(count, folder, pause=0.02)
    deadline = time.monotonic() + 100
    while committed(folder) < 3 * count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(int((tmp_path / f"run-{victim}-of-{count}.pid").read_text()), signal.SIGKILL)
    said = finished(process)
    assert process.returncode not in (0, None) and "SIGKILL" in said, said
    partial = read_run(folder)
    assert not partial.complete and partial.done == 4 * committed(folder) >= 12 * count
    again = launch(count, folder)
    said = finished(again)
    assert again.returncode == 0, said
    done = [int(n) for n in re.findall(r"(\d+) of 240 samples by process \d of", said)]
    assert len(done) == count and sum(done) == 240 - partial.done, (
        said
    )  # nothing that was done is done again
    run(Numbers(240), tmp_path / "alone", batch_size=4, progress=False)
    results = read_run(folder)
    assert (
        results.complete and same(results, read_run(tmp_path / "alone")) and committed(folder) == 60
    )
    assert (
        len({p.stem.split("-", 2)[2] for p in (folder / "shards").glob("*.parquet")}) == 2 * count
    )  # every process of both launches wrote some


@pytest.mark.slow
def test_two_processes_one_of_them_killed(tmp_path):
    killed_and_launched_again(tmp_path, 2, victim=1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_three_processes_one_of_them_killed(tmp_path, victim):
    killed_and_launched_again(tmp_path, 3, victim)


def two_hosts(folder, **options):
    """Both of them, on a port that was free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [launch(2, folder, hosts=2, host=i, port=port, **options) for i in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_two_hosts_one_of_them_killed(tmp_path, victim):
    """Machine ranks 0 and 1 on loopback, one folder. The other host does its share; the killed one
    is launched again, alone, and does what it left."""
    folder = tmp_path / "run"
    hosts = two_hosts(folder, pause=0.02)
    try:
        deadline = time.monotonic() + 200
        while committed(folder) < 6 and time.monotonic() < deadline:
            assert all(host.poll() is None for host in hosts)
            time.sleep(0.01)
        killed(hosts[victim], tmp_path, victim)
        before = committed(folder)
        while (done := committed(folder)) != before or done < 30:  # the other one's share is 30
            before = done
            time.sleep(2)
            assert time.monotonic() < deadline
        partial = read_run(folder)
        assert not partial.complete and partial.done == 4 * done
        again = launch(1, folder)
        said = finished(again)
        assert again.returncode == 0 and f"{240 - 4 * done} of 240 samples" in said, said
        if victim == 1:  # the first process has waited for all samples
            said = next(line for line in hosts[0].stdout if "samples by process" in line)
            assert "120 of 240 samples by process 1 of 2" in said, said
    finally:
        for i, host in enumerate(hosts):
            killed(host, tmp_path, i)
    run(Numbers(240), tmp_path / "alone", batch_size=4, progress=False)
    assert read_run(folder).complete and same(read_run(folder), read_run(tmp_path / "alone"))
    assert committed(folder) == 60


def killed(host, folder, number):
    """The launcher, and what it has launched."""
    worker = int((folder / f"run-{number}-of-2.pid").read_text())
    for pid in (host.pid, worker):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    host.wait()
    host.stdout.close()


@pytest.mark.slow
def test_three_processes_give_what_one_gives(tmp_path):
    process = launch(3, tmp_path / "run", "explain", samples=25)
    said = finished(process)
    assert process.returncode == 0, said
    run(
        ExplainWork(patches(torch.float64), Pictures(25)),
        tmp_path / "alone",
        batch_size=4,
        progress=False,
    )
    assert same(read_run(tmp_path / "run"), read_run(tmp_path / "alone"))


@pytest.mark.slow
def test_failures_of_several_processes_and_a_refusal_that_all_hear_of(tmp_path):
    said = finished(launch(2, tmp_path / "run", "failing", samples=24))
    results = read_run(tmp_path / "run")
    assert results.complete and list(results.failed) == [5], said
    (tmp_path / "run" / "run.json").write_text("{}")
    process = launch(2, tmp_path / "run")
    said = finished(process)
    assert (
        process.returncode != 0
        and "run.json in 'run' cannot be read" in said
        and committed(tmp_path / "run") >= 6
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_whole_batches_and_all_there_is(count):
    missing = np.delete(np.arange(103), [0, 5, 40, 41, 42, 43, 44, 45, 46, 47, 90])
    shares = [Processes(i, count).share(missing, 8) for i in range(count)]
    assert np.array_equal(np.concatenate(shares), missing)
    blocks = [set((s // 8).tolist()) for s in shares]
    assert (
        sum(map(len, blocks)) == len(set().union(*blocks)) == 12
        and max(map(len, blocks)) - min(map(len, blocks)) <= 1
    )
    assert all(len(Processes(i, 3).share(missing[:0], 8)) == 0 for i in range(3))


def test_one_process_needs_no_accelerate(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    for name in ("WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    here = current()
    assert (here.number, here.count, here.first) == (0, 1, True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        OptionError, match=r'several processes need accelerate: pip install "relprop\[runs\]"'
    ):
        current()


def test_a_run_needs_pyarrow_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        OptionError, match=r'relprop\.runs needs pyarrow: pip install "relprop\[runs\]"'
    ):
        run(Numbers(), tmp_path, progress=False)


def test_the_first_process_does_not_wait_for_ever(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "current", lambda: Alone(0, 2))
    with pytest.raises(
        RelpropError,
        match=r"(?s)20 samples are missing, and no other process has finished any for 0:00.*resume",
    ):
        run(Numbers(40), tmp_path, batch_size=4, patience=0.2)
    assert "waiting for the others: 20 samples" in capsys.readouterr().err
    monkeypatch.setattr(running, "current", lambda: Alone(1, 2))
    summary = run(Numbers(40), tmp_path, batch_size=4, resume=True, progress=False)
    assert (
        summary.done == 8 and summary.missing == 12 and not summary.complete
    )  # its share of what was missing; it does not wait


class Alone(Processes):
    """One of two processes, whose other half never comes."""

    def agree(self, make):
        return make()
