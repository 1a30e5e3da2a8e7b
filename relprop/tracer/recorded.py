"""What a front end of torch recorded on its nodes, read in torch's own words: values, the stack of
module calls, the line of the user's code."""

from __future__ import annotations

import traceback

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from relprop.operations import Value
from relprop.tracer.facts import Place


def recorded_value(node: fx.Node) -> Value:
    """What a node of a front end's graph gave while it was recorded, without the numbers."""
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    return tree_map(without_values, value)


def without_values(value: object) -> object:
    """A tensor as one that has a shape, a layout and a type only; anything else as it is."""
    if isinstance(value, Tensor):
        return torch.empty_strided(
            [int(s) for s in value.shape],
            [int(s) for s in value.stride()],
            dtype=value.dtype,
            device="meta",
        )
    return value


def recorded_place(node: fx.Node) -> Place:
    """The calls around the node. Second calls of a module are told apart by the stack's keys
    (``a``, ``a@1``), not by its paths."""
    stack = []
    for key, (path, owner) in (node.meta.get("nn_module_stack") or {}).items():
        clean = _of_the_model(path)
        if clean.split(".")[0] == "model":
            again = "@" in str(key) and clean != "model"
            number = f"@{str(key).rpartition('@')[2]}" if again else ""
            kind = owner if isinstance(owner, str) else f"{owner.__module__}.{owner.__qualname__}"
            stack.append((clean.removeprefix("model").removeprefix(".") + number, kind))
    made = tree_leaves(node.meta.get("val", node.meta.get("tensor_meta")))
    device = next((t.device for t in made if isinstance(t, Tensor)), None)
    return Place(tuple(stack), _source(node.meta.get("stack_trace") or ""), device)


def _of_the_model(path: str) -> str:
    """A module's path without what the front ends put before it and after it."""
    inner = path.split("@")[0].removeprefix("L['self']").removeprefix(".")
    return inner.removeprefix("_orig_mod").removeprefix(".")


def frame_source() -> str:
    """``file.py:88: `code` `` of the line of the user's that runs now."""
    frames = traceback.extract_stack()[:-1]
    theirs = [f for f in frames if "/torch/" not in f.filename and "/relprop/" not in f.filename]
    last = (theirs or frames)[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}: `{(last.line or '').strip()}`"


def _source(trace: str) -> str:
    """``file.py:88: `code` `` of the innermost frame that is not PyTorch's own."""
    lines = trace.strip().splitlines()
    frames = [
        (lines[i].strip(), lines[i + 1].strip() if i + 1 < len(lines) else "")
        for i in range(len(lines))
        if lines[i].strip().startswith("File ")
    ]
    theirs = [f for f in frames if "/torch/" not in f[0]] or frames
    if not theirs:
        return ""
    where, code = theirs[-1]
    parts = where.split('"')
    number = where.split("line ")[1].split(",")[0]
    return f"{parts[1].rsplit('/', 1)[-1]}:{number}: `{code}`"
