"""The relevance pass of a target that has several terms: each is walked by itself, and walks and
books are combined linearly. Terms, and targets, are walked side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, fx

from relprop.errors import JointStartWarning, warn
from relprop.interpreter.accounts import Account
from relprop.interpreter.accounts import added as joined
from relprop.interpreter.batch import Passage, Passing, abreast, pending_at
from relprop.interpreter.crossing import Crossing
from relprop.interpreter.ledger import Ledger
from relprop.interpreter.points import Seed, added, sums
from relprop.interpreter.reading import Reading, begun, reading_of
from relprop.interpreter.walk import Pending, Walk
from relprop.plan import POSITIONS, Plan
from relprop.runner.needs import Needs
from relprop.runner.run import Run
from relprop.targets.start import Start, Term
from relprop.tracer.calls import Values
from relprop.tracer.program import place
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
        assert needs.backward.plan is not None
        by_value = needs.question.by.starts_with == "output"
        terms = start.contributions(run.outputs(needs.program)) if by_value else start.begun
        if start.at_once and not needs.backward.plan.is_linear:
            fact = (
                f"target {start.label[0]!r} combines {start.at_once} outputs, which start at once"
            )
            then = ["fewer are explained one by one and added up (docs/targets.md)"]
            warn(JointStartWarning(fact, then=then))
        hooks, readings = needs.question.hooks, needs.backward.heads.readings
        account = needs.question.ledger is not False
        return cls.at_terms(
            needs.backward.plan, terms, hooks, needs.backward.in_chunks, readings, account
        )

    @classmethod
    def at_terms(
        cls,
        plan: Plan,
        terms: Iterable[Term],
        hooks: Hooks,
        in_chunks: Mapping[fx.Node, Attention] | None = None,
        readings: Mapping[fx.Node, Reading] | None = None,
        account: bool = True,
    ) -> Relevance:
        """Of the ``terms`` of a target, before their first step. ``in_chunks``: the sites that
        relevance passes some queries at a time; ``readings``: how it passes the end of the graph
        before some of the outputs; ``account``: whether they are kept. By rules that are linear in
        relevance all terms are one walk."""
        if plan.is_linear and not hooks:
            terms = together(tuple(terms))
        passages = {n: _passage(plan, a) for n, a in (in_chunks or {}).items()}
        passings, started = list[tuple[float, Passing]](), list[Tensor]()
        for term in terms:
            seeds = {n: s for n, s in term.seeds.items() if n in plan.starts}
            starts, first = begun(seeds, readings or {}, account=account)
            on_the_way = passages | first
            one = Passing(plan, pending_at(starts), {}, account, hooks, on_the_way)
            passings.append((term.coefficient, one))
            started += [term.coefficient * sums(s) for s in seeds.values()]
        return cls(plan, tuple(passings), sum(started[1:], started[0]))

    def through(self, nodes: Collection[fx.Node], values: Values) -> Walk:
        """On through some nodes of the graph: Σ coefficient · walk, as one walk."""
        here = [n for n in self.plan.order if n in nodes]
        return self.summed([passing.through(here, values) for _, passing in self.passings])

    def summed(self, walks: Sequence[Walk]) -> Walk:
        """Σ coefficient · walk, of one walk for each term."""
        scaled = [c * walk for (c, _), walk in zip(self.passings, walks, strict=True)]
        return sum(scaled[1:], scaled[0])

    def ledger(self, walk: Walk) -> Ledger:
        """The books of the whole ``walk``."""
        like = next(iter(walk.ended.values()), self.started)
        home = like.device

        def brought(account: Account) -> Account:
            away = account.arrived.device != home
            return account.with_tensors(lambda t: t.to(home)) if away else account

        reached: dict[str, Tensor] = {}
        for node, amount in walk.ended.items():
            name = _end_name(self.plan, node)
            reached = joined(reached, {name: amount.to(home)})
        return Ledger(tuple(map(brought, walk.accounts)), self.started.to(like), reached)


def together(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Terms that are explained one by one as one, for rules that are linear in relevance."""
    if len(terms) < 2:
        return tuple(terms)
    found: dict[fx.Node, list[tuple[float, Seed]]] = {}
    for term in terms:
        for node, seed in term.seeds.items():
            found.setdefault(node, []).append((term.coefficient, seed))
    return (Term(1.0, {node: added(parts) for node, parts in found.items()}),)


def walk_key(needs: Needs) -> Hashable:
    """What a relevance pass depends on beside where it starts: questions with the same one share
    it. ``None``: it is shared with none, or walked in segments, or there is none."""
    question = needs.question
    if needs.backward.plan is None or needs.backward.segments or question.hooks:
        return None
    account, chunked = question.ledger is not False, frozenset(needs.backward.in_chunks)
    return ("walk", id(needs.backward.plan), question.by.starts_with, account, chunked)


def walked(needs: Needs, run: Run, start: Start) -> tuple[Relevance, Walk]:
    """The whole relevance pass of a target through a graph in one piece, made once for all
    questions that share it."""
    key = walk_key(needs)
    if key is None:
        return _walks(needs, run, [start])[0]
    return start.memo.cache(key, lambda: _walks(needs, run, [start])[0])


def walk_ahead(needs: Needs, run: Run, starts: Sequence[Start]) -> None:
    """Walk from several targets side by side, as far as memory allows it."""
    if (key := walk_key(needs)) is not None and len(starts) > 1:
        for start, made in zip(starts, _walks(needs, run, starts), strict=True):
            start.memo.cache(key, lambda made=made: made)  # type: ignore[misc]


def _walks(needs: Needs, run: Run, starts: Sequence[Start]) -> list[tuple[Relevance, Walk]]:
    passes = [Relevance.of(needs, run, start) for start in starts]
    plan, values = passes[0].plan, run.detached()
    if needs.question.hooks:
        return [(one, one.through(plan.order, values)) for one in passes]
    passings, size = [p for one in passes for _, p in one.passings], needs.backward.abreast
    some = [passings[i : i + size] for i in range(0, len(passings), size)]
    fleeting = run.let_go(needs.fleeting) if run.last and len(some) == 1 else ()
    walks = iter([walk for few in some for walk in abreast(few, plan.order, values, fleeting)])
    return [(one, one.summed([next(walks) for _ in one.passings])) for one in passes]


def united(needs: Mapping[int, Needs]) -> dict[int, Needs]:
    """The same by number, where questions without books whose relevance goes from the same place by
    the same rules have one plan, which hands it out wherever any of them wants it."""
    found, alike = dict(needs), dict[Hashable, list[int]]()
    for i, n in needs.items():
        q, plan = n.question, n.backward.plan
        if plan is not None and q.ledger is False and not (q.hooks or n.backward.segments):
            chunked = frozenset(n.backward.in_chunks)
            key = (n.session.rules, plan.starts, q.by.starts_with, chunked, bool(plan.positions))
            alike.setdefault(key, []).append(i)
    for some in alike.values():
        plans = [p for i in some if (p := needs[i].backward.plan) is not None]
        wanted = frozenset[fx.Node]().union(*(p.wanted for p in plans))
        for i in some:
            session, positions = needs[some[0]].session, bool(plans[0].positions)
            found[i] = _by(needs[i], session.plan(plans[0].starts, wanted, positions=positions))
    return found


def _by(needs: Needs, plan: Plan) -> Needs:
    """The same with a relevance pass by a plan that wants more."""
    known = {n: reading_of(plan, n) for n in plan.starts}
    own = needs.backward
    heads = replace(own.heads, readings={n: r for n, r in known.items() if r is not None})
    return replace(needs, backward=replace(own, plan=plan, heads=heads))


def _passage(plan: Plan, attention: Attention) -> Passage:
    """How relevance passes a site in chunks; what arrived at its result is handed out, too."""
    crossing = Crossing.to(None, plan, attention)

    def passage(arrived: Tensor, values: Values) -> tuple[Walk, Pending]:
        done, left = crossing.whole(values, arrived)
        return Walk({attention.site.contraction: arrived}) + done, left

    return passage


def _end_name(plan: Plan, node: fx.Node) -> str:
    leaf = next((name for name, n in plan.program.leaves.items() if n is node), None)
    if leaf is None and any(node in terms for terms in plan.positions.values()):
        return POSITIONS
    return f"input {leaf}" if leaf is not None else f"attention {place(node).call}"
