"""A recipe's module captured at once: torch.export takes four fifths of the time of a draw.

The same graph of the same operations, written down while they run. ``--exported`` does without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from relprop.tracer import capture
from relprop.tracer.binding import Inputs
from relprop.tracer.flat import Flat


class Recorder(SchemaCheckMode):
    """Writes down each operation as torch.export has it, before any is taken apart."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.graph, self.held = fx.Graph(), dict[str, object]()
        self.known = dict[int, tuple[fx.Node, Tensor]]()
        for i, t in enumerate(inputs):
            self.know(self.graph.placeholder(f"input_{i}"), t)

    def know(self, node: fx.Node, value: Tensor) -> None:
        """A node gave a tensor, which is kept so that no other is where it was."""
        node.meta["val"] = value
        self.known[id(value)] = node, value

    def node(self, value: Any) -> Any:
        """The node of a tensor; of one that no operation gave, an attribute."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.known:
            name = f"held_{len(self.held)}"
            self.held[name] = value
            self.know(self.graph.create_node("get_attr", name), value)
        return self.known[id(value)][0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, Tensor):
            raise NotImplementedError(func)
        mapped = tree_map(self.node, (args, kwargs or {}))
        if id(made) not in self.known:
            self.know(self.graph.call_function(func, *mapped), made)
        return made


def record(flat: Flat, inputs: Inputs) -> capture._Recorded:
    """What relprop.tracer.capture takes from torch.export."""
    recorder = Recorder(inputs.tensors)
    with torch.backends.cudnn.flags(enabled=False), enable_python_dispatcher(), recorder:
        outputs = flat(*inputs.tensors)
    recorder.graph.output(tuple(recorder.node(o) for o in outputs))
    module = nn.Module()
    module.graph = recorder.graph  # type: ignore[assignment]
    graph, constants = capture.import_graph(module, flat, recorder.held)  # type: ignore[arg-type]
    return capture._Recorded(graph, constants, "export", ())


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Within, models are captured so."""
    with mock.patch.object(capture, "_export", record):
        yield
