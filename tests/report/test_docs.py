"""The page on reports: its example runs, and what it promises of options is there."""

import inspect
import re
from pathlib import Path

import relprop

PAGE = (Path(__file__).parents[2] / "docs/report.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(compile(block, "report.md", "exec"), {"__name__": "page"})
    assert (
        capsys.readouterr().out == "True\n"
        and (tmp_path / "two.html").exists()
        and "Two digits" in (tmp_path / "report.html").read_text()
    )


def test_options_are_on_the_page():
    names = list(inspect.signature(relprop.report).parameters)[2:]
    names.remove("strict")  # any call has it (docs/reliability.md)
    assert list(inspect.signature(relprop.Explanation.to_html).parameters)[2:] == names
    assert all(f"{name}=" in PAGE or f"`{name}`" in PAGE for name in names)
