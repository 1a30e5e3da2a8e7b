"""``relprop demo``: the shipped trained model explains a picture that it was not trained on."""

from __future__ import annotations

from pathlib import Path

from relprop.commands.printing import echo, echo_json
from relprop.commands.steps import Steps
from relprop.commands.writing import check_outs


def demo(out: Path, seed: int, *, force: bool, json_output: bool) -> None:
    """Explain held-out scene ``seed``, write the picture, and print what it shows."""
    check_outs([out], [".png"], force=force, drawn=False)
    with Steps(1) as steps:
        steps.next("explaining a scene")
        from relprop.demo.show import run_demo

        report = run_demo(out, seed)
    if json_output:
        echo_json({"seed": seed, "picture": str(out), "report": report.splitlines()})
    else:
        echo(report)
