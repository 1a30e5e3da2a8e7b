"""docs/command-line.md: its commands print what it says, and it names every command, option and
exit code."""

import re

import pytest
from typer.main import get_command

from relprop.cli import app
from tests.cli.page import PAGE, prepare, printed, written

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def words(text):
    """The text without numbers, bars and spaces between words."""
    return re.sub(r"[█▓▒░▁▂▃▄▅▆▇\s]+", " ", NUMBER.sub("#", text)).strip()


@pytest.mark.slow
def test_the_commands_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    prepare()
    assert len(written()) >= 10
    for command, says in written():
        _, found = printed(command)
        assert words(found) == words(says), command
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (found, says)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=2e-6), command
    assert {p.name for p in tmp_path.iterdir()} == {
        "scene.png",
        "maps.png",
        "maps.safetensors",
        "compared.png",
        "digits.safetensors",
    }


def test_every_command_has_its_place():
    page = PAGE.read_text(encoding="utf-8")
    commands = get_command(app).commands
    assert all(f"`relprop {name}`" in page for name in commands) and set(
        re.findall(r"`relprop (\w+)`", page)
    ) == set(commands)
    known = {
        option
        for command in commands.values()
        for p in command.params
        for option in (*p.opts, *p.secondary_opts)
        if option.startswith("--")
    }
    assert set(re.findall(r"`(--[a-z-]+)`", page)) - {"--index-url", "--help"} <= known
