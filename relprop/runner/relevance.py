"""The relevance pass of a target that has several terms: each is walked by itself, and walks and
books are combined linearly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from relprop.interpreter.batch import Passage, Passing, Walk, pending_at
from relprop.interpreter.crossing import Crossing
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.points import Seed, added, sums
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


@dataclass(frozen=True)
class Relevance:
    """The relevance passes of a target's terms, on their way. ``started``: the relevance that they
    began with, (batch,)."""

    plan: Plan
    passings: tuple[tuple[float, Passing], ...]
    started: Tensor

    @classmethod
    def of(cls, needs: Needs, run: Run, start: Start) -> Relevance:
        """Of a target, as a question asks for it."""
        assert needs.passing.plan is not None
        by_value = needs.question.by.starts_with == "output"
        terms = start.contributions(run.outputs(needs.program)) if by_value else start.begun
        hooks, readings = needs.question.hooks, needs.passing.heads.readings
        books = needs.question.ledger is not False
        return cls.at_terms(
            needs.passing.plan, terms, hooks, needs.passing.in_chunks, readings, books
        )

    @classmethod
    def at_terms(
        cls,
        plan: Plan,
        terms: Iterable[Term],
        hooks: Hooks,
        in_chunks: Mapping[fx.Node, Attention] | None = None,
        readings: Mapping[fx.Node, Reading] | None = None,
        books: bool = True,
    ) -> Relevance:
        """Of the ``terms`` of a target, before their first step. ``in_chunks``: the sites that
        relevance passes some queries at a time; ``readings``: how it passes the end of the graph
        before some of the outputs; ``books``: whether they are kept. By rules that are linear in
        relevance all terms are one walk."""
        if plan.is_linear and not hooks:
            terms = together(tuple(terms))
        passages = {n: _passage(plan, a) for n, a in (in_chunks or {}).items()}
        passings, started = list[tuple[float, Passing]](), list[Tensor]()
        for term in terms:
            seeds = {n: s for n, s in term.seeds.items() if n in plan.starts}
            starts, first = begun(seeds, readings or {}, account=books)
            on_the_way = passages | first
            one = Passing(plan, pending_at(starts), {}, books, hooks, on_the_way)
            passings.append((term.coefficient, one))
            started += [term.coefficient * sums(s) for s in seeds.values()]
        return cls(plan, tuple(passings), sum(started[1:], started[0]))

    def through(self, nodes: Collection[fx.Node], values: Values) -> Walk:
        """On through some nodes of the graph: Σ coefficient · walk, as one walk."""
        here = [n for n in self.plan.order if n in nodes]
        walks = [c * passing.through(here, values) for c, passing in self.passings]
        return sum(walks[1:], walks[0])

    def ledger(self, walk: Walk) -> Ledger:
        """The books of the whole ``walk``."""
        reached = {_end_name(self.plan.program, n): amount for n, amount in walk.ended.items()}
        like = next(iter(reached.values()), self.started)
        books = tree_map_only(Tensor, lambda t: t.to(like.device), (walk.accounts, reached))
        return Ledger(tuple(books[0]), self.started.to(like), books[1])


def together(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Terms that are explained one by one as one, for rules that are linear in relevance."""
    if len(terms) < 2:
        return tuple(terms)
    found: dict[fx.Node, list[tuple[float, Seed]]] = {}
    for term in terms:
        for node, seed in term.seeds.items():
            found.setdefault(node, []).append((term.coefficient, seed))
    return (Term(1.0, {node: added(parts) for node, parts in found.items()}),)


def _passage(plan: Plan, attention: Attention) -> Passage:
    """How relevance passes a site in chunks; what arrived at its result is handed out, too."""
    crossing = Crossing.through(plan, attention)

    def passage(arrived: Tensor, values: Values) -> tuple[Walk, Pending]:
        done, left = crossing.whole(values, arrived)
        return Walk({attention.site.contraction: arrived}) + done, left

    return passage


def _end_name(program: Program, node: fx.Node) -> str:
    leaf = next((name for name, n in program.leaves.items() if n is node), None)
    return f"input {leaf}" if leaf is not None else f"attention {place(node).call}"
