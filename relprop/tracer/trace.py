"""``trace_program``: the captured graph with its roles, leaves, axes and sites, checked against the
model itself, and cached."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice

from torch import Tensor, nn

from relprop.errors import CaptureError, InputError
from relprop.progress import doing
from relprop.tracer.assemble import assemble, without_tokens
from relprop.tracer.binding import Inputs
from relprop.tracer.capture import Capture, capture
from relprop.tracer.constants import Constants
from relprop.tracer.draws import is_random_call
from relprop.tracer.facts import describe, facts_of
from relprop.tracer.leaves import hold_still
from relprop.tracer.lengths import (
    GUESSED,
    by_length,
    graph_at,
    has_same_calls,
    is_alike,
    is_coarse,
    is_unconfirmed,
    was_wrong,
    ways,
)
from relprop.tracer.model_comparison import Run, model_run
from relprop.tracer.offloaded import runs_on, tensor_of
from relprop.tracer.passes import canonicalise
from relprop.tracer.passes.spelling.autocast import inline_regions
from relprop.tracer.program import Program
from relprop.tracer.shadow import shadow_of
from relprop.tracer.stored import Stored
from relprop.tracer.structure import is_places, structure
from relprop.tracer.surroundings import SHADOWED, TRACING, undisturbed
from relprop.tracer.verify import COMPARED, agrees, verify

_MOST = 64  # programs of one model
_LAST = 4  # captured programs, of which any two may give that of another length
_FAMILIES = 8  # of calls that differ in the lengths of their inputs alone


@dataclass
class _Known:
    """What is known of a model: ``programs`` by what they hold for, those that hold for some inputs
    alone, ``guarded``, and the last of those that were ``captured``, by what they hold for but the
    lengths of the inputs; what ``torch.export`` said of those calls that it ``refused``."""

    programs: dict[Hashable, Program] = field(default_factory=dict)
    guarded: dict[Hashable, deque[Program]] = field(default_factory=dict)
    captured: dict[Hashable, deque[Program]] = field(default_factory=dict)
    refused: dict[Hashable, str] = field(default_factory=dict)

    def held(self, key: Hashable) -> Program | None:
        """The program under a key; no guessed one for a call that may look at more than outputs,
        which are all that tells that it is the model's."""
        program = self.programs.get(key)
        guessed = program is not None and program.made == GUESSED
        return None if guessed and RETURNED.get() is None else program

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

    def drop(self, key: Hashable) -> None:
        """Let go of what holds under a key."""
        self.programs.pop(key, None)
        self.guarded.pop(key, None)

    def of_family(self, family: Hashable) -> deque[Program]:
        """The captured programs of a family, to which others may be added."""
        if family not in self.captured and len(self.captured) >= _FAMILIES:
            self.captured.pop(next(iter(self.captured)))
        return self.captured.setdefault(family, deque(maxlen=_LAST))


#: What the model returned where programs were made within a call, and of which sample each; set
#: where the call compares what it computes by them with the model's outputs.
RETURNED: ContextVar[list[tuple[Inputs, list[Tensor]]] | None] = ContextVar(
    "RETURNED", default=None
)
#: The models whose stored graphs are not read.
_ANEW: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_cache: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def trace_program(
    model: nn.Module, inputs: Inputs, token_inputs: tuple[str, ...] | None = None
) -> Program:
    """The model as a ``Program`` for inputs of these shapes.

    ``token_inputs`` names the inputs to explain (default: all floating ones, and integer ones that
    feed an embedding, but for embeddings that are only added to another input's: segments, places).
    Where the call itself does not, the graph is compared with the model on the first sample, once,
    and a mismatch raises ``CaptureError``. Programs are cached per model and input shapes, until
    the model's structure changes; one that depends on values serves inputs of which Python reads
    the same values, if that can be told. Of inputs that differ in their lengths alone, one or two
    are captured, and the others' programs are made of those where the model's outputs agree. What
    was captured may be stored for later processes (``tracer.stored``). Threads may call this at
    once: one captures at a time, on a shadow of the model.
    """
    made = structure(model)
    key = (inputs.signature, made, token_inputs)
    known = _cache.setdefault(model, _Known())
    program = known.held(key)
    if program is not None and _is_compared(program):
        return program
    with TRACING, undisturbed(model):
        sample = inputs.select(0, 1)
        program = known.held(key) or known.guarded_by(key, sample)
        if program is not None:
            with contextlib.suppress(CaptureError):
                if not _is_compared(program):
                    verify(program, model, sample, model_run(model, sample)[0])
                return program
            known.drop(key)  # the model was changed, unseen, before anyone compared it
        others = known.of_family((inputs.family, made, token_inputs))
        refused = known.refused.get((sample.signature, made), "")
        tracing = _Tracing(model, sample, token_inputs, others, refused)
        program = tracing.at_length()
        stored = Stored.of(model, made, sample) if program is None else None
        if stored is not None and RETURNED.get() is not None and model not in _ANEW:
            program = tracing.read(stored)
        if program is None:
            raw, program = tracing.traced(stored)
            if raw.refused:
                if len(known.refused) >= _MOST:
                    known.refused.pop(next(iter(known.refused)))
                known.refused[sample.signature, made] = raw.refused
            if not program.input_specialised:
                alike = next((p for p in others if has_same_calls(p, program)), None)
                program = program if alike is None else replace(program, kin=alike.kin)
                others.append(program)
        if not program.input_specialised or program.guards is not None:
            known.keep(key, program)
        return program


def _is_compared(program: Program) -> bool:
    """Whether a program was compared with its model, or is by the call."""
    return COMPARED in program.memo or RETURNED.get() is not None


@dataclass(frozen=True)
class _Tracing:
    """One ``model`` and one ``sample`` of its inputs, those to explain among them; and the captured
    programs of ``others``, which differ in their lengths alone; what ``torch.export`` said if it
    ``refused`` such a call."""

    model: nn.Module
    sample: Inputs
    token_inputs: tuple[str, ...] | None
    others: deque[Program]
    refused: str

    def at_length(self, run: Run | None = None) -> Program | None:
        """The program for a sample of another length than the ``others``; ``None`` where they give
        none that agrees with the model, or, where the call compares its outputs with the model's
        anyway, none at all. ``run``: what the model returned for it, if it ran."""
        model, sample = self.model, self.sample
        sizes = tuple(tuple(t.shape) for t in sample.tensors)
        for how, first, second in ways(self.others):
            if first.draws or (how == GUESSED and not self._may_guess(first)):
                continue
            if (graph := graph_at(first, second, sizes)) is None:
                continue
            later = run is None and RETURNED.get() is not None and how not in first.kin
            if not later:
                run = run or model_run(model, sample)
            eager, outputs = run or ([], first.outputs)
            raw = Capture(graph, dict(first.constants), outputs, first.front_end, eager=eager)
            held = any(facts_of(p).live is False for p in first.placeholders)
            chosen = tuple(first.leaves) if held else self.token_inputs
            program = assemble(raw, sample.names, chosen, model)
            program = replace(
                program, constant_inputs=first.constant_inputs, kin=first.kin, made=how
            )
            if not is_alike(program, first):
                continue
            if later:
                program.kin.cache(by_length(program), lambda: True)
                return program
            if agrees(program, model, sample, eager):
                return self._returned(program, eager)
        return None

    def _may_guess(self, first: Program) -> bool:
        """Whether the graph of another length may be guessed from one: where the call compares it
        with the model, closely, and looks at nothing else."""
        return RETURNED.get() is not None and GUESSED not in first.kin and not is_coarse(first)

    def read(self, stored: Stored) -> Program | None:
        """The program that an earlier process stored, or that of two lengths that it stored gives;
        ``None`` where there is none that agrees with the model."""
        if stored.is_empty():
            return None
        with doing("reading its graph from disk (once)"):
            eager, outputs = run = model_run(self.model, self.sample)
            if (raw := stored.read(self.sample, outputs)) is not None:
                with contextlib.suppress(Exception):  # whatever is wrong with a file, it is no file
                    program = self._returned(self._checked(replace(raw, eager=eager)), eager)
                    self.others.append(program)
                    return program
            for raw in islice(stored.others(self.sample, outputs), 2):
                with contextlib.suppress(Exception):
                    self.others.append(self._program(raw))
            return self.at_length(run)

    def traced(self, stored: Stored | None) -> tuple[Capture, Program]:
        """What was captured of the model, and its program, checked against the model."""
        with doing("capturing the model (once)"):
            raw = self._captured()
        with doing("reading its graph (once)"):
            writing = None
            if stored is not None:  # a region holds a graph of its own
                device = runs_on(self.model, self.sample.tensors[0])
                inline_regions(raw.graph, Constants(raw.constants, device))
                writing = stored.writing(self.sample, raw)
            program = self._checked(raw)
        if writing is not None:
            writing()
        return raw, self._returned(program, raw.eager)

    def _returned(self, program: Program, outputs: list[Tensor]) -> Program:
        """Write down what the model returned, if anybody wants to know."""
        if (wanted := RETURNED.get()) is not None and not program.draws:
            wanted.append((self.sample, outputs))
        return program

    def _checked(self, raw: Capture) -> Program:
        """The program of what was captured, checked against the model."""
        random_calls = tuple(describe(n) for n in raw.graph.nodes if is_random_call(n))
        program = self._program(raw)
        if raw.draws or random_calls or not _is_compared(program):
            verify(program, self.model, self.sample, raw.eager, random_calls)
        return program

    def _program(self, raw: Capture) -> Program:
        """The program of what was captured, of this sample or of one like it."""
        model, names = self.model, self.sample.names
        device = runs_on(model, self.sample.tensors[0])
        places = {
            f"model.{k}": tensor_of(model, k) for k, t in model.named_buffers() if is_places(t)
        }
        canonicalise(raw.graph, device, raw.constants, places)
        program = assemble(raw, names, self.token_inputs, model)
        if still := without_tokens(program, raw.constants):
            hold_still(raw.graph, still)
            canonicalise(raw.graph, device, raw.constants, places)
            settled = assemble(raw, names, tuple(program.leaves), model)
            program = replace(settled, constant_inputs=program.constant_inputs)
        return program

    def _captured(self) -> Capture:
        """The model's graph, of its shadow; where the shadow does not run (its code knows the
        modules by what no shadow has), of the model's own modules, which no other thread may then
        read."""
        if SHADOWED.get(self.model, True):
            with contextlib.suppress(InputError):
                captured = capture(shadow_of(self.model), self.sample, self.refused)
                SHADOWED[self.model] = True
                return captured
        # fails where the model itself does
        captured = capture(self.model, self.sample, self.refused)
        SHADOWED[self.model] = False
        return captured


def forget_by_length(model: nn.Module) -> bool:
    """Use no program of other lengths any more before it was compared with the model, and forget
    those that were not; whether there were any."""
    known = _cache.get(model, _Known())
    gone = {k: p for k, p in known.programs.items() if is_unconfirmed(p)}
    for key, program in gone.items():
        was_wrong(program)
        program.kin.forget(by_length(program))
        known.drop(key)
    return bool(gone)


def forget(model: nn.Module) -> None:
    """Capture the model anew when it is next traced, whatever was stored."""
    _cache.pop(model, None)
    _ANEW.add(model)
