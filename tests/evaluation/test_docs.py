"""The page on metrics: its example runs, and it has every metric with its protocols."""

import re
from pathlib import Path

import relprop.evaluation as evaluation

PAGE = (Path(__file__).parents[2] / "docs/evaluation-metrics.md").read_text()
METRICS = [getattr(evaluation, name) for name in evaluation.__all__ if hasattr(getattr(evaluation, name), "deviations") and name != "Metric"]


def test_the_example_runs(capsys):
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "evaluation-metrics.md", "exec"), {})
    assert "positive perturbation AUC of images, predicted class" in capsys.readouterr().out


def test_every_metric_is_described():
    assert len(METRICS) == 12
    for kind in METRICS:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind.__name__}`"))
        assert f"| `{kind().protocol}`" in row, kind
        assert f"`{kind.__name__}(" in PAGE, kind


def test_exports_are_sorted():
    assert sorted(evaluation.__all__) == evaluation.__all__
