"""Captured graphs on disk, for later processes: in the folder that the environment variable
``RELPROP_CACHE`` names, if it names one.

A file holds what a model's capture gave for inputs of one size, under a name that is made of the
model's structure, its code and the versions that captured it. Nothing in a file is code
(``operations.as_json``), and no file is believed: it is read by calls that compare outputs and
gradients with the model's own, and where these differ the model is captured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, fx, nn

from relprop.errors import CacheWarning, InputError, first_line, message, warn
from relprop.operations.as_json import decoded, encoded, name_of_operator, operator_named
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture
from relprop.tracer.facts import Facts, Place, facts_of, know
from relprop.tracer.program import FrontEnd, OutputTree
from relprop.tracer.structure import Same

VARIABLE = "RELPROP_CACHE"
#: What a graph consists of.
OPS = ("placeholder", "get_attr", "call_function", "output")


@dataclass(frozen=True)
class Stored:
    """The files of one model, for inputs that differ in their lengths alone."""

    folder: Path
    family: str

    @classmethod
    def of(cls, model: nn.Module, structure: tuple[Hashable, ...], sample: Inputs) -> Stored | None:
        """``structure``: the model's. ``None``: nothing is stored, or this model has no name that
        holds in other processes."""
        if not (named := os.environ.get(VARIABLE, "").strip()):
            return None
        try:
            key = (structure, sample.family, _versions(), _sources(model))
            return cls(Path(named).expanduser(), _digest(key))
        except Exception:  # tensors of every kind are among a model's settings
            return None

    def _file(self, sample: Inputs) -> Path:
        sizes = tuple(tuple(t.shape) for t in sample.tensors)
        return self.folder / f"{self.family}-{_digest(sizes)}.safetensors"

    def is_empty(self) -> bool:
        """Whether nothing was captured of such inputs."""
        try:
            return next(self.folder.glob(f"{self.family}-*.safetensors"), None) is None
        except OSError:
            return True

    def read(self, sample: Inputs, outputs: OutputTree) -> Capture | None:
        """What was captured for inputs of these sizes."""
        return _read(self._file(sample), outputs)

    def others(self, sample: Inputs, outputs: OutputTree) -> Iterator[Capture]:
        """What was captured for inputs of other sizes."""
        for path in sorted(self.folder.glob(f"{self.family}-*.safetensors")):
            if path != self._file(sample) and (found := _read(path, outputs)) is not None:
                yield found

    def writing(self, sample: Inputs, raw: Capture) -> Callable[[], None]:
        """What writes down what was captured, as it is before passes change its graph; nothing
        where it holds for some values alone, or calls what no file may name."""
        if raw.decisions or raw.draws:
            return lambda: None
        try:
            text = json.dumps(_described(raw))
            held = {n: t.detach().clone().contiguous() for n, t in raw.constants.items()}
        except Exception:  # what JSON has no word for, and tensors of other layouts
            return lambda: None
        return partial(_write, self._file(sample), text, held)


def _write(path: Path, text: str, constants: dict[str, Tensor]) -> None:
    """Put a file into its place, whole, whoever else does so now."""
    own = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(constants, own, {"graph": text})
        own.replace(path)
    except Exception as refused:  # the disk's errors, and safetensors' own
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)
        fact = f"the captured graph could not be stored in {str(path.parent)!r}"
        then = [f"let {VARIABLE} name a folder that can be written to, or unset it"]
        warn(CacheWarning(message(f"{fact}: {first_line(refused)}", then=then)))


def _described(raw: Capture) -> dict[str, Any]:
    """What was captured as JSON, but for the constants. Raises where it cannot be."""
    graph = raw.graph
    number = {node: i for i, node in enumerate(graph.nodes)}
    places = dict.fromkeys(facts_of(n).place for n in graph.nodes)
    index = {place: i for i, place in enumerate(places)}
    nodes = []
    for node in graph.nodes:
        known = facts_of(node)
        if known.body is not None:
            raise InputError("it holds a graph of its own")
        call = node.op == "call_function"
        target = name_of_operator(node.target) if call else str(node.target)
        about = encoded((node.args, node.kwargs, known.value, known.casts_to), number)
        nodes.append([node.op, node.name, target, about, index[known.place]])
    where = [encoded((p.modules, p.source, p.device), number) for p in places]
    devices = {name: str(t.device) for name, t in raw.constants.items()}
    return {"front_end": raw.front_end, "nodes": nodes, "places": where, "devices": devices}


def _read(path: Path, outputs: OutputTree) -> Capture | None:
    """What a file holds; ``None`` if there is none, or it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            written = json.loads(file.metadata()["graph"])
            devices = written["devices"].items()
            constants = {name: file.get_tensor(name).to(device) for name, device in devices}
        graph = _graph(written)
        if len(graph.output_node().args[0]) != len(outputs.names):  # type: ignore[arg-type]
            return None
        end: FrontEnd = "export" if written["front_end"] == "export" else "concrete"
        return Capture(graph, constants, outputs, end, stored=True)
    except Exception:  # whatever is wrong with a file, the model is captured anew
        return None


def _graph(written: dict[str, Any]) -> fx.Graph:
    graph, made = fx.Graph(), dict[int, fx.Node]()
    places = [Place(*decoded(p, {})) for p in written["places"]]
    for i, (op, name, target, about, at) in enumerate(written["nodes"]):
        if op not in OPS or (op == "get_attr" and "__" in target):
            raise InputError(f"no graph has {op} {target!r}")
        args, kwargs, value, casts_to = decoded(about, made)
        called = operator_named(target) if op == "call_function" else target
        made[i] = graph.create_node(op, called, args, kwargs, name)
        know(made[i], Facts(value, places[at], casts_to=casts_to))
    return graph


@cache
def _versions() -> tuple[str, ...]:
    """What captures: Python, PyTorch, and our own code that does."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    own = hashlib.sha256(b"".join(map(Path.read_bytes, sources))).hexdigest()
    return sys.version, torch.__version__, own


def _sources(model: nn.Module) -> tuple[str, ...]:
    """The files of a model's code, and of the code that it imports, that no package manager
    installed: what one edits."""
    installed = tuple(sysconfig.get_paths().values())
    left, seen = {type(m).__module__ for m in model.modules()}, dict[str, str]()
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or ""
        if name in seen or name.split(".")[0] == "relprop" or file.startswith(installed):
            continue
        known = Path(file).is_file()
        seen[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest() if known else ""
        for value in list(vars(module).values()) if module is not None else ():
            owner = getattr(value, "__module__", None)
            left.add(value.__name__ if isinstance(value, types.ModuleType) else str(owner))
    return tuple(f"{name} {seen[name]}" for name in sorted(seen))


def _digest(key: object) -> str:
    return hashlib.sha256(_text(key, {}).encode()).hexdigest()[:24]


def _text(part: object, known: dict[int, str]) -> str:
    """A part of a key as a text that is the same in every process; ``known``: those of parts that
    stand in it several times."""
    if isinstance(part, Same):
        return _text_of(part.thing, known)
    if isinstance(part, frozenset):
        return f"({','.join(sorted(map(repr, part)))})"
    if not isinstance(part, tuple):
        return repr(part)
    if len(part) == 2 and part[0] == "_original_object_hash":  # transformers', another every time
        return str(part[0])
    if id(part) not in known:
        known[id(part)] = f"({','.join([_text(p, known) for p in part])})"
    return known[id(part)]


def _text_of(thing: object, known: dict[int, str]) -> str:
    """What stands for itself in this process, by its name, its code or its numbers."""
    if isinstance(thing, Tensor):
        plain = thing.detach().cpu().contiguous().reshape(-1)
        numbers = plain.view(torch.uint8).numpy().tobytes()
        return f"{thing.dtype}{tuple(thing.shape)}{hashlib.sha256(numbers).hexdigest()}"
    if isinstance(thing, types.CodeType):
        if id(thing) not in known:
            known[id(thing)] = _digest_of_code(thing, known)
        return known[id(thing)]
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    code = getattr(thing, "__code__", None)
    own = "" if code is None else _text_of(code, known)
    return f"{named.__module__}.{named.__qualname__}{own}"


def _digest_of_code(code: types.CodeType, known: dict[int, str]) -> str:
    held = [
        _text_of(c, known) if isinstance(c, types.CodeType) else _text(c, known)
        for c in code.co_consts
    ]
    own = (code.co_name, code.co_firstlineno, code.co_names, code.co_varnames, code.co_code)
    return hashlib.sha256(repr((own, held)).encode()).hexdigest()
