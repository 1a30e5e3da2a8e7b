"""The answers to several questions about several targets, from one forward pass for all that can
share it: a gradient per target, and a relevance pass per target and rule set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from torch import Tensor

from relprop.error_boundary import answered
from relprop.errors import (
    NoAttentionError,
    OptionError,
    RelpropError,
    RollUpError,
    RuleError,
    UnforeseenError,
    out_of_memory,
)
from relprop.explanation import Explanation
from relprop.progress import counting, doing
from relprop.rules import RuleSet
from relprop.runner.answer import answer
from relprop.runner.comparison import Comparison
from relprop.runner.constant_outputs import refuse_flat, refuse_unmoved
from relprop.runner.method import without_start
from relprop.runner.needs import Needs
from relprop.runner.relevance import walk_ahead, walk_key
from relprop.runner.run import Part, Run, run
from relprop.runner.session import Nodes
from relprop.runner.study import Gradients
from relprop.targets.start import NoStart, Start
from relprop.tracer.forms import PLAIN

#: Of how many targets at the most nothing is kept from one to the next: memory costs time, too.
FEW = 2
#: What says that a method is not defined, and no more.
OF_A_METHOD = (OptionError, NoAttentionError, NoStart, RollUpError, RuleError, UnforeseenError)
#: By its number, why a question cannot be answered.
Refused = dict[int, RelpropError]


def answers(
    needs: Mapping[int, Needs],
    part: Part,
    targets: Sequence[object],
    comparison: Comparison | None = None,
    refused: Refused | None = None,
) -> list[dict[int, Explanation]]:
    """For each target the explanations by number, from one forward pass for all (another one for
    those whose graph is cut, or whose relevance is one gradient) and one gradient per target.
    ``comparison``: with the model's own outputs and gradients."""
    rows: list[dict[int, Explanation]] = [{} for _ in targets]
    groups: dict[object, dict[int, Needs]] = {}
    for i, n in needs.items():
        start = n.question.by.starts_with if n.backward.by_gradient else ""
        groups.setdefault((bool(n.backward.segments), id(n.backward.forms), start), {})[i] = n
    what = "target" if len(needs) == 1 else "method" if len(targets) == 1 else "answer"
    with counting(what, len(needs) * len(targets)) as begins:
        begin = begins if len(needs) > 1 else lambda _: begins("")
        for group in groups.values():
            found: list[dict[int, Explanation]] | None = None
            with suppress(_NoDerivative):
                found = _answers_of(group, part, targets, comparison, refused, begin)
            if found is None and comparison is not None:
                comparison.apart = True
                found = _answers_of(group, part, targets, comparison, refused, begin)
            assert found is not None, "without a comparison no gradient is taken at the leaves"
            rows = [{**row, **more} for row, more in zip(rows, found, strict=True)]
    return rows


def _answers_of(
    needs: Mapping[int, Needs],
    part: Part,
    targets: Sequence[object],
    comparison: Comparison | None,
    refused: Refused | None,
    begin: Callable[[str], None],
) -> list[dict[int, Explanation]]:
    """The same for questions that share a forward pass; ``begin`` is told of each."""
    if len(targets) > FEW:
        needs = {i: replace(n, backward=n.backward.keeping_chunks()) for i, n in needs.items()}
    every = list(needs.values())
    done, watched, leaves = _ran(every, part, comparison)
    rows = []
    for i, (target, starts) in enumerate(_walked_ahead(needs, done, targets, refused)):
        gradients: Gradients = {}
        if watched and starts:
            one, start = every[0], next(iter(starts.values()))
            scalars = done.explained(one.session, one.question, start)
            again = i + 1 < len(targets)
            if comparison is not None and leaves:
                at_leaves = _at_leaves(done, scalars, (*watched, *leaves), again=again)
                comparison.of_target(done, start, at_leaves)
                gradients, leaves = {n: at_leaves[n] for n in watched if n in at_leaves}, ()
            else:
                gradients = done.forward.gradients(scalars, watched, again=again)
        row, left = dict[int, Explanation](), Counter(walk_key(needs[k]) for k in starts)
        done.last = i + 1 == len(targets) and len(needs) == 1
        for number, start in starts.items():
            begin(needs[number].question.method)
            with refusal(number, refused):
                if needs[number].differentiates and done.forms is PLAIN:
                    refuse_flat(needs[number].session, done, start, gradients)
                with doing("computing the scores"):
                    row[number] = answer(needs[number], done, target, start, gradients)
            key = walk_key(needs[number])
            left[key] -= 1
            if not left[key]:  # what questions share is let go with the last of them
                start.memo.forget(key)
        rows.append(row)
    return rows


def _ran(
    every: Sequence[Needs], part: Part, comparison: Comparison | None
) -> tuple[Run, Nodes, Nodes]:
    """The forward pass, compared with the model's; where gradients are to be taken; and where the
    first target's are taken, too, to be compared with the model's."""
    whole = [n for n in every if n.differentiates and not n.backward.segments]
    watched = tuple(dict.fromkeys(w for n in whole for w in n.watch))
    plain = every[0].backward.forms is PLAIN
    leaves = comparison.leaves if comparison is not None and watched and plain else ()
    with doing("running its graph"):
        done = run(every, part, leaves)
    if comparison is not None:
        comparison.outputs(done, differentiates=any(n.differentiates for n in every))
        done.may_differentiate = comparison.gradients if plain else done.may_differentiate
    if watched and not leaves:
        done.may_differentiate()
    return done, watched, leaves


class _NoDerivative(Exception):
    """No gradient can be taken at the leaves: an operator before the first attention, which the
    answer does not pass, may have none."""


def _at_leaves(done: Run, scalars: Tensor, nodes: Nodes, *, again: bool) -> Gradients:
    """The gradients at these nodes, leaves among them. Raises ``_NoDerivative``."""
    try:
        return done.forward.gradients(scalars, dict.fromkeys(nodes), again=again)
    except RelpropError as error:
        raise _NoDerivative from error


#: What a target is to each question, by number.
Starts = Mapping[int, Start]


def _walked_ahead(
    needs: Mapping[int, Needs],
    done: Run,
    targets: Sequence[object],
    refused: Refused | None,
) -> Iterator[tuple[object, Starts]]:
    """Each target with where it starts. As many as memory allows are walked from side by side; what
    fails so is walked from alone, for each question that asks for it."""
    passes = {key: i for i, n in needs.items() if (key := walk_key(n)) is not None}
    spare = min((needs[i].backward.abreast for i in passes.values()), default=1)
    size = max(1, spare // max(1, len(passes)))
    for first in range(0, len(targets), size):
        some = [(t, _starts(needs, done, t, refused)) for t in targets[first : first + size]]
        for i in passes.values():
            with suppress(RelpropError):
                walk_ahead(needs[i], done, [starts[i] for _, starts in some if i in starts])
        while some:
            yield some.pop(0)


def _starts(
    needs: Mapping[int, Needs], done: Run, target: object, refused: Refused | None
) -> Starts:
    """What the target is to each question, by number: worked out once for each rule set."""
    found: dict[int, Start] = {}
    same: dict[tuple[RuleSet, bool], Start] = {}
    for number, n in needs.items():
        key = n.session.rules, n.starts
        with refusal(number, refused):
            if key not in same:
                same[key] = _start(n, done, target)
            if n.question.by.class_specific:
                refuse_unmoved(n.session, done, target, same[key])
            found[number] = same[key]
    return found


def _start(needs: Needs, done: Run, target: object) -> Start:
    try:
        return done.start(needs.session, target, walks=needs.starts)
    except NoStart as error:
        bare = done.start(needs.session, target, walks=False)
        refuse_unmoved(needs.session, done, target, bare)
        fact = f"method {needs.question.method!r} starts relevance at the target, and {error}"
        others = ", ".join(without_start())
        then = [f"any differentiable number is explained by {others}"]
        raise NoStart(fact, then=then) from error


@contextmanager
def refusal(number: int, refused: Refused | None) -> Iterator[None]:
    """Write down what a method says of this model, if that is wanted; what nobody foresaw as the
    error boundary says it."""
    try:
        yield
    except OF_A_METHOD as why:
        if refused is None or out_of_memory(why):
            raise
        refused.setdefault(number, why)
    except Exception as error:
        ours = type(error).__module__.split(".")[0] == "relprop" or isinstance(error, Warning)
        interrupted = isinstance(error.__context__, KeyboardInterrupt)
        if refused is None or ours or interrupted or out_of_memory(error):
            raise
        failure = answered(error, "the method")
        failure.__cause__ = error
        refused.setdefault(number, failure)
