"""Several processes on one run, as Hugging Face Accelerate launches them: ``accelerate launch ...
-m relprop explain ...``.

Before the work the processes agree once on what is missing, and each takes its share. After that
none waits for another in a collective call: each writes its own shards, the first one watches the
folder until it is complete, and what a killed process has not done, the next launch does. One
process alone needs no Accelerate.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from relprop.errors import OptionError, RelpropError

T = TypeVar("T")
# set by torch.distributed's launcher, and by those of MPI
COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Processes:
    """This process among those of a launch: ``number`` of ``count``, and the ``device`` its model
    should be on."""

    number: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that makes the folder and watches the run."""
        return self.number == 0

    def agree(self, make: Callable[[], T]) -> T:
        """What ``make`` gives in the first process, in all of them; its error, too. All processes
        call this, once, before the work."""
        if self.count == 1:
            return make()
        from accelerate.utils import broadcast_object_list

        answer: list[Any] = [None]
        error: BaseException | None = None
        if self.first:
            try:
                answer = [(make(), "")]
            except Exception as caught:
                error, answer = caught, [(None, f"{type(caught).__name__}: {caught}")]
        broadcast_object_list(answer, from_process=0)
        if error is not None:
            raise error
        value, refusal = answer[0]
        if refusal:
            raise RelpropError(f"the first of {self.count} processes stopped with {refusal}")
        return value  # type: ignore[no-any-return]

    def share(self, missing: np.ndarray, size: int) -> np.ndarray:
        """This process's part of ``missing``: neighbouring blocks of ``size``, cut at multiples of
        it, so that batches are the same for any ``count``."""
        blocks = missing // size
        mine = np.array_split(np.unique(blocks), self.count)[self.number]
        return missing[np.isin(blocks, mine)]


def current() -> Processes:
    """The processes of this launch; one alone unless a launcher started several. Raises
    ``OptionError`` if Accelerate is needed and not installed."""
    count = max(int(os.environ.get(name) or 1) for name in COUNTS)
    cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if count == 1:
        here = None if cpu else torch.accelerator.current_accelerator(check_available=True)
        return Processes(device=here or torch.device("cpu"))
    try:
        from accelerate import PartialState
    except ImportError:
        fact = 'several processes need accelerate: pip install "relprop[runs]"'
        raise OptionError(fact) from None
    state = PartialState(cpu=cpu or not torch.accelerator.is_available())
    device = torch.device("cpu") if state.device.type == "cpu" else state.device
    return Processes(state.process_index, state.num_processes, device)


def leave() -> None:
    """End what ``current`` began among several processes; the last thing a program does."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
