"""What a front end of torch recorded on its nodes, read in torch's own words: values, the stack of
module calls, the line of the user's code; how it does so in one thread alone; and what it keeps for
as long as the process lives, let go again."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import graph_module
from torch.fx.experimental.proxy_tensor import _ModuleStackTracer as Tracer
from torch.utils._pytree import tree_leaves, tree_map

from relprop.operations import Args, Kwargs, Value
from relprop.tracer.facts import Place
from relprop.tracer.undoing import cleanup_steps, replaced

#: Where PyTorch's own code is, and relprop's. A user's folder may have the name of either.
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
RELPROP = f"{Path(__file__).parents[1]}{os.sep}"
#: So many results of operations on tensors without values are kept for later captures: some MB.
KEPT = 1000


def recorded_value(node: fx.Node) -> Value:
    """What a node of a front end's graph gave while it was recorded, without the numbers."""
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    return tree_map(without_values, value)


def without_values(value: object, device: str = "meta") -> object:
    """A tensor as one that has a shape, a layout and a type only; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    sizes, steps = ([int(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(sizes, steps, dtype=value.dtype, device=device)


def record_alike(node: fx.Node, other: fx.Node) -> None:
    """A node stands for another: what PyTorch recorded of that is recorded of it."""
    node.meta = other.meta


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
    theirs = [f for f in frames if not f.filename.startswith((TORCH, RELPROP))]
    last = (theirs or frames)[-1]
    return f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}: `{(last.line or '').strip()}`"


def innermost_forward() -> str:
    """The line that runs now in the innermost ``forward`` that is not PyTorch's own, as a trace has
    it."""
    frame = inspect.currentframe()
    while frame is not None:
        file, number = frame.f_code.co_filename, frame.f_lineno
        if frame.f_code.co_name == "forward" and not file.startswith(TORCH):
            return f'File "{file}", line {number}, in forward\n{linecache.getline(file, number)}'
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def of_one_thread() -> Iterator[None]:
    """A tracer puts its own ``__call__`` and ``__getattr__`` into ``nn.Module``, for every thread:
    the modules that others call meanwhile are none of its. And of each operation it writes down
    the whole stack of calls, a tenth of the time of a capture; one line of it is read."""
    mine, call, get = threading.get_ident(), Tracer.call_module, Tracer.getattr
    create = Tracer.create_node

    def call_module(
        self: Tracer, m: nn.Module, forward: Callable[..., object], args: Args, kwargs: Kwargs
    ) -> Value:
        if threading.get_ident() != mine:
            return forward(*args, **kwargs)
        return call(self, m, forward, args, kwargs)

    def getattr_(self: Tracer, name: str, value: object, proxies: dict[str, fx.Proxy]) -> object:
        return value if threading.get_ident() != mine else get(self, name, value, proxies)

    def create_node(self: Tracer, *args: object, **kwargs: object) -> fx.Node:
        if threading.get_ident() != mine:
            return create(self, *args, **kwargs)
        self.record_stack_traces = False
        node = create(self, *args, **kwargs)
        if node.op not in ("placeholder", "output") and not node.stack_trace:
            node.stack_trace = innermost_forward()
        return node

    with cleanup_steps() as steps:
        replaced(steps, Tracer, "call_module", call_module)
        replaced(steps, Tracer, "getattr", getattr_)
        replaced(steps, Tracer, "create_node", create_node)
        yield


@contextlib.contextmanager
def without_leftovers() -> Iterator[None]:
    """Around a capture: the text of each graph that PyTorch writes as Python code on the way is let
    go, and so are the results of operations on tensors without values where they have become many.
    Both are for speed and for tracebacks, and belong to nobody afterwards."""
    texts = graph_module._loader.eval_cache
    before = set(texts)
    try:
        yield
    finally:
        for name in set(texts) - before:
            texts.pop(name, None)
        if len(FakeTensorMode.cache) > KEPT:
            FakeTensorMode.cache_clear()


def no_view(tensor: Tensor) -> Tensor:
    """A copy of a tensor that is a view, any other as it is: of a view torch.export keeps the sizes
    of what it is a view of, in a cycle through C++, which holds the capture and is never
    collected."""
    return tensor.clone() if tensor._is_view() else tensor


def _source(trace: str) -> str:
    """``file.py:88: `code` `` of the innermost frame that is not PyTorch's own."""
    frames = re.findall(r'^\s*File "(.*?)", line (\d+).*(?:\n(?!\s*File )(.*))?', trace, re.M)
    theirs = [f for f in frames if not f[0].startswith(TORCH)] or frames
    if not theirs:
        return ""
    file, number, code = theirs[-1]
    return f"{file.rsplit('/', 1)[-1]}:{number}: `{code.strip()}`"
