"""What the public door answers is what it answered when it was recorded: scores, ledgers, and the
sentences of refusals and warnings."""

from collections import defaultdict

import pytest
import torch

from tests.behaviour.calls import BOOKS, answer, calls
from tests.behaviour.mended import MENDED
from tests.behaviour.record import recorded

#: Another processor sums in another order: that reached 1e-11 of the largest number in float64.
EXACT, EXACT_IN_FLOAT32 = 1e-10, 1e-4
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
    exact = EXACT if "float32" not in name else EXACT_IN_FLOAT32
    for part in found.keys() & before.keys():
        now, then = found[part].double(), before[part].double()
        scale = max(_largest(v for p, v in before.items() if _beside(p, part)), 1e-300)
        if now.shape != then.shape or not torch.equal(now.isnan(), then.isnan()):
            yield f"{part}: {list(now.shape)}, was {list(then.shape)}"
        elif now.numel() and float((now - then).abs().nan_to_num().max()) > exact * scale:
            gap = float((now - then).abs().max()) / scale
            yield f"{part} differs by {gap:.1e} of the largest"


def _beside(part, other):
    """Whether two tensors of an answer are measured by one scale: what the books say was lost or
    absorbed is a difference of sums as large as all that they hold."""
    return part == other or (_is_of_books(part) and _is_of_books(other))


def _is_of_books(part):
    return any(
        word in part for word in (".ledger.", ".lost.", ".absorbed.", ".handed on", ".books")
    )


def _largest(values):
    return max(
        (float(v.double().abs().nan_to_num().max()) for v in values if v.numel()), default=1.0
    )


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
