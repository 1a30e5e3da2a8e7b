"""A flat program by PyTorch's functions in place of the operators behind them: the same calls, with
a microsecond less of Python before each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from relprop.operations import Args, Kwargs, Operator

#: Where PyTorch's functions are.
OWNERS = (torch._C._VariableFunctions, torch._C._nn, Tensor)

#: The operators in whose place functions stand, of each program.
OPERATORS: WeakKeyDictionary[fx.GraphModule, dict[fx.Node, Operator]] = WeakKeyDictionary()


def call_functions(module: fx.GraphModule, example: Sequence[Tensor]) -> None:
    """Put a function in place of each operator which that function calls and nothing else, as
    running the program on an ``example`` shows."""
    trying = _Trying(module)
    with torch.no_grad():
        trying.run(*example)
    OPERATORS[module] = {node: node.target for node in trying.found}  # type: ignore[misc]
    for node, function in trying.found.items():
        node.target = function
    module.recompile()


class _Trying(fx.Interpreter):
    """Runs a graph, and finds a function for each of its calls."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, Callable[..., Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """One call, by a function if there is one."""
        function = _function(n.target) if n.op == "call_function" else None
        if function is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            try:
                with _Called() as called:
                    made = function(*args, **kwargs)
            except (TypeError, RuntimeError):  # it does not take what the operator takes
                return super().run_node(n)
            if called.operators == [n.target]:
                self.found[n] = function
                return made
        return super().run_node(n)


class _Called(TorchDispatchMode):
    """Which operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Operator] = []

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


@cache
def _function(op: object) -> Callable[..., Any] | None:
    """The function of an operator's name, if there is one."""
    if not isinstance(op, OpOverload) or op.namespace != "aten" or op._schema.is_mutable:
        return None
    name = op._schema.name.removeprefix("aten::")
    found = (getattr(owner, name, None) for owner in OWNERS)
    return next((function for function in found if function is not None), None)
