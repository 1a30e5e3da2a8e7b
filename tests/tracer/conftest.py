"""What several tests of the tracer count by."""

import pytest

from relprop.tracer import trace


@pytest.fixture
def captures(monkeypatch):
    """How often a model is captured: a list that grows by one for each."""
    made, capture = [], trace.capture
    monkeypatch.setattr(trace, "capture", lambda *given: (made.append(given), capture(*given))[1])
    return made
