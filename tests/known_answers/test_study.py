"""Studies: how they run into a folder, how their numbers become tables, and what the rule says of
them. The study here is made of numbers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from tools.known_answers.page import table
from tools.known_answers.recommend import Kind, Primary, call, markdown, summary, verdict
from tools.known_answers.rows import block, noise, share
from tools.known_answers.study import Column, Value, measure, read

LEVELS = {"transformer_attribution": 0.5, "gae": 0.8, "rollout": 0.05, "lrp": 0.9, "random": 0.1}


@dataclass
class Made:
    """Two samples of each unit. ``lrp`` is measured on the first two units alone, ``cat`` on
    none."""

    count: int = 8
    refused: Mapping[str, str] = field(default_factory=lambda: {"cat": "no such thing"})
    name: ClassVar[str] = "made"
    title: ClassVar[str] = "Numbers"
    units: ClassVar[str] = "lots"
    samples: ClassVar[str] = "things"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("share", True, 100),
        Column("loss", False),
        Column("seconds", False),
    )
    rows: ClassVar[tuple[str, ...]] = (*LEVELS, "cat")

    def __len__(self) -> int:
        return self.count

    def key(self, unit: int) -> str:
        return f"lot {unit}"

    def identity(self) -> dict[str, Any]:
        return {"count": self.count}

    def __call__(self, unit: int) -> list[Value]:
        found = []
        for row, level in LEVELS.items():
            if row == "lrp" and unit > 1:
                continue
            for sample in "ab":
                number = level + 0.02 * float(noise(unit, 1))
                found.append(Value(sample, row, "share", number))
                found.append(Value(sample, row, "loss", -number))
            found.append(Value("a", row, "seconds", 0.25 if unit else float("nan")))
        return found


KINDS = Kind("made", "Made", (Primary("one", "share", "one"), Primary("one", "loss", "two")))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return measure(Made(), tmp_path_factory.mktemp("runs") / "made", progress=False)


@pytest.mark.slow
def test_the_mean_is_over_samples_and_rows_of_fewer_units_are_compared_on_those(numbers):
    made = numbers.table(columns=["share", "loss"])
    whole = made["gae", "share"].interval
    assert whole.mean == pytest.approx(80 + 2 * sum(float(noise(u, 1)) for u in range(8)) / 8)
    assert whole.samples == 8 and whole.low <= whole.mean <= whole.high
    few = made["lrp", "share"]
    assert few.interval.samples == 2 and few.above_random.mean == pytest.approx(80)
    assert made["rollout", "loss"].worse_than_random(False)
    assert list(numbers.refused) == ["cat"]


def test_what_was_run_is_read_again_and_goes_on(tmp_path):
    few = measure(Made(3), tmp_path / "few", progress=False)
    again = measure(Made(3), tmp_path / "few", progress=False, resume=True)
    read_back = read(Made(3), tmp_path / "few")
    for one in (again, read_back):
        assert one.tables.keys() == few.tables.keys() and dict(one.refused) == dict(few.refused)
        assert all(torch.equal(one.tables[at], few.tables[at]) for at in few.tables)


def test_the_rule_takes_what_is_better_on_both(numbers):
    said = verdict(KINDS, {"one": numbers})
    assert said.better == ["gae"] == [said.recommended]  # lrp: of two units in eight
    assert said.never == ["rollout"] and said.rows[-1] == "rollout"
    assert not {"random", "cat", "lrp"} & set(said.rows)
    assert said.differences["gae", "two"].mean == pytest.approx(0.3)
    page = markdown(said)
    assert page.startswith("### Made: `gae`")
    assert "Better than random on none: `rollout`." in page
    one_line = summary([said]).splitlines()[-1]
    assert one_line.startswith('| Made | `method="gae"` | one 81.')
    assert one_line.endswith("| `rollout` |") and "the default 51." in one_line


def test_a_row_is_written_as_a_call():
    assert call("gae, balanced") == 'method="gae", gradient="balanced"'
    assert call("lrp") == 'method="lrp"'


@pytest.mark.slow
def test_without_anything_better_the_default_stays(numbers):
    few = verdict(KINDS, {"one": numbers})
    for row in ("gae", "lrp"):
        few.cells = {at: v for at, v in few.cells.items() if at[0] != row}
    assert few.better == [] and few.recommended == "transformer_attribution"


def test_a_page_has_seconds_without_an_interval_and_says_what_was_left_out(numbers):
    page = table(Made(), numbers)
    assert "| gae | 81." in page and "| 0.25 |" in page and "seconds" not in page.split("\n\n")[1]
    assert "8 lots, 16 things" in page and "`cat`: no such thing." in page


def test_a_share_is_that_of_the_positive_part():
    truth = torch.tensor([True, False, False])
    assert share(torch.tensor([1.0, 1.0, -2.0]), truth) == 0.5
    assert share(torch.tensor([-1.0, 0.0, -2.0]), truth) == 0.0


def test_units_are_worked_out_in_blocks():
    made = []
    unit = block(lambda first: made.append(first) or [first, first + 1, first + 2], 3)
    assert [unit(i) for i in range(7)] == list(range(7)) and made == [0, 3, 6]
