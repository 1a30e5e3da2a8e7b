"""The sweep's report: it says what the records say, and the committed one is what the records in
the repository make."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import relprop
from tools.sweep import gradient, subjects
from tools.sweep.__main__ import app
from tools.sweep.examine import examine
from tools.sweep.record import EXPLAINED, FAILED, NO_ATTENTION, NOT_BUILT, Record
from tools.sweep.report import (
    markdown,
    merged,
    read_report,
    regressions,
    with_attention,
    write_merged,
    write_report,
)
from tools.sweep.run import read_records, run

DOCS = Path(__file__).parent.parent.parent / "docs"
GOOD = Record(
    "hf/bert/A",
    "hf",
    "bert",
    "A",
    named=True,
    status=EXPLAINED,
    front_end="export",
    sites=2,
    softmaxes=2,
    streams={"input_ids": [3, 12]},
    batch_error=0.0,
)
PLAIN = Record(
    "timm/resnet/B", "timm", "resnet", "B", status=NO_ATTENTION, front_end="export", lrp="finite"
)
BAD = Record(
    "hf/odd/C",
    "hf",
    "odd",
    "C",
    status=FAILED,
    cause="capture: CaptureError: a | b",
    failures=[["capture", "CaptureError: a | b"]],
)
UNBUILT = Record("hf/odd/D", "hf", "odd", "D", status=NOT_BUILT, cause="ValueError: no")


def test_what_could_not_be_captured_or_built_counts_as_a_model_with_attention():
    assert [with_attention(r) for r in (GOOD, PLAIN, BAD, UNBUILT)] == [True, False, True, True]
    unknown = Record(
        "hf/x/E",
        "hf",
        "x",
        "E",
        status=FAILED,
        front_end="export",
        softmaxes=1,
        failures=[["softmax without site", "1 of 1"]],
    )
    assert with_attention(unknown)


def test_a_report_counts_and_names_causes(tmp_path):
    as_json, as_text = write_report(
        [GOOD, PLAIN, BAD, UNBUILT], {"hf/left/F": "needs a library"}, tmp_path
    )
    text = as_text.read_text()
    assert (
        "| Hugging Face | 3 | 1 | 33.3 % | 0 | 0 |" in text
        and "| timm | 0 | 0 |  | 1 | 1 |" in text
    )
    assert (
        "| hf/odd/C | failed | capture: CaptureError: a \\| b |" in text
        and "| needs a library | 1 | left |" in text
    )
    assert "1 of 1 are good" in text
    assert [Record.of(r) for r in read_report(as_json)["records"]] == [PLAIN, GOOD, BAD, UNBUILT]


def test_the_column_of_one_gradient_is_written_into_an_earlier_report(tmp_path):
    new = [
        Record("hf/bert/A", "hf", "bert", "A", gradient_error=2e-15, balanced_error=3e-15),
        Record("timm/resnet/B", "timm", "resnet", "B", walked="it has exp", unbalanced="NaN"),
        Record("hf/odd/C", "hf", "odd", "C", status=FAILED, cause="process: not done"),
    ]
    before = {"command": "c", "versions": {"torch": "1"}, "excluded": {}}
    before["records"] = [r.as_dict() for r in (GOOD, PLAIN, BAD)]
    as_json, as_text = write_merged(before, new, tmp_path)
    good, plain, bad = merged(before, new)
    assert (good.status, good.gradient_error, good.balanced_error) == (GOOD.status, 2e-15, 3e-15)
    assert (plain.walked, plain.unbalanced) == ("it has exp", "NaN") and bad == BAD
    text, result = as_text.read_text(), read_report(as_json)
    assert "float64 | 1e-12 | 1 | 2e-15 | hf/bert/A |" in text and "| 3e-15 | hf/bert/A |" in text
    assert "longer, and has no balanced gradient: it has exp | 1 | resnet |" in text
    assert result["versions"] == {"torch": "1"} and "*What was checked*: torch" in text
    wrong = replace(new[0], gradient_error=0.1, failures=[["one gradient", "it differs"]])
    (worse, *_) = merged(result, [wrong])
    assert (worse.status, worse.cause) == (FAILED, "one gradient: it differs")
    (again, *_) = merged({**result, "records": [worse.as_dict()]}, new[:1])
    assert (again.status, again.cause, again.gradient_error) == (EXPLAINED, "", 2e-15)


@pytest.mark.slow
def test_one_gradient_is_compared_with_the_walk(monkeypatch):
    (subject,) = subjects("hf", "hf/bert/BertForMaskedLM")
    record = examine(subject, gradient_alone=True)
    assert record.status == "measured" and 0 <= record.gradient_error <= 1e-12
    assert record.gradient_rounding is None and 0 <= record.balanced_error <= 1e-12
    with monkeypatch.context() as patched:  # what rounding makes differs between processors
        patched.setattr(gradient, "_apart", lambda one, other, i=None: 1e-3 if i is None else 2e-4)
        record = examine(subject, gradient_alone=True)
        assert (record.status, record.gradient_rounding) == ("measured", 2e-4)
        patched.setattr(gradient, "_apart", lambda one, other, i=None: 1e-3 if i is None else 2e-5)
        assert examine(subject, gradient_alone=True).status == "failed"
    monkeypatch.setattr(gradient, "EXACT", relprop.rules.LRP)
    record = examine(subject, gradient_alone=True)
    assert record.status == "measured" and "no gradient form" in record.walked
    monkeypatch.setattr(gradient, "EXACT", relprop.rules.lrp_gamma(0.25))  # whose walk has its ε
    record = examine(subject, gradient_alone=True)
    assert record.status == FAILED and record.cause.startswith("one gradient: AssertionError: it")
    monkeypatch.undo()
    monkeypatch.setattr(gradient, "BALANCED", relprop.rules.lrp_gamma(0.25))
    record = examine(subject, gradient_alone=True)
    assert record.cause.startswith("balanced gradient: AssertionError: it differs from the walk")
    monkeypatch.setattr(gradient, "BALANCED", relprop.rules.LRP)
    assert "LRP" in examine(subject, gradient_alone=True).unbalanced.upper()


def test_a_regression_is_a_line():
    before = {"records": [GOOD.as_dict(), PLAIN.as_dict(), BAD.as_dict()]}
    worse = Record("hf/bert/A", "hf", "bert", "A", status=FAILED, cause="explain: X")
    assert regressions([worse, PLAIN, BAD], before) == [
        "hf/bert/A: was 'explained', is 'failed': explain: X"
    ]
    assert regressions([GOOD, Record("hf/new/G", "hf", "new", "G", status=FAILED)], before) == []


def test_results_are_kept_and_a_slow_model_is_ended(tmp_path):
    subject = subjects("hf", "hf/bert/BertForMaskedLM")
    results = tmp_path / "results.jsonl"
    [late] = run(subject, results, timeout=0.01, log=lambda line: None)
    assert late.status == FAILED and late.cause == "process: not done after 0 s"
    lines = []
    assert run(subject, results, timeout=0.01, log=lines.append) == [late] and lines == [
        "1 of 1 are in results.jsonl already"
    ]
    assert list(read_records(results)) == [subject[0].name]


def test_the_command_lists_and_writes(tmp_path):
    listed = CliRunner().invoke(app, ["hf", "--list", "--filter", "hf/gpt2/"])
    assert listed.exit_code == 0 and "hf/gpt2/GPT2LMHeadModel" in listed.output.splitlines()
    good = tmp_path / "before.json"
    good.write_text(
        json.dumps({"records": [{**GOOD.as_dict(), "name": "hf/bert/BertForMaskedLM"}]})
    )
    swept = CliRunner().invoke(
        app,
        [
            "hf",
            "--filter",
            "hf/bert/BertForMaskedLM",
            "--out",
            str(tmp_path),
            "--timeout",
            "0.01",
            "--check",
            str(good),
        ],
    )
    assert (
        swept.exit_code == 1
        and "REGRESSION  hf/bert/BertForMaskedLM: was 'explained', is 'failed'" in swept.output
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "before.json",
        "supported-models.json",
        "supported-models.md",
    ]


def test_the_command_answers_as_json(tmp_path):
    listed = CliRunner().invoke(app, ["hf", "--list", "--filter", "hf/gpt2/", "--json"])
    assert "hf/gpt2/GPT2LMHeadModel" in json.loads(listed.output)
    assert CliRunner().invoke(app, ["nonsense", "--list"]).exit_code == 2
    one = ["hf", "--filter", "hf/bert/BertForMaskedLM", "--timeout", "0.01", "--json"]
    swept = CliRunner().invoke(app, [*one, "--out", str(tmp_path)])
    assert swept.exit_code == 0 and "1 models: 0 explained" in swept.stderr
    found = json.loads(swept.stdout)
    assert found["ok"] and found["report"] == str(tmp_path / "supported-models.json")
    assert json.loads((tmp_path / "supported-models.json").read_text())


@pytest.mark.skipif(
    not (DOCS / "supported-models.json").exists(), reason="the whole sweep has not been run yet"
)
def test_the_committed_page_is_what_the_committed_results_make():
    assert (DOCS / "supported-models.md").read_text() == markdown(
        read_report(DOCS / "supported-models.json")
    )
