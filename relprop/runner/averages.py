"""A method's scores averaged over other values of what is explained: the same question at each of
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from relprop.errors import OptionError
from relprop.progress import with_progress
from relprop.runner.input_study import InputStudy
from relprop.runner.needs import Needs
from relprop.runner.points import Average, Point
from relprop.runner.run import Run, forward_pass, refuse_nonfinite
from relprop.runner.sweep import Gradients
from relprop.runner.values import with_leading_one
from relprop.targets.start import Start


def runs_at(
    average: Average, at: InputStudy
) -> Iterator[tuple[Point, tuple[Needs, Run, object, Start, Gradients]]]:
    """Each point of ``average``, and what a study is made of there: the forward pass, the target of
    ``at`` and the gradients. Raises ``OptionError`` for what is no mean of several passes."""
    needs, run, target, start = at.needs, at.run, at.target, at.start
    _refuse(needs)
    for point in with_progress(average.points(at), "draw", average.count):
        moved = {at.leaves[n]: with_leading_one(v, at.leaves[n]) for n, v in point.values.items()}
        part = replace(run.part, inputs=replace(run.part.inputs, moved=moved))
        done = forward_pass([needs], part)
        refuse_nonfinite(needs.session, done.outputs(needs.program))
        begun = done.started_as(needs.session, target, start, walks=needs.starts)
        watch = needs.watch if needs.differentiates and not needs.backward.segments else ()
        scalars = done.explained(needs.session, needs.question, begun)
        gradients = done.forward.gradients(scalars, watch, again=False) if watch else {}
        yield point, (needs, done, target, begun, gradients)


def _refuse(needs: Needs) -> None:
    question, fact = needs.question, f"average={needs.question.average}"
    if kept := sorted(question.keep & {"blocks", "matrix"}):
        raise OptionError(f"{fact} gives scores alone: leave {', '.join(kept)} out of keep=")
    if question.ledger:
        raise OptionError(f"{fact} is of several passes, and keeps no books: leave ledger=True out")
    if question.by.texts:
        name = question.method
        raise OptionError(f"{fact}: method {name!r} runs other texts, not other values of this one")
