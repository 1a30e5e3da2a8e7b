"""The user's model and process, left exactly as they were: eval mode, gradient mode, random state,
each put back, also after an error and whatever other threads do meanwhile."""

from __future__ import annotations

import logging
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from relprop.errors import RelpropError
from relprop.tracer.modules import modules_of, safe_getattr, setting
from relprop.tracer.offloaded import devices_of
from relprop.tracer.undoing import Steps, cleanup_steps

#: Held while a graph is captured: tracing changes PyTorch itself, for every thread.
TRACING = threading.RLock()
#: Of models that were captured: whether that was in modules of a shadow, or in their own, for want
#: of one.
SHADOWED: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
_counting = threading.Lock()
#: Where the user's code makes tensors, if that is not the CPU.
_device: ContextVar[torch.device | None] = ContextVar("device", default=None)
#: Modules in train mode but for us, and for whom.
_evaluated: dict[int, tuple[nn.Module, set[object]]] = {}
#: The process that relprop ran a model in first, and with it PyTorch's threads.
_process: list[int] = []


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as in ``eval()``; each module's own flag is put back when the last thread that
    needs it so is done."""
    me = object()
    with cleanup_steps() as steps:
        with _counting:
            for module in modules_of(model):
                if module.training or id(module) in _evaluated:
                    steps.append(partial(_put_back, module, me))
                    _evaluated.setdefault(id(module), (module, set()))[1].add(me)
                    module.training = False
        yield


def is_evaluated(module: nn.Module) -> bool:
    """Whether a module in train mode is in eval mode for us at this moment."""
    return id(module) in _evaluated


def _put_back(module: nn.Module, me: object) -> None:
    """A module's own flag again, unless it is in eval mode for others, too."""
    with _counting:
        _, needed = _evaluated.get(id(module), (module, set[object]()))
        needed.discard(me)
        if id(module) in _evaluated and not needed:
            module.training = True
            del _evaluated[id(module)]


class _Begins:
    """The pattern of a filter of warnings that knows one thread: the others' are shown."""

    def __init__(self, start: str) -> None:
        self.start, self.thread = start, threading.get_ident()

    def match(self, text: str) -> bool:
        """What ``warnings`` asks of a pattern."""
        return threading.get_ident() == self.thread and text.startswith(self.start)


@contextmanager
def unwarned(start: str = "") -> Iterator[None]:
    """Without this thread's warnings that begin with ``start``. ``warnings.catch_warnings`` would
    change, and might leave behind, what other threads are shown."""
    entry: object = ("ignore", _Begins(start), Warning, None, 0)
    filters: Any = warnings.filters

    def show() -> None:
        now: Any = warnings.filters
        for held in (filters, now):  # another thread may have put in a copy
            if entry in held:
                held.remove(entry)

    with cleanup_steps() as steps:
        steps.append(show)
        filters.insert(0, entry)
        yield


@contextmanager
def unlogged() -> Iterator[None]:
    """Without what PyTorch logs in this thread, up to errors."""
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno > logging.ERROR

    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.split(".")[0] == "torch"
    ]
    with cleanup_steps() as steps:
        for logger in loggers:
            steps.append(partial(logger.removeFilter, others))
            logger.addFilter(others)
        yield


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """The random state of CPU and GPU, of numpy and Python, put back afterwards: what runs next
    starts from the same."""
    with torch.random.fork_rng(_gpus(model)), cleanup_steps() as steps:
        steps.append(partial(random.setstate, random.getstate()))
        steps.append(partial(np.random.set_state, np.random.get_state()))
        yield


@contextmanager
def other_chance(model: nn.Module, seed: int) -> Iterator[None]:
    """Where other numbers are drawn, whoever draws them without seeding."""
    with same_chance(model):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        yield


def _gpus(model: nn.Module) -> list[int]:
    """The GPUs that hold a model's parameters."""
    if not torch.cuda.is_initialized():
        return []
    return sorted({d.index or 0 for d in devices_of(model) if d.type == "cuda"})


@contextmanager
def _own_device() -> Iterator[None]:
    """Tensors of relprop's own are made on the CPU, whatever ``torch.set_default_device`` says."""
    given = torch.get_default_device()
    if given.type == "cpu":
        yield
        return
    before = _device.set(given)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _device.reset(before)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode, normal (not inference) tensors, no autocast, and every random state put back.
    Until a model is known to have a shadow it is read by one thread at a time: another might
    capture it in its own modules meanwhile."""
    slow = "There is a performance drop"  # vmap without a batching rule
    _refuse_lost_threads()
    with (
        nullcontext() if SHADOWED.get(model) else TRACING,
        same_chance(model),
        plain_numbers(),
        evaluating(model),
        unwarned(slow),
    ):
        yield


def _refuse_lost_threads() -> None:
    """A process that was forked waits for ever for PyTorch's threads of the one it is a copy of.
    Raises ``RelpropError``."""
    if not _process:
        _process.append(os.getpid())
    threads = torch.get_num_threads()
    if _process != [os.getpid()] and threads > 1:
        raise RelpropError(
            f"process {os.getpid()} was forked from {_process[0]}, in which relprop had been used: "
            f"PyTorch's {threads} threads are not in it, and it would wait for them for ever",
            then=["start the process otherwise: multiprocessing.get_context('spawn')"],
        )


@contextmanager
def plain_numbers() -> Iterator[None]:
    """Normal (not inference) tensors, no autocast, and relprop's own tensors on the CPU."""
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False) if torch.cuda.is_initialized() else nullcontext(),
        _own_device(),
    ):
        yield


@contextmanager
def as_python(model: nn.Module) -> Iterator[None]:
    """The model's own Python in place of what hides it from a tracer: compiled parts run as
    written, and nothing takes a fused path.

    Models that offer several implementations of their attention use one that is made of ordinary
    products. One thread at a time: some of it is set for all of them.
    """
    fast, theirs = torch.backends.mha, _device.get()
    with TRACING, nullcontext() if theirs is None else theirs, cleanup_steps() as steps:
        stance = torch.compiler.set_stance("force_eager")  # sets it
        steps.append(partial(stance.__exit__, None, None, None))
        steps.append(partial(fast.set_fastpath_enabled, fast.get_fastpath_enabled()))
        fast.set_fastpath_enabled(False)
        _choose(model, _choose_attention, steps)
        if any(p.dtype == torch.float64 for p in model.parameters()):  # which no fused kernel takes
            _choose(model, partial(_choose_experts, kind="eager"), steps)
        yield


@contextmanager
def with_experts_seen(model: nn.Module) -> Iterator[None]:
    """While it is captured: a model that offers several implementations of its experts uses one
    that is made of ordinary products. That copies an expert's matrix for each token, which nobody
    does where no values are."""
    with TRACING, cleanup_steps() as steps:
        _choose(model, partial(_choose_experts, kind="batched_mm"), steps)
        yield


def _choose(model: nn.Module, choose: Callable[[Any], None], steps: Steps) -> None:
    """Have every module choose an implementation, until the ``steps`` are taken."""
    for config in _configs(model):
        steps.append(partial(vars(config).update, vars(config).copy()))
    for module in model.modules():
        choose(module)


def _choose_experts(module: Any, kind: str) -> None:
    if (experts := setting(module, "_can_set_experts_implementation")) and experts():
        module.set_experts_implementation(kind)


PLAIN = (None, "eager", "sdpa")  # attention that a tracer sees through


def _choose_attention(module: Any) -> None:
    used = safe_getattr(setting(module, "config"), "_attn_implementation")
    if used in PLAIN or not (choice := setting(module, "_can_set_attn_implementation")):
        return
    if choice():
        try:
            module.set_attn_implementation("sdpa")
        except ValueError:  # a model without it
            module.set_attn_implementation("eager")


def _configs(model: nn.Module) -> list[object]:
    """The config objects of the model's modules, those inside others included."""
    found: dict[int, object] = {}
    configs = (setting(module, "config") for module in modules_of(model))
    level: list[object] = [c for c in configs if hasattr(c, "__dict__")]
    while level:
        found.update((id(c), c) for c in level)
        level = [
            part
            for c in level
            for name in safe_getattr(c, "sub_configs") or ()
            if hasattr(part := safe_getattr(c, name), "__dict__") and id(part) not in found
        ]
    return list(found.values())


def normal(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor autograd accepts: one made under ``inference_mode`` is copied, any other
    detached."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()
