"""The sweep's result as two files: ``supported-models.json``, and ``supported-models.md`` made from
it and from nothing else."""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.sweep.record import (
    BALANCED_STAGE,
    EXPLAINED,
    FAILED,
    GRADIENT_STAGE,
    NO_ATTENTION,
    NOT_BUILT,
    Record,
)

COMMAND = "make sweep"
SOURCES = {"timm": "timm", "hf": "Hugging Face"}
LIBRARIES = ("torch", "timm", "transformers")
#: What is compared in the models, by the record's column: in words, and how far it may be off.
CHECKED = {
    "graph_error": ("outputs of the captured graph and the model", "1e-4"),
    "graph_error_another": ("the same on another input", "1e-4"),
    "ledger_error": ("at every operation, relevance in and out, absorbed or lost", "1e-5·Σ\\|R\\|"),
    "batch_error": ("three samples in one call and one by one, padded otherwise, float64", "1e-6"),
    "gradient_error": ('`method="attnlrp"` as one gradient and rule by rule, float64', "1e-12"),
    "balanced_error": (
        '`gradient_x_input` with `gradient="balanced"` and the rules of it, float64',
        "1e-12",
    ),
}
#: What is measured of gradients, and where it fails.
COLUMNS = (
    *("gradient_error", "gradient_rounding", "walked"),
    *("balanced_error", "balanced_rounding", "unbalanced"),
)
STAGES = (GRADIENT_STAGE, BALANCED_STAGE)


def write_report(
    records: Iterable[Record], excluded: Mapping[str, str], folder: Path
) -> tuple[Path, Path]:
    """Write both files into ``folder``. ``excluded``: names that were left out, and why."""
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    result = {
        "command": COMMAND,
        "versions": versions,
        "excluded": dict(sorted(excluded.items())),
        "records": [r.as_dict() for r in sorted(records, key=_order)],
    }
    return _write(result, folder)


def _write(result: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_text = folder / "supported-models.json", folder / "supported-models.md"
    as_json.write_text(_lines(result))
    as_text.write_text(markdown(result))
    return as_json, as_text


def write_merged(
    before: Mapping[str, Any], measured: Iterable[Record], folder: Path
) -> tuple[Path, Path]:
    """Write both files into ``folder``: an earlier report with the columns of gradients of those
    that were ``measured`` since, and the versions that this was done with."""
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    records = [r.as_dict() for r in merged(before, measured)]
    return _write({**before, "gradient_versions": versions, "records": records}, folder)


def merged(before: Mapping[str, Any], measured: Iterable[Record]) -> list[Record]:
    """An earlier report's records with the columns of gradients of those that were ``measured``:
    not of those whose process ended."""
    reached = (r for r in measured if r.gradient_error is not None or r.walked)
    found, records = {r.name: r for r in reached}, [Record.of(r) for r in before["records"]]
    for record in records:
        if (new := found.get(record.name)) is None:
            continue
        for name in COLUMNS:
            setattr(record, name, getattr(new, name))
        record.failures = [f for f in record.failures if f[0] not in STAGES]
        record.failures += [f for f in new.failures if f[0] in STAGES]
        if record.failures:
            record.status, record.cause = FAILED, ": ".join(record.failures[0])
        elif record.status == FAILED:  # by these columns alone
            record.status, record.cause = EXPLAINED if record.sites else NO_ATTENTION, ""
    return records


def read_report(path: Path) -> dict[str, Any]:
    """The content of ``supported-models.json``."""
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def regressions(records: Iterable[Record], before: Mapping[str, Any]) -> list[str]:
    """What was good in an earlier report and is not now, among the subjects that were run: a line
    each."""
    good = {
        r["name"]: r["status"]
        for r in before["records"]
        if r["status"] in (EXPLAINED, NO_ATTENTION)
    }
    return [
        f"{r.name}: was {good[r.name]!r}, is {r.status!r}: {r.cause}"
        for r in records
        if r.name in good and r.status not in (EXPLAINED, good[r.name])
    ]


def markdown(result: Mapping[str, Any]) -> str:
    """The page for readers: a summary, whose models are the lines of the JSON file."""
    records = [Record.of(r) for r in result["records"]]
    parts = (_counts, _tasks, _checked, _failures, _notes, _families)
    left = [[reason, name] for name, reason in result["excluded"].items()]
    tables = [part(records) for part in parts] + [_named("Left out", "reason", left)]
    return "\n\n".join([_head(result), *filter(None, tables)]) + "\n"


def with_attention(record: Record) -> bool:
    """Whether the model counts as one with softmax attention over tokens. What could not be built
    or captured does, so that no failure leaves the count."""
    return record.status != NO_ATTENTION and not (
        record.front_end
        and record.sites == 0
        and not any(stage == "softmax without site" for stage, _ in record.failures)
    )


def _head(result: Mapping[str, Any]) -> str:
    versions, measured = (
        ", ".join(f"{k} {v}" for k, v in result.get(key, {}).items())
        for key in ("versions", "gradient_versions")
    )
    since = f"; the last two rows of *What was checked*: {measured}" if measured else ""
    return f"""# Supported models

<!-- Generated by `{result["command"]}`; not edited by hand. -->

There is no list of architectures in relprop: `relprop.check(model, inputs)` says of your model
whether it is explained. This page says how that went for every model family of timm and every
Hugging Face architecture of the common tasks. Each was built from its config, small and with random
weights, and explained with no code about it ({versions}{since}).

Each model's own numbers are a line of [supported-models.json](supported-models.json).
`{result["command"]}` measures them and writes both files."""


def _counts(records: list[Record]) -> str:
    rows = []
    for source, title in (*SOURCES.items(), ("", "all")):
        some = [r for r in records if source in ("", r.source)]
        attention = [r for r in some if with_attention(r)]
        explained = sum(r.status == EXPLAINED for r in attention)
        other = [r for r in some if not with_attention(r)]
        share = f"{100 * explained / len(attention):.1f} %" if attention else ""
        works = sum(r.status == NO_ATTENTION for r in other)
        rows.append([title, len(attention), explained, share, len(other), works])
    named = [r for r in records if r.named]
    good = sum(r.status in (EXPLAINED, NO_ATTENTION) for r in named)
    head = ["", "with attention over tokens", "explained", "share", "without such attention"]
    table = _grid([*head, '`method="lrp"` works'], rows)
    return (
        f"## How many models are explained\n\n{table}\n\n"
        f"Of the models promised by name, {good} of {len(named)} are good."
    )


def _tasks(records: list[Record]) -> str:
    """How many models of each task are explained, of the libraries that say what models are for."""
    tasks = Counter(t for r in records for t in r.tasks).most_common()
    rows = []
    for task, n in tasks:
        found = Counter(r.status for r in records if task in r.tasks)
        rows.append([task, n, found[EXPLAINED], found[NO_ATTENTION]])
    head = ["task", "models", "explained", "no token attention: explained at the input"]
    return f"## By task, Hugging Face\n\n{_grid(head, rows)}" if rows else ""


def _checked(records: list[Record]) -> str:
    """What *explained* means: what was compared, in how many models, and the largest difference."""
    rows = []
    for column, (what, bound) in CHECKED.items():
        found = [(v, r.name) for r in records if (v := getattr(r, column)) is not None]
        rows.append([what, bound, len(found), *(_worst(*max(found)) if found else ("", ""))])
    return f"""## What was checked

*Explained* means that all of this holds. Every softmax is an attention over tokens, or was looked
at by a person and is none. Scores of every explained input are finite and not all 0, and padding
scores exactly 0. Model and process are left bit for bit as they were. And:

{_grid(["compared", "at most", "models", "largest difference", "in"], rows)}"""


def _worst(value: float, name: str) -> tuple[str, str]:
    return format(value, ".0e"), name


def _failures(records: list[Record]) -> str:
    rows = [[r.name, r.status, _cell(r.cause)] for r in records if r.status in (FAILED, NOT_BUILT)]
    table = _grid(["model", "status", "first cause"], rows) if rows else "None."
    return f"## Models that fail\n\n{table}"


def _notes(records: list[Record]) -> str:
    """What a user of one of these models may want to know."""
    rows = [
        [note, r.name]
        for r in records
        for also in [", and has no balanced gradient" if r.unbalanced else ""]
        for note in (
            r.walked and f"`attnlrp` goes rule by rule, which takes longer{also}: {r.walked}",
            r.unbalanced and not r.walked and f"no balanced gradient: {r.unbalanced}",
            r.gradient_rounding
            and "one gradient differs by more than 1e-12, as far as rounding alone does",
            r.front_end == "concrete" and "`torch.export` refuses; captured by a run on values",
            r.another_in_double
            and "another input compared in double: near ties that rounding decides",
            r.generic and f"generic rule: {', '.join(r.generic)}",
            r.reads_padding and "the model itself reads padding: its output changes with it",
        )
        if note
    ]
    return _named("What to know about some models", "note", rows)


def _named(title: str, heading: str, pairs: list[list[str]]) -> str:
    """A table of notes, each with the families of the models that it is about."""
    found: dict[str, Counter[str]] = {}
    for note, name in pairs:
        found.setdefault(note, Counter())[name.split("/")[1]] += 1
    rows = [
        [_cell(n), c.total(), ", ".join(sorted(c))]
        for n, c in sorted(found.items(), key=lambda f: -f[1].total())
    ]
    return f"## {title}\n\n{_grid([heading, 'models', 'families'], rows)}" if rows else ""


def _families(records: list[Record]) -> str:
    parts = ["## Which families were tried"]
    for source, title in SOURCES.items():
        for status in (EXPLAINED, NO_ATTENTION):
            some = {r.family for r in records if (r.source, r.status) == (source, status)}
            parts += (
                [f"{title}, {status} ({len(some)}): {', '.join(sorted(some))}."] if some else []
            )
    return "\n\n".join(parts)


def _grid(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:220]


def _order(record: Record) -> tuple[int, str]:
    return list(SOURCES).index(record.source), record.name


def _lines(result: Mapping[str, Any]) -> str:
    """JSON with one record a line, so that a change of one model is a change of one line."""
    rows = ",\n".join(json.dumps(r) for r in result["records"])
    head = {k: v for k, v in result.items() if k != "records"}
    return json.dumps(head, indent=1)[:-2] + ',\n "records": [\n' + rows + "\n]\n}\n"
