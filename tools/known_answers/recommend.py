"""From numbers to a recommendation, by a rule that was written down before the studies were run;
what was changed since stands there, too (docs/which-method.md, "The rule").

``better``: the 95 % interval of the paired difference lies above 0 on every data set of a kind,
and nine units in ten have a number.
``recommended``: the default, unless rows are better than it; then, of these, the one with the
smallest sum of ranks, of equal ones the cheaper. ``never``: on no data set better than random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relprop.evaluation import Interval, Numbers
from relprop.evaluation.table import ENOUGH, Column, markdown_grid

DEFAULT, RANDOM = "transformer_attribution", "random"
SHOWN = 8  # rows of a table, the best


@dataclass(frozen=True)
class Primary:
    """A data set's primary measure: of the run ``study``, the statistic ``column``."""

    study: str
    column: str
    data: str


@dataclass(frozen=True)
class Kind:
    """A kind of task and its data sets."""

    name: str
    title: str
    measures: tuple[Primary, ...]


KINDS = (
    Kind(
        "pictures",
        "Pictures, by a vision transformer",
        (
            Primary("scenes", "segmentation: mIoU", "digit scenes: mIoU (%)"),
            Primary("photographs", "share", "two photographs: share on the one asked for (%)"),
        ),
    ),
    Kind(
        "texts",
        "Texts, by a BERT",
        (
            Primary("reviews", "AOPC", "film reviews: AOPC"),
            Primary("sentences", "fall of the cosine", "sentence pairs: fall of the cosine"),
        ),
    ),
    Kind(
        "answers",
        "Answers of language models",
        (
            Primary(
                "lookups",
                "fall without the best sentence",
                "lookups: fall of the log-probability without the best sentence",
            ),
            Primary("quadrants", "share on the quarter", "pictures with words: share (%)"),
        ),
    ),
    Kind(
        "speech",
        "Words in speech, by Whisper",
        (
            *(
                Primary("speech", f"{column}: voice {voice}", f"voice {voice}, {place} (%)")
                for column, place in (
                    ("share", "from the spectrogram"),
                    ("share at the encoder's output", "from the encoder's output"),
                )
                for voice in "AB"
            ),
        ),
    ),
    Kind(
        "atoms",
        "Masked atoms of reactions, by an ALBERT",
        (
            Primary("atoms", "share: element", "single elements: share on the source (%)"),
            Primary("atoms", "share: fragment", "known fragments: share on the source (%)"),
        ),
    ),
)


def column(numbers: Numbers, name: str) -> Column:
    """A statistic of a run by the name that tables give it."""
    known = (Column(m, s) for m in numbers.measures for s in m.statistics)
    return next(c for c in known if c.name == name)


@dataclass
class Verdict:
    """What the rule says of a kind. ``cells``: by row and data set the number with its interval;
    ``differences``: less the default; ``floors``: less random, both turned so that more is better;
    ``signs``: −1 of a data set where less is."""

    kind: Kind
    cells: dict[tuple[str, str], Interval]
    differences: dict[tuple[str, str], Interval]
    floors: dict[tuple[str, str], Interval]
    seconds: dict[str, float]
    signs: dict[str, int]

    @property
    def data(self) -> list[str]:
        return [m.data for m in self.kind.measures]

    @property
    def rows(self) -> list[str]:
        """Rows with a number for nine units in ten of every data set, best rank first."""
        there = {row for row, _ in self.floors} | {DEFAULT}
        whole = [r for r in there if all(self._measured(r, d) for d in self.data)]
        return sorted(whole, key=lambda r: (self.ranks(r, whole), self.seconds.get(r, 0.0), r))

    def ranks(self, row: str, among: list[str]) -> int:
        """The sum of a row's ranks over the data sets."""
        above = 0
        for d in self.data:
            mine = self.signs[d] * self.cells[row, d].mean
            above += sum(self.signs[d] * self.cells[r, d].mean > mine + 1e-9 for r in among)
        return above

    @property
    def better(self) -> list[str]:
        """Rows that are better than the default on every data set."""
        others = [row for row in self.rows if row != DEFAULT]
        return [r for r in others if all(self.differences[r, d].low > 0 for d in self.data)]

    def _measured(self, row: str, d: str) -> bool:
        there = self.cells[DEFAULT, d].samples
        return (row, d) in self.cells and self.cells[row, d].samples >= ENOUGH * there

    @property
    def recommended(self) -> str:
        return self.better[0] if self.better else DEFAULT

    @property
    def never(self) -> list[str]:
        """Rows that are better than random on no data set."""
        return [
            r
            for r in self.rows
            if r in {row for row, _ in self.floors}
            and all(self.floors[r, d].low <= 0 for d in self.data)
        ]


def verdict(kind: Kind, found: Mapping[str, Numbers]) -> Verdict:
    """The rule on the numbers of the runs by name."""
    said = Verdict(kind, {}, {}, {}, {}, {})
    for measure in kind.measures:
        numbers, d = found[measure.study], measure.data
        at = column(numbers, measure.column)
        said.signs[d] = sign = 1 if at.higher_is_better else -1
        for row in numbers.rows:
            cell = numbers.cell(row, at)
            if cell is None or not method(row.name):
                continue
            said.cells[row.name, d] = cell.interval
            for to, other in ((said.differences, DEFAULT), (said.floors, RANDOM)):
                less = numbers.difference(row.name, other, at)
                if less is not None:
                    low, high = sorted((sign * less.low, sign * less.high))
                    to[row.name, d] = Interval(sign * less.mean, low, high, less.samples)
            cost = numbers.tables.get((row.name, "seconds"))
            if cost is not None:
                said.seconds[row.name] = float((cost[:, 0] / cost[:, 1]).median())
    return said


def method(row: str) -> bool:
    """Whether a row is a method of relprop's that knows the model, as it is or with balanced
    gradients: the rule looks at no other options."""
    from relprop.methods import METHODS

    name, *more = row.split(", ")
    return name in METHODS and name != RANDOM and more in ([], ["balanced"])


def call(row: str) -> str:
    """A row as ``relprop.explain`` takes it."""
    name, *more = row.split(", ")
    options = ['gradient="balanced"' for _ in more]
    options += ["n_steps=20"] if name == "integrated_gradients" else []
    return ", ".join([f'method="{name}"', *options])


def digits_of(said: Verdict) -> dict[str, int]:
    """How many digits the numbers of each data set are shown with."""
    largest = {d: max(abs(said.cells[r, d].mean) for r in said.rows) for d in said.data}
    return {d: 3 if most < 2 else 1 for d, most in largest.items()}


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line for each kind: what to take, its numbers beside the default's, what never to."""
    lines = ["| for | take | because | never |", "| --- | --- | --- | --- |"]
    for said in verdicts:
        take, digits = said.recommended, digits_of(said)

        def shown(row: str, d: str, said: Verdict = said, digits: dict[str, int] = digits) -> str:
            i, k = said.cells[row, d], digits[d]
            return f"{i.mean:.{k}f} [{i.low:.{k}f}, {i.high:.{k}f}]"

        because = [
            f"{d} {shown(take, d)}"
            + ("" if take == DEFAULT else f", the default {shown(DEFAULT, d)}")
            for d in said.data
        ]
        never = ", ".join(f"`{r}`" for r in said.never) or "–"
        lines.append(f"| {said.kind.title} | `{call(take)}` | {'<br>'.join(because)} | {never} |")
    return "\n".join(lines)


def markdown(said: Verdict) -> str:
    """A kind's table: the best rows by rank and the default, the number on each data set, its
    difference from the default, seconds of a repeated call; and what the rule says."""
    digits = digits_of(said)

    def cell(row: str, what: tuple[str, str]) -> str:
        kind, d = what
        if kind == "seconds":
            return f"{said.seconds[row]:.2g}" if row in said.seconds else "–"
        table = said.cells if kind == "number" else said.differences
        if kind == "difference" and row == DEFAULT:
            return "–"
        i, k, plus = table[row, d], digits[d], "+" if kind == "difference" else ""
        return f"{i.mean:{plus}.{k}f} [{i.low:{plus}.{k}f}, {i.high:{plus}.{k}f}]"

    columns: list[tuple[str, tuple[str, str]]] = []
    for d in said.data:
        columns += [(d, ("number", d)), ("less the default", ("difference", d))]
    columns.append(("s", ("seconds", "")))
    shown = said.rows[:SHOWN] + [r for r in said.rows[SHOWN:] if r == DEFAULT]
    grid = markdown_grid(shown, columns, cell, False)
    better = ", ".join(f"`{r}`" for r in said.better) or "none"
    never = ", ".join(f"`{r}`" for r in said.never) or "none"
    return "\n".join(
        [
            f"### {said.kind.title}: `{said.recommended}`",
            "",
            grid,
            "",
            f"- The best {SHOWN} of {len(said.rows)} rows, by rank.",
            f"- Better than the default on all: {better}.",
            f"- Better than random on none: {never}.",
        ]
    )
