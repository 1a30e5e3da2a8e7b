"""Small works for the tests of runs: numbers that depend on the sample alone, and processes that
can be killed while they do them."""

import os
import time
from pathlib import Path

import torch

from relprop.errors import InputError
from relprop.runs import Record, run


class Numbers:
    """A row and two tensors per sample, from a generator seeded with its index. ``limit``: more
    samples at a time are out of memory."""

    columns = {"value": "float64", "name": "string", "count": "int64", "several": "list<float64>"}

    def __init__(self, samples=40, *, pause=0.0, limit=10**9, bad=(), rows=1, seed=0):
        self.samples, self.pause, self.limit, self.bad, self.rows, self.seed = (
            samples,
            pause,
            limit,
            set(bad),
            rows,
            seed,
        )
        self.calls = []

    def identity(self):
        return {"work": "numbers", "seed": self.seed, "options": {"rows": self.rows}}

    def key(self, index):
        return f"sample-{index}"

    def __len__(self):
        return self.samples

    def __call__(self, indices):
        self.calls.append(list(indices))
        if len(indices) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        records = []
        for i in indices:
            if i in self.bad:
                raise InputError(f"number {i} is bad")
            time.sleep(self.pause)
            drawn = torch.randn(
                i % 5 + 1,
                3,
                generator=torch.Generator().manual_seed(1000 * self.seed + i),
                dtype=torch.float64,
            )
            row = {
                "value": float(drawn.sum()),
                "name": f"é{i}" if i % 3 else None,
                "count": i,
                "several": drawn[0].tolist(),
            }
            records.append(
                Record(
                    i,
                    self.key(i),
                    (row,) * (self.rows if i % 4 else 0),
                    {"drawn": drawn, "half": drawn[:, :1].float()} if i % 7 else {},
                )
            )
        return records


def numbers_in_a_process(folder, batch_size, options):
    """The target of a process that is killed or runs to its end."""
    torch.set_num_threads(1)
    run(Numbers(**options), folder, batch_size=batch_size, resume=True, progress=False)


def explained_in_a_process(folder, batch_size, samples):
    """The same with explanations of small pictures; a pause after each batch makes it last."""
    from relprop.runs import ExplainWork
    from tests.runs.sources import Pictures, patches

    class Slow(ExplainWork):
        def __call__(self, indices):
            time.sleep(0.03)
            return super().__call__(indices)

    torch.set_num_threads(1)
    run(
        Slow(patches(), Pictures(samples)),
        folder,
        batch_size=batch_size,
        resume=True,
        progress=False,
    )


def committed(folder):
    """How many shards are in a run folder."""
    return (
        len([p for p in Path(folder, "shards").glob("*.parquet") if not p.name.startswith(".")])
        if os.path.isdir(Path(folder, "shards"))
        else 0
    )


def contents(results):
    """Everything a run folder holds, as plain values and tensors."""
    return results.table().to_pylist(), [results.tensors(i) for i in range(results.samples)]


def same(a, b):
    """Whether two run folders hold the same, bit for bit."""
    (rows, tensors), (others, others_tensors) = contents(a), contents(b)
    exact = all(
        x.keys() == y.keys()
        and all(torch.equal(x[n], y[n]) and x[n].dtype == y[n].dtype for n in x)
        for x, y in zip(tensors, others_tensors, strict=True)
    )
    return rows == others and exact


def launched(argv):
    """What ``accelerate launch`` starts in every process: a run of ``Numbers``, or of
    ``ExplainWork`` on small pictures; its process id beside the folder."""
    from relprop.runs import ExplainWork
    from relprop.runs.processes import current, leave
    from tests.runs.sources import Pictures, patches

    torch.set_num_threads(1)
    folder, what, samples, pause, batch_size = (
        Path(argv[0]),
        argv[1],
        int(argv[2]),
        float(argv[3]),
        int(argv[4]),
    )
    here = current()
    folder.with_name(f"{folder.name}-{here.number}-of-{here.count}.pid").write_text(
        str(os.getpid())
    )
    work = (
        Numbers(samples, pause=pause, bad=[5] if what == "failing" else [])
        if what != "explain"
        else ExplainWork(patches(torch.float64), Pictures(samples))
    )
    print(
        run(
            work,
            folder,
            batch_size=batch_size,
            resume=True,
            on_error="skip" if what == "failing" else "stop",
        ),
        flush=True,
    )
    leave()


if __name__ == "__main__":
    import sys

    launched(sys.argv[1:])
