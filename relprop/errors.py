"""Every error the library raises on purpose, and the one way their messages are built.

A message has up to three parts: the *fact* with its numbers, *where* in the user's model, and what
to do *then*. The inner function states the fact; whoever knows the place adds it.
"""

from __future__ import annotations

import difflib
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path


class RelpropError(Exception):
    """Anything relprop refuses or cannot do; catch this to catch them all. It says what ``message``
    makes of its arguments."""

    def __init__(self, fact: str = "", *, at: str = "", then: Sequence[str] = ()) -> None:
        super().__init__(message(fact, at=at, then=then))


class InputError(RelpropError, ValueError):
    """The inputs do not fit the model or the call: wrong type, shape, number, NaN, empty."""


class TargetError(RelpropError, ValueError):
    """The target does not name a scalar of the output."""


class OptionError(RelpropError, ValueError):
    """An unknown method, rule set or option, or options that exclude each other."""


class CallError(OptionError, TypeError):
    """A public function was called without an argument that it needs, or with one that it does not
    take."""


class NoSampleError(InputError, IndexError):
    """There is no sample of that number; an ``IndexError``, which ends a ``for`` loop over a data
    set."""


class UnforeseenError(RelpropError):
    """Something failed that nobody foresaw, in relprop or in a function that was given to it; its
    cause is chained (``__cause__``)."""


class CaptureError(RelpropError):
    """The model could not be turned into a graph that equals it."""


class RoundingError(CaptureError):
    """Rounding decides what the model picks: in float64 the graph gives another output."""


class RuleError(RelpropError):
    """A rule or a rule set is wrong: its key, its result's shape, or the region it covers."""


class UnknownOperation(RuleError):
    """An operation on the relevance path has no rule, and no derivative or ``on_unknown="error"``
    forbids the generic one."""


class NoAttentionError(RelpropError):
    """The method reads attention maps and the model has no softmax attention over tokens between
    input and target."""


class RollUpError(RelpropError):
    """The attention maps of the layers cannot be multiplied down to the input tokens, since the
    explained input feeds none of them, or nothing says which of its axes holds tokens."""


class RelpropWarning(UserWarning):
    """Something that a run could treat only by a fallback, or that the result's reader should
    know. Each of its causes is a class of its own; ``strict=True`` makes all of them errors."""

    def __init__(self, fact: str = "", *, at: str = "", then: Sequence[str] = ()) -> None:
        super().__init__(message(fact, at=at, then=then))


class GenericRuleWarning(RelpropWarning):
    """Operations that have no rule of their own took the generic one (Eq. 2), which need not
    conserve relevance."""


class UnrecognisedWarning(RelpropWarning):
    """The model holds attention that is no softmax, which methods over attention pass as plain
    products and do not count."""


class UnusedRuleWarning(RelpropWarning):
    """A rule that you added was never used: no layer or operation on the way of relevance has the
    class, path or name that it was added for."""


class UnexplainedPartWarning(RelpropWarning):
    """Part of the model is left out of the scores: an input past all attention, ids that are looked
    up a second time, a layer whose tokens are others."""


class MixedSamplesWarning(RelpropWarning):
    """The model's output for a sample depends on the others of its batch; each is explained
    alone."""


class PartlySetWarning(RelpropWarning):
    """What a module computes is read outside of it in the graph, where its set value is not."""


class SharedBatchWarning(RelpropWarning):
    """What is set in a sample was made of the other samples of its batch."""


class PaddingWarning(RelpropWarning):
    """The model's output for a padded text or recording is another than for it alone."""


class ProbabilityWarning(RelpropWarning):
    """The explained value is a probability, whose gradients vanish where it is near 0 or 1."""


class JointStartWarning(RelpropWarning):
    """A target combines so many outputs that relevance starts at all of them at once, which is
    another explanation than that of each added up."""


class ZeroScoresWarning(RelpropWarning):
    """All scores of a sample are 0: the target does not depend on the attention, or nothing
    positive is left there."""


class RollUpWarning(RelpropWarning):
    """What residual connections alone leave of an input sums to more than 1: tokens were taken for
    features, and are counted more than once; it names the first operation that did so."""


class ExplodedScoresWarning(RelpropWarning):
    """Scores are many times what relevance started with: rules divided by sums near 0, and the map
    shows that rather than the model. ``rules="stable"`` or another method may not."""


class CompletenessWarning(RelpropWarning):
    """Scores that should sum to the change of the output do not: too few steps, or rounding."""


class CacheWarning(RelpropWarning):
    """A captured graph could not be stored in the folder that ``RELPROP_CACHE`` names."""


class MemoryWarning(RelpropWarning):
    """Memory ran out and a slower way was taken, or a way that needs more memory was the only one.
    The answer is the same."""


class ReportSizeWarning(RelpropWarning):
    """A report is larger than ``megabytes=`` allows, with maps as coarse as they get."""


class UnnamedClassWarning(RelpropWarning):
    """The model has another number of classes than of labels, so that none is shown."""


class UndefinedValueWarning(RelpropWarning):
    """A measure is not defined for some samples, whose value is NaN."""


class ChanceWarning(RelpropWarning):
    """The model draws numbers in eval mode on which its output depends: one draw is explained."""


class AmbiguityWarning(RelpropWarning):
    """What was given can be read in two ways; it says which was taken, and how to ask for the
    other."""


class PictureWarning(RelpropWarning):
    """Something of a picture is not read: transparency, levels beyond 8 bits, colours of another
    space, all frames but one."""


class OtherClassWarning(RelpropWarning):
    """Explanations that a metric was given are of another class than the one it scores, which is
    the predicted class or the label, as ``explained=`` says."""


class ResumedRunWarning(RelpropWarning):
    """A run's folder was begun with other versions of a library, or holds samples twice."""


class RenamedArgumentWarning(RelpropWarning):
    """An argument has another name here."""


class UnsavedAdapterWarning(RelpropWarning):
    """A saved explainer cannot know what an adapter of the user's own says of tokens."""


_strict: ContextVar[bool] = ContextVar("strict", default=False)
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def message(fact: str, *, at: str = "", then: Sequence[str] = ()) -> str:
    """``fact``, then ``at`` (where in the user's model), then one line for each thing to do."""
    lines = [fact]
    if at:
        lines.append(f"  at    {at}")
    lines += [f"  {'then' if i == 0 else '    '}  {line}" for i, line in enumerate(then)]
    return "\n".join(lines)


def counted(count: int, what: str) -> str:
    """How many there are of a thing.

    >>> counted(1, "sample"), counted(3, "sample")
    ('1 sample', '3 samples')
    """
    return f"{count} {what}" + ("" if count == 1 else "s")


def nearest(name: object, known: Iterable[object]) -> list[str]:
    """What to do about a name that there is not: take one of ``known`` that is spelt much like
    it.

    >>> nearest("rolout", ["rollout", "gradcam"])
    ["did you mean 'rollout'?"]
    """
    there = {str(k).lower(): str(k) for k in known}
    close = difflib.get_close_matches(str(name)[:200].lower(), there, 3, 0.6)
    return [f"did you mean {' or '.join(repr(there[c]) for c in close)}?"] if close else []


#: What PyTorch, and libraries below it, say where there is no memory left.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, says that there is no memory left, on the CPU or on
    an accelerator."""
    while error is not None:
        said = str(error).lower() if isinstance(error, RuntimeError) else ""
        if isinstance(error, MemoryError) or any(sign in said for sign in NO_MEMORY):
            return True
        if type(error).__name__ == "OutOfMemoryError":  # PyTorch's, on a GPU
            return True
        error = error.__cause__
    return False


def as_path(path: object) -> Path:
    """``path`` as a ``Path``. Raises ``InputError`` for what names no file."""
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"{path!r} is {type(path).__name__}: the path of a file is needed")
    if "\0" in os.fspath(path):
        raise InputError(f"{os.fspath(path)!r} is no path: it holds a character of number 0")
    return Path(path)


def writable(path: str | os.PathLike[str]) -> Path:
    """Where a file is to be written. Raises ``InputError``, before any work is done for it, where
    its folder does not exist or may not be written into, or where a folder stands."""
    path = as_path(path)
    folder = path.absolute().parent
    if path.is_dir():
        raise _unwritable(path, "it is a folder", "name a file in it")
    if not folder.is_dir():
        made = [] if folder.exists() else [f"mkdir -p {shlex.quote(str(folder))}"]
        what = "is not a folder" if folder.exists() else "does not exist"
        reason = f"{str(folder)!r} {what}"
        raise _unwritable(path, reason, *made, "or give a path in a folder that exists")
    if not os.access(folder, os.W_OK):
        reason = f"you may not write into {str(folder)!r}"
        raise _unwritable(path, reason, "give a path in a folder of your own")
    return path


def _unwritable(path: Path, reason: str, *then: str) -> InputError:
    return InputError(f"cannot write {str(path)!r}: {reason}", then=then)


@contextmanager
def strictly() -> Iterator[None]:
    """Where any warning of this thread is a ``RelpropError``, with the warning as its cause."""
    token = _strict.set(True)
    try:
        yield
    except RelpropWarning as warning:
        raise RelpropError(str(warning)) from warning
    finally:
        _strict.reset(token)


@contextmanager
def quietly() -> Iterator[None]:
    """Where this thread is warned of nothing, and what is said once is still to be said."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def is_strict() -> bool:
    """Whether warnings are errors here (``strict=True``), or are being collected: then each is
    given every time, also one that was given before."""
    return _strict.get() or _quiet.get()


def warn(warning: RelpropWarning) -> None:
    """Warn at the user's line: the first one outside this package, PyTorch's and Python's own.
    Raises the warning where warnings are errors."""
    if _quiet.get():
        return
    if _strict.get():
        raise warning
    frame, level = sys._getframe(1), 2
    passed = {"relprop", "torch", "captum", *sys.stdlib_module_names}
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in passed
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)


#: Functions are the package's own: what ``dir`` shows are the errors and warnings.
__all__ = sorted(
    name
    for name, value in list(globals().items())
    if isinstance(value, type) and issubclass(value, (RelpropError, RelpropWarning))
)


def __dir__() -> list[str]:
    return __all__
