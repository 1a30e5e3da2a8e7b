"""What a command line asks for, as values: which model, which inputs or which data set, and what is
to be computed. Each field is an option, so that commands take all of them by one parameter.

Nothing of it is opened yet.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from relprop.commands import options
from relprop.commands.printing import WrongUsage


@dataclass(frozen=True)
class ModelArgs:
    """A model by name, and how it is to be opened and called."""

    name: options.Model
    precision: options.Precision = None
    max_length: options.MaxLength = None
    trust_remote_code: options.Trust = False
    memory: options.Memory = "auto"
    device: options.Device = None

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
class Args:
    """A model and what it is to read: INPUTs, ``--text`` or ``--text-file``, any of which may be
    missing. ``stream``: of several explained inputs the one that is shown."""

    model: ModelArgs
    inputs: options.Inputs = field(default_factory=list)
    text: options.Text = None
    text_file: options.TextFile = None
    stream: options.Stream = None


@dataclass(frozen=True)
class DataArgs:
    """A data set, in place of inputs, and how the run over it is made; ``data`` is empty where the
    command line names none."""

    data: options.Data = None
    data_options: options.DataOption = field(default_factory=list)
    resume: options.Resume = False
    batch_size: options.BatchSize = None
    limit: options.Limit = None
    on_error: options.OnError = "stop"
    no_checks: options.NoChecks = False


@dataclass(frozen=True)
class Answer:
    """What is to be computed and where it goes."""

    targets: options.Targets = field(default_factory=list)
    methods: options.Method = field(default_factory=list)
    rules: options.Rules = None
    outs: options.Out = field(default_factory=list)
    force: options.Force = False
    json_output: options.Json = False
    ledger: options.Ledger = None


def options_of_classes(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameters of the classes above are spelt out: each field an option, but for
    those ``without``, which keep their defaults."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters.values()
        shown = [p for parameter in own for p in _options(parameter, hints, without)]

        def run(**given: Any) -> None:
            command(**{p.name: _made(p.name, hints[p.name], given) for p in own})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in shown}
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        return run

    return decorate


def _options(
    parameter: inspect.Parameter, hints: dict[str, Any], without: tuple[str, ...]
) -> Iterator[inspect.Parameter]:
    """A parameter itself, or those for the fields of its class."""
    kind = hints[parameter.name]
    if not is_dataclass(kind):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)
        return
    of_fields = get_type_hints(kind, include_extras=True)
    for f in fields(kind):
        if f.name not in without:
            one = inspect.Parameter(f.name, parameter.KEYWORD_ONLY, default=_default(f))
            yield from _options(one, of_fields, without)


def _default(f: Field[Any]) -> Any:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return inspect.Parameter.empty if f.default is MISSING else f.default


def _made(name: str, kind: Any, given: dict[str, Any]) -> Any:
    """The value of a parameter, or of a class from the options for its fields."""
    if not is_dataclass(kind):
        return given[name]
    of_fields = get_type_hints(kind)
    there = [f for f in fields(kind) if f.name in given or is_dataclass(of_fields[f.name])]
    made: Any = kind
    return made(**{f.name: _made(f.name, of_fields[f.name], given) for f in there})
