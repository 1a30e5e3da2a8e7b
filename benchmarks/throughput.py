"""Samples per second of a whole run, with one process and with several: the shipped model on digit
scenes, explained into a run folder.

    python benchmarks/throughput.py --samples 1000 --processes 2

Both are launched alike (`accelerate launch`), one after another, one thread to a process, and write
to a folder of their own; the time is that of the work, from the first batch to the last shard,
without imports, loading, and the capture of the graph, which is done beforehand. Printed: samples
per second, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def work(out: str, samples: int, batch_size: int) -> None:
    """One process of a launch: warmed up, then measured. The first process prints when it began and
    ended."""
    import torch

    from relprop.demo.model import digit_scene_model
    from relprop.demo.scene_source import DigitScenes
    from relprop.runs import ExplainWork, processes, run

    torch.set_num_threads(1)
    here = processes.current()
    explain = ExplainWork(digit_scene_model().to(here.device), DigitScenes(samples, seed=0))
    explain([0, 1])
    here.agree(lambda: None)
    began = time.perf_counter()
    summary = run(explain, out, batch_size=batch_size, progress=False)
    if here.first:  # it returns when all are done
        print(
            json.dumps({"seconds": time.perf_counter() - began, "missing": summary.missing}),
            flush=True,
        )
    processes.leave()


def launched(count: int, samples: int, batch_size: int) -> float:
    """Samples per second with so many processes."""
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        str(count),
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    command += ["--multi_gpu", "--main_process_port", "0"] if count > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        command += [
            __file__,
            "--work",
            str(Path(folder) / "run"),
            "--samples",
            str(samples),
            "--batch-size",
            str(batch_size),
        ]
        said = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    assert not found["missing"]
    return float(samples / found["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.samples, options.batch_size)
        return
    one = launched(1, options.samples, options.batch_size)
    print(f"1 process    {one:8.2f} samples/s", flush=True)
    several = launched(options.processes, options.samples, options.batch_size)
    print(
        f"{options.processes} processes  {several:8.2f} samples/s   {several / one:.2f} "
        f"times as many, on {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
