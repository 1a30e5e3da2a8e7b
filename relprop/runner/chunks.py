"""Which large attention sites run some queries at a time for a question, and why others do not."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import fx

from relprop.interpreter.crossing import refusing_step
from relprop.plan import Plan
from relprop.runner.question import Question
from relprop.runner.session import Session
from relprop.tracer.chunked import large_and_whole, large_attentions
from relprop.tracer.program import place
from relprop.tracer.queries import Attention


def sites_in_chunks(
    session: Session,
    question: Question,
    plan: Plan | None,
    read: Collection[fx.Node],
    streams: int = 1,
    least: int | None = None,
) -> tuple[dict[fx.Node, Attention], list[str]]:
    """The large sites (maps of more than ``least`` bytes, or those of a chunk) whose map is never
    whole, by their contraction; and the others, each with the reason. ``read``: what else is read
    of the graph; ``streams``: how many inputs have scores over attention."""
    found = large_attentions(session.program, least)
    whole = dict(large_and_whole(session.program, least))
    by_question = next(_whole_for(question, streams), "")
    for end, attention in found.items():
        if why := by_question or _whole_here(attention, question, plan, read):
            whole[end] = why
    reasons = [f"{place(end).call or 'top level'}: {why}" for end, why in whole.items()]
    return {end: a for end, a in found.items() if end not in whole}, reasons


def _whole_for(question: Question, streams: int) -> Iterator[str]:
    """Why a question needs every map whole."""
    settings = question.settings
    if question.by.level != "attention":
        return
    if not question.by.is_row_wise(streams):
        yield f"method {question.method!r} reads whole maps"
    if kept := question.keep & {"blocks", "matrix"}:
        yield f"keep={sorted(kept)[0]!r}"
    if settings.get("head_fusion", "mean") != "mean":
        yield f"head_fusion={settings['head_fusion']!r}"
    yield from (name for name in ("discard_ratio", "normalize_rows") if settings.get(name))


def _whole_here(
    attention: Attention, question: Question, plan: Plan | None, read: Collection[fx.Node]
) -> str:
    """Why one site's map must be whole, or ""."""
    if not attention.inside.isdisjoint(question.hooks):
        return "there is a hook inside"
    if not attention.inside.isdisjoint(read):
        return "the method reads a tensor inside"
    step = None if plan is None else refusing_step(plan, attention)
    return "" if step is None else f"rule {step.rule.name!r} is not said to be row-wise"
