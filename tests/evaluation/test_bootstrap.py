"""The bootstrap: known intervals, reproducible, and refusals."""

import importlib
import math

import pytest
import torch

from relprop.errors import InputError, OptionError
from relprop.evaluation import bootstrap
from relprop.evaluation.base import needed


def test_of_a_normal_sample():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found, half = bootstrap(values), 1.96 * float(values.std()) / math.sqrt(400)
    assert found.mean == pytest.approx(float(values.mean()), rel=1e-12) and found.samples == 400
    assert found.low == pytest.approx(
        found.mean - half, abs=0.1 * half
    ) and found.high == pytest.approx(found.mean + half, abs=0.1 * half)


def test_of_two_samples():
    """Means of two draws from {0, 1}: 0 and 1 a quarter of the time each."""
    assert (bootstrap([0, 1]).low, bootstrap([0, 1]).mean, bootstrap([0, 1]).high) == (
        0.0,
        0.5,
        1.0,
    )


def test_seed_and_draws():
    values = torch.arange(30.0)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1) != bootstrap(values, seed=2)
    assert bootstrap(values, 50) != bootstrap(values, 2000)
    assert bootstrap([3.0, 3.0]).low == bootstrap([3.0, 3.0]).high == 3


def test_of_a_statistic():
    table = torch.rand(20, 2, dtype=torch.float64)
    mean = bootstrap(table, 300, statistic=lambda t: float(t[:, 0].mean()))
    assert mean.low == pytest.approx(bootstrap(table[:, 0], 300).low, rel=1e-12)
    ratio = bootstrap(
        torch.stack([2 * table[:, 0], table[:, 0]], 1),
        100,
        statistic=lambda t: float(t[:, 0].sum() / t[:, 1].sum()),
    )
    assert ratio.low == pytest.approx(2, rel=1e-12) and ratio.high == pytest.approx(2, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0], "at least 2 samples"),
        ([1.0, math.nan], "1 values are NaN"),
        ([[1.0], [2.0]], r"\(samples,\)"),
    ],
)
def test_refused(values, text):
    with pytest.raises(InputError, match=text):
        bootstrap(values)


def test_no_draws():
    with pytest.raises(OptionError, match="draws=0"):
        bootstrap([1, 2], 0)


def test_a_missing_library_names_the_extra(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(OptionError, match=r'needs scipy: pip install "relprop\[evaluation\]"'):
        needed("scipy.stats")
