"""The error boundary: what nobody foresaw leaves a public function as one ``RelpropError``,
which says what happened, where, and what to do, with its cause behind it.

What is wrong with a call is said where it is looked at. This is for the rest: it changes no error
that is meant, and only the outermost public function answers, so that what relprop calls itself
behaves as ever. Warnings are made errors here, too: by ``strict=`` where a function takes it, which
need not look at it; and what reads texts has one name, ``processor``.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from relprop.errors import (
    CallError,
    OptionError,
    RelpropError,
    RenamedArgumentWarning,
    UnforeseenError,
    first_line,
    nearest,
    out_of_memory,
    strictly,
    warn,
)

Thing = TypeVar("Thing", bound=Callable[..., Any])
HERE = f"{Path(__file__).parent}{os.sep}"
LIBRARIES = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")}
)
#: What a class's users call beside its public methods.
CALLED = ("__init__", "__call__", "__getitem__", "__enter__", "_repr_html_", "_repr_png_")
#: Draws one of Python's random numbers when it is first imported, by whatever library.
RICH = "rich.style"
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def guarded(thing: Thing) -> Thing:
    """A public function, or a class with its public methods and properties, at the boundary."""
    if not inspect.isclass(thing):
        return _guarded_function(thing, thing.__name__)
    for name, value in list(vars(thing).items()):
        if name.startswith("_") and name not in CALLED:
            continue
        if isinstance(value, property) and value.fget is not None:
            setattr(thing, name, property(_guarded_function(value.fget, name), doc=value.__doc__))
        elif isinstance(value, cached_property):
            value.func = _guarded_function(value.func, name)
        elif inspect.isfunction(value):
            shown = thing.__name__ if name == "__init__" else f"{thing.__name__}.{name}"
            setattr(thing, name, _guarded_function(value, shown))
    return thing


def _guarded_function(function: Any, name: str) -> Any:
    options_of = function.__kwdefaults__ or {}
    takes_strict, reads = "strict" in options_of, "processor" in options_of

    @wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        if takes_strict and _is_wanted(options.pop("strict", False)):
            with strictly():
                return wrapper(*args, **options)
        if reads and "tokenizer" in options and "tokenizer" not in options_of:
            options = _with_processor(options)
        if _inside.get():
            return function(*args, **options)
        token, before = _inside.set(True), (sys.exception(), *_modes())
        drawn = None if RICH in sys.modules else random.getstate()
        try:
            return function(*args, **options)
        except BaseException as error:
            if (interrupt := _interrupt(error, *before)) is not None:
                raise interrupt from None
            if isinstance(error, (RelpropError, Warning)) or not isinstance(error, Exception):
                raise
            raise answered(error, name, function) from error
        finally:
            _inside.reset(token)
            if drawn is not None and RICH in sys.modules:
                random.setstate(drawn)

    @wraps(function)
    def generator(*args: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from function(*args, **options)
        except (RelpropError, Warning):
            raise
        except Exception as error:
            raise answered(error, name, function) from error

    return generator if inspect.isgeneratorfunction(function) else wrapper


def _modes() -> tuple[bool, int]:
    """Whether PyTorch keeps gradients, and how many of its transforms are around. What is behind
    the boundary imports it; what only names the errors (the command line's help) does not."""
    import torch

    return torch.is_grad_enabled(), torch._C._functorch.get_dynamic_layer_stack_depth()


def _interrupt(
    error: BaseException, handled: BaseException | None, grad: bool, nesting: int
) -> KeyboardInterrupt | None:
    """The user's interrupt, if there was one since ``handled`` was: ending in the middle of
    something may raise more. PyTorch and the model are left as they were: blocks that were entered
    or left at that moment are held by tracebacks, and end when these let go of their frames;
    PyTorch's own need not."""
    chain = [error]
    while (before := chain[-1].__context__) is not None and before is not handled:
        chain.append(before)
    interrupt = next((e for e in chain if isinstance(e, KeyboardInterrupt)), None)
    if interrupt is not None:
        import torch

        for one in chain:
            traceback.clear_frames(one.__traceback__)
        with suppress(RuntimeError):  # where nothing is left to be popped
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(nesting)
        torch.set_grad_enabled(grad)
    return interrupt


def _with_processor(options: dict[str, Any]) -> dict[str, Any]:
    """``tokenizer=`` under the name it has in all of relprop, with a hint. Raises ``OptionError``
    for both."""
    tokenizer = options.pop("tokenizer")
    if tokenizer is not None and options.get("processor") is not None:
        raise OptionError("tokenizer= and processor= are one argument: give processor= alone")
    if tokenizer is None:
        return options
    fact = "tokenizer= is called processor=, as in all of relprop: processor=tokenizer"
    warn(RenamedArgumentWarning(fact))
    return {**options, "processor": tokenizer}


def _is_wanted(strict: object) -> bool:
    """Raises ``OptionError`` for what is neither yes nor no."""
    if isinstance(strict, bool):
        return strict
    raise OptionError(f"strict={strict!r}: True or False")


def answered(error: Exception, name: str, function: Any = None) -> RelpropError:
    """What is said of an error that nobody foresaw: ``name`` is what was called."""
    if out_of_memory(error):
        return RelpropError(
            f"{name}: there is no memory left: {first_line(error)}",
            then=["fewer samples at a time, a shorter input, or a smaller size"],
        )
    frames = traceback.extract_tb(error.__traceback__)
    if function is not None and isinstance(error, TypeError) and len(frames) < 2:
        return _of_a_call(error, name, function)
    reason = type(error).__name__ + (f": {first_line(error)}" if str(error).strip() else "")
    mine = [i for i, frame in enumerate(frames) if frame.filename.startswith(HERE)]
    yours = [f for f in frames[mine[-1] + 1 if mine else 0 :] if _is_yours(f.filename)]
    if yours:
        last = yours[-1]
        return UnforeseenError(
            f"{name}: code of yours raised {reason}",
            at=f"{last.name}, {last.filename}:{last.lineno}",
            then=["mend it there; the traceback says how it was called"],
        )
    place = frames[mine[-1]] if mine else frames[-1]
    return UnforeseenError(
        f"{name} met what it did not foresee: {reason}",
        at=f"{place.filename.replace(HERE, 'relprop/')}:{place.lineno}, in {place.name}",
        then=[
            "look at the arguments: their types, shapes and values",
            "if they are right, it is a fault of relprop: report it with the traceback",
        ],
    )


def _is_yours(filename: str) -> bool:
    """Not of relprop, Python or a library; compiled ones name their files from their own root."""
    return not filename.startswith((HERE, "<", *LIBRARIES)) and Path(filename).is_absolute()


def _of_a_call(error: TypeError, name: str, function: Any) -> CallError:
    """An argument that is missing, or that there is not."""
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    known = [p.name for p in parameters]
    wrong = str(error).split("'")[1::2]
    unknown = wrong[0] if "unexpected keyword" in str(error) and wrong else ""
    takes = f"{name.split('.')[-1]}({', '.join(map(str, parameters))})"
    fact = str(error).split("() ", 1)[-1]
    return CallError(f"{name}: {fact}", then=[*(nearest(unknown, known) if unknown else ()), takes])
