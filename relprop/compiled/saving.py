"""Explainers on disk: a program that PyTorch itself reads and runs, or a list of its calls that is
read at once, with everything that is not a tensor as JSON beside it."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor
from torch._inductor.exc import InvalidCxxCompiler
from torch.export import Dim, ExportedProgram

from relprop.compiled import plain
from relprop.compiled.explainer import Explainer, ProgramUsage, Runs, Shape, without_autograd
from relprop.compiled.head import Head
from relprop.compiled.ledger_rows import LedgerRows
from relprop.compiled.live import Live
from relprop.compiled.loaded import Loaded, Remembered
from relprop.errors import InputError, OptionError, first_line
from relprop.layout import Layout
from relprop.runner.answer import Made
from relprop.writing import written

FORMAT = "relprop-explainer-1"
#: The JSON's name in the file.
USAGE = "relprop.json"
#: Where a file keeps a program that was compiled ahead of time.
COMPILED = "/data/aotinductor/"


def save(usage: ProgramUsage, live: Live, path: str | Path, *, ahead_of_time: bool) -> Path:
    """Write a program, how it is asked and read, and what is remembered of its model; compiled to
    machine code if it is ``ahead_of_time``."""
    processor = getattr(live.given, "tokenizer", None) or live.processor
    remembered = Remembered.of(live.adapter, live.model, processor)
    text = json.dumps(_header(usage, remembered), default=_plain)
    if Path(path).suffix.lower() == plain.ENDING:
        if ahead_of_time:
            raise OptionError("ahead_of_time=True writes machine code: save it as x.pt2")
        with written(path, "the explainer") as beside:
            plain.write(live.module, text, beside)
        return Path(path)
    batch = Dim("batch", min=1)
    every = zip_longest(live.example, usage.shape.shared, fillvalue=False)
    shapes = tuple(None if shared else {0: batch} for _, shared in every)
    with torch.no_grad():
        program = torch.export.export(live.module, live.example, dynamic_shapes=shapes)
    with written(path, "the explainer") as beside:
        if ahead_of_time:
            _compiled(program, beside, text)
        else:
            torch.export.save(program, beside, extra_files={USAGE: text})
    return Path(path)


def _compiled(program: ExportedProgram, path: Path, text: str) -> None:
    """Write machine code. Raises ``OptionError`` where there is no compiler."""
    try:
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(path),
            inductor_configs={"aot_inductor.metadata": {USAGE: text}},
        )
    except InvalidCxxCompiler as error:
        fact = f"ahead_of_time=True needs a C++ compiler: {first_line(error)}"
        raise OptionError(
            fact, then=["install g++ or clang++", "leave ahead_of_time out"]
        ) from None


def read(path: str | Path, processor: object = None) -> Explainer:
    """An explainer that was written. Raises ``InputError`` for any other file."""
    try:
        runs, text = _loaded(Path(path))
        header = json.loads(text)
        usage, remembered = _usage(header), Remembered(**_tupled(header["remembered"]))
    except Exception as error:  # a damaged file is wrong in any way
        raise InputError(
            f"{str(path)!r} cannot be read as a saved explainer: {first_line(error)}"
        ) from error
    return Explainer(runs, usage, Loaded(remembered, usage.shape.names, processor))


def _loaded(path: Path) -> tuple[Runs, str]:
    if not path.is_file():
        raise InputError("it is no file")
    if path.suffix.lower() == plain.ENDING:
        calls, text = plain.read(path)
        return without_autograd(calls), text
    try:
        with ZipFile(path) as file:
            compiled = any(COMPILED in name for name in file.namelist())
    except BadZipFile as error:
        raise InputError("it is no archive of PyTorch's") from error
    if compiled:
        package = torch._inductor.aoti_load_package(str(path))
        return package, package.get_metadata()[USAGE]
    texts = {USAGE: ""}
    program = torch.export.load(path, extra_files=texts)
    return without_autograd(program.module()), texts[USAGE]


def _header(usage: ProgramUsage, remembered: Remembered) -> dict[str, Any]:
    header = {name: getattr(usage, name) for name in ("contents", "over_attention", "blocks")}
    return {
        "format": FORMAT,
        **header,
        "shape": asdict(usage.shape),
        "head": asdict(usage.head),
        "layouts": {name: asdict(at) for name, at in usage.layouts.items()},
        "made": usage.made._asdict(),
        "books": usage.rows and asdict(usage.rows),
        "remembered": asdict(remembered),
    }


def _plain(value: object) -> object:
    """A tensor or a type of numbers as JSON has it."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    assert isinstance(value, Tensor)
    return value.tolist()


def _usage(header: dict[str, Any]) -> ProgramUsage:
    if header.get("format") != FORMAT:
        raise InputError(f"its format is {header.get('format')!r}, not {FORMAT!r}")
    found = _tupled(header)
    books = found["books"]
    rows = LedgerRows(**{**books, "started": getattr(torch, books["started"])}) if books else None
    return ProgramUsage(
        Shape(**found["shape"]),
        Head(**found["head"]),
        found["contents"],
        {name: _layout(at) for name, at in found["layouts"].items()},
        found["over_attention"],
        Made(**header["made"]),
        rows,
        found["blocks"],
    )


def _layout(at: dict[str, Any]) -> Layout:
    tensors = {n: torch.tensor(at[n]) for n in ("source", "spans") if at[n] is not None}
    return Layout(**{**at, **tensors})


def _tupled(value: Any) -> Any:
    """Lists as the tuples they were."""
    if isinstance(value, dict):
        return {name: _tupled(one) for name, one in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
