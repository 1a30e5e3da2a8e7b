"""One target of a run for a method over attention: gradients, relevance, the method, and the
roll-up of what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from relprop.api.attribution import output_from, tidied
from relprop.api.naming import names_of
from relprop.api.projection import projected_norms, sum_norms
from relprop.api.rolling import Pairs, Rolling
from relprop.api.run import Run, described, relevance_of
from relprop.errors import OptionError, RelpropError, message, warn
from relprop.explanation import Block, Explanation, TokenScores
from relprop.interpreter.backward import Walk
from relprop.interpreter.forward import detached
from relprop.methods import AttentionValues, LayerValues, SiteValues, TokenMap
from relprop.numerics import at_least_float32
from relprop.rollup import Stream, token_axes
from relprop.targets import Start
from relprop.tracer.editing import val
from relprop.tracer.program import Site


def explain_start(
    run: Run, target: Any, start: Start, gradients: Mapping[fx.Node, Tensor]
) -> Explanation:
    """What the run's method says of a target. ``gradients``: ∂y_t/∂ at the run's watched nodes, for
    a method that needs them."""
    with torch.no_grad():
        walk, ledger = relevance_of(run, start)
        at = tuple(
            SiteValues(
                s,
                _wide(run.forward.watched[s.attention].detach()),
                _wide(gradients.get(s.attention)),
                _found(walk, run, s),
            )
            for s in run.chosen
        )
        rolling = Rolling(run, start, at)
        known = {s.name: described(run, s.name, run.layout(s)) for s in rolling.streams}
        connected = rolling.connected()
        read = {n: k["content"] & connected[n].to(k["content"].device) for n, k in known.items()}
        method, options = run.request.method, run.request.options
        found = method.function(
            _view(run, rolling, known, read, target, start, gradients),
            **{k: v for k, v in options.items() if k in method.own_options()},
        )
        matrix, layers, scores = (
            None,
            dict[str, Tensor](),
            _rolled_up(rolling, found) if _is_matrices(found) else _token_maps(found),
        )
        scores = {
            name: (_where(connected[name], part), identity)
            for name, (part, identity) in scores.items()
        }
        _warn_of_nothing(scores, at)
        if "matrix" in run.request.keep:
            if not _is_matrices(found):
                raise OptionError(f"keep='matrix': method {method.name!r} multiplies no matrices")
            matrix = rolling.matrix(rolling.fused(found))
        if "layers" in run.request.keep:
            layers = {n: _where(connected[n][:, None], m) for n, m in _layers(run, found).items()}
        streams = {
            s.name: _token_scores(
                run, s, known[s.name], scores[s.name], walk, matrix, layers.get(s.name)
            )
            for s in rolling.streams
            if s.name in scores
        }
        labels, probability = names_of(run, start)
    return Explanation(
        streams=streams,
        target=start.label,
        output=start.scalars.detach(),
        method=method.name,
        rules=run.session.rules.name,
        ledger=ledger,
        blocks=tuple(_block(v) for v in at) if "blocks" in run.request.keep else None,
        facts=run.facts,
        labels=labels,
        probability=probability,
    )


def _view(
    run: Run,
    rolling: Rolling,
    known: Mapping[str, Mapping[str, Any]],
    content: Mapping[str, Tensor],
    target: Any,
    start: Start,
    gradients: Mapping[fx.Node, Tensor],
) -> AttentionValues:
    """The run as a method sees it. ``known``: what each input's tokens are; ``content``: those of
    them that are content and that the target reads."""
    values = run.forward.values

    def at(node: fx.Node, site: Site | None = None) -> LayerValues:
        return LayerValues(
            node,
            _wide(values[node].detach()),
            _wide(gradients.get(node)),
            token_axes(run.program, node),
            site,
        )

    def replay(changed: fx.Node, end: fx.Node, variants: Tensor) -> Tensor:
        segment, own = run.session.segment(changed, end), run.program.dtype or val(changed).dtype
        dtype = at_least_float32(own)
        if dtype != own:  # small differences are not for half precision
            segment = replace(segment, program=replace(run.program, dtype=dtype, memo={}))
        return segment.run(
            {n: _wide(detached(values[n])) for n in segment.beside}, variants.to(dtype)
        )

    def output(name: str, value: Tensor) -> Tensor:
        leaves = run.program.leaves
        inputs = {
            n: value if n == name else tidied(values[leaf].detach(), leaf)
            for n, leaf in leaves.items()
        }
        return output_from(run, target, start, tuple(leaves.values()))(*inputs.values())

    return AttentionValues(
        sites=rolling.at,
        layers=[at(node, site) for site, node in run.layers.items()],
        content=content,
        last=rolling.last(),
        rows=rolling.rows,
        heads=rolling.heads,
        head_means=rolling.head_means,
        place=rolling.place,
        identity=rolling.identity,
        reads=rolling.reads,
        dense=rolling.dense,
        move=rolling.move,
        value=lambda node: values[node].detach(),
        replay=replay,
        received=rolling.received,
        same_tokens=rolling.same_tokens,
        features=[at(n) for n in run.features],
        run=run,
        output=output,
        projected_norms=lambda v: projected_norms(
            run.session, v, rolling.head_axes(v), replay, values[v.site.values].detach()
        ),
        sum_norms=lambda v: sum_norms(
            run.session,
            v,
            rolling.head_axes(v),
            replay,
            {n: detached(x) for n, x in values.items()},
        ),
        grids={
            name: (k["grid"], k["image"]) if k["grid"] and k["image"] else None
            for name, k in known.items()
        },
        inputs={s.name: tidied(values[s.leaf].detach(), s.leaf) for s in rolling.streams}
        if "inputs" in run.request.needs
        else {},
    )


def _wide(value: Any) -> Any:
    """What a model of half precision computed, in float32: fields and relevance are at least
    that."""
    return (
        value.to(at_least_float32(value.dtype))
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
    )


def _where(connected: Tensor, numbers: Tensor) -> Tensor:
    """Exactly 0 at tokens that have no part in the target (a method's own numbers may be rounding
    there, or a gradient)."""
    return torch.where(connected, numbers, 0)


def _is_matrices(found: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, fx.Node) for key in found)


def _rolled_up(rolling: Rolling, matrices: Mapping[fx.Node, Tensor]) -> Pairs:
    return rolling.product(rolling.fused(matrices))


def _token_maps(found: Mapping[str, TokenMap]) -> Pairs:
    return {
        name: (m.scores, torch.zeros_like(m.scores) if m.identity is None else m.identity)
        for name, m in found.items()
    }


def _layers(run: Run, found: Mapping[Any, Any]) -> dict[str, Tensor]:
    """The parts of the scores by layer. Raises ``OptionError`` for a method that has none."""
    layers = (
        {}
        if _is_matrices(found)
        else {name: m.layers for name, m in found.items() if m.layers is not None}
    )
    if not layers:
        raise OptionError(
            f"keep='layers': method {run.request.method.name!r} has no scores by layer"
        )
    return layers


def _token_scores(
    run: Run,
    stream: Stream,
    known: Mapping[str, Any],
    pair: tuple[Tensor, Tensor],
    walk: Walk,
    matrix: Tensor | None,
    layers: Tensor | None,
) -> TokenScores:
    """One input's scores, with what its tokens are."""
    scores, identity = pair
    if not torch.isfinite(scores).all():
        bad = int((~torch.isfinite(scores)).any(1).sum())
        raise RelpropError(
            f"the scores of {bad} samples are not finite: relevance overflowed; "
            "precision='float64' may help"
        )
    relevance = (
        walk.found[stream.leaf][:, 0]
        if "input" in run.request.keep and stream.leaf in walk.found
        else None
    )
    return TokenScores(
        stream.name,
        scores,
        scores + identity,
        identity,
        **known,
        matrix=matrix,
        input=relevance,
        layers=layers,
    )


def _warn_of_nothing(scores: Pairs, at: tuple[SiteValues, ...]) -> None:
    """Say so where all scores of a sample are 0, and why: an explanation of nothing but zeros is no
    answer."""
    empty = torch.stack([~s.any(1) for s, _ in scores.values()]).all(0)
    if not bool(empty.any()):
        return
    gradients = [v.gradient[empty] for v in at if v.gradient is not None]
    still = bool(gradients) and not any(bool(g.any()) for g in gradients)
    cause = (
        (
            "y_t does not change with any attention map (it may be saturated, or 1 by a "
            "normalisation over the batch)"
        )
        if still
        else "nothing positive is left at any attention map"
    )
    warn(
        message(
            f"all scores of {int(empty.sum())} of {len(empty)} samples are 0: {cause}",
            then=[
                "explain a logit instead of a probability: target=relprop.targets.output(NAME)[...]"
                if still
                else "relprop.check, or e.ledger: where relevance was lost or absorbed"
            ],
        )
    )


def _found(walk: Walk, run: Run, site: Site) -> Tensor | None:
    """Relevance at a site; zeros where none of it arrived (the target does not depend on it)."""
    if run.plan is None:
        return None
    return walk.found.get(site.attention, torch.zeros_like(run.forward.watched[site.attention]))


def _block(values: SiteValues) -> Block:
    """A site as users see it: one sample's leading 1 dropped, rows are queries."""

    def tidy(t: Tensor | None) -> Tensor | None:
        if t is None:
            return None
        t = t.mT if values.site.transposed else t
        return t[:, 0] if t.dim() > 4 and t.shape[1] == 1 else t

    return Block(
        values.site.path,
        tidy(values.attention),  # type: ignore[arg-type]
        tidy(values.gradient),
        tidy(values.relevance),  # type: ignore[arg-type]
    )
