"""Where the tokens of each explained input come from: worked out once, when a flat program is
made."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from relprop.errors import RollUpError
from relprop.layout import Layout
from relprop.rollup import Stream
from relprop.runner.describe import described_by, layout_of
from relprop.runner.input_study import input_streams
from relprop.runner.needs import Needs
from relprop.runner.run import Described, Part, run
from relprop.runner.sites import reached_inputs


def laid_out(needs: Needs, part: Part, node: fx.Node) -> tuple[Mapping[str, Layout], Described]:
    """By explained input the layout of its tokens, for a target at the output ``node``, and what
    the tokens of ``part`` are."""
    done = run([needs], part)
    layouts = {s.name: layout_of(needs.session, done, s) for s in _streams(needs, node)}
    adapter, model = needs.session.adapter, needs.session.model
    return layouts, {n: described_by(adapter, model, part, n, at) for n, at in layouts.items()}


def _streams(needs: Needs, node: fx.Node) -> tuple[Stream, ...]:
    session = needs.session
    if needs.question.by.level == "input":
        return input_streams(session.program, reached_inputs(session, (node,)))
    _, streams = session.rollup((node,), needs.sites)
    if not streams:
        raise RollUpError(
            "the roll-up does not arrive: no explained input feeds the attention sites"
        )
    return streams
