"""What ``check`` reports, and how it is printed: the operations with their rules, the attention
sites, whether the roll-up arrives, and what is constant, unknown or other than one would expect."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from relprop.methods import METHODS
from relprop.views.html_tables import table


@dataclass(frozen=True)
class Row:
    """One line of the table: an operation on the relevance path, on how many nodes, and the rule
    they take."""

    operation: str
    nodes: int
    family: str
    rule: str


@dataclass(frozen=True)
class Need:
    """About how many bytes an explanation takes beside the model, for inputs ``longer`` times as
    long as these: in one piece, and in as many segments as ``memory=`` may make of it."""

    longer: int
    whole: int
    least: int

    def __str__(self) -> str:
        sizes = f"{_megabytes(self.whole)}, in segments {_megabytes(self.least)}"
        return sizes if self.longer == 1 else f"for {self.longer} × the tokens {sizes}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:.2g} MB"


@dataclass(frozen=True, kw_only=True)
class Captured:
    """How the model was captured, and how it compares with its graph: see ``Report``."""

    front_end: str = ""
    decisions: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    constant_inputs: tuple[str, ...] = ()
    constant_lookups: tuple[str, ...] = ()
    capture_error: str = ""
    compared: str = ""
    functions: tuple[str, ...] = ()
    gradient_error: str = ""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Where the roll-up arrives: the inputs whose tokens it reaches and those that pass no
    attention, or why it reaches none."""

    rollup: tuple[str, ...] = ()
    past_attention: tuple[str, ...] = ()
    rollup_error: str = ""


@dataclass(frozen=True, kw_only=True)
class Report(Captured, Arrival):
    """What ``check`` found; ``print`` it. ``ok``: captured and equal to the model, no unknown op,
    the roll-up arrives. A generic op is a warning.

    ``compared`` says what came of running the model itself. ``functions`` are its classes of
    ``torch.autograd.Function`` with a backward of their own: the derivative of what their forward
    does is used in its place. ``gradient_error`` says that this is another gradient, which
    ``explain`` refuses where it needs one. ``memory``: what the default method takes beside the
    model, at this length and at others. ``texts``: whether an explained input is ids.

    A model without token attention is not ``ok``, since the default method does not apply to it,
    but it can be explained at its input: see ``methods``.
    """

    rules: str
    rows: tuple[Row, ...] = ()
    sites: tuple[str, ...] = ()
    softmaxes_without_site: tuple[str, ...] = ()
    unrecognised: tuple[str, ...] = ()
    generic: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    hidden_sites: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()
    memory: tuple[Need, ...] = ()
    texts: bool = False

    @property
    def ok(self) -> bool:
        """Whether the default method can be used as it is."""
        return not (self.capture_error or self.unknown or self.rollup_error or self.gradient_error)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that apply: over attention only if the roll-up arrives, with relevance only
        if no op is unknown, to texts only if there is one."""
        if self.capture_error or not self.rows:
            return ()
        return tuple(
            m.name
            for m in METHODS.values()
            if not (self.rollup_error and m.level == "attention")
            and (self.texts or not m.texts)
            and not (self.unknown and "relevance" in m.needs)
            and not (self.gradient_error and "gradient" in m.needs)
        )

    def __str__(self) -> str:
        if self.capture_error:
            return f"check: NOT OK\n{self.capture_error}"
        refused = "NOT OK for the default method" if self.methods else "NOT OK"
        verdict = "ok" if self.ok else refused
        head = f"check: {verdict}; rules {self.rules!r}; captured by {self.front_end}"
        return "\n".join(
            [f"{head}, {self.compared}", "", *self._table(), "", *self._summary(), *self._remarks()]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rest = str(self).split("\n\n")
        rows = [(r.operation, r.nodes, r.family, r.rule) for r in self.rows]
        made = table(("operation", "nodes", "family", "rule"), rows) if rows else ""
        after = "\n\n".join(rest[1:] if rows else rest)
        broken = f'<pre style="white-space:pre-wrap">{html.escape(after)}</pre>'
        return f"<p><b>{html.escape(head)}</b></p>{made}{broken}"

    def _table(self) -> Iterator[str]:
        """The operations, each with its rule."""
        width = max([len(r.operation) for r in self.rows], default=9)
        wide = max([len(r.rule) for r in self.rows], default=4)
        yield f"  {'operation':<{width}}  {'nodes':>5}  {'family':<8}  rule"
        yield f"  {'-' * width}  {'-' * 5}  {'-' * 8}  {'-' * wide}"
        for r in self.rows:
            yield f"  {r.operation:<{width}}  {r.nodes:>5}  {r.family:<8}  {r.rule}"

    def _summary(self) -> Iterator[str]:
        """Sites, where the roll-up arrives, and the methods that apply."""
        first = ", ".join(self.sites[:4]) + (", ..." if len(self.sites) > 4 else "")
        yield f"  attention sites      {len(self.sites)}" + (f": {first}" if self.sites else "")
        yield f"  roll-up arrives at   {', '.join(self.rollup) if self.rollup else 'nothing'}"
        yield f"  methods that apply   {', '.join(self.methods)}"
        if self.memory:
            yield f"  memory, about        {'; '.join(map(str, self.memory))}"

    def _remarks(self) -> Iterator[str]:
        """A line for everything that is not as one would expect."""
        for title, entries in (
            ("no site", self.softmaxes_without_site),
            ("attention without a softmax", self.unrecognised),
            ("generic rule", self.generic),
            ("UNKNOWN", self.unknown),
            ("hidden site", self.hidden_sites),
            ("constant input", self.constant_inputs),
            ("constant lookup", self.constant_lookups),
            ("input past all attention (no scores over attention)", self.past_attention),
            ("detach (gradient stops, relevance passes)", self.detached),
            ("baked decision", self.decisions),
            ("random numbers, drawn once", self.draws),
            ("backward of its own (the derivative of its forward is used)", self.functions),
        ):
            yield from (f"  {title}: {entry}" for entry in entries)
        yield from (f"  {e}" for e in (self.rollup_error, self.gradient_error) if e)
