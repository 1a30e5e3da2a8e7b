"""What this machine offers to PyTorch: its processors and accelerators, and their free memory."""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 2**30


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
