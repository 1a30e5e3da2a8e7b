"""What of a model is said not to be counted: attention that is no softmax."""

from __future__ import annotations

from relprop.errors import UnrecognisedWarning, is_strict, warn
from relprop.operations.looking import is_recorded
from relprop.runner.needs import Needs
from relprop.runner.run import Run
from relprop.targets.start import Start
from relprop.tracer.facts import describe
from relprop.tracer.unrecognised import other_attention

NONE = "weights over tokens that sum to 1 and come from no softmax"
INSTEAD = (
    "a method at the input reads every operation: method='attnlrp', 'gradient_x_input'",
    "or replace the weights by torch.softmax, if they are one in other words",
)


def unrecognised(needs: Needs, run: Run, start: Start) -> list[str]:
    """Where a target of a method over attention reads attention that is no softmax; said once per
    program."""
    session, program = needs.session, needs.program
    if needs.question.by.level != "attention" or is_recorded():
        return []
    found = program.memo.cache(
        "other attention", lambda: other_attention(program, session.model, run.inputs)
    )
    flow, ends = session.flow, tuple(start.field) or program.output_nodes
    ends = tuple(e for e in ends if e in flow.members)
    read = [n for n in found if n in flow.members and any(flow.reaches(n, e) for e in ends)]
    if read and (is_strict() or program.memo.first_time("other attention said")):
        fact = (
            f"method {needs.question.method!r} does not count {len(read)} of the attentions: {NONE}"
        )
        warn(UnrecognisedWarning(fact, at=describe(read[0]), then=INSTEAD))
    return [f"{NONE}  at {describe(n)}" for n in read]
