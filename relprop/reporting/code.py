"""The lines of Python that make an explanation again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relprop.explanation import Explanation, TokenScores
from relprop.methods import METHODS


def code_for(explanation: Explanation, model: Mapping[str, Any] | None) -> str:
    """The call that made ``explanation``; ``model`` and ``inputs`` are the reader's to fill in,
    with what is known of them in comments."""
    inputs = ", ".join(map(_described, explanation.streams.values()))
    arguments, comment = _arguments(explanation)
    made_of = "not given to the report"
    if model is not None:
        made_of = f"{model['class']}, weights sha256 {model['weights'][:16]}…"
    return "\n".join(
        [
            "import relprop",
            "",
            f"model = ...     # {_line(made_of)}",
            f"inputs = ...    # a batch of {len(explanation)}: {_line(inputs)}",
            f"explanation = relprop.explain(model, inputs, {', '.join(arguments)}){comment}",
            'explanation.to_html("report.html", model=model)',
        ]
    )


def _arguments(explanation: Explanation) -> tuple[list[str], str]:
    """The keyword arguments as they are written, and a comment."""
    targets, comment = _targets(explanation.target)
    arguments = [f"target={targets}", f"method={explanation.method!r}"]
    if explanation.ledger is not None:
        arguments.append(f"rules={explanation.rules!r}")
    arguments += [f"{name}={value}" for name, value in _changed(explanation).items()]
    matrix = any(stream.matrix is not None for stream in explanation.streams.values())
    if keep := ("blocks",) * (explanation.blocks is not None) + ("matrix",) * matrix:
        arguments.append(f"keep={keep!r}")
    return arguments, comment


def _described(tokens: TokenScores) -> str:
    if tokens.image is None:
        return f"{tokens.name!r} with {tokens.scores.shape[1]} tokens"
    return f"{tokens.name!r} of {'×'.join(map(str, tokens.image))}"


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
    by = METHODS.get(explanation.method)  # none: of the user's own, not registered here
    defaults = {} if by is None else {k: str(v) for k, v in by.options().items()}
    return {k: _python(v) for k, v in given.items() if defaults.get(k) != v}


def _python(text: str) -> str:
    """An option's value as it is written: a word is a string."""
    return repr(text) if text.isidentifier() and text not in ("None", "True", "False") else text


def _line(text: str) -> str:
    return " ".join(text.split())
