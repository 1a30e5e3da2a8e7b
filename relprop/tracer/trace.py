"""``trace_program``: the captured graph with its roles, leaves, axes and sites, checked against the
model itself, and cached."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable
from dataclasses import replace

from torch import nn

from relprop.errors import InputError
from relprop.tracer.assemble import assemble, without_tokens
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, capture
from relprop.tracer.draws import is_random_call
from relprop.tracer.facts import describe
from relprop.tracer.leaves import hold_still
from relprop.tracer.offloaded import runs_on, tensor_of
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import Program
from relprop.tracer.shadow import shadow_of
from relprop.tracer.structure import is_places, structure
from relprop.tracer.surroundings import TRACING, UNSHADOWED, undisturbed
from relprop.tracer.verify import verify

_Programs = dict[Hashable, Program]
_cache: weakref.WeakKeyDictionary[nn.Module, _Programs] = weakref.WeakKeyDictionary()
_MOST = 16  # programs of one model


def trace_program(
    model: nn.Module, inputs: Inputs, token_inputs: tuple[str, ...] | None = None
) -> Program:
    """The model as a ``Program`` for inputs of these shapes.

    ``token_inputs`` names the inputs to explain (default: all floating ones, and integer ones that
    feed an embedding, but for embeddings that are only added to another input's: segments, places).
    The graph is compared with the model on the first sample, once, and a mismatch raises
    ``CaptureError``. Programs are cached per model and input shapes, until the model's structure
    changes; one that holds for its own input only is not cached. Threads may call this at once: one
    captures at a time, on a shadow of the model.
    """
    key = (inputs.signature, structure(model), token_inputs)
    cached = _cache.setdefault(model, {})
    if key in cached:
        return cached[key]
    with TRACING, undisturbed(model):
        if key in cached:  # by another thread, meanwhile
            return cached[key]
        program = _traced(model, inputs.select(0, 1), token_inputs)
    if not program.input_specialised:
        if len(cached) >= _MOST:
            cached.pop(next(iter(cached)))
        cached[key] = program
    return program


def _traced(model: nn.Module, sample: Inputs, token_inputs: tuple[str, ...] | None) -> Program:
    """The model's program for one sample, checked against the model."""
    raw = _captured(model, sample)
    device = runs_on(model, sample.tensors[0])
    random_calls = tuple(describe(n) for n in raw.graph.nodes if is_random_call(n))
    places = {f"model.{k}": tensor_of(model, k) for k, t in model.named_buffers() if is_places(t)}
    canonicalise(raw.graph, device, raw.constants, places)
    program = assemble(raw, sample.names, token_inputs, model)
    if still := without_tokens(program, raw.constants):
        hold_still(raw.graph, still)
        canonicalise(raw.graph, device, raw.constants, places, again=True)
        settled = assemble(raw, sample.names, tuple(program.leaves), model)
        program = replace(settled, constant_inputs=program.constant_inputs)
    verify(program, model, sample, raw, random_calls)
    return program


def _captured(model: nn.Module, sample: Inputs) -> Capture:
    """The model's graph, of its shadow; where the shadow does not run (its code knows the modules
    by what no shadow has), of the model's own modules, which no other thread may then read."""
    if model not in UNSHADOWED:
        with contextlib.suppress(InputError):
            return capture(shadow_of(model), sample)
        UNSHADOWED.add(model)
        try:
            return capture(model, sample)
        except InputError:  # the model itself fails
            UNSHADOWED.discard(model)
            raise
    return capture(model, sample)


def forget(model: nn.Module) -> None:
    """Capture the model anew when it is next traced."""
    _cache.pop(model, None)
