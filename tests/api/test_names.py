"""What is seen of the package from outside: completion, names for type checkers, progress."""

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import relprop
from relprop.methods import METHODS
from relprop.runner.conditions import Conditions

ROOT = Path(__file__).parents[2]


def test_dir_completes_the_public_modules():
    listed = set(dir(relprop))
    assert {"methods", "evaluation", "data", "adapters", "plot", "testing", "runs"} <= listed
    for name in listed:
        assert getattr(relprop, name) is not None
    for name in relprop._MODULES:
        module = getattr(relprop, name)
        public = getattr(module, "__all__", None)
        assert public is None or dir(module) == sorted(public)


@pytest.mark.slow
def test_misspelt_names_and_options_are_errors_for_a_type_checker(tmp_path):
    page = tmp_path / "page.py"
    right = ["relprop.explain", "relprop.testing.check_rule"]
    right += [f"relprop.{f}(m, x, method='gae', head_fusion='max')" for f in ("explain", "compile")]
    right += ["relprop.explain(m, x, method='mine', **own)"]  # options of a method of one's own
    wrong = ["relprop.explian", "relprop.testing.check_rul"]
    wrong += [f"relprop.{f}(m, x, methd='gae')" for f in ("explain", "compile", "compare")]
    wrong += ["relprop.explain_generation(m, x, nsteps=3)", "relprop.explain(m, x, n_steps='3')"]
    lines = ["from typing import Any", "import relprop", "m: Any = None", "x: Any = None"]
    lines += ["own: dict[str, Any] = {'mine': 1}"]
    page.write_text("\n".join(lines + right + wrong) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = {int(n) for n in re.findall(r"page.py:(\d+): error", done.stdout)}
    first = len(lines + right) + 1
    assert found == set(range(first, first + len(wrong))), done.stdout


def test_type_checkers_know_every_option():
    from relprop.methods.options import MethodOptions
    from relprop.runner.method import OF_EVERY_METHOD

    own = [m for m in METHODS.values() if m.function.__module__.startswith("relprop.")]
    known = {name for m in own for name in m.options()}.union(OF_EVERY_METHOD)
    assert set(get_type_hints(MethodOptions)) == known


def test_the_files_that_a_release_has():
    assert f"version: {relprop.__version__}" in (ROOT / "CITATION.cff").read_text()
    first = (ROOT / "docs/index.md").read_text()
    assert f"Version {relprop.__version__}: `pip install relprop`" in first
    assistant = (ROOT / "AGENTS.md").read_text()
    assert len(assistant.splitlines()) < 60
    for name in re.findall(r"docs/[\w-]+\.md", assistant):
        assert (ROOT / name).exists(), name
    for call in re.findall(r"relprop\.([a-z_]+)", assistant):
        assert hasattr(relprop, call), call
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        assert template.read_text().startswith("---\nname: ")
    assert list((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))


@pytest.mark.parametrize(
    "name", ["explain", "explain_many", "compare", "explain_generation", "cite"]
)
def test_every_condition_of_a_call_is_an_argument_of_it(name):
    """``conditions_of`` takes them by name: one that is misspelt would be its default."""
    own = {"verify", "explain_inputs", "keep_pictures"}  # what a generation decides by itself
    left_out = {"explain_generation": own, "cite": own | {"on_unknown", "batch_size"}}
    known = {field.name for field in fields(Conditions)}
    given = inspect.signature(getattr(relprop, name)).parameters
    assert known - set(given) == left_out.get(name, set())
