"""Figures of ``scale.py``, each in a process of its own: a line per figure in, a line of JSON per
figure out.

    echo '{"model": "llama", "method": "gae", "tokens": 512, "layers": 4}' |
    python benchmarks/scale_figure.py memory 600

The process that reads has imported the libraries and done nothing else; each figure's is a fork of
it. The second of two calls is measured; the first captures the model and checks the capture.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from scale_subjects import Case, build, call_of, imported

EVERY = 0.002  # seconds between two looks at the resident set


def resident() -> int:
    """The bytes of this process that are in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(call: Callable[[], object]) -> int:
    """By how many bytes the resident set grows at most during a call."""
    before, done = resident(), threading.Event()
    seen = [before]

    def watch() -> None:
        while not done.wait(EVERY):
            seen[0] = max(seen[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    call()
    done.set()
    watcher.join()
    return seen[0] - before


def cpu_seconds(call: Callable[[], object], least: int, most: int) -> float:
    """The median CPU time of ``least`` calls, or of up to ``most`` if these take less than a
    second."""
    times = list[float]()
    while len(times) < least or (len(times) < most and sum(times) < 1):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


def measured(what: str, case: Case) -> dict[str, Any]:
    """The growth in bytes, or the seconds of a call and of a forward pass."""
    torch.set_num_threads(1)  # here: a pool of threads does not survive a fork
    subject = build(case.model, case.tokens, case.layers)
    call = call_of(case.method, subject)
    call()
    gc.collect()
    if what == "memory":
        return {"length": subject.length, "bytes": growth(call)}
    subject.forward()
    plain = cpu_seconds(subject.forward, 3, 20)
    return {"length": subject.length, "forward": plain, "seconds": cpu_seconds(call, 1, 5)}


def forked(what: str, case: Case, limit: int) -> str:
    """One figure as JSON, measured in a fork that is ended after ``limit`` seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(limit)
        os.write(writing, json.dumps(answered(what, case)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        reason = f"takes longer than the limit of {limit} seconds"
        return json.dumps({"missing": reason, "limit": limit})
    return said or json.dumps({"missing": f"failed: the process ended with {status}"})


def answered(what: str, case: Case) -> dict[str, Any]:
    """A figure, or why there is none."""
    began = time.monotonic()
    try:
        found = measured(what, case)
    except Exception as error:
        return {"missing": f"failed: {type(error).__name__}: {error}"}
    return {**found, "elapsed": round(time.monotonic() - began, 1)}


def main() -> None:
    what, limit = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    imported()
    for line in sys.stdin:
        print(forked(what, Case(**json.loads(line)), limit), flush=True)


if __name__ == "__main__":
    main()
