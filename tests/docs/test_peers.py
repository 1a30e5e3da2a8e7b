"""docs/peers.md says what docs/peers.json holds."""

import importlib
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_raw_numbers_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    page = importlib.import_module("peers_page")
    result = json.loads((ROOT / "docs" / "peers.json").read_text())
    assert (ROOT / "docs" / "peers.md").read_text() == page.markdown(result)
