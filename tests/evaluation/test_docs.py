"""The page on metrics: its example runs, and it has every metric with its protocols."""

import re
from pathlib import Path

import pytest

import relprop.evaluation as evaluation

PAGE = (Path(__file__).parents[2] / "docs/evaluation-metrics.md").read_text()
METRICS = [
    getattr(evaluation, name)
    for name in evaluation.__all__
    if hasattr(getattr(evaluation, name), "deviations") and name != "Metric"
]


def test_the_example_runs(capsys):
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "evaluation-metrics.md", "exec"), {})
    assert "positive perturbation AUC of images, predicted class" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_of_tables_has_a_place_for_each_and_its_example_runs(capsys):
    from tools.evaluation.papers import TABLES

    page = (Path(__file__).parents[2] / "docs/evaluation.md").read_text()
    for name in (*(paper.key for paper in TABLES), "all-digit_scenes", "all-reviews", "all-sanity"):
        place = page.split(f"<!-- {name}: generated -->")[1].split(f"<!-- /{name} -->")[0]
        assert "| transformer_attribution |" in place, name
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        small = block.replace("digit_scenes(20)", "digit_scenes(3)").replace(
            "(20, seed", "(4, seed"
        )
        exec(compile(small, "evaluation.md", "exec"), {})
    said = capsys.readouterr().out
    assert "| brightness |" in said and "lrp_gamma: 4 settings tried" in said


def test_every_metric_is_described():
    assert len(METRICS) == 15
    for kind in METRICS:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind.__name__}`"))
        assert f"| `{kind().protocol}`" in row, kind
        assert f"`{kind.__name__}(" in PAGE, kind


def test_exports_are_sorted():
    assert sorted(evaluation.__all__) == evaluation.__all__
