"""The comparison of gradients that is left when a program gave the model's outputs: once for all
lengths of the inputs, and where the answer takes them itself, of those."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torch import Tensor, fx

from relprop.errors import RelpropError
from relprop.interpreter.slopes import Slopes, slopes, slopes_of_target
from relprop.progress import doing
from relprop.rules.ruleset import registered
from relprop.runner.run import Run
from relprop.runner.session import Session
from relprop.runner.sweep import Gradients
from relprop.targets import Start
from relprop.tracer.binding import Inputs

AT_WORK = "comparing its gradients with the model's (once)"


@dataclass(frozen=True)
class GradientsLeft:
    """What is still to be compared of ``part`` at some outputs, ``ends``: ``compare`` refuses a
    program whose gradients are others, and takes what is kept from one call to the next."""

    compare: Callable[[], None]
    session: Session
    part: Inputs
    ends: tuple[fx.Node, ...]

    def __call__(self) -> None:
        self.compare()

    def beside(
        self, done: Run, start: Start, scalars: Tensor, watched: Sequence[fx.Node]
    ) -> Gradients:
        """The same, and the gradients of a target at the ``watched`` nodes: where one pass gives
        these and those at the explained inputs, and the latter are the model's, no others are
        taken."""
        program, found = self.session.program, dict[fx.Node, Tensor]()
        with suppress(RelpropError):  # an operator before all watched nodes may have no derivative
            found = done.forward.gradients(
                scalars, (*watched, *program.leaves.values()), again=True
            )
        if found and start.again is not None:
            values = done.detached()
            mine, at = ({n: v[leaf] for n, leaf in program.leaves.items()} for v in (found, values))
            with doing(AT_WORK):
                same = slopes_of_target(
                    program, self.session.model, self.part, start.again, mine, at
                )
            if same is not None:
                program.kin.once(_key(self.session, self.ends, 1), lambda: same)
        self()
        return {n: found[n] for n in watched if n in found}


def leaves_to_watch(
    session: Session, part: Inputs, ends: tuple[fx.Node, ...]
) -> tuple[fx.Node, ...]:
    """The explained inputs, where the gradients of one sample are still to be compared."""
    program = session.program
    plain = program.dtype is None and not (program.inside or program.input_specialised)
    known = any(_key(session, ends, n) in program.kin for n in (1, 2))
    one = part.batch == 1 and not part.moved
    return tuple(program.leaves.values()) if plain and one and not known else ()


def slopes_of(session: Session, part: Inputs, ends: tuple[fx.Node, ...]) -> Slopes:
    """How the program's gradients compare with the model's: worked out once for all lengths, of one
    sample, and once more of two when two are first given."""
    kin, both = session.program.kin, _key(session, ends, 2)
    key = both if both in kin else _key(session, ends, min(part.batch, 2))

    def made() -> Slopes:
        with doing(AT_WORK):
            return slopes(session.program, session.model, part, ends)

    return kin.once(key, made)


def _key(session: Session, ends: tuple[fx.Node, ...], samples: int) -> tuple[Hashable, ...]:
    """Under which key a comparison is kept, of some outputs and so many samples."""
    program = session.program
    names = dict(zip(program.output_nodes, program.outputs.names, strict=True))
    return "slopes", frozenset(names[n] for n in ends), registered(), samples
