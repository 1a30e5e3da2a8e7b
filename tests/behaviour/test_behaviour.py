"""What the public door answers is what it answered when it was recorded: scores, ledgers, and the
sentences of refusals and warnings."""

from collections import defaultdict

import pytest
import torch

from tests.behaviour.calls import BOOKS, answer, calls
from tests.behaviour.mended import MENDED
from tests.behaviour.record import recorded

EXACT = 1e-12
CALLS = calls()
TENSORS, SENTENCES = recorded()
BY_CALL = defaultdict(dict)
for key, value in TENSORS.items():
    call, _, part = key.partition("|")
    BY_CALL[call][part] = value


def differences(name):
    """What a call answers otherwise than it did, as sentences."""
    found, said = answer(CALLS[name], name.endswith(BOOKS))
    before = BY_CALL[name]
    if said != SENTENCES[name]:
        yield f"says {said}, said {SENTENCES[name]}"
    if found.keys() != before.keys():
        yield f"gives {sorted(found)}, gave {sorted(before)}"
    exact = EXACT if "float32" not in name else 1e-5
    for part in found.keys() & before.keys():
        now, then = found[part].double(), before[part].double()
        scale = max(float(then.abs().max()), 1e-300) if then.numel() else 1.0
        if now.shape != then.shape or not torch.equal(now.isnan(), then.isnan()):
            yield f"{part}: {list(now.shape)}, was {list(then.shape)}"
        elif now.numel() and float((now - then).abs().nan_to_num().max()) > exact * scale:
            gap = float((now - then).abs().max()) / scale
            yield f"{part} differs by {gap:.1e} of the largest"


def test_every_call_is_recorded():
    assert set(CALLS) == set(SENTENCES) and set(MENDED) <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_answers_as_recorded(name):
    assert list(differences(name)) == []


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    for name in sys.argv[1:] or CALLS:
        for line in differences(name):
            print(f"{name}: {line}", flush=True)
