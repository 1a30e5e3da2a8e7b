"""A flat program by PyTorch's functions in place of the operators behind them: the same calls, with
a microsecond less of Python before each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
#: Functions for calls of operators.
Functions = dict[fx.Node, Callable[..., Any]]


def functions_of(
    module: fx.GraphModule, example: Sequence[Tensor]
) -> tuple[Mapping[str, Tensor], Functions]:
    """What a program gives for an ``example``; and for each of its operators the function which
    calls that operator and nothing else, as running it shows, if there is one."""
    trying = _Trying(module)
    with torch.no_grad():
        return trying.run(*example), trying.found


def call_functions(module: fx.GraphModule, functions: Functions) -> None:
    """Put functions in place of operators."""
    OPERATORS[module] = {node: node.target for node in functions}  # type: ignore[misc]
    for node, function in functions.items():
        node.target = function
    module.recompile()


class _Trying(fx.Interpreter):
    """Runs a graph, and finds functions for its calls."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: Functions = {}
        self._known: dict[Hashable, Callable[..., Any] | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        """One call. Calls of one operator with arguments of the same types have one function."""
        if n.op == "call_function":
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            alike = n.target, *map(type, args), *((k, type(v)) for k, v in kwargs.items())
            if alike not in self._known:
                self._known[alike] = _function(n.target, args, kwargs)
            if (function := self._known[alike]) is not None:
                self.found[n] = function
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


def _function(op: object, args: Args, kwargs: Kwargs) -> Callable[..., Any] | None:
    """The function of an operator's name, if it calls that with these arguments."""
    if not isinstance(op, OpOverload) or op.namespace != "aten" or op._schema.is_mutable:
        return None
    name = op._schema.name.removeprefix("aten::")
    found = (getattr(owner, name, None) for owner in OWNERS)
    function = next((function for function in found if function is not None), None)
    try:
        with _Called() as called:
            _ = None if function is None else function(*args, **kwargs)
    except (TypeError, RuntimeError):  # it does not take what the operator takes
        return None
    return function if called.operators == [op] else None
