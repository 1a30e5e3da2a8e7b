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
    """The page for readers."""
    records = [Record.of(r) for r in result["records"]]
    parts = [_head(result), _counts(records), _gradients(records), _failures(records)]
    for source, title in SOURCES.items():
        if some := [r for r in records if r.source == source]:
            parts.append(_table(f"{title}: {len(some)} models", some))
    if result["excluded"]:
        parts.append(
            "## Left out\n\n| model | reason |\n|---|---|\n"
            + "\n".join(f"| {name} | {reason} |" for name, reason in result["excluded"].items())
        )
    return "\n\n".join(parts) + "\n"


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
    since = f" (measured with {measured})" if measured else ""
    return f"""# Supported models

<!-- Generated by `{result["command"]}`; not edited by hand. -->

Every model below was built from its config with seeded random weights, at a small size, and explained with no code about it
({versions}). *Explained* means that every column is good: the captured graph equals the model on the captured input and on another one (to 1e-4 in float32, or, where
rounding decides between near ties, in double);
every softmax ends in an attention site or was looked at by a person and is none; the ledger balances to 1e-5·Σ|R|; three samples with different
padding give in one call what they give one by one (to 1e-6 in float64); every explained input has finite scores that are not all 0, and padding has exactly 0; model and process
are left bit for bit as they were. A failure names its first cause.

*One gradient*: how far the scores of `method="attnlrp"` by one gradient are from those of the walk with ε = 0, in float64, relative to the largest (more than 1e-12 is a failure, unless rounding makes as much of the model: with ±, how far a sample in a batch is from the sample alone); or why relevance is walked. *Balanced gradient*: the same of `gradient_x_input` with `gradient="balanced"` and the walk by its rules; or why there is none{since}."""  # noqa: E501


def _counts(records: list[Record]) -> str:
    lines = [
        '| | attention over tokens | explained | | no token attention | `method="lrp"` works |',
        "|---|---|---|---|---|---|",
    ]
    for source, title in (*SOURCES.items(), ("", "all")):
        some = [r for r in records if source in ("", r.source)]
        attention = [r for r in some if with_attention(r)]
        explained = sum(r.status == EXPLAINED for r in attention)
        other = [r for r in some if not with_attention(r)]
        share = f"{100 * explained / len(attention):.1f} %" if attention else ""
        lines.append(
            f"| {title} | {len(attention)} | {explained} | {share} | {len(other)} | "
            f"{sum(r.status == NO_ATTENTION for r in other)} |"
        )
    named = [r for r in records if r.named]
    good = sum(r.status in (EXPLAINED, NO_ATTENTION) for r in named)
    return (
        "## Counts\n\n"
        + "\n".join(lines)
        + f"\n\nOf the models promised by name, {good} of {len(named)} are good."
    )


def _gradients(records: list[Record]) -> str:
    """How many models have relevance as one gradient, and a balanced gradient."""
    one = [(r.gradient_error, r.gradient_rounding, r.walked) for r in records]
    balanced = [(r.balanced_error, r.balanced_rounding, r.unbalanced) for r in records]
    return "\n\n".join(
        [
            f"## One gradient\n\n{_measured(one, 'by one gradient', 'walked')}",
            f"## Balanced gradients\n\n{_measured(balanced, 'have one', 'without')}",
        ]
    )


def _measured(found: list[tuple[float | None, float | None, str]], have: str, without: str) -> str:
    """How many models have it, how far it is from the walk, and why the others have it not."""
    errors = [error for error, _, _ in found if error is not None]
    reasons = Counter(why for _, _, why in found if why)
    whys = "".join(f"; {n} {without}: {why}" for why, n in reasons.most_common())
    left = len(found) - len(errors) - reasons.total()
    largest = f", largest difference {max(errors):.0e}" if errors else ""
    rounded = sum(rounding is not None for _, rounding, _ in found)
    largest += f" (of {rounded} more than 1e-12, as rounding alone makes)" if rounded else ""
    return f"{len(errors)} of {len(found)} models {have}{largest}{whys}; {left} not measured."


def _failures(records: list[Record]) -> str:
    bad = [r for r in records if r.status in (FAILED, NOT_BUILT)]
    if not bad:
        return "## Failures\n\nNone."
    stages = Counter(r.cause.split(":")[0] if r.status == FAILED else NOT_BUILT for r in bad)
    summary = ", ".join(f"{stage} {n}" for stage, n in stages.most_common())
    rows = "\n".join(f"| {r.name} | {r.status} | {_cell(r.cause)} |" for r in bad)
    return (
        f"## Failures\n\n{len(bad)}: {summary}.\n\n| model | status | first cause "
        f"|\n|---|---|---|\n{rows}"
    )


def _table(title: str, records: list[Record]) -> str:
    head = (
        "| model | status | captured by, s | sites / softmaxes | graph error, another "
        "input | generic rule | ledger | batch | one gradient | balanced gradient | scores for | s "
        "|\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = []
    for r in records:
        streams = ", ".join(
            f"{name} {'×'.join(map(str, shape[1:]))}" for name, shape in r.streams.items()
        )
        rows.append(
            f"| {r.name.partition('/')[2]} | {r.status} | {r.front_end} "
            f"{_number(r.capture_seconds, '.1f')} | {r.sites} / {r.softmaxes} | "
            f"{_number(r.graph_error)}, "
            f"{_number(r.graph_error_another)}{' (double)' if r.another_in_double else ''} "
            f"| {', '.join(r.generic)} | {_number(r.ledger_error)} | "
            f"{_number(r.batch_error)} | {_gradient(r)} | {_balanced(r)} | {streams} "
            f"| {r.seconds:.1f} |"
        )
    return f"## {title}\n\n{head}\n" + "\n".join(rows)


def _gradient(record: Record) -> str:
    """How far one gradient is from the walk, or why relevance is walked."""
    why = f"walked: {record.walked}" if record.walked else ""
    return _distance(record.gradient_error, record.gradient_rounding, why)


def _balanced(record: Record) -> str:
    """How far a balanced gradient times the input is from the walk, or why there is none."""
    return _distance(record.balanced_error, record.balanced_rounding, record.unbalanced)


def _distance(error: float | None, rounding: float | None, why: str) -> str:
    if error is None:
        return _cell(why) or "not measured"
    return _number(error) + (f" ± {_number(rounding)}" if rounding else "")


def _number(value: float | None, how: str = ".0e") -> str:
    return "" if value is None else "0" if value == 0 else format(value, how)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())[:220]


def _order(record: Record) -> tuple[int, str]:
    return list(SOURCES).index(record.source), record.name


def _lines(result: Mapping[str, Any]) -> str:
    """JSON with one record a line, so that a change of one model is a change of one line."""
    rows = ",\n".join(json.dumps(r) for r in result["records"])
    head = {k: v for k, v in result.items() if k != "records"}
    return json.dumps(head, indent=1)[:-2] + ',\n "records": [\n' + rows + "\n]\n}\n"
