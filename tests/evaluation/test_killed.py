"""``relprop evaluate --data`` really killed, and resumed: nothing is lost, nothing twice."""

import json
import subprocess
import sys
import time

import pytest

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


def started(out, *more):
    command = [
        sys.executable,
        "-c",
        "import torch; torch.set_num_threads(1); from relprop.cli import main; main()",
        *ARGUMENTS,
        "--out",
        str(out),
        *more,
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_killed_evaluation_goes_on(tmp_path):
    whole = started(tmp_path / "whole", "--json")
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
    again = started(tmp_path / "killed", "--resume", "--json")
    (first, _), (second, said) = whole.communicate(timeout=120), again.communicate(timeout=120)
    assert whole.returncode == again.returncode == 0, said
    assert json.loads(first) == json.loads(second)
    assert f"{40 - 4 * done} of 40 samples" in said.replace("\n", " ")
