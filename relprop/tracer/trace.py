"""``trace_program``: the captured graph with its roles, leaves, axes and sites, checked against the
model itself, and cached."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import combinations

from torch import Tensor, nn

from relprop.errors import InputError
from relprop.progress import doing
from relprop.tracer.assemble import assemble, without_tokens
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, capture
from relprop.tracer.draws import is_random_call
from relprop.tracer.facts import describe, facts_of
from relprop.tracer.judge import model_run
from relprop.tracer.leaves import hold_still
from relprop.tracer.lengths import graph_at, has_same_calls, is_alike
from relprop.tracer.offloaded import runs_on, tensor_of
from relprop.tracer.passes import canonicalise
from relprop.tracer.program import Program
from relprop.tracer.shadow import shadow_of
from relprop.tracer.structure import is_places, structure
from relprop.tracer.surroundings import SHADOWED, TRACING, undisturbed
from relprop.tracer.verify import agrees, verify

_MOST = 64  # programs of one model
_LAST = 4  # captured programs, of which any two may give that of another length
_FAMILIES = 8  # of calls that differ in the lengths of their inputs alone


@dataclass
class _Known:
    """What is known of a model: ``programs`` by what they hold for, those that hold for some inputs
    alone, ``guarded``, and the last of those that were ``captured``, by what they hold for but the
    lengths of the inputs."""

    programs: dict[Hashable, Program] = field(default_factory=dict)
    guarded: dict[Hashable, deque[Program]] = field(default_factory=dict)
    captured: dict[Hashable, deque[Program]] = field(default_factory=dict)

    def guarded_by(self, key: Hashable, sample: Inputs) -> Program | None:
        """A program for inputs of which Python reads the same."""
        kept = self.guarded.get(key, ())
        held = (p for p in kept if p.guards is not None and p.guards.hold(sample.tensors))
        return next(held, None)

    def keep(self, key: Hashable, program: Program) -> None:
        """Keep a program, and let the oldest go if there are many."""
        if program.input_specialised:
            if key not in self.guarded and len(self.guarded) >= _FAMILIES:
                self.guarded.pop(next(iter(self.guarded)))
            self.guarded.setdefault(key, deque(maxlen=_LAST)).append(program)
            return
        if len(self.programs) >= _MOST:
            self.programs.pop(next(iter(self.programs)))
        self.programs[key] = program

    def of_family(self, family: Hashable) -> deque[Program]:
        """The captured programs of a family, to which others may be added."""
        if family not in self.captured and len(self.captured) >= _FAMILIES:
            self.captured.pop(next(iter(self.captured)))
        return self.captured.setdefault(family, deque(maxlen=_LAST))


#: What the model returned where programs were made within a call, and of which sample each.
RETURNED: ContextVar[list[tuple[Inputs, list[Tensor]]] | None] = ContextVar(
    "RETURNED", default=None
)
_cache: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def trace_program(
    model: nn.Module, inputs: Inputs, token_inputs: tuple[str, ...] | None = None
) -> Program:
    """The model as a ``Program`` for inputs of these shapes.

    ``token_inputs`` names the inputs to explain (default: all floating ones, and integer ones that
    feed an embedding, but for embeddings that are only added to another input's: segments, places).
    The graph is compared with the model on the first sample, once, and a mismatch raises
    ``CaptureError``. Programs are cached per model and input shapes, until the model's structure
    changes; one that depends on values serves inputs of which Python reads the same values, if that
    can be told. Of inputs that differ in their
    lengths alone, two are captured, and the others' programs are made of those where the model's
    outputs agree. Threads may call this at once: one captures at a time, on a shadow of the model.
    """
    made = structure(model)
    key = (inputs.signature, made, token_inputs)
    known = _cache.setdefault(model, _Known())
    if (program := known.programs.get(key)) is not None:
        return program
    with TRACING, undisturbed(model):
        if key in known.programs:  # by another thread, meanwhile
            return known.programs[key]
        sample = inputs.select(0, 1)
        if (guarded := known.guarded_by(key, sample)) is not None:
            return guarded
        others = known.of_family((inputs.family, made, token_inputs))
        program = _at_length(model, sample, token_inputs, others)
        if program is None:
            program = _traced(model, sample, token_inputs)
            if not program.input_specialised:
                kin = next((p.kin for p in others if has_same_calls(p, program)), program.kin)
                program = replace(program, kin=kin)
                others.append(program)
        if not program.input_specialised or program.guards is not None:
            known.keep(key, program)
        return program


def _at_length(
    model: nn.Module,
    sample: Inputs,
    token_inputs: tuple[str, ...] | None,
    captured: Iterable[Program],
) -> Program | None:
    """The program for a sample of another length than the ``captured`` ones; ``None`` where they
    give none that agrees with the model."""
    sizes, run = tuple(tuple(t.shape) for t in sample.tensors), None
    for first, second in combinations(reversed(tuple(captured)), 2):
        if first.draws or (graph := graph_at(first, second, sizes)) is None:
            continue
        eager, outputs = run = run or model_run(model, sample)
        raw = Capture(graph, dict(first.constants), outputs, first.front_end, eager=eager)
        held = any(facts_of(p).live is False for p in first.placeholders)
        program = assemble(raw, sample.names, tuple(first.leaves) if held else token_inputs, model)
        program = replace(program, constant_inputs=first.constant_inputs, kin=first.kin)
        if is_alike(program, first) and agrees(program, model, sample, eager):
            _returned(program, sample, eager)
            return program
    return None


def _traced(model: nn.Module, sample: Inputs, token_inputs: tuple[str, ...] | None) -> Program:
    """The model's program for one sample, checked against the model."""
    with doing("capturing the model (once)"):
        raw = _captured(model, sample)
    with doing("reading its graph (once)"):
        program = _program_of(model, sample, token_inputs, raw)
    _returned(program, sample, raw.eager)
    return program


def _returned(program: Program, sample: Inputs, outputs: list[Tensor]) -> None:
    """Write down what the model returned for a sample, if anybody wants to know."""
    if (wanted := RETURNED.get()) is not None and not program.draws:
        wanted.append((sample, outputs))


def _program_of(
    model: nn.Module, sample: Inputs, token_inputs: tuple[str, ...] | None, raw: Capture
) -> Program:
    """The program of what was captured."""
    device = runs_on(model, sample.tensors[0])
    random_calls = tuple(describe(n) for n in raw.graph.nodes if is_random_call(n))
    places = {f"model.{k}": tensor_of(model, k) for k, t in model.named_buffers() if is_places(t)}
    canonicalise(raw.graph, device, raw.constants, places)
    program = assemble(raw, sample.names, token_inputs, model)
    if still := without_tokens(program, raw.constants):
        hold_still(raw.graph, still)
        canonicalise(raw.graph, device, raw.constants, places)
        settled = assemble(raw, sample.names, tuple(program.leaves), model)
        program = replace(settled, constant_inputs=program.constant_inputs)
    verify(program, model, sample, raw, random_calls)
    return program


def _captured(model: nn.Module, sample: Inputs) -> Capture:
    """The model's graph, of its shadow; where the shadow does not run (its code knows the modules
    by what no shadow has), of the model's own modules, which no other thread may then read."""
    if SHADOWED.get(model, True):
        with contextlib.suppress(InputError):
            captured = capture(shadow_of(model), sample)
            SHADOWED[model] = True
            return captured
    captured = capture(model, sample)  # fails where the model itself does
    SHADOWED[model] = False
    return captured


def forget(model: nn.Module) -> None:
    """Capture the model anew when it is next traced."""
    _cache.pop(model, None)
