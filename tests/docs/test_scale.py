"""docs/scale.md: its numbers are those of docs/scale.json, and the benchmark that makes both
runs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "scale.py"


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    return importlib.import_module("scale_page")


def test_the_page_is_what_the_raw_numbers_say(page):
    result = json.loads((ROOT / "docs" / "scale.json").read_text())
    assert (ROOT / "docs" / "scale.md").read_text() == page.markdown(result)


@pytest.mark.slow
def test_a_tiny_case_is_measured(tmp_path):
    """Memory and time of one row, each in a process of its own; a second run adds nothing."""
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--tokens", "16"]
    command += ["--jobs", "2", "--only", "llama", "gradient_x_input"]
    for _ in range(2):
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    result = json.loads((tmp_path / "scale.json").read_text())
    memory, time = sorted(result["figures"], key=lambda record: record["what"])
    for record, what in ((memory, "memory"), (time, "time")):
        expected = {"what": what, "model": "llama", "method": "gradient_x_input", "length": 16}
        assert expected.items() <= record.items() and "missing" not in record
    assert memory["bytes"] >= 0 and time["seconds"] > 0 and time["forward"] > 0
    assert result["environment"]["torch"]
    assert "| 16,384 |" in (tmp_path / "scale.md").read_text()
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2


def test_what_takes_too_long_is_left_out_in_words(page):
    """Neither a figure nor a longer input of its series is a number then."""
    scale = importlib.import_module("scale")
    figures = scale.Figures(Path("unused"))
    case = scale.Case("vit", "gae", 512)
    figures.known["time", case] = {"elapsed": 100.0, "seconds": 40.0, "forward": 1.0}
    longer = scale.replace(case, tokens=1024)
    assert figures.left_out("time", case, 200) is None
    assert figures.left_out("time", longer, 500) is None
    assert "limit of 200 seconds" in figures.left_out("time", longer, 200)["missing"]
    assert page.value(figures.known, "time", case) == 40
    assert page.value(figures.known, "memory", case) is None
