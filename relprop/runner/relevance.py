"""The relevance pass of a target that has several terms: each is walked by itself, and walks and
books are combined linearly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, fx

from relprop.interpreter.batch import Passage, Walk, propagate
from relprop.interpreter.crossing import Crossing
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.points import sums
from relprop.interpreter.reading import Reading, begun
from relprop.interpreter.walk import Pending
from relprop.plan import Plan
from relprop.runner.needs import Needs
from relprop.runner.run import Run
from relprop.targets import Start, Term
from relprop.tracer.calls import Values
from relprop.tracer.program import Program, place
from relprop.tracer.queries import Attention

Hooks = Mapping[fx.Node, Callable[[Tensor], Tensor | None]]


def relevance_of(needs: Needs, run: Run, start: Start) -> tuple[Walk, Ledger | None]:
    """The relevance pass of every term, combined linearly; nothing where none is asked for."""
    if needs.plan is None:
        return Walk(), None
    values = run.detached()
    by_value = needs.question.by.starts_with == "output"
    terms = start.contributions(values) if by_value else start.terms
    return walk_terms(
        needs.plan, values, terms, needs.question.hooks, needs.in_chunks, needs.readings
    )


def walk_terms(
    plan: Plan,
    values: Values,
    terms: Iterable[Term],
    hooks: Hooks,
    in_chunks: Mapping[fx.Node, Attention] | None = None,
    readings: Mapping[fx.Node, Reading] | None = None,
) -> tuple[Walk, Ledger]:
    """Σ coefficient · walk over the ``terms`` of a target, as one walk, and its ledger.
    ``in_chunks``: the sites that relevance passes some queries at a time; ``readings``: how it
    passes the end of the graph before some of the outputs."""
    walks: list[Walk] = []
    started: list[Tensor] = []
    passages = {n: _passage(plan, a, values) for n, a in (in_chunks or {}).items()}
    for term in terms:
        seeds = {n: s for n, s in term.seeds.items() if n in plan.starts}
        starts, first = begun(seeds, readings or {}, values)
        done = propagate(plan, values, starts, hooks=hooks, passages=passages | first)
        walks.append(term.coefficient * done)
        started += [term.coefficient * sums(s) for s in seeds.values()]
    whole, start = sum(walks[1:], walks[0]), sum(started[1:], started[0])
    reached = {_end_name(plan.program, n): amount for n, amount in whole.ended.items()}
    like = next(iter(reached.values()), start)
    return whole, Ledger(tuple(whole.accounts), start.to(like.dtype), reached)


def _passage(plan: Plan, attention: Attention, values: Values) -> Passage:
    """How relevance passes a site in chunks; what arrived at its result is handed out, too."""
    crossing = Crossing.through(plan, attention)

    def passage(arrived: Tensor) -> tuple[Walk, Pending]:
        done, left = crossing.whole(values, arrived)
        return Walk({attention.site.contraction: arrived}) + done, left

    return passage


def _end_name(program: Program, node: fx.Node) -> str:
    leaf = next((name for name, n in program.leaves.items() if n is node), None)
    return f"input {leaf}" if leaf is not None else f"attention {place(node).call}"
