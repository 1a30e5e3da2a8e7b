"""What is known of how a program's gradients compare with the model's: kept with it, and where they
are equal for all lengths."""

from __future__ import annotations

from collections.abc import Hashable

from relprop.interpreter.slopes import SAMPLES, Slopes, slopes
from relprop.rules.ruleset import registered
from relprop.runner.session import Nodes, Session
from relprop.tracer.binding import Inputs


def slopes_of(session: Session, part: Inputs, nodes: Nodes) -> Slopes:
    """How the program's gradients compare with the model's: worked out of one sample, and once more
    of two when two are first given; once for all lengths, if they are equal and the model has no
    backward of its own."""
    found = known_slopes(session, part, nodes)
    if found is None:
        found = slopes(session.program, session.model, part, nodes)
        keep_slopes(session, part, nodes, found)
    return found


def known_slopes(session: Session, part: Inputs, nodes: Nodes) -> Slopes | None:
    """What is known of that already, of as many samples or more."""
    program = session.program
    for samples in range(SAMPLES, min(part.batch, SAMPLES) - 1, -1):
        key = _slopes_key(session, nodes, samples)
        for memo in (program.kin, program.memo):
            if key in memo:
                return memo.cache(key, lambda: Slopes())
    return None


def keep_slopes(session: Session, part: Inputs, nodes: Nodes, found: Slopes) -> None:
    """Keep what was found."""
    program = session.program
    own = found.error or found.skipped or found.functions or found.hooked
    key = _slopes_key(session, nodes, min(part.batch, SAMPLES))
    (program.memo if own else program.kin).cache(key, lambda: found)


def _slopes_key(session: Session, nodes: Nodes, samples: int) -> tuple[Hashable, ...]:
    program = session.program
    ends = dict(zip(program.output_nodes, program.outputs.names, strict=True))
    return "slopes", frozenset(ends[n] for n in nodes), registered(), samples
