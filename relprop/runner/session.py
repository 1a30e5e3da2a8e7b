"""A program with the plans that one rule set makes of it. Plans are kept with the program, and made
anew when a registered rule changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TypeVar

import torch
from torch import fx, nn

from relprop.adapters import Adapter, adapter_for
from relprop.errors import (
    GenericRuleWarning,
    OptionError,
    RelpropWarning,
    UnexplainedPartWarning,
    UnusedRuleWarning,
    is_strict,
    nearest,
    warn,
)
from relprop.interpreter.points import Made
from relprop.interpreter.replay import Replay
from relprop.opening.wrapped import base_model
from relprop.operations import Kind, kind
from relprop.plan import Plan, flowing, make_plan
from relprop.rollup import RollUpPlan, Stream, rollup_plan
from relprop.rules import PAPER, PRESETS, RuleSet
from relprop.rules.ruleset import named, registered
from relprop.runner.conditions import Conditions
from relprop.targets.inside import nodes_inside, reads_inside
from relprop.targets.start import Context
from relprop.tracer.binding import Inputs
from relprop.tracer.leaves import looked_up_elsewhere
from relprop.tracer.names import named as with_names
from relprop.tracer.order import Flow
from relprop.tracer.program import Program, Site, describe, place
from relprop.tracer.trace import trace_program

T = TypeVar("T")
Nodes = tuple[fx.Node, ...]
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


@dataclass
class Session:
    """One model, one input shape, one rule set; ``chosen``: the inputs that the user named to be
    explained."""

    model: nn.Module
    adapter: Adapter
    program: Program
    rules: RuleSet
    on_unknown: str
    chosen: tuple[str, ...] = ()

    def under(self, rules: RuleSet | str) -> Session:
        """The same program under another rule set."""
        return replace(self, rules=named(rules, PRESETS))

    def reading(self, targets: Sequence[object], inputs: Inputs) -> Session:
        """The same program, where the values inside it that targets name are kept, too."""
        if not reads_inside(targets):
            return self
        program = with_names(self.program, self.model, inputs)
        inside = nodes_inside(targets, program)
        made = program.memo.cache(("inside", inside), lambda: replace(program, inside=inside))
        return replace(self, program=made)

    def plan(self, starts: Nodes, wanted: frozenset[fx.Node], *, positions: bool = False) -> Plan:
        """The relevance pass from ``starts`` up to ``wanted``, and to ``positions``, too."""
        how, asked = self.on_unknown, (self.rules, starts, wanted)
        make = partial(make_plan, self.program, self.model, *asked)
        return self.kept(
            ("relevance", *asked, how, positions),
            lambda: make(on_unknown=how, positions=positions),
        )

    def notices(self, plan: Plan | None) -> tuple[RelpropWarning, ...]:
        """What the user is to be warned of: operations that took the generic rule, added rules that
        none took, and ids that are looked up more than once."""
        found = () if plan is None else (*_notice_of_generic(plan), *_notices_of_untaken(plan))
        return (*found, *_notice_of_lookups(self.constant_lookups()))

    def rollup(
        self, starts: Nodes, sites: tuple[Site, ...], read: tuple[Stream, ...] | None = None
    ) -> tuple[RollUpPlan, tuple[Stream, ...]]:
        """The roll-up pass from ``starts`` to the token tensors, or to those of ``read``."""
        return self.once(rollup_plan, self.program, starts, sites, read)

    def replay(self, changed: fx.Node, end: fx.Node) -> Replay:
        """The part of the graph from one node to another, to be run again."""
        return self.once(Replay.between, self.program, changed, end)

    def leads(self, node: fx.Node, ends: Iterable[fx.Node]) -> bool:
        """Whether any of ``ends`` depends on a node by way of values that flow."""
        flow = self.flow
        return any(e in flow.members and flow.reaches(node, e) for e in ends)

    def past_attention(self, starts: Nodes, streams: tuple[Stream, ...]) -> list[str]:
        """The explained inputs that feed a target but have no tokens in any attention: a
        convolutional tower beside a transformer."""
        leaves, scored = self.program.leaves.items(), {s.name for s in streams}
        return [n for n, leaf in leaves if n not in scored and self.leads(leaf, starts)]

    @property
    def flow(self) -> Flow:
        """The program's flowing nodes."""
        return self.kept(("flow",), lambda: flowing(self.program, PAPER))

    def context(
        self, inputs: Inputs, outputs: Mapping[fx.Node, Made], processor: object
    ) -> Context:
        """What targets are resolved against."""
        known = self.program, self.model, self.adapter, inputs, outputs, self.rules
        return Context(*known, processor=processor)

    def constant_lookups(self) -> tuple[str, ...]:
        """Where the ids of an explained input are looked up but not explained."""
        inputs = dict(zip(self.program.inputs, self.program.placeholders, strict=True))
        leaves = self.program.leaves.items()
        ids = [(name, leaf) for name, leaf in leaves if kind(leaf) is Kind.EMBEDDING]
        return self.kept(
            ("constant lookups",),
            lambda: tuple(
                f"{name!r} at {place(n)}"
                for name, leaf in ids
                for n in looked_up_elsewhere(inputs[name], leaf)
            ),
        )

    def warn_once(self, notices: Iterable[RelpropWarning]) -> None:
        """Warn of what is not as one would expect, each once for a program."""
        for notice in notices:
            if is_strict() or self.program.memo.first_time(("told", str(notice))):
                warn(notice)

    def once(self, function: Callable[..., T], *given: Hashable) -> T:
        """What a function makes of what is given, kept in the same way."""
        return self.kept((function, *given), lambda: function(*given))

    def kept(self, key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """What ``make`` gives, worked out once per program and kept with it under ``key``, until a
        registered rule changes."""
        return self.program.memo.cache((*key, registered()), make)


def _notices_of_untaken(plan: Plan) -> Iterator[RelpropWarning]:
    """Of each rule that ``with_rule`` added, the newest for its key, and no operation takes."""
    taken, added = {id(step.rule) for step in plan.steps}, plan.rules.added
    newest = [e for i, e in enumerate(added) if e.key not in [b.key for b in added[:i]]]
    ignored = [e for e in newest if taken.isdisjoint(map(id, e.rule.alternatives))]
    around = [m for n in plan.program.graph.nodes for m in place(n).modules] if ignored else []
    paths = sorted({path.split("@")[0] for path, _ in around})
    for entry in ignored:
        near = get_close_matches(str(entry.key), paths) if entry.kind == "path" else []
        near = [path for path in near if path != entry.key]
        then = [f"its modules are called like {', '.join(map(repr, near))}"] if near else []
        then += [entry.rule.named_kinds] if entry.rule.kinds else []
        yield UnusedRuleWarning(
            f"no operation that relevance passes takes the rule {entry.rule.name!r} that was added "
            f"for {entry.key!r}",
            then=[*then, "relprop.check(model, inputs, rules=...) lists the rules that are taken"],
        )


def _notice_of_generic(plan: Plan) -> Iterator[RelpropWarning]:
    if plan.generic:
        ops = sorted({str(n.target) for n in plan.generic})
        yield GenericRuleWarning(
            f"{len(plan.generic)} operations have no rule of their own and take "
            f"the generic one (Eq. 2): {', '.join(ops)}",
            at=describe(plan.generic[0]),
            then=[
                "relprop.check(model, inputs) lists them; docs/write-a-rule.md; "
                "on_unknown='error' refuses them"
            ],
        )


def _notice_of_lookups(found: tuple[str, ...]) -> Iterator[RelpropWarning]:
    if found:
        yield UnexplainedPartWarning(
            "the ids are looked up several times, and only the first lookup is explained; "
            f"constant is that of {', '.join(found[:3])}{', ...' * (len(found) > 3)}"
        )


def open_session(
    model: nn.Module, inputs: Inputs, rules: RuleSet | str, how: Conditions
) -> Session:
    """Everything about a call that does not depend on its target: checked, captured, and ready to
    plan."""
    if how.on_unknown not in ("generic", "error"):
        raise OptionError(f"on_unknown={how.on_unknown!r}: 'generic' or 'error'")
    chosen = chosen_inputs(inputs, how.explain_inputs)
    program = traced(model, inputs, chosen)
    dtype = _dtype(how.precision)
    if dtype is not None:
        plain = program
        program = plain.memo.cache(("precision", dtype), lambda: replace(plain, dtype=dtype))
    adapter = adapter_for(base_model(model))
    return Session(model, adapter, program, named(rules, PRESETS), how.on_unknown, chosen)


def traced(model: nn.Module, inputs: Inputs, chosen: tuple[str, ...] = ()) -> Program:
    """The captured model, explained at the ``chosen`` inputs, else at those that its adapter names.
    Raises ``OptionError`` for a chosen input that cannot be explained."""
    usual = adapter_for(base_model(model)).token_inputs(model, inputs)
    program = trace_program(model, inputs, chosen or usual)
    for name in chosen:
        if name not in program.leaves:
            raise OptionError(
                f"explain_inputs: {name!r} cannot be explained: it {program.constant_inputs[name]}"
            )
    return program


def chosen_inputs(inputs: Inputs, given: Sequence[str | int] | str | None) -> tuple[str, ...]:
    """The names of the inputs that ``explain_inputs=`` names, or numbers as they stand in the call;
    none for ``None``. Raises ``OptionError`` for what is no input, and for an empty list."""
    entries = [given] if isinstance(given, (str, int)) else given
    names = [f"input_{e}" if isinstance(e, int) else e for e in entries or ()]
    unknown = [e for e, name in zip(entries or (), names, strict=True) if name not in inputs.names]
    if unknown or (given is not None and not names):
        wrong = f"{unknown[0]!r} is no tensor of the call" if unknown else "it names no input"
        raise OptionError(
            f"explain_inputs={given!r}: {wrong}; there are {', '.join(map(repr, inputs.names))}",
            then=nearest(unknown[0], inputs.names) if unknown else (),
        )
    return tuple(name for name in inputs.names if name in names)


def _dtype(precision: str | torch.dtype | None) -> torch.dtype | None:
    if precision is None or (
        isinstance(precision, torch.dtype) and precision in PRECISIONS.values()
    ):
        return precision  # type: ignore[return-value]
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise OptionError(
            f"precision={precision!r}: None (the model's own), 'float32' or 'float64'"
        )
    return PRECISIONS[precision]  # type: ignore[index]
