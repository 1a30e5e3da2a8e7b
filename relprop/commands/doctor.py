"""``relprop doctor``: what is installed, what does not fit together, what is missing and what to
type, and what it runs on.

Versions and requirements are those that the packages themselves declare; nothing but PyTorch and
torchvision is imported.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from relprop.commands.steps import Steps
from relprop.commands.telling import tell, tell_json

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "safetensors",
    "typer",
    "rich",
    "transformers",
    "timm",
    "accelerate",
    "datasets",
)
NOT_FOR_USERS = ("test", "docs", "dev")
REQUIREMENT = re.compile(
    r"^\s*(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<wants>[^;)]*)\)?\s*(?:;(?P<marker>.*))?$"
)
COMPARISONS = re.compile(r"(===|==|!=|>=|<=|~=|>|<)\s*([\w.*+!-]+)")


@dataclass(frozen=True)
class Extra:
    """One of relprop's optional extras: what it lacks, with the version that is wanted, and what to
    type."""

    name: str
    missing: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What ``relprop doctor`` found. ``problems``: (what is wrong, what to type); with any, models
    cannot be explained as things are."""

    python: str
    system: str
    versions: dict[str, str | None]
    problems: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    extras: tuple[Extra, ...] = ()
    devices: tuple[str, ...] = ()
    memory: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"relprop {self.versions['relprop']}, Python {self.python}, {self.system}", ""]
        lines += [
            f"  {name:<13}{version or 'not installed'}"
            for name, version in self.versions.items()
            if name != "relprop"
        ]
        lines += ["", "  extras"]
        lines += [
            f"    {e.name:<12}"
            + (f"lacks {', '.join(e.missing)}: {e.command}" if e.missing else "complete")
            for e in self.extras
        ]
        lines += [
            "",
            "  devices",
            *(f"    {device}" for device in self.devices),
            *(f"  note: {note}" for note in self.notes),
            "",
        ]
        for fact, command in self.problems:
            lines += [f"PROBLEM: {fact}", *([f"  then  {command}"] if command else [])]
        return "\n".join(lines + ([] if self.problems else ["no problem found"]))


def doctor(*, json_output: bool = False) -> bool:
    """Print the diagnosis; whether there is no problem."""
    with Steps(1) as steps:
        steps.next("looking at what is installed")
        found = diagnose()
    tell_json(asdict(found) | {"ok": not found.problems}) if json_output else tell(found)
    return not found.problems


def diagnose() -> Diagnosis:
    """Look at this installation."""
    import relprop

    versions = {"relprop": relprop.__version__} | {name: version(name) for name in PACKAGES}
    problems = [*core_problems(), *torchvision_problems(versions)]
    notes = []
    extras = missing_extras()
    if not extras:
        notes.append(
            "relprop is not installed as a package, so its extras are not known: pip "
            "install -e . in its folder"
        )
    devices, memory = _devices()
    return Diagnosis(
        platform.python_version(),
        platform.platform(terse=True),
        versions,
        tuple(problems),
        tuple(notes),
        extras,
        devices,
        memory,
    )


def version(name: str) -> str | None:
    """The installed version of a package, or ``None``."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def satisfied(installed: str, wants: str) -> bool:
    """Whether a version fits a requirement's comparisons, by their numbers: ``==2.9.*``,
    ``>=2.11,<3``.

    >>> satisfied("2.15.0+cpu", "==2.15.0"), satisfied("2.15.0", "==2.14.0"), satisfied("1.9", ">=1.10"), satisfied("2.9.1", "==2.9.*")
    (True, False, False, True)
    """  # noqa: E501
    have = _numbers(installed)
    for sign, other in COMPARISONS.findall(wants):
        want = _numbers(other)
        a, b = _even(have[: len(want)] if other.endswith("*") else have, want)
        compatible = (
            sign == "~="
            and a >= b
            and have[: max(1, len(want) - 1)] == want[: max(1, len(want) - 1)]
        )
        if not (
            compatible
            or {
                "==": a == b,
                "===": a == b,
                "!=": a != b,
                ">=": a >= b,
                "<=": a <= b,
                ">": a > b,
                "<": a < b,
            }.get(sign, False)
        ):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def _even(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    longest = max(len(a), len(b))
    return a + (0,) * (longest - len(a)), b + (0,) * (longest - len(b))


def _requirements(package: str) -> list[tuple[str, str, str]]:
    """What a package declares that it needs: (name, comparisons, marker)."""
    try:
        found = (REQUIREMENT.match(line) for line in metadata.requires(package) or ())
    except metadata.PackageNotFoundError:
        return []
    return [(m["name"], m["wants"].strip(), m["marker"] or "") for m in found if m]


def core_problems() -> list[tuple[str, str]]:
    """What relprop cannot do without, missing or too old; and a PyTorch that cannot be imported."""
    problems = []
    for name, wants, marker in _requirements("relprop"):
        have = version(name)
        if not marker and (have is None or not satisfied(have, wants)):
            problems.append(
                (
                    f"relprop needs {name} {wants}".rstrip()
                    + f", and {'it is not installed' if have is None else f'{have} is installed'}",
                    f'pip install --upgrade "{name}{wants}"',
                )
            )
    try:
        import torch  # noqa: F401
    except Exception as error:
        problems.append(
            (
                f"torch cannot be imported: {_first_line(error)}",
                "pip install --force-reinstall torch",
            )
        )
    return problems


def torchvision_problems(versions: dict[str, str | None]) -> list[tuple[str, str]]:
    """A torchvision that was made for another PyTorch. timm and transformers import it, so that
    then hardly any model of images can be opened."""
    torch_version, vision = versions["torch"], versions["torchvision"]
    if torch_version is None or vision is None:
        return []
    remedy = (
        "pip install --upgrade --force-reinstall "
        f'"torch=={torch_version.partition("+")[0]}" torchvision  # with the --index-url '
        "that PyTorch came from, if it had one"
    )
    wants = next(
        (w for name, w, marker in _requirements("torchvision") if name == "torch" and not marker),
        "",
    )
    if not satisfied(torch_version, wants):
        return [
            (
                (
                    f"torchvision {vision} was made for torch {wants}, and {torch_version} "
                    "is installed"
                ),
                remedy,
            )
        ]
    builds = [v.partition("+")[2] for v in (torch_version, vision)]
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        built = (
            (
                f" (torch is built for {builds[0] or 'the default'}, torchvision for "
                f"{builds[1] or 'the default'})"
            )
            if builds[0] != builds[1]
            else ""
        )
        return [
            (
                (
                    f"torchvision {vision} does not work with torch {torch_version}{built}: "
                    f"{_first_line(error)}"
                ),
                remedy,
            )
        ]
    return []


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def missing_extras() -> tuple[Extra, ...]:
    """Every extra that users choose, with what it lacks here; none if relprop is not installed as a
    package."""
    needs: dict[str, list[tuple[str, str]]] = {}
    for name, wants, marker in _requirements("relprop"):
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", marker)
        if extra and extra[1] not in NOT_FOR_USERS and name != "relprop":
            needs.setdefault(extra[1], []).append((name, wants))
    found = []
    for extra_name, wanted in needs.items():
        missing = tuple(
            f"{name} {wants}".strip()
            for name, wants in wanted
            if (have := version(name)) is None or not satisfied(have, wants)
        )
        found.append(
            Extra(extra_name, missing, f'pip install "relprop[{extra_name}]"' if missing else "")
        )
    return tuple(found)


def _devices() -> tuple[tuple[str, ...], dict[str, float]]:
    """Each device in words, and free memory in GiB by device."""
    memory: dict[str, float] = {}
    total, free = _main_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = [
        f"cpu: {cores} cores"
        + (f", {free:.1f} of {total:.1f} GiB free" if free is not None else "")
    ]
    if free is not None:
        memory["cpu"] = round(free, 2)
    try:
        import torch

        words[0] += f", {torch.get_num_threads()} threads for PyTorch"
        accelerator: Any = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            words.append("no accelerator that PyTorch can use")
        for i in range(torch.accelerator.device_count() if accelerator is not None else 0):
            name = f"{accelerator.type}:{i}"
            if accelerator.type == "cuda":
                left, all_of_it = (n / 2**30 for n in torch.cuda.mem_get_info(i))
                memory[name] = round(left, 2)
                words.append(
                    f"{name}: {torch.cuda.get_device_name(i)}, {left:.1f} of "
                    f"{all_of_it:.1f} GiB free"
                )
            else:
                words.append(name)
    except (
        Exception
    ) as error:  # PyTorch is broken, which is among the problems already, or its driver is
        words.append(f"accelerators are not known: {_first_line(error)}")
    return tuple(words), memory


def _main_memory() -> tuple[float, float | None]:
    """The machine's memory and what of it is free, in GiB; ``None`` where the system does not
    say."""
    known = Path("/proc/meminfo")
    if known.exists():
        amounts = {
            line.split(":")[0]: int(line.split()[1]) / 2**20
            for line in known.read_text().splitlines()
            if len(line.split()) > 1
        }
        return amounts.get("MemTotal", 0.0), amounts.get("MemAvailable")
    if sys.platform != "win32" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        page = os.sysconf("SC_PAGE_SIZE") / 2**30
        return os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return 0.0, None
