"""The reference on disk: one JSON file a family, and of what it was made."""

from __future__ import annotations

import json
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "tests" / "reference" / "scores"
MADE_OF = FOLDER.parent / "made_of.json"
PACKAGES = ("torch", "timm", "transformers", "numpy")
Entry = dict[str, Any]


def versions() -> dict[str, str]:
    """The packages that numbers and sentences may depend on."""
    return {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def path(family: str) -> Path:
    """The file of a family."""
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', family)}.json"


def entries(families: Iterable[str]) -> dict[str, Entry]:
    """What is kept of every subject of these families, by name."""
    found: dict[str, Entry] = {}
    for family in dict.fromkeys(families):
        if path(family).exists():
            found |= json.loads(path(family).read_text())
    return found


def write(by_family: Mapping[str, Mapping[str, Entry]]) -> None:
    """Put these entries in the place of those that were there; others of a family stay."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for family, made in by_family.items():
        merged = {**entries([family]), **made}
        lines = ",\n".join(f"{json.dumps(n)}: {_lines(merged[n])}" for n in sorted(merged))
        path(family).write_text(f"{{\n{lines}\n}}\n")
    made = json.loads(MADE_OF.read_text()) if MADE_OF.exists() else {}
    processor = platform.processor() or platform.machine()
    facts = {"versions": versions(), "processor": processor, "instructions": _instructions()}
    made |= {_group(family): facts for family in by_family}
    MADE_OF.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


def _group(family: str) -> str:
    """Third-party models are measured in an environment of their own."""
    return "third-party" if family.startswith("third-party") else "others"


def _lines(entry: Entry) -> str:
    """An entry with a line for each of its parts."""
    parts = (f"{json.dumps(k)}: {json.dumps(entry[k], ensure_ascii=False)}" for k in sorted(entry))
    return "{\n " + ",\n ".join(parts) + "}"


def _instructions() -> str:
    import torch

    return torch.backends.cpu.get_cpu_capability()


def by_family(
    found: Mapping[str, Entry], families: Mapping[str, str]
) -> dict[str, dict[str, Entry]]:
    """Entries sorted into their files; ``families``: of each subject."""
    sorted_in: dict[str, dict[str, Entry]] = defaultdict(dict)
    for name, entry in found.items():
        sorted_in[families[name]][name] = entry
    return sorted_in


def made_with(family: str) -> dict[str, str]:
    """The versions that the entries of a family were made with."""
    versions: dict[str, str] = json.loads(MADE_OF.read_text())[_group(family)]["versions"]
    return versions
