"""The entry point as a process: nothing heavy is imported for help, exit codes, no tracebacks, no
progress where nobody looks."""

import io
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import relprop
from relprop import cli
from relprop.commands.steps import Steps
from relprop.errors import RelpropError, RelpropWarning

COMMANDS = ("demo", "explain", "compare", "check", "methods", "doctor", "evaluate")


def ran(*arguments, options=(), **kwargs):
    return subprocess.run(
        [sys.executable, *options, "-m", "relprop", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        **kwargs,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["explain", "--help"],
        ["explain", "x.png", "--model", "demo:digits", "--out", "x.gif"],
    ],
    ids=["help", "one", "usage"],
)
def test_pytorch_is_not_imported_for_help_or_wrong_usage(arguments):
    done = ran(*arguments, options=["-X", "importtime"])
    imported = {
        line.rpartition("|")[2].strip().split(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"typer", "relprop"} <= imported
    assert not imported & {
        "torch",
        "numpy",
        "transformers",
        "timm",
        "matplotlib",
        "PIL",
        "safetensors",
    }


def test_help_names_every_command_and_the_exit_codes():
    done = ran("--help")
    assert done.returncode == 0 and all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "Exit codes: 0 done; 1 refused or failed" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_says_its_exit_codes(relprop_says, name):
    said = relprop_says(name, "--help")
    assert said.code == 0 and "--json" in said.out and "Exit codes:" in said.out


@pytest.mark.parametrize(
    "code, arguments, complaint",
    [
        (
            1,
            ["explain", "nowhere.png", "--model", "demo:digits"],
            "relprop: there is no file 'nowhere.png'",
        ),
        (2, ["explain", "--model", "demo:digits"], "relprop: explain needs an input or a data set"),
        (2, ["nonsense"], "nonsense"),
        (2, ["explain", "x", "--nonsense"], "--nonsense"),
    ],
    ids=["refused", "wrong", "command", "option"],
)
def test_exit_codes(relprop_says, code, arguments, complaint):
    said = relprop_says(*arguments)
    assert said.code == code and complaint in said.err


def test_a_process_ends_with_that_code_and_without_a_traceback():
    done = ran("explain", "--model", "demo:digits")
    assert done.returncode == 2 and "needs an input" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_is_done_is_0_and_a_terminal_without_the_characters_no_error():
    done = subprocess.run(
        [sys.executable, "-m", "relprop", "methods", "transformer_attribution"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0 and b"(?A" in done.stdout


def test_warnings_are_one_line(monkeypatch, capsys):
    def warn(*arguments, **kwargs):
        warnings.warn("relevance is all zero", RelpropWarning, stacklevel=1)

    monkeypatch.setattr(cli, "app", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        cli.main([])
    assert capsys.readouterr().err == "warning: relevance is all zero\n"


def test_a_bug_is_not_hidden(monkeypatch, capsys):
    def fail(*arguments, **kwargs):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "Traceback" not in said
    assert "raised ZeroDivisionError: a bug" in said and "RELPROP_TRACEBACK=1" in said
    monkeypatch.setenv("RELPROP_TRACEBACK", "1")
    with pytest.raises(SystemExit):
        cli.main([])
    assert "Traceback" in capsys.readouterr().err


def test_nothing_of_a_name_acts_on_the_terminal(monkeypatch, capsys):
    def fail(*arguments, **kwargs):
        raise RelpropError("cannot read \x1b]0;title\x07\x9b31m\u202ename.png")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main([])
    said = capsys.readouterr().err
    assert said.rstrip("\n").isprintable()
    assert r"\x1b]0;title\x07\x9b31m\u202ename.png" in said


def test_a_second_interrupt_ends_the_process_without_a_word():
    code = """
import signal, sys, time
from relprop import cli
def slow(*arguments, **kwargs):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("cleaning", flush=True)
        signal.raise_signal(signal.SIGINT)
        time.sleep(60)
cli.app = slow
cli.main([])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT and done.stdout == "cleaning\n" and not done.stderr


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_steps_are_shown_on_a_terminal_only():
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        with Steps(3, stream=stream) as steps:
            steps.next("opening the model")
            steps.next("explaining")
        assert steps.names == ["opening the model", "explaining"]
        assert ("explaining" in stream.getvalue() and "1/3" in stream.getvalue()) == shown
        assert bool(stream.getvalue()) == shown


def test_the_remaining_time_is_that_of_the_steps_left_at_the_pace_of_those_done():
    steps = Steps(4, stream=io.StringIO())
    assert steps.left(steps.began) is None
    for name in ("loading", "opening", "explaining"):
        steps.next(name)
    steps.changed = steps.began + 6.0
    assert (
        steps.left(steps.changed + 1.0) == pytest.approx(2 * 3.0 - 1.0)
        and steps.left(steps.changed + 6.5) is None
    )


def test_names_are_imported_when_asked_for():
    code = (
        "import sys, relprop; assert 'torch' not in sys.modules; assert "
        "set(relprop.__all__) <= set(dir(relprop)); relprop.errors; assert 'torch' not "
        "in sys.modules"
    )
    code += (
        "; from tests.common.models import build, sample"
        "; assert relprop.explain(build(), sample()).scores.shape == (3, 6)"  # knows the methods
        "; assert relprop.methods.available(); from relprop import *; assert Explanation and trace"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    with pytest.raises(AttributeError, match="module 'relprop' has no attribute 'nonsense'"):
        relprop.nonsense  # noqa: B018


def test_what_type_checkers_see_is_what_is_there():
    """The names imported under TYPE_CHECKING are those that ``__getattr__`` knows, from the same
    modules."""
    import ast

    block = next(
        s for s in ast.parse(Path(relprop.__file__).read_text()).body if isinstance(s, ast.If)
    )
    seen = {alias.name: statement.module for statement in block.body for alias in statement.names}
    public = {*relprop.__all__, *relprop._MODULES, *relprop._RESULTS}
    assert set(seen) == public
    rooms = {name: module.rpartition(".")[0] for name, module in relprop._SHORT_NAMES.items()}
    assert {name: f"relprop.{home}" for name, home in (relprop._HOME_OF | rooms).items()} == {
        n: m for n, m in seen.items() if m != "relprop"
    }


def test_the_version_and_completion():
    done = ran("--version")
    assert done.returncode == 0 and done.stdout.strip() == f"relprop {relprop.__version__}"
    assert "--install-completion" in ran("--help").stdout


@pytest.mark.parametrize("name", ["missing.txt", "a/folder", "scene.jpg", "notes.md"])
def test_what_looks_like_a_file_and_is_none_is_an_error(relprop_says, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = relprop_says("explain", name, "--model", "demo:reviews")
    assert said.code == 1 and f"there is no file '{name}'" in said.err
