"""The lines of Python that make an explanation again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relprop.errors import OptionError
from relprop.explanation import Explanation
from relprop.methods import method_named


def code_for(explanation: Explanation, model: Mapping[str, Any] | None) -> str:
    """The call that made ``explanation``; ``model`` and ``inputs`` are the reader's to fill in,
    with what is known of them in comments."""
    inputs = ", ".join(
        _described(s.name, s.scores.shape[1], s.image) for s in explanation.streams.values()
    )
    arguments, comment = _arguments(explanation)
    return "\n".join(
        [
            "import relprop",
            "",
            f"model = ...     # {_line(_model(model))}",
            f"inputs = ...    # a batch of {len(explanation)}: {_line(inputs)}",
            f"explanation = relprop.explain(model, inputs, {', '.join(arguments)}){comment}",
            'explanation.to_html("report.html", model=model)',
        ]
    )


def _model(facts: Mapping[str, Any] | None) -> str:
    if facts is None:
        return "not given to the report"
    return f"{facts['class']}, weights sha256 {facts['weights'][:16]}…"


def _arguments(explanation: Explanation) -> tuple[list[str], str]:
    """The keyword arguments as they are written, and a comment."""
    targets, comment = _targets(explanation.target)
    arguments = [f"target={targets}", f"method={explanation.method!r}"]
    if explanation.ledger is not None:
        arguments.append(f"rules={explanation.rules!r}")
    arguments += [f"{name}={value}" for name, value in _changed(explanation).items()]
    if keep := _keep_argument(explanation):
        arguments.append(f"keep={keep!r}")
    return arguments, comment


def _keep_argument(explanation: Explanation) -> tuple[str, ...]:
    blocks = explanation.blocks is not None
    matrix = any(stream.matrix is not None for stream in explanation.streams.values())
    return ("blocks",) * blocks + ("matrix",) * matrix


def _described(name: str, count: int, image: tuple[int, ...] | None) -> str:
    if image is None:
        return f"{name!r} with {count} tokens"
    return f"{name!r} of {'×'.join(map(str, image))}"


def _targets(targets: tuple[Any, ...]) -> tuple[str, str]:
    """The targets as Python, and a comment where they are none: the name of a function or of an
    output calls nothing."""

    def plain(target: Any) -> bool:
        return isinstance(target, int) or (
            isinstance(target, tuple) and all(isinstance(i, int) for i in target)
        )

    if all(map(plain, targets)):
        same = len(set(targets)) == 1
        return (repr(targets[0]) if same else repr(list(targets))), ""
    return "...", f"    # target: {_line(', '.join(dict.fromkeys(map(str, targets))))}"


def _changed(explanation: Explanation) -> dict[str, str]:
    """The options that are not the method's defaults, as they print."""
    given = explanation.facts.get("options", {})
    try:
        defaults = {
            k: str(v) for k, v in method_named(explanation.method, level=None).options().items()
        }
    except OptionError:  # a method of the user's own that is not registered here
        defaults = {}
    return {k: _python(v) for k, v in given.items() if defaults.get(k) != v}


def _python(text: str) -> str:
    """An option's value as it is written: a word is a string."""
    return repr(text) if text.isidentifier() and text not in ("None", "True", "False") else text


def _line(text: str) -> str:
    return " ".join(text.split())
