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
    facts = [] if model is None else [f"{model['class']}, weights sha256 {model['weights'][:16]}…"]
    inputs = ", ".join(
        _described(s.name, s.scores.shape[1], s.image) for s in explanation.streams.values()
    )
    targets, told = _targets(explanation.target)
    keep = [
        n
        for n, kept in (
            ("blocks", explanation.blocks is not None),
            ("matrix", any(s.matrix is not None for s in explanation.streams.values())),
        )
        if kept
    ]
    options = [f"{name}={value}" for name, value in _changed(explanation).items()]
    arguments = [
        f"target={targets}",
        f"method={explanation.method!r}",
        *([f"rules={explanation.rules!r}"] if explanation.ledger is not None else []),
        *options,
    ]
    arguments += [f"keep={tuple(keep)!r}"] if keep else []
    return "\n".join(
        [
            "import relprop",
            "",
            f"model = ...     # {_line(facts[0]) if facts else 'not given to the report'}",
            f"inputs = ...    # a batch of {len(explanation)}: {_line(inputs)}",
            f"explanation = relprop.explain(model, inputs, {', '.join(arguments)}){told}",
            'explanation.to_html("report.html", model=model)',
        ]
    )


def _described(name: str, count: int, image: tuple[int, ...] | None) -> str:
    return (
        f"{name!r} of {'×'.join(map(str, image))}"
        if image is not None
        else f"{name!r} with {count} tokens"
    )


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
