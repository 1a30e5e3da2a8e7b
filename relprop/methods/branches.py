"""Methods that run the graph on other values cannot follow a model whose Python code branches on
what it has computed."""

from __future__ import annotations

from relprop.errors import OptionError
from relprop.tracer.program import Program


def refuse_branches(program: Program, method: str) -> None:
    """Refuse such a model by name. Raises ``OptionError``."""
    if program.choices:
        raise OptionError(
            f"{method}: the model branches on what it has computed ({program.choices[0]}): its "
            "graph holds for the values as they are"
        )
