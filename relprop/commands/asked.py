"""What a command line asks for, as values: which model, which one input or which data set. Nothing
of it is opened yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from relprop.commands.telling import WrongUsage


@dataclass(frozen=True)
class AskedModel:
    """A model by name, and how it is to be opened and called."""

    name: str
    precision: str | None = None
    max_length: int | None = None
    trust_remote_code: bool = False
    memory: str = "auto"

    @property
    def bytes(self) -> int | str | None:
        """``memory`` as ``explain`` takes it. Raises ``WrongUsage`` for what is neither."""
        if self.memory in ("auto", "none"):
            return "auto" if self.memory == "auto" else None
        try:
            return int(float(self.memory))
        except (ValueError, OverflowError):
            raise WrongUsage(f"--memory {self.memory}: a number of bytes, auto or none") from None


@dataclass(frozen=True)
class Asked:
    """A model and one input for it: INPUT, ``--text`` or ``--text-file``, any of which may be
    missing. ``stream``: of several explained inputs the one that is shown."""

    model: AskedModel
    input: str | None = None
    text: str | None = None
    text_file: Path | None = None
    stream: str | None = None


@dataclass(frozen=True)
class AskedDataSet:
    """A data set, in place of one input, and how the run over it is made; ``data`` is empty where
    the command line names none."""

    data: str = ""
    data_options: Sequence[str] = ()
    resume: bool = False
    batch_size: int | None = None
    limit: int | None = None
    on_error: str = "stop"
