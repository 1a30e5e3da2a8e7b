"""``relprop doctor``: what is installed, what does not fit together, what is missing and what to
type, and what it runs on.

Versions and requirements are those that the packages themselves declare; nothing but PyTorch and
torchvision is imported.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass, field

import typer

from relprop.commands import options
from relprop.commands.installed import requirements, satisfied, version
from relprop.commands.printing import echo, echo_json
from relprop.commands.steps import Steps

PACKAGES = (
    *("torch", "torchvision", "numpy", "safetensors", "typer", "rich"),
    *("transformers", "timm", "accelerate", "datasets"),
)
NOT_FOR_USERS = ("all", "test", "docs", "dev")
BRINGS = {
    "plot": "pictures (explanation.plot, --out x.png)",
    "demo": "models of timm",
    "captum": "integrated_gradients, Captum's metrics",
    "evaluation": "tables of methods and metrics (relprop evaluate)",
    "pandas": "explanation.to_dataframe",
    "data": "data sets of Hugging Face and MATLAB files",
    "runs": "runs over whole data sets (relprop explain --data)",
    "report": "reports to look into (to_html, --out x.html)",
    "minilm": "real weights of a sentence encoder",
    "flow": "attention_flow",
    "quantus": "Quantus' metrics",
}
"""What each extra is for."""
ALWAYS = "explain, check, compare, generate, compile; the demo; .json and .safetensors files"
GIB = 2**30
NOT_A_PACKAGE = "relprop is not installed as a package, so its extras are not known"


@dataclass(frozen=True)
class Extra:
    """One of relprop's optional extras: what it lacks, with the version that is wanted, and what to
    type."""

    name: str
    missing: tuple[str, ...] = ()
    command: str = ""

    def __str__(self) -> str:
        brings = BRINGS.get(self.name, "")
        if not self.missing:
            return f"works        {brings}"
        return f"missing      {brings}: {self.command}  # {', '.join(self.missing)}"


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
        others = {k: v for k, v in self.versions.items() if k != "relprop"}
        lines = [
            f"relprop {self.versions['relprop']}, Python {self.python}, {self.system}",
            "",
            *(f"  {name:<13}{version or 'not installed'}" for name, version in others.items()),
            "",
            "  what works",
            f"    works        {ALWAYS}",
            *(f"    {extra}" for extra in sorted(self.extras, key=lambda e: bool(e.missing))),
            "",
            "  devices",
            *(f"    {device}" for device in self.devices),
            *(f"  note: {note}" for note in self.notes),
            "",
        ]
        for fact, command in self.problems:
            lines += [f"PROBLEM: {fact}", *([f"  then  {command}"] if command else [])]
        return "\n".join(lines + ([] if self.problems else ["no problem found"]))


def doctor(json_output: options.Json = False) -> None:
    """What is installed, what does not fit together, what is missing and what to type, and what it
    runs on."""
    with Steps(1) as steps:
        steps.next("looking at what is installed")
        found = diagnose()
    echo_json(asdict(found) | {"ok": not found.problems}) if json_output else echo(found)
    if found.problems:
        raise typer.Exit(1)


def diagnose() -> Diagnosis:
    """Look at this installation."""
    import relprop

    versions = {"relprop": relprop.__version__} | {name: version(name) for name in PACKAGES}
    extras, found = missing_extras(), devices()
    return Diagnosis(
        python=platform.python_version(),
        system=platform.platform(terse=True),
        versions=versions,
        problems=(*core_problems(), *torchvision_problems(versions)),
        notes=() if extras else (f"{NOT_A_PACKAGE}: pip install -e . in its folder",),
        extras=extras,
        devices=tuple(device.words for device in found),
        memory={device.name: round(device.free, 2) for device in found if device.free is not None},
    )


def core_problems() -> list[tuple[str, str]]:
    """What relprop cannot do without, missing or too old; and a PyTorch that cannot be imported."""
    problems = []
    for name, wants, marker in requirements("relprop"):
        have = version(name)
        if not marker and (have is None or not satisfied(have, wants)):
            state = "it is not installed" if have is None else f"{have} is installed"
            fact = f"relprop needs {name} {wants}".rstrip() + f", and {state}"
            problems.append((fact, f'pip install --upgrade "{name}{wants}"'))
    try:
        import torch  # noqa: F401
    except Exception as error:
        fact = f"torch cannot be imported: {named_error(error)}"
        problems.append((fact, "pip install --force-reinstall torch"))
    return problems


def torchvision_problems(versions: dict[str, str | None]) -> list[tuple[str, str]]:
    """A torchvision that was made for another PyTorch. timm and transformers import it, so that
    then hardly any model of images can be opened."""
    torch_version, vision_version = versions["torch"], versions["torchvision"]
    if torch_version is None or vision_version is None:
        return []
    fact = _torchvision_mismatch(torch_version, vision_version)
    packages = f'"torch=={torch_version.partition("+")[0]}" torchvision'
    remedy = f"pip install --upgrade --force-reinstall {packages}"
    where = "with the --index-url that PyTorch came from, if it had one"
    return [] if fact is None else [(fact, f"{remedy}  # {where}")]


def _torchvision_mismatch(torch_version: str, vision_version: str) -> str | None:
    """What is wrong between the two, by what torchvision declares or by trying to import it."""
    known = requirements("torchvision")
    wants = next((w for name, w, marker in known if name == "torch" and not marker), "")
    vision = f"torchvision {vision_version}"
    if not satisfied(torch_version, wants):
        return f"{vision} was made for torch {wants}, and {torch_version} is installed"
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        mine, other = (
            v.partition("+")[2] or "the default" for v in (torch_version, vision_version)
        )
        builds = "" if mine == other else f" (torch is built for {mine}, torchvision for {other})"
        return f"{vision} does not work with torch {torch_version}{builds}: {named_error(error)}"
    return None


def missing_extras() -> tuple[Extra, ...]:
    """Every extra that users choose, with what it lacks here; none if relprop is not installed as a
    package."""
    missing: dict[str, list[str]] = {}
    for name, wants, marker in requirements("relprop"):
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)["']""", marker)
        if extra and extra[1] not in NOT_FOR_USERS and name != "relprop":
            lacking, have = missing.setdefault(extra[1], []), version(name)
            if have is None or not satisfied(have, wants):
                lacking.append(f"{name} {wants}".strip())
    return tuple(
        Extra(name, tuple(lacking), f'pip install "relprop[{name}]"' if lacking else "")
        for name, lacking in missing.items()
    )


@dataclass(frozen=True)
class Device:
    """A device in words; ``free``: its free memory in GiB, where it is known."""

    name: str
    words: str
    free: float | None = None


def devices() -> list[Device]:
    """The main processor, then each accelerator."""
    cpu = _cpu()
    try:
        import torch

        threads = f"{cpu.words}, {torch.get_num_threads()} threads for PyTorch"
        cpu = Device(cpu.name, threads, cpu.free)
        return [cpu, *_accelerators()]
    except Exception as error:  # PyTorch is broken, which is among the problems, or its driver is
        return [cpu, Device("", f"accelerators are not known: {named_error(error)}")]


def named_error(error: BaseException) -> str:
    """The type of an error and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _cpu() -> Device:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        import psutil
    except ImportError:  # which is among the problems
        return Device("cpu", f"cpu: {cores} cores")
    memory = psutil.virtual_memory()
    free, total = memory.available / GIB, memory.total / GIB
    return Device("cpu", f"cpu: {cores} cores, {free:.1f} of {total:.1f} GiB free", free)


def _accelerators() -> list[Device]:
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return [Device("", "no accelerator that PyTorch can use")]
    found = []
    for index in range(torch.accelerator.device_count()):
        name = f"{accelerator.type}:{index}"
        if accelerator.type != "cuda":
            found.append(Device(name, name))
            continue
        free, total = (n / GIB for n in torch.cuda.mem_get_info(index))
        model = torch.cuda.get_device_name(index)
        words = f"{name}: {model}, {free:.1f} of {total:.1f} GiB free"
        found.append(Device(name, words, free))
    return found
