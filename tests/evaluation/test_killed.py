"""``relprop evaluate --data`` really killed, and resumed by another process: nothing is lost,
nothing twice."""

import json
import subprocess
import sys
import time

import pytest

from relprop.cli import main

ARGUMENTS = [
    "evaluate",
    "--data",
    "demo:digits",
    "--model",
    "demo:digits",
    "--method",
    "rollout",
    "--measure",
    "segmentation",
    "--samples",
    "40",
    "--batch-size",
    "4",
]


def started(out):
    command = [
        sys.executable,
        "-c",
        "import torch; torch.set_num_threads(1); from relprop.cli import main; main()",
        *ARGUMENTS,
        "--out",
        str(out),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done_here(capsys, monkeypatch, *more):
    """What the command prints, run in this process."""
    monkeypatch.setattr(sys, "argv", ["relprop", *ARGUMENTS, "--json", *map(str, more)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
        raise SystemExit(0)
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return said


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_killed_evaluation_goes_on(tmp_path, capsys, monkeypatch):
    whole = done_here(capsys, monkeypatch, "--out", tmp_path / "whole")
    killed = started(tmp_path / "killed")
    shards = tmp_path / "killed" / "shards"
    deadline = time.monotonic() + 120
    while (
        len(list(shards.glob("*.parquet"))) < 3
        and killed.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    killed.kill()
    killed.communicate()
    done = len(list(shards.glob("*.parquet")))
    assert 3 <= done < 10
    again = done_here(capsys, monkeypatch, "--out", tmp_path / "killed", "--resume")
    assert json.loads(whole.out) == json.loads(again.out)
    assert f"{40 - 4 * done} of 40 samples" in again.err.replace("\n", " ")
