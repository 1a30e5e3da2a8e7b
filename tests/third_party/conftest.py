"""These tests need packages that the environment of ``make test`` does not have. They are collected
only where their folder is named on the command line, as ``make third-party`` does it in an
environment of its own; that call leaves out the conftest above this folder, which asks for all
extras."""

import pytest
import torch


def pytest_ignore_collect(config):
    return None if any("third_party" in str(named) for named in config.args) else True


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
