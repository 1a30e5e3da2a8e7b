"""The plan of the roll-up walk: from the target's field to the token tensors, and what it
refuses."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from relprop.errors import RollUpError, message
from relprop.plan import Plan, Step, flowing, make_field_plan
from relprop.rollup.notes import rollup_notes
from relprop.rollup.streams import Stream, streams
from relprop.rules.mixing import mixed, weighed
from relprop.rules.notes import FieldNote, LinearNote, ProductNote
from relprop.rules.presets import PAPER
from relprop.rules.rollup import ROLLUP
from relprop.tracer.editing import val
from relprop.tracer.program import Program, Site, describe


def rollup_plan(
    program: Program,
    starts: tuple[fx.Node, ...],
    sites: tuple[Site, ...],
    read: tuple[Stream, ...] | None = None,
) -> tuple[Plan, tuple[Stream, ...]]:
    """The plan of the roll-up walk from ``starts``, and the streams it reads (all that feed the
    sites, unless given)."""
    flow = flowing(program, PAPER)
    found = streams(program, flow, starts, sites) if read is None else read
    notes = rollup_notes(program, flow, sites)
    plan = make_field_plan(program, ROLLUP, starts, frozenset(s.node for s in found), notes)
    plan = _with_values(replace(plan, steps=_reached(plan, starts, sites)))
    for step in plan.steps:
        if step.rule is ROLLUP.generic and any(
            n and val(o).shape != val(step.node).shape
            for o, n in zip(step.operands, step.needed, strict=True)
        ):
            raise RollUpError(
                message(
                    (
                        f"the roll-up cannot pass {step.op}: it is in no list of operations "
                        "and changes the shape"
                    ),
                    at=describe(step.node),
                )
            )
    return plan, found


def _with_values(plan: Plan) -> Plan:
    """What its own steps read is kept: pooling by a mask reads that mask, and a product that is no
    attention site the operands that say how it mixes."""
    steps, keep = [], set(plan.keep_outside(()))
    for step in plan.steps:
        note = step.note
        if isinstance(note, FieldNote) and note.weighed is not None:
            keep |= {
                o for o, role in zip(step.operands, step.roles, strict=True) if role != "activation"
            }
            step = replace(step, rule=weighed)
        if isinstance(note, LinearNote) and note.mixes:
            keep.add(step.operands[1])
            step = replace(step, rule=mixed)
        if isinstance(note, ProductNote):
            keep |= {o for i, o in enumerate(step.operands) if note.reads(i)}
        steps.append(step)
    return replace(plan, steps=tuple(steps), keep=frozenset(keep))


def rollup_plan_through(program: Program, starts: tuple[fx.Node, ...]) -> Plan:
    """The roll-up of a graph without attention (a target callable's), from ``starts`` to its
    leaves."""
    flow = flowing(program, PAPER)
    notes = rollup_notes(program, flow, ())
    plan = make_field_plan(program, ROLLUP, starts, frozenset(program.leaves.values()), notes)
    return _with_values(replace(plan, steps=_reached(plan, starts, ())))


def _reached(plan: Plan, starts: tuple[fx.Node, ...], sites: tuple[Site, ...]) -> tuple[Step, ...]:
    """The steps a field arrives at: queries and keys receive nothing, nor does an operand of weight
    0."""
    values = {s.contraction: s.values for s in sites}
    reached, kept = set(starts), []
    for step in plan.steps:
        if step.node not in reached:
            continue
        note = step.note if isinstance(step.note, FieldNote) else FieldNote()
        weights = note.weights(len(step.operands))
        takes = tuple(
            n and bool(w) and values.get(step.node, o) is o
            for o, n, w in zip(step.operands, step.needed, weights, strict=True)
        )
        reached |= {o for o, t in zip(step.operands, takes, strict=True) if t}
        kept.append(replace(step, needed=takes))
    return tuple(kept)
