"""What is seen of the package from outside: completion, names for type checkers, progress."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import relprop

ROOT = Path(__file__).parents[2]


def test_dir_completes_the_public_modules():
    listed = set(dir(relprop))
    assert {"methods", "evaluation", "data", "adapters", "plot", "testing", "runs"} <= listed
    for name in listed - {"TYPE_CHECKING"}:
        assert getattr(relprop, name) is not None


@pytest.mark.slow
def test_a_misspelt_name_is_an_error_for_a_type_checker(tmp_path):
    page = tmp_path / "page.py"
    page.write_text(
        "import relprop\nrelprop.explain\nrelprop.testing.check_rule\nrelprop.explian\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert "page.py:4" in done.stdout and done.stdout.count("error:") == 1, done.stdout


def test_the_files_that_a_release_has():
    assert f"version: {relprop.__version__}" in (ROOT / "CITATION.cff").read_text()
    assistant = (ROOT / "AGENTS.md").read_text()
    assert len(assistant.splitlines()) < 60
    for name in re.findall(r"docs/[\w-]+\.md", assistant):
        assert (ROOT / name).exists(), name
    for call in re.findall(r"relprop\.([a-z_]+)", assistant):
        assert hasattr(relprop, call), call
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        assert template.read_text().startswith("---\nname: ")
    assert list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))
