"""Runs in one process: shards, resuming after a kill at every step, batch sizes, failures, foreign
folders, progress."""

import gc
import io
import json
import math
import os
import random
import re
import threading
import time
from dataclasses import replace

import numpy as np
import psutil
import pyarrow.parquet
import pytest
import torch

import relprop
from relprop.errors import InputError, OptionError, RelpropError, RelpropWarning
from relprop.runs import Record, Summary, batches, disk, manifest, read_run, run
from relprop.runs.progress import Progress
from relprop.runs.shards import META, META_DIGEST, _digest_of_rows, _sha, write_shard
from tests.common.models import build, sample
from tests.runs.works import Numbers, committed, contents, same


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture(scope="module", autouse=True)
def _little_to_collect():
    """Each time that memory does not suffice, a run collects garbage; not that of other tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of 40 samples in batches of 8."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(Numbers(rows=2), folder, batch_size=8, progress=False)
    return read_run(folder)


def test_a_run_holds_what_the_work_gave(whole):
    work = Numbers(rows=2)
    rows, tensors = contents(whole)
    for record, found in zip(work(range(40)), tensors, strict=True):
        assert found.keys() == record.tensors.keys() and all(
            torch.equal(found[n], t) and found[n].dtype == t.dtype
            for n, t in record.tensors.items()
        )
    expected = [{"index": r.index, "key": r.key, **row} for r in work(range(40)) for row in r.rows]
    assert rows == expected == list(whole.rows())
    assert (
        whole.complete
        and whole.done == whole.samples == 40
        and not len(whole.missing)
        and not whole.failed
    )
    assert whole.identity == work.identity() and dict(whole.columns) == work.columns
    assert repr(whole) == "RunResults('run', 40 of 40 samples)"


def test_the_folder_is_as_the_docs_say(whole):
    names = sorted(p.name for p in (whole.folder / "shards").iterdir())
    assert (
        len(names) == 10
        and names[0].startswith("000000000-000000007-")
        and {n.rsplit(".")[-1] for n in names} == {"parquet", "safetensors"}
    )
    written = json.loads((whole.folder / "run.json").read_text())
    assert (
        written["format"] == "relprop-run-1"
        and written["batch_size"] == 8
        and set(written["versions"]) == {"relprop", "torch"}
    )


STEPS = 20  # an uninterrupted run of these three batches makes fewer renames and flushes


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("what", ["replace", "fsync"])
def test_a_kill_at_any_step_of_writing_costs_one_batch(tmp_path, monkeypatch, what, where):
    run(Numbers(24), tmp_path / "whole", batch_size=8, progress=False)
    whole = read_run(tmp_path / "whole")
    original, killed = getattr(os, what), 0
    for step in range(STEPS):
        count = iter(range(10**6))

        def failing(*args, step=step, count=count):
            here = next(count) == step
            if here and where == "before":
                raise Killed
            original(*args)
            if here:
                raise Killed

        folder = tmp_path / f"{step}"
        with monkeypatch.context() as patch:
            patch.setattr(disk.os, what, failing)
            try:
                run(Numbers(24), folder, batch_size=8, progress=False)
            except Killed:
                killed += 1
        monkeypatch.setitem(disk._token, "text", f"{step:06x}")  # the next process is another one
        done = 8 * committed(folder)
        work = Numbers(24)
        summary = run(work, folder, resume=True, batch_size=8, progress=False)
        assert summary.done == 24 - done and sum(map(len, work.calls)) == 24 - done
        assert same(read_run(folder), whole)
        assert not [
            p.name
            for p in [*folder.iterdir(), *(folder / "shards").iterdir()]
            if p.name.endswith(".tmp")
        ]
        assert len(list((folder / "shards").glob("*.safetensors"))) == 3
    assert killed >= (7 if what == "replace" else 14) and killed < STEPS


def test_every_file_of_a_shard_says_who_writes_it(tmp_path):
    """At any moment, or a kill at that moment leaves a file that no later run removes."""
    seen, done = set(), threading.Event()

    def look():
        while not done.is_set():
            seen.update(path.name for path in tmp_path.iterdir())

    looking = threading.Thread(target=look)
    looking.start()
    for index in range(20):
        write_shard(tmp_path, [Record(index, "a", (), {"t": torch.zeros(1000, 1000)})], {})
    done.set()
    looking.join()
    assert len(seen) >= 40 and all(disk.owner() in name for name in seen)


def test_what_another_living_process_writes_is_left_alone(tmp_path):
    run(Numbers(16), tmp_path, batch_size=8, progress=False)
    living = f"{disk._machine()}-{os.getppid()}-abcdef"
    elsewhere = "00000000-1-abcdef"
    for maker in (living, elsewhere):
        (tmp_path / "shards" / f"000000000-000000007-{maker}.safetensors").write_bytes(b"half")
        (tmp_path / "shards" / f".{maker}.000000000-000000007-{maker}.parquet.tmp").write_bytes(
            b"half"
        )
    run(Numbers(16), tmp_path, resume=True, progress=False)
    assert len(list((tmp_path / "shards").iterdir())) == 4 + 4
    for path in (tmp_path / "shards").glob(f"*{elsewhere}*"):
        os.utime(path, (time.time() - 2 * disk.FOREIGN,) * 2)
    run(Numbers(16), tmp_path, resume=True, progress=False)
    assert len(list((tmp_path / "shards").iterdir())) == 4 + 2


@pytest.mark.parametrize("batch_size", [1, 3, 16, 100])
def test_the_same_whatever_the_batch_size(tmp_path, whole, batch_size):
    run(Numbers(rows=2), tmp_path, batch_size=batch_size, progress=False)
    assert same(read_run(tmp_path), whole)


def test_batches_are_cut_at_multiples_of_their_size(tmp_path):
    work = Numbers(20)
    write_shard_of(tmp_path, work, [2, 9])
    run(work, tmp_path, batch_size=8, resume=True, progress=False)
    assert work.calls[1:] == [[0, 1, 3, 4, 5, 6, 7], [8, 10, 11, 12, 13, 14, 15], [16, 17, 18, 19]]


def write_shard_of(folder, work, indices):
    manifest.Manifest.of(work).write(folder)
    (folder / "shards").mkdir(exist_ok=True)
    return write_shard(folder / "shards", work(indices), work.columns)


def test_out_of_memory_halves_the_batch_and_is_remembered(tmp_path, capsys):
    work = Numbers(200, limit=20)
    summary = run(work, tmp_path)
    assert summary.batch_size == 16 and summary.done == 200 and read_run(tmp_path).complete
    assert [len(c) for c in work.calls[:4]] == [64, 32, 16, 16]
    assert "out of memory with 64 samples at a time; going on with 32" in capsys.readouterr().err
    next((tmp_path / "shards").glob("000000032*.parquet")).unlink()
    again = Numbers(200, limit=20)
    assert run(again, tmp_path, resume=True, progress=False).done == 16
    assert [len(c) for c in again.calls] == [16]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 8 bytes."
        ),
        MemoryError(),
        RuntimeError("CUDA error: out of memory"),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("cuda runtime error: CUBLAS_STATUS_ALLOC_FAILED"),
    ],
    ids=lambda e: f"{type(e).__name__} {e}"[:30],
)
def test_errors_that_mean_too_little_memory(error):
    assert batches.out_of_memory(error) and not batches.out_of_memory(
        RuntimeError("shape mismatch")
    )
    try:
        raise InputError("wrapped") from error
    except InputError as outer:
        assert batches.out_of_memory(outer)


def test_one_large_sample_does_not_make_all_batches_small(tmp_path):
    class OneLarge(Numbers):
        def __call__(self, indices):
            if 5 in indices:
                self.calls.append(list(indices))
                raise torch.OutOfMemoryError("out of memory")
            return super().__call__(indices)

    summary = run(OneLarge(32), tmp_path, batch_size=8, on_error="skip", progress=False)
    assert summary.batch_size == 8 and summary.done == 31 and list(read_run(tmp_path).failed) == [5]
    with pytest.raises(
        InputError, match=r"'sample-5' .number 5. does not fit into memory, even alone"
    ):
        run(OneLarge(32), tmp_path / "other", batch_size=8, progress=False)


def test_a_failing_sample_stops_with_its_key_and_what_was_done_stays(tmp_path):
    with pytest.raises(
        InputError,
        match=r"(?s)sample 'sample-13' \(number 13\): number 13 is bad\n.*--on-error skip",
    ):
        run(Numbers(bad=[13, 30]), tmp_path, batch_size=8, progress=False)
    assert read_run(tmp_path).done == 13  # 0 to 7, and of the second batch what came before
    summary = run(Numbers(), tmp_path, batch_size=8, resume=True, progress=False)
    assert summary.done == 27 and summary.complete


def test_failing_samples_are_written_down_and_skipped(tmp_path, whole, capsys):
    summary = run(
        Numbers(rows=2, bad=[0, 13, 39]), tmp_path, batch_size=8, on_error="skip", progress=False
    )
    results = read_run(tmp_path)
    assert (
        summary.failed == 3 and summary.done == 37 and "3 failed, listed in failed" in str(summary)
    )
    assert [(f.index, f.key, f.error) for f in results.failed.values()] == [
        (i, f"sample-{i}", f"number {i} is bad") for i in (0, 13, 39)
    ]
    assert (
        results.complete
        and results.done == 37
        and "sample 'sample-13' failed: number 13 is bad" in capsys.readouterr().err
    )
    assert results.table().to_pylist() == [r for r in whole.rows() if r["index"] not in (0, 13, 39)]
    with pytest.raises(OptionError, match="number 13 is bad"):
        results.tensors(13)
    again = Numbers(rows=2)
    assert (
        run(again, tmp_path, resume=True, progress=False).failed == 3 and not again.calls
    )  # not tried again while they are in the file
    (tmp_path / "failed.jsonl").unlink()
    assert run(again, tmp_path, resume=True, progress=False).done == 3 and same(
        read_run(tmp_path), whole
    )


def test_a_line_of_failures_that_was_cut_short_does_not_count(tmp_path):
    path = tmp_path / "failed.jsonl"
    manifest.add_failure(path, manifest.Failure(3, "three", "x"))
    path.write_bytes(path.read_bytes() + b'{"index": 4, "key": "fo')
    assert list(manifest.read_failures(tmp_path)) == [3]
    manifest.add_failure(path, manifest.Failure(5, "five", "y\nz"))
    assert list(manifest.read_failures(tmp_path)) == [3, 5]


ERRORS = (
    ZeroDivisionError("oh"),
    OSError(5, "Input/output error"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    KeyError("label"),
    MemoryError(),
)


class Broken(Numbers):
    """Fails at one sample, not by an error of relprop's."""

    def __init__(self, error):
        super().__init__(16)
        self.error = error

    def __call__(self, indices):
        if 5 in indices:
            raise self.error
        return super().__call__(indices)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_any_other_error_is_of_a_sample_too(tmp_path, error):
    with pytest.raises(RelpropError, match=r"sample 'sample-5' .number 5."):
        run(Broken(error), tmp_path / "stopped", batch_size=8, progress=False)
    folder = tmp_path / "skipped"
    assert run(Broken(error), folder, batch_size=8, on_error="skip", progress=False).failed == 1
    (failed,) = read_run(folder).failed.values()
    assert failed.index == 5 and (type(error).__name__ in failed.error or not str(error))


def test_text_that_is_no_utf8_is_kept_with_that_part_written_out(tmp_path):
    class Latin(Numbers):
        def __call__(self, indices):
            found = super().__call__(indices)
            return [replace(r, key=f"caf\udce9{r.index}") for r in found]

    run(Latin(4), tmp_path, progress=False)
    keys = {row["key"] for row in read_run(tmp_path).rows()}
    assert keys <= {rf"caf\udce9{i}" for i in range(4)} and keys


class Wrong(Numbers):
    def __init__(self, wrong):
        super().__init__(4)
        self.wrong = wrong

    def __call__(self, indices):
        return self.wrong(super().__call__(indices))


@pytest.mark.parametrize(
    "wrong, error",
    [
        (
            lambda records: records[1:],
            "was asked for samples .0, 1, 2, 3. and gave records of .1, 2, 3",
        ),
        (
            lambda records: [Record(r.index, r.key, ({"value": 1.0},)) for r in records],
            "a row of sample 'sample-0' and the work's columns differ in count, name, several",
        ),
    ],
    ids=["records", "columns"],
)
def test_a_work_that_breaks_its_promise_is_told(tmp_path, wrong, error):
    with pytest.raises((RelpropError, TypeError), match=error):
        run(Wrong(wrong), tmp_path, progress=False)
    assert committed(tmp_path) == 0


def test_a_folder_of_another_work_is_refused(tmp_path):
    run(Numbers(8), tmp_path, progress=False)
    with pytest.raises(
        InputError,
        match=r"(?s)run of something else; 1 difference\n.*identity.seed: 0 in the folder, 1 now",
    ):
        run(Numbers(8, seed=1), tmp_path, resume=True, progress=False)
    with pytest.raises(
        InputError,
        match=(
            r"(?s)2 differences\n.*identity.options.rows: 1 in the folder, 2 "
            r"now\n.*samples: 8 in the folder, 9 now"
        ),
    ):
        run(Numbers(9, rows=2), tmp_path, resume=True, progress=False)
    assert read_run(tmp_path).complete


def test_a_folder_that_is_not_empty_needs_resume(tmp_path):
    run(Numbers(8), tmp_path, progress=False)
    with pytest.raises(OptionError, match=r"not empty\n  then  resume=True, or --resume"):
        run(Numbers(8), tmp_path, progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match=r"no run folder: it has no run\.json"):
        run(Numbers(8), tmp_path / "other", resume=True, progress=False)
    with pytest.raises(OptionError, match="is a file"):
        run(Numbers(8), tmp_path / "other" / "file", progress=False)


def test_other_versions_are_warned_of(tmp_path):
    run(Numbers(8), tmp_path, progress=False)
    written = json.loads((tmp_path / "run.json").read_text())
    written["versions"]["torch"] = "1.0"
    (tmp_path / "run.json").write_text(json.dumps(written))
    with pytest.warns(RelpropWarning, match=r"begun with torch 1\.0 and goes on with"):
        run(Numbers(8), tmp_path, resume=True, progress=False)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"on_error": "ignore"}, "on_error='ignore': 'stop' or 'skip'"),
    ],
    ids=str,
)
def test_bad_options(tmp_path, options, error):
    with pytest.raises(OptionError, match=error):
        run(Numbers(), tmp_path, **options)


def test_bad_works(tmp_path):
    work = Numbers()
    work.columns = {"value": "float32"}
    with pytest.raises(RelpropError, match="column 'value' of type 'float32'"):
        run(work, tmp_path / "a", progress=False)
    work = Numbers()
    work.identity = lambda: {"model": torch.nn.Identity()}
    with pytest.raises(OptionError, match="identity is not plain JSON"):
        run(work, tmp_path / "b", progress=False)


def test_a_damaged_shard_is_named(tmp_path):
    run(Numbers(16), tmp_path, batch_size=8, progress=False)
    first, second = sorted((tmp_path / "shards").glob("*.parquet"))
    tensors = second.with_suffix(".safetensors").read_bytes()
    second.with_suffix(".safetensors").unlink()
    with pytest.raises(
        InputError, match=f"(?s){second.stem}.safetensors cannot be read: it is gone.*delete"
    ):
        read_run(tmp_path)
    second.with_suffix(".safetensors").write_bytes(tensors[:40])
    with pytest.raises(InputError, match=r"\.safetensors cannot be read: it has 40 bytes, not"):
        read_run(tmp_path)  # nothing that was cut short counts as done
    second.with_suffix(".safetensors").write_bytes(tensors)
    first.write_bytes(first.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"{first.name} cannot be read"):
        run(Numbers(16), tmp_path, resume=True, progress=False)
    for path in (first, second):
        path.unlink()
    assert run(Numbers(16), tmp_path, resume=True, batch_size=8, progress=False).done == 16


def test_what_was_read_of_a_shard_is_no_longer_the_files(tmp_path):
    run(Numbers(8), tmp_path, batch_size=8, progress=False)
    read = read_run(tmp_path).tensors(3)
    before = {name: t.clone() for name, t in read.items()}
    (path,) = (tmp_path / "shards").glob("*.safetensors")
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    os.truncate(path, 0)
    assert before and all(read[name].equal(t) for name, t in before.items())


def written_anew(path, facts=..., table=None):
    """A shard that says something else, with the right checksums."""
    metadata = pyarrow.parquet.read_schema(path).metadata
    table = pyarrow.parquet.ParquetFile(path).read() if table is None else table
    facts = json.loads(metadata[META]) if facts is ... else facts
    if isinstance(facts, dict) and "rows" in facts:
        facts = {**facts, "rows": _digest_of_rows(table)}
    said = json.dumps(facts).encode()
    pyarrow.parquet.write_table(
        table.replace_schema_metadata({META: said, META_DIGEST: _sha(said)}), path
    )


FOOTERS = {
    "nothing": {},
    "a list": [],
    "no object": 3,
    "none": None,
    **{
        f"indices {i!r}": {"indices": i, "rows": ""}
        for i in (3, None, [], [[0, 1], [2, 3]], {"0": 1}, ["x"], [-1], [8], [10**30], [[]])
    },
    **{
        f"bytes {b!r}": {"indices": list(range(8)), "rows": "", "tensors": "0", "bytes": b}
        for b in (-1, "x", None, math.inf, [1])
    },
}


@pytest.mark.parametrize("facts", FOOTERS.values(), ids=FOOTERS)
def test_a_shard_with_an_odd_footer_is_named(tmp_path, facts):
    run(Numbers(8), tmp_path, progress=False)
    (path,) = (tmp_path / "shards").glob("*.parquet")
    written_anew(path, facts)
    with pytest.raises(InputError, match=f"{path.stem}(?s:.*)cannot be read: (?s:.*)delete"):
        contents(read_run(tmp_path))


def other(table, name, values, kind=None):
    return table.set_column(table.schema.names.index(name), name, pyarrow.array(values, kind))


TABLES = {
    "a column less": (lambda t: t.drop_columns(["value"]), "columns"),
    "a column more": (lambda t: t.append_column("z", t["value"]), "columns"),
    "another type": (lambda t: other(t, "value", ["x"] * len(t)), "columns"),
    "nested": (lambda t: other(t, "value", [{"a": [1]}] * len(t)), "columns"),
    "other names": (lambda t: t.rename_columns(["a", *t.schema.names[1:]]), "columns"),
    "a name twice": (
        lambda t: t.rename_columns(["index", "index", *t.schema.names[2:]]),
        "columns",
    ),
    "no columns": (lambda t: t.select([]), "columns"),
    "no index": (lambda t: other(t, "index", [None] * len(t), pyarrow.int64()), "not its own"),
    "others' samples": (lambda t: other(t, "index", [10**9] * len(t)), "not its own"),
}


@pytest.mark.parametrize(("change", "said"), TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("way", ["table", "rows", "rows_of"])
def test_a_shard_with_rows_of_another_kind_is_named(tmp_path, change, said, way):
    run(Numbers(8), tmp_path, progress=False)
    (path,) = (tmp_path / "shards").glob("*.parquet")
    written_anew(path, table=change(pyarrow.parquet.ParquetFile(path).read()))
    results = read_run(tmp_path)
    with pytest.raises(InputError, match=f"{path.name} cannot be read: .*{said}"):
        list(results.rows_of(1) if way == "rows_of" else getattr(results, way)())


def test_more_rows_than_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    run(Numbers(8), tmp_path, progress=False)
    results = read_run(tmp_path)
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read", lambda self: pytest.fail("read"))
    free = type(psutil.virtual_memory())(*[100] * len(psutil.virtual_memory()))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(InputError, match=r"its \d+ rows take at least \S+ GB of memory, of which"):
        results.table()


@pytest.mark.parametrize("ending", ["parquet", "safetensors"])
def test_a_bit_that_changed_is_noticed_wherever_it_is(tmp_path, ending):
    run(Numbers(8), tmp_path, progress=False)
    (path,) = (tmp_path / "shards").glob(f"*.{ending}")
    whole, kept = path.read_bytes(), read_run(tmp_path).table().to_pylist()
    draw, unnoticed = random.Random(0), 0
    for _ in range(60):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            rows, _ = contents(read_run(tmp_path))
            assert rows == kept
            unnoticed += 1
        except InputError as error:
            assert path.stem in str(error)
    assert unnoticed == 0 or ending == "parquet"  # of which a reader skips some bytes


def test_a_sample_done_twice_counts_once_and_is_said(tmp_path):
    run(Numbers(16), tmp_path, batch_size=8, progress=False)
    other = Numbers(16, seed=5)
    path = write_shard(tmp_path / "shards", other([4, 5, 6, 9]), other.columns)
    assert path.name.startswith(
        "000000004-000000009"
    )  # between the others: of the first eight it is the second, of the last eight the first
    with pytest.warns(
        RelpropWarning, match=r"4 samples .* are in two shards: the first one counts"
    ):
        results = read_run(tmp_path)
    rows = results.table().to_pylist()
    assert rows == list(results.rows())
    assert [(r["index"], r["value"]) for r in rows] == [
        (i, Numbers(seed=5 if i == 9 else 0)([i])[0].rows[0]["value"]) for i in range(16) if i % 4
    ]


def test_reading_while_it_is_going_on(tmp_path):
    class Looking(Numbers):
        def __call__(self, indices):
            if indices[0]:
                results = read_run(tmp_path)
                assert (
                    results.done == indices[0]
                    and results.missing.tolist() == list(range(indices[0], 24))
                    and not results.complete
                )
                with pytest.raises(OptionError, match="not done yet"):
                    results.tensors(23)
            return super().__call__(indices)

    assert run(Looking(24), tmp_path, batch_size=8, progress=False).complete
    with pytest.raises(OptionError, match="samples 0 to 23"):
        read_run(tmp_path).tensors(24)
    with pytest.raises(InputError, match="no run folder"):
        read_run(tmp_path / "nowhere")


def test_an_interrupted_run_says_how_to_go_on(tmp_path, capsys):
    class Interrupted(Numbers):
        def __call__(self, indices):
            if indices[0] == 16:
                raise KeyboardInterrupt
            return super().__call__(indices)

    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(), tmp_path, batch_size=8, progress=False)
    assert re.search(
        r"interrupted after 16 samples, .*resume=True, or --resume", capsys.readouterr().err
    )
    assert run(Numbers(), tmp_path, batch_size=8, resume=True, progress=False).done == 24


def test_an_empty_data_set(tmp_path):
    assert (
        run(Numbers(0), tmp_path, progress=False).complete
        and read_run(tmp_path).table().num_rows == 0
    )


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal_is_a_bar_with_the_remaining_time(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress(40, "samples", stream=out) as bar:
        bar.advance(10)
        time.sleep(0.25)
        bar.say("a line")
        bar.advance(30)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert (
        "10/40" in text
        and "40/40" in text
        and "left" in text
        and "0:00:00" in text
        and "a line" in text
    )


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch):
    out, clock = io.StringIO(), iter(np.arange(0, 1000, 4.0))
    monkeypatch.setattr("relprop.runs.progress.time.monotonic", lambda: float(next(clock)))
    with Progress(400, "samples", stream=out) as bar:
        for _ in range(10):
            bar.advance(10)
    lines = out.getvalue().splitlines()
    assert (
        3 < len(lines) == len({line.split(",")[0] for line in lines})
        and "100 of 400" in lines[-1]
        and all(
            re.fullmatch(r"samples: \d+ of 400, [\d.]+ samples/s, \d+:\d\d left", line)
            for line in lines
        )
    ), lines
    out = io.StringIO()
    with Progress(400, "samples", stream=out, wanted=False) as bar:
        bar.advance(10)
    assert out.getvalue() == ""


def test_the_summary_in_words(tmp_path):
    assert (
        str(Summary(tmp_path / "r", 10, 4, 6, 0, 2.0, 8, 1, 2))
        == "4 of 10 samples by process 2 of 2 in 0:02, 2 samples/s, batch size 8; 6 missing: r"
    )


def test_a_full_disk_is_said_with_the_file_and_what_was_written(tmp_path):
    import resource

    explanation = relprop.explain(build(), sample(), 1)
    explanation.save(tmp_path / "one.safetensors")
    before = (tmp_path / "one.safetensors").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
        with pytest.raises(RelpropError, match=r"a batch's tensors could not be .*\.safetensors"):
            run(Numbers(64), tmp_path / "run", progress=False)
        with pytest.raises(RelpropError, match=r"the explanation could not be .*one\.safetensors"):
            explanation.save(tmp_path / "one.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir() if "unfinished" in p.name] == []
    assert (tmp_path / "one.safetensors").read_bytes() == before
    assert run(Numbers(64), tmp_path / "run", resume=True, progress=False).complete
