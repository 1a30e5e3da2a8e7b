"""Which versions of which packages are installed, and what each of them declares that it needs.
Nothing is imported for it."""

from __future__ import annotations

import re
from importlib import metadata

REQUIREMENT = re.compile(
    r"^\s*(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<wants>[^;)]*)\)?\s*(?:;(?P<marker>.*))?$"
)
COMPARISONS = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([\w.*+!-]+)")


def version(name: str) -> str | None:
    """The installed version of a package, or ``None``."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(package: str) -> list[tuple[str, str, str]]:
    """What a package declares that it needs: (name, comparisons, marker)."""
    try:
        found = (REQUIREMENT.match(line) for line in metadata.requires(package) or ())
    except metadata.PackageNotFoundError:
        return []
    return [(m["name"], m["wants"].strip(), m["marker"] or "") for m in found if m]


def satisfied(installed: str, wants: str) -> bool:
    """Whether a version fits a requirement's comparisons, by their numbers: ``==2.9.*``,
    ``>=2.11,<3``.

    >>> satisfied("2.15.0+cpu", "==2.15.0"), satisfied("2.15.0", "==2.14.0")
    (True, False)
    >>> satisfied("1.9", ">=1.10"), satisfied("2.9.1", "==2.9.*")
    (False, True)
    """
    have = _numbers(installed)
    return all(_holds(have, sign, other) for sign, other in COMPARISONS.findall(wants))


def _holds(have: tuple[int, ...], sign: str, other: str) -> bool:
    """Whether one comparison holds."""
    want = _numbers(other)
    parts = have[: len(want)] if other.endswith("*") else have
    longest = max(len(parts), len(want))
    a, b = (v + (0,) * (longest - len(v)) for v in (parts, want))
    release = max(1, len(want) - 1)
    return {
        "==": a == b,
        "===": a == b,
        "!=": a != b,
        ">=": a >= b,
        "<=": a <= b,
        ">": a > b,
        "<": a < b,
        "~=": a >= b and have[:release] == want[:release],
    }[sign]


def _numbers(text: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in release.group().split(".")) if release else ()
