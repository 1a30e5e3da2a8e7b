"""docs/command-line.md: run its commands, in order, in an empty folder. ``python -m
tests.cli.page`` writes what they print into the page."""

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

import torch

from relprop.cli import main

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def printed(command: str) -> tuple[int, str]:
    """The exit code, and standard output with standard error after it, without spaces at the ends
    of lines."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(shlex.split(command)[1:])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, "\n".join(
        line.rstrip() for line in (out.getvalue() + err.getvalue()).splitlines()
    ).rstrip()


def written() -> list[tuple[str, str]]:
    """The page's commands, each with what the page says it prints."""
    found = []
    for block in BLOCKS.findall(PAGE.read_text(encoding="utf-8")):
        for part in block.split("$ ")[1:]:
            command, _, says = part.partition("\n")
            found.append((command, says.rstrip()))
    return found


def prepare() -> None:
    """Run the page's Python, which writes the picture that the commands read."""
    for block in PYTHON.findall(PAGE.read_text(encoding="utf-8")):
        exec(compile(block, PAGE.name, "exec"), {})


def fill() -> None:
    """Write the page anew."""

    def filled(block: re.Match[str]) -> str:
        commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
        return (
            "```console\n"
            + "".join(f"$ {command}\n{printed(command)[1]}\n" for command in commands)
            + "```"
        )

    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare()
        text = BLOCKS.sub(filled, text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    fill()
