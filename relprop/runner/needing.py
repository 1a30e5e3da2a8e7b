"""What a question needs of the forward pass, worked out before it runs: over attention, and at the
input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from relprop.errors import OptionError, TargetError
from relprop.interpreter.forms import forms_of, gradient_forms, rounding
from relprop.interpreter.reading import reading_of
from relprop.layout import placing
from relprop.plan import Plan
from relprop.rollup import block_input, layer_outputs
from relprop.rules import RuleSet
from relprop.rules.presets import gradient_name
from relprop.runner.method import chosen_layers
from relprop.runner.needs import ONE_GRADIENT, Backward, Heads, Needs, own_readout, sites_in_chunks
from relprop.runner.positions import PositionScores
from relprop.runner.question import Question
from relprop.runner.session import Nodes, Session
from relprop.runner.sites import (
    named_nodes,
    notice_of_inputs,
    reached_inputs,
    refuse_unmixed,
    require_sites,
    sites_between,
)
from relprop.targets.resolve import possible_starts, reads_more
from relprop.tracer.forms import PLAIN, Forms
from relprop.tracer.program import Site
from relprop.tracer.readout import Indices
from relprop.tracer.weights import fetched


def needs_of(
    session: Session,
    question: Question,
    targets: Sequence[object],
    least: int | None = None,
    indices: Indices | None = None,
) -> Needs:
    """What a question needs to be answered for any of ``targets``. Raises what makes it impossible
    for this model. Attention maps of more than ``least`` bytes, or those of a chunk, are never
    whole, where they need not be; ``indices``: nor are these outputs."""
    starts = possible_starts(session.program, list(targets))
    asked = _Asked(session, question, targets, starts, least, indices or {})
    return asked.over_attention() if question.by.level == "attention" else asked.at_input()


@dataclass(frozen=True)
class _Asked:
    """A question about some targets, which relevance may start from at ``starts``; ``least`` and
    ``indices`` as ``needs_of`` has them."""

    session: Session
    question: Question
    targets: Sequence[object]
    starts: Nodes
    least: int | None
    indices: Indices

    @cached_property
    def ends(self) -> Nodes:
        """Those of the starts that depend on what is explained."""
        return tuple(s for s in self.starts if s in self.session.flow.members)

    def at_input(self) -> Needs:
        """What a method at the input needs. Raises ``OptionError`` for what only attention has."""
        session, question = self.session, self.question
        if others := sorted(question.keep - {"input"}):
            has = f"method {question.method!r} has 'input' to keep"
            raise OptionError(f"keep={others} is for methods over attention; {has}")
        reached = reached_inputs(session, self.ends)
        if unread := [name for name in session.chosen if name not in reached]:
            fact = f"the target does not depend on input {unread[0]!r}"
            known = ", ".join(repr(name) for name in session.chosen if name in reached)
            raise TargetError(fact, then=[f"it depends on {known or 'no input'}: explain_inputs="])
        leaves, wanted = tuple(reached.values()), frozenset(reached.values())
        passed, scored = "relevance" in question.needs, question.settings.get("positions") is True
        plan = session.plan(self.ends, wanted, positions=scored) if passed else None
        positions = PositionScores.of(session, plan, reached) if scored else None
        inside = () if positions is None else positions.nodes
        in_chunks, whole_maps = sites_in_chunks(session, question, plan, inside, least=self.least)
        facts, forms = self._facts(plan) | {"whole_maps": whole_maps}, PLAIN
        notices = session.notices(plan)
        if plan is not None:
            apart = "gradient" in question.needs and "the method reads plain gradients, too"
            found = question.why_walked or apart or forms_of(plan)
            facts["relevance"] = f"walked: {found}" if isinstance(found, str) else ONE_GRADIENT
            forms = forms if isinstance(found, str) else found
        balanced = forms_for_gradients(session, question.balance, self.ends, leaves, ())
        if once := forms is not PLAIN:
            plan, balanced = None, forms
        heads = self._heads(plan, self.ends, once=once)
        return Needs(
            session,
            question,
            held=wanted.union(() if positions is None else positions.read),
            watch=(*leaves, *inside) if once or "gradient" in question.needs else (),
            backward=Backward(session.program, plan, None, balanced, in_chunks, heads),
            positions=positions,
            facts=facts,
            notices=notices,
        )

    def over_attention(self) -> Needs:
        """What a method over attention needs."""
        session, question = self.session, self.question
        plan, sites, chosen = self._on_the_way()
        rollup, streams = session.rollup(self.starts, sites)
        refuse_unmixed(session, sites, streams)
        apart = session.past_attention(self.starts, streams)
        outputs, features = self._layer_outputs(sites, chosen), self._features(chosen)
        held = (
            {n for s in streams for n in placing(s, session.flow)}
            | {*outputs.values(), *features}
            | self._read_by_method(chosen, outputs)
        ) - fetched(session.program, session.model).keys()  # read again where they are asked for
        read = rollup.keep | held
        in_chunks, whole_maps = sites_in_chunks(
            session, question, plan, read, len(streams), self.least
        )
        whole = [s for s in chosen if s.contraction not in in_chunks]
        leaves = tuple(session.program.leaves.values())
        forms = forms_for_gradients(session, question.balance, self.ends, leaves, whole)
        heads, watch = self._heads(plan, self.starts), [s.attention for s in whole]
        if "gradient" in question.needs:  # and at the results of sites in chunks, at hidden states
            watch += [s.contraction for s in chosen if s.contraction in in_chunks]
            watch += [*(outputs.values() if "hidden" in question.needs else ()), *features]
        return Needs(
            session,
            question,
            held=frozenset(
                held.union(s.attention for s in sites if s.contraction not in in_chunks)
            ),
            watch=tuple(watch),
            backward=Backward(session.program, plan, rollup, forms, in_chunks, heads),
            sites=sites,
            chosen=chosen,
            layers=outputs,
            features=features,
            facts=self._facts(plan)
            | {
                "attention_sites": [s.path for s in sites],
                "whole_maps": whole_maps,
                "softmaxes_without_site": session.program.softmaxes_without_site,
                "inputs_without_attention": apart,
            },
            notices=(*session.notices(plan), *notice_of_inputs(streams, apart)),
        )

    def _heads(self, plan: Plan | None, starts: Nodes, *, once: bool = False) -> Heads:
        """How the end of the graph is passed. ``once``: relevance is one gradient."""
        program, question = self.session.program, self.question
        own = set(program.output_nodes)  # what is inside has other readers
        begun = [n for n in plan.starts if n in own] if plan else []
        read = {n: reading_of(plan, n, question.hooks) for n in begun} if plan else {}
        ends = starts if once or "gradient" in question.needs else self.indices
        return Heads(
            {n: reading for n, reading in read.items() if reading is not None},
            {n: r for n in ends if n in own and (r := own_readout(n)) is not None},
            self.indices,
            not any(reads_more(target, program) for target in self.targets),
        )

    def _on_the_way(self) -> tuple[Plan | None, tuple[Site, ...], tuple[Site, ...]]:
        """The relevance pass down to the chosen attention maps, and to the inputs if they are kept;
        the attention sites between the inputs and the starts, and those of them that ``layers=``
        names; without the sites inside modules that a rule passes as a whole."""
        session, question = self.session, self.question
        sites = sites_between(session, self.starts)
        chosen = tuple(sites[i] for i in chosen_layers(question.settings.get("layers"), len(sites)))
        at_input = "input" in question.keep
        if not ("relevance" in question.needs or at_input or question.hooks):
            return None, sites, chosen
        leaves = session.program.leaves.values() if at_input else ()
        plan = session.plan(self.starts, frozenset((*(s.attention for s in chosen), *leaves)))
        visible = {s.contraction for s in plan.sites}
        seen = tuple(s for s in sites if s.contraction in visible)
        require_sites(session, seen)
        return plan, seen, tuple(s for s in chosen if s.contraction in visible)

    def _layer_outputs(
        self, sites: tuple[Site, ...], chosen: tuple[Site, ...]
    ) -> dict[Site, fx.Node]:
        """The outputs of the chosen sites' layers, for methods over hidden states and values."""
        if not self.question.needs & {"hidden", "values"}:
            return {}
        program, flow = self.session.program, self.session.flow
        found = self.session.once(layer_outputs, program, flow, sites, self.ends)
        return {s: found[s] for s in chosen if s in found}

    def _features(self, chosen: tuple[Site, ...]) -> Nodes:
        """The tensors that ``target_layers=`` names, or what the last chosen site's queries, keys
        and values come from."""
        if "features" not in self.question.needs:
            return ()
        program = self.session.program
        above = block_input(program, self.session.flow, chosen[-1])
        named = named_nodes(program, self.question.settings.get("target_layers"))
        return named or tuple(n for n in [above] if n is not None)

    def _read_by_method(
        self, chosen: tuple[Site, ...], layers: Mapping[Site, fx.Node]
    ) -> set[fx.Node]:
        """What else the method itself looks at: inputs, values, and nodes that it names."""
        session, question, reads = self.session, self.question, self.question.by.reads
        found = set() if reads is None else reads(session, chosen, question.settings)
        if "inputs" in question.needs:
            found |= set(session.program.leaves.values())
        for site, end in layers.items() if "values" in question.needs else ():
            found |= {site.values, site.attention, *session.replay(site.values, end).extra}
        return found

    def _facts(self, plan: Plan | None) -> dict[str, object]:
        """How an explanation is made, for ``Explanation.facts``."""
        program, question = self.session.program, self.question
        return {
            "front_end": program.front_end,
            "graph": program.made or "captured",
            "stored": program.stored,
            "decisions": list(program.decisions),
            "constant_inputs": dict(program.constant_inputs),
            "segments": 1,
            "constant_lookups": list(self.session.constant_lookups()),
            "generic": [str(n.target) for n in plan.generic] if plan is not None else [],
            "options": {k: str(v) for k, v in question.settings.items()},
        } | ({} if question.balance is None else {"gradient": question.balance.name})


def forms_for_gradients(
    session: Session, rules: RuleSet | None, starts: Nodes, leaves: Nodes, whole: Sequence[Site]
) -> Forms:
    """What stands in place of the graph's calls for gradients that follow ``rules`` (``None``: the
    model's own). Raises ``OptionError`` where these have no gradient forms for this model."""
    if rules is None:
        return PLAIN
    plan = session.under(rules).plan(starts, frozenset(leaves))
    found = gradient_forms(plan, frozenset(s.contraction for s in whole))
    if isinstance(found, str):
        fact = f"gradient={gradient_name(rules)!r}: {found}"
        other = "gradient='balanced'" if not rounding(plan) else "precision='float32'"
        raise OptionError(fact, then=[other, "gradient='model'"])
    return found
