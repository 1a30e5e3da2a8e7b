"""One run: forward with autograd, ∇A, relevance, roll-up, for all samples of a batch and one target after another."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from relprop.adapters import Given, Prepared, describe
from relprop.api.session import Session
from relprop.errors import InputError, NoAttentionError, OptionError, RelpropError, RelpropWarning, RollUpError, message
from relprop.explanation import Block, Explanation, TokenScores
from relprop.interpreter.backward import Hook, Walk, propagate
from relprop.interpreter.forward import Forward, forward
from relprop.interpreter.ledger import Account, Ledger
from relprop.layout import Layout, lay_out, placing
from relprop.methods import INPUT_LEVEL, Method, SiteValues, chosen_layers
from relprop.plan import Plan
from relprop.rollup import Stream
from relprop.targets import Context, Start, possible_starts, resolve
from relprop.tracer.axes import is_token
from relprop.tracer.binding import Inputs
from relprop.tracer.editing import val
from relprop.tracer.program import Program, Site, place

KEEP = frozenset({"blocks", "matrix", "input"})
MATRIX_ROWS = 64


@dataclass(frozen=True)
class Request:
    """What a call asks for, checked."""

    method: Method
    options: Mapping[str, Any]
    keep: frozenset[str]
    raw: Any = None
    hooks: Mapping[fx.Node, Hook] = field(default_factory=dict)


@dataclass
class Run:
    """A forward pass with what every target needs from it."""

    session: Session
    inputs: Inputs
    request: Request
    sites: tuple[Site, ...]
    chosen: tuple[Site, ...]
    plan: Plan | None
    forward: Forward
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def program(self) -> Program:
        """The captured model."""
        return self.session.program

    def layout(self, stream: Stream) -> Layout:
        """Where the stream's tokens came from."""
        places = placing(stream, self.session.flow)
        if not places:
            return self.session.layout(stream)
        return lay_out(self.program, stream, self.session.flow, {n: self.forward.values[n].cpu() for n in places if n in self.forward.values})

    def outputs(self) -> dict[fx.Node, Tensor]:
        """The model's outputs, batch first, attached to autograd."""
        return {n: self.forward.values[n] for n in self.program.output_nodes}


def start_run(session: Session, inputs: Inputs, targets: list[Any], request: Request) -> Run:
    """Plan, then run forward, keeping what the passes for ``targets`` read and nothing else."""
    program = session.program
    starts = _possible_starts(program, targets)
    sites = _sites(session, starts)
    chosen = tuple(sites[i] for i in chosen_layers(request.options["layers"], len(sites)))
    plan = None
    if "relevance" in request.method.needs or "input" in request.keep or request.hooks:
        wanted = frozenset(s.attention for s in chosen) | (frozenset(program.leaves.values()) if "input" in request.keep else frozenset())
        plan = session.plan(starts, wanted)
        visible = {s.contraction for s in plan.sites}
        sites, chosen = tuple(s for s in sites if s.contraction in visible), tuple(s for s in chosen if s.contraction in visible)
        _need_sites(session, sites)
    rollup, streams = session.rollup(starts, sites)
    keep = set(program.output_nodes) | rollup.keep | (plan.keep if plan is not None else set()) | {n for s in streams for n in placing(s, session.flow)}
    done = forward(program, session.model, inputs, keep, [s.attention for s in chosen])
    refuse_nonfinite(session, done)
    facts = {
        "front_end": program.front_end, "decisions": list(program.decisions), "generic": [str(n.target) for n in plan.generic] if plan is not None else [],
        "options": {k: str(v) for k, v in request.options.items()}, "attention_sites": [s.path for s in sites],
    }
    return Run(session, inputs, request, sites, chosen, plan, done, facts)


def _possible_starts(program: Program, targets: list[Any]) -> tuple[fx.Node, ...]:
    return possible_starts(program, targets)


def _sites(session: Session, starts: tuple[fx.Node, ...]) -> tuple[Site, ...]:
    """The attention sites on the way from an explained input to the target, in forward order."""
    flow = session.flow
    sites = tuple(
        s for s in session.program.sites if s.contraction in flow.members and any(e in flow.members and flow.reaches(s.contraction, e) for e in starts)
    )
    _need_sites(session, sites)
    return sites


def _need_sites(session: Session, sites: tuple[Site, ...]) -> None:
    if sites:
        return
    seen = session.program.no_sites
    reasons = "; ".join(f"the softmax at {place(n).call or 'top level'}: {why}" for n, why in seen[:3]) or "it has no softmax"
    hidden = " (its attention is inside a module that a rule of yours treats as one operation)" if session.program.sites else ""
    raise NoAttentionError(message(
        f"the model has no softmax attention over tokens between input and target{hidden}: {reasons}",
        then=[
            f"method={INPUT_LEVEL[0]!r} explains any model at its input, and so do {', '.join(map(repr, INPUT_LEVEL[1:]))}",
            "relprop.check(model, inputs) lists what was found", "relprop.instrument(model, inputs, target=...).relevance(...) gives relevance at any layer of any model",
        ],
    ))


def refuse_nonfinite(session: Session, done: Forward) -> None:
    """Raises ``InputError`` where an explainable output is NaN or infinite, and says whether a parameter is."""
    for name, node in zip(session.program.outputs.names, session.program.output_nodes, strict=True):
        value = done.values[node]
        if value.is_floating_point() and not torch.isfinite(value).all() and _is_explainable(session, node):
            bad = [n for n, p in session.model.named_parameters() if not torch.isfinite(p).all()]
            cause = f"parameter {bad[0]!r} holds NaN or infinite values" if bad else "no parameter does: the values overflow inside the model"
            raise InputError(f"the model's output {name!r} holds NaN or infinite values; {cause}")


def _is_explainable(session: Session, node: fx.Node) -> bool:
    return node in session.flow.members


def explain_target(run: Run, target: Any, *, again: bool) -> Explanation:
    """One target of a run. ``again``: another will follow, so autograd's graph is kept."""
    session = run.session
    context = Context(run.program, session.model, session.adapter, run.inputs, run.outputs(), session.rules)
    with torch.enable_grad():
        start = resolve(target, context)
    nodes = [s.attention for s in run.chosen]
    reads_gradient = "gradient" in run.request.method.needs and run.request.options.get("use_gradient", True)
    gradients = run.forward.gradients(start.scalars, nodes, again=again) if reads_gradient or "blocks" in run.request.keep else {}
    with torch.no_grad():
        walk, ledger = relevance_of(run, start)
        return _roll_up(run, start, gradients, walk, ledger)


def relevance_of(run: Run, start: Start) -> tuple[Walk, Ledger | None]:
    """The relevance pass of every term, combined linearly."""
    if run.plan is None:
        return Walk(), None
    values = {n: v.detach() if isinstance(v, Tensor) else v for n, v in run.forward.values.items()}
    total_walk: Walk | None = None
    started = None
    for term in start.contributions(values) if run.request.method.starts_with == "output" else start.terms:
        seeds = {n: s for n, s in term.seeds.items() if n in run.plan.starts}
        walk = propagate(run.plan, values, seeds, hooks=run.request.hooks)
        began = term.coefficient * sum(s.flatten(1).sum(1) for s in seeds.values())
        total_walk = _scaled(walk, term.coefficient) if total_walk is None else _added(total_walk, _scaled(walk, term.coefficient))
        started = began if started is None else started + began
    assert total_walk is not None and isinstance(started, Tensor)
    reached = {_end_name(run, n): amount for n, amount in total_walk.ended.items()}
    return total_walk, Ledger(tuple(total_walk.accounts), started.to(next(iter(reached.values())).dtype) if reached else started, reached)


def _end_name(run: Run, node: fx.Node) -> str:
    leaf = next((name for name, n in run.program.leaves.items() if n is node), None)
    return f"input {leaf}" if leaf is not None else f"attention {place(node).call}"


def _scaled(walk: Walk, c: float) -> Walk:
    if c == 1:
        return walk
    def times(m: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {k: c * v for k, v in m.items()}
    accounts = [
        Account(a.node, a.path, a.op, a.rule, c * a.arrived, abs(c) * a.absolute, c * a.to_inputs, c * a.unread, times(a.absorbed), times(a.lost))
        for a in walk.accounts
    ]
    return Walk(times(walk.found), accounts, times(walk.ended))


def _added(a: Walk, b: Walk) -> Walk:
    def plus(m: Mapping[Any, Tensor], n: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        return {k: m[k] + n[k] if k in m and k in n else m[k] if k in m else n[k] for k in (*m, *(k for k in n if k not in m))}
    by_node = {account.node: account for account in b.accounts}
    joined = [
        Account(x.node, x.path, x.op, x.rule, x.arrived + y.arrived, x.absolute + y.absolute, x.to_inputs + y.to_inputs, x.unread + y.unread,
                plus(x.absorbed, y.absorbed), plus(x.lost, y.lost)) if (y := by_node.pop(x.node, None)) is not None else x
        for x in a.accounts
    ]
    return Walk(plus(a.found, b.found), joined + list(by_node.values()), plus(a.ended, b.ended))


def _roll_up(run: Run, start: Start, gradients: Mapping[fx.Node, Tensor], walk: Walk, ledger: Ledger | None) -> Explanation:
    request, session = run.request, run.session
    at = [SiteValues(s, run.forward.watched[s.attention].detach(), gradients.get(s.attention), _found(walk, run, s)) for s in run.chosen]
    options = {k: v for k, v in request.options.items() if k not in ("layers", "normalize_rows")}
    matrices = dict(request.method.function(at, **options))
    plan, streams = session.rollup(tuple(start.field), run.sites)
    if not streams:
        raise RollUpError("the roll-up does not arrive: no explained input feeds the attention sites")
    scales = _row_scales(run, matrices) if request.options["normalize_rows"] else {}
    values = {n: v for n, v in run.forward.values.items() if n in plan.keep}
    both = {node: torch.stack([m, torch.zeros_like(m)], 1) for node, m in matrices.items()}
    field = {node: torch.cat([torch.zeros_like(f[:, :1]), f], 1) for node, f in start.field.items()}
    found = propagate(plan, values, field, extras={**both, **scales}, account=False).found
    _warn_of_nothing(request.method, matrices, at)
    matrix = _matrix(run, start, _alone(streams), matrices, scales) if "matrix" in request.keep else None
    return Explanation(
        streams={s.name: _token_scores(run, s, found.get(s.node), walk, matrix) for s in streams}, target=start.label, output=start.scalars.detach(),
        method=request.method.name, rules=session.rules.name, ledger=ledger, blocks=tuple(_block(v) for v in at) if "blocks" in request.keep else None, facts=run.facts,
    )


def _warn_of_nothing(method: Method, matrices: Mapping[fx.Node, Tensor], at: list[SiteValues]) -> None:
    """Say so where a sample's maps are all 0, and why: an explanation of nothing but zeros is no answer."""
    empty = torch.stack([~m.flatten(1).any(1) for m in matrices.values()]).all(0)
    if not bool(empty.any()):
        return
    gradients = [v.gradient[empty] for v in at if v.gradient is not None]
    still = bool(gradients) and not any(bool(g.any()) for g in gradients)
    cause = "y_t does not change with any attention map (it may be saturated, or 1 by a normalisation over the batch)" if still else "nothing positive is left at any attention map"
    warnings.warn(message(
        f"all scores of {int(empty.sum())} of {len(empty)} samples are 0: {cause}",
        then=["explain a logit instead of a probability: target=relprop.targets.output(NAME)[...]" if still else "relprop.check, or e.ledger: where relevance was lost or absorbed"],
    ), RelpropWarning, stacklevel=6)


def _token_scores(run: Run, stream: Stream, field: Tensor | None, walk: Walk, matrix: Tensor | None) -> TokenScores:
    """One input's scores; zeros where no field arrives (what it feeds are queries and keys alone)."""
    if field is None:
        scores = identity = torch.zeros(run.inputs.batch, math.prod(stream.sizes), device=run.inputs.tensors[0].device)
    else:
        scores, identity = stream.read(field).unbind(1)
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).any(1).sum())
        raise RelpropError(f"the scores of {bad} samples are not finite: relevance overflowed; precision='float64' may help")
    relevance = walk.found[stream.leaf][:, 0] if "input" in run.request.keep and stream.leaf in walk.found else None
    return TokenScores(stream.name, scores, scores + identity, identity, **described(run, stream.name, run.layout(stream)), matrix=matrix, input=relevance)


def _found(walk: Walk, run: Run, site: Site) -> Tensor | None:
    """Relevance at a site; zeros where none of it arrived (the target does not depend on it)."""
    if run.plan is None:
        return None
    return walk.found.get(site.attention, torch.zeros_like(run.forward.watched[site.attention]))


def _alone(streams: tuple[Stream, ...]) -> Stream:
    if len(streams) > 1:
        raise OptionError(f"keep='matrix' is for one explained input; the target depends on {len(streams)}: {', '.join(s.name for s in streams)}")
    return streams[0]


def described(run: Run, name: str, layout: Layout) -> dict[str, Any]:
    """What the tokens of input ``name`` are, as ``TokenScores`` has it: from where in the input by the graph, the rest by the adapter."""
    raw = run.request.raw
    given = Given(name, dict(zip(run.inputs.names, run.inputs.tensors, strict=True)), run.inputs.batch, raw if isinstance(raw, Prepared) else Prepared(None))
    places = {"source": layout.source, "grid": layout.grid, "image": layout.image, "spans": layout.spans, "extent": layout.extent}
    return places | describe(run.session.adapter, run.session.model, given, layout)


def _block(values: SiteValues) -> Block:
    """A site as users see it: one sample's leading 1 dropped, rows are queries."""
    def tidy(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        t = t.mT if values.site.transposed else t
        return t[:, 0] if t.dim() > 4 and t.shape[1] == 1 else t
    return Block(values.site.path, tidy(values.attention), tidy(values.gradient), tidy(values.relevance))  # type: ignore[arg-type]


def _row_scales(run: Run, matrices: Mapping[fx.Node, Tensor]) -> dict[fx.Node, Tensor]:
    """1/(1 + Σ_j E_h M) at the merge where each site's branch meets its identity, so that the rows of Ā sum to 1."""
    sums: dict[fx.Node, Tensor] = {}
    for site in run.chosen:
        merge = run.session.merges.identity_of(site.contraction)
        m = matrices[site.contraction]
        rows = m.sum(-2 if site.transposed else -1)
        rows = rows.flatten(1, -2).mean(1)
        axes = run.program.axes[merge] if merge is not None else ()
        tokens = [i for i, axis in enumerate(axes) if is_token(axis)]
        if merge is None or len(tokens) != 1 or val(merge).shape[tokens[0]] != rows.shape[1]:
            raise OptionError(f"normalize_rows: the rows of the attention at {site.path!r} are not the positions of one residual stream")
        shape = [run.inputs.batch, 1, *(rows.shape[1] if i == tokens[0] else 1 for i in range(len(axes)))]
        sums[merge] = sums.get(merge, 0) + rows.reshape(shape)
    return {merge: 1 / (1 + total) for merge, total in sums.items()}


def _matrix(run: Run, start: Start, stream: Stream, matrices: Mapping[fx.Node, Tensor], scales: Mapping[fx.Node, Tensor]) -> Tensor:
    """C of Eq. 14, (batch, s, s): the walk started from every position of the tensor in which the last site's result arrives."""
    contractions = tuple(s.contraction for s in run.sites)
    top = run.session.merges.last_stream(tuple(start.field), contractions, run.program.axes, stream.sizes)
    if top is None:
        raise RollUpError("keep='matrix' needs a token sequence of constant length from the first attention site to the last")
    plan, _ = run.session.rollup((top,), run.sites)
    values = {n: v for n, v in run.forward.values.items() if n in plan.keep}
    axes = [i for i, axis in enumerate(run.program.axes[top]) if is_token(axis)]
    shape = val(top).shape
    count = 1
    for i in axes:
        count *= shape[i]
    like = next(iter(matrices.values()))
    shared = {node: m.unsqueeze(1) for node, m in matrices.items()}
    rows = []
    for first in range(0, count, MATRIX_ROWS):
        some = torch.eye(count, dtype=like.dtype, device=like.device)[first:first + MATRIX_ROWS]
        marks = some.reshape(len(some), *(shape[i] if i in axes else 1 for i in range(len(shape)))).expand(len(some), *shape)
        field = torch.cat([marks, torch.ones_like(marks[:1])]).expand(run.inputs.batch, -1, *shape)
        found = propagate(plan, values, {top: field}, extras={**shared, **scales}, account=False).found
        rows.append(stream.read(found[stream.node]))
    return torch.cat(rows, 1)
