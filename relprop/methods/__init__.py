"""The methods by name, in one table. A user's own are registered the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relprop.error_boundary import guarded
from relprop.errors import OptionError, nearest
from relprop.methods.averages import noise, path
from relprop.methods.table import SHIPPED
from relprop.methods.tiers import described, place, tier
from relprop.rules import PRESETS
from relprop.runner.attention_study import AttentionStudy
from relprop.runner.input_study import InputStudy
from relprop.runner.method import (
    METHODS,
    NEEDS,
    RECOMMENDED,
    SHARED,
    Level,
    Method,
    Reads,
    input_level,
    method_named,
    row_wise,
)
from relprop.runner.values import Found, LayerValues, SiteValues, TokenMap
from relprop.views.html_tables import table

METHODS.update(SHIPPED)


USUAL = ("transformer_attribution", "gae", "rollout", "gradcam", "attnlrp", "gradient_x_input")


def _cheap(level: Level | None = None) -> list[str]:
    """The methods whose cost does not grow with the input."""
    named = METHODS.items()
    return [n for n, m in named if m.cheap and level in (None, m.level)]


#: Methods by a common name, for ``compare`` and the command line: which there are at a call.
GROUPS: Mapping[str, Callable[[], list[str]]] = {
    "usual": lambda: [name for name in USUAL if name in METHODS],
    "all": _cheap,
    "attention": lambda: _cheap("attention"),
    "input": lambda: _cheap("input"),
}


class Table(tuple[Method, ...]):
    """Methods by tier; printed, one line each, in a notebook a table."""

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        return table(head, rows)

    def __str__(self) -> str:
        rows = self._cells()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join((*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]))
            for row in rows
        )

    def _cells(self) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = [
            ("method", "tier", "class", "signed", "cost", "source", "what it says")
        ]
        for m in sorted(self, key=lambda m: place(m.name)):
            class_specific, signed = (
                "yes" if yes else "no" for yes in (m.class_specific, m.signed)
            )
            said = described(m.name, m.plain or m.description)
            found.append((m.name, tier(m.name), class_specific, signed, m.cost, m.source, said))
        return found


@guarded
def available() -> Table:
    """Every method there is: name, tier (recommended, for comparison, archive: docs/methods.md),
    whether it is class-specific, whether signed, cost in forward passes for one target, source,
    what it says in plain words, and what to take it for.

    >>> import relprop
    >>> "rollout" in {method.name for method in relprop.methods.available()}
    True
    """
    return Table(METHODS.values())


@guarded
def register(
    name: str,
    function: Callable[..., Mapping[Any, Any]],
    *,
    needs: Iterable[str] = (),
    level: Level = "attention",
    class_specific: bool = True,
    rules: str = "paper",
    shared: Iterable[str] = (),
    signed: bool = False,
    cost: str = "",
    source: str = "",
    reads: Reads | None = None,
    plain: str = "",
) -> Method:
    """Add a method of your own: ``relprop.explain(..., method=name)`` and everything that takes a
    method then know it (docs/write-a-method.md).

    Args:
        function: ``function(at, **options)``; ``at`` is an ``AttentionStudy`` or, with
            ``level="input"``, an ``InputStudy``.
        needs: any of ``"gradient"``, ``"relevance"``, ``"hidden"``, ``"features"``, ``"values"``,
            ``"inputs"``: what is computed for it.
        reads: ``reads(session, sites, options)`` gives other nodes of the graph whose values it
            looks at, with ``at.value(node)``.
        plain: what it says, in words that need no formula, for tables.
        shared: options applied for it: any of ``"layers"``, ``"normalize_rows"``,
            ``"head_fusion"``, ``"discard_ratio"``.

    Raises:
        OptionError: the name is taken, or ``needs`` or ``shared`` name something else.
    """
    if not isinstance(name, str) or not name or not callable(function):
        raise OptionError(f"register({name!r}, {function!r}): a name and a function are needed")
    for option, given in (("needs", needs), ("shared", shared)):
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise OptionError(f"{option}={given!r}: a list of names is needed")
    method = Method(
        name,
        function,
        frozenset(needs),
        class_specific,
        level,
        rules,
        tuple(shared),
        signed,
        cost,
        source,
        reads=reads,
        plain=plain,
    )
    _refuse(method)
    METHODS[name] = method
    return method


def _refuse(method: Method) -> None:
    """Raise ``OptionError`` for a name that is taken, and for options that there are not."""
    rules, level = method.rules, method.level
    if isinstance(rules, str) and rules not in PRESETS:
        raise OptionError(f"rules={rules!r} is no rule set", then=nearest(rules, PRESETS))
    if level not in ("attention", "input"):
        raise OptionError(f"level={level!r}: 'attention' or 'input'")
    if method.name in (*GROUPS, RECOMMENDED):
        raise OptionError(f"method {method.name!r}: this name stands for other methods already")
    if method.name in METHODS:
        raise OptionError(
            f"method {method.name!r} is there already: "
            f"relprop.methods.remove({method.name!r}) first"
        )
    options = (("needs", method.needs, NEEDS), ("shared", method.shared, SHARED))
    for option, given, known in options:
        if unknown := sorted(set(given) - set(known)):
            raise OptionError(
                f"{option}={unknown}: there are {', '.join(sorted(known))}",
                then=nearest(unknown[0], known),
            )
    if "gradient" in method.shared and "gradient" not in method.needs:
        raise OptionError(
            "shared=['gradient']: no gradient is computed", then=["needs=['gradient']"]
        )


@guarded
def remove(name: str) -> None:
    """Take a method away again. Raises ``OptionError`` if there is none of that name."""
    del METHODS[method_named(name, level=None).name]


__all__ = [
    "GROUPS",
    "METHODS",
    "AttentionStudy",
    "Found",
    "InputStudy",
    "LayerValues",
    "Method",
    "SiteValues",
    "Table",
    "TokenMap",
    "available",
    "input_level",
    "method_named",
    "noise",
    "path",
    "register",
    "remove",
    "row_wise",
]


def __dir__() -> list[str]:
    return __all__
