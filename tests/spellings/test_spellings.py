"""However a function is written, every method explains it in the same way, or says that it cannot:
scores, attention, its gradient and its relevance in every block, and the gradient at the input.

In the fast suite are those that are held to something else than the same answer;
``test_combinations`` has one of every part of every family there, several at once. The rest is
slow.
"""

import pytest
import torch

from tests.common.rows import marked
from tests.spellings.checks import (
    METHODS,
    SCORES,
    Outcome,
    compare_all,
    gap,
    reference_results,
    results,
    verdict,
)
from tests.spellings.left import LEFT
from tests.spellings.model import Model
from tests.spellings.spelling import Spelling, spellings

BASES = sorted({s.base for s in spellings()}, key=lambda b: b.name)
#: What the fast suite asks: the others are made of the attention, the gradient and the relevance of
#: every block and of the gradient at the input, which are compared themselves.
FEW = ("transformer_attribution", "partial_lrp", "value_zeroing", "attnlrp", "input_gradient")
FAST = {
    "the right answer or a refusal": (
        "choices-embed-ids_in_lists-ids",
        "choices-weigh-picked_and_put_back-thresholded",
    ),
    "refused": ("embeddings-embed-gather-ids",),
    "only outputs without relprop": (
        "kernels-block-NativeLayer-plain",
        "transforms-attend-flexible_by_blocks-causal",
        "transforms-attention-flexible_grouped-grouped",
    ),
    "apart by some methods": (
        "choices-blocks-samples_without_their_padding-padded",
        "contractions-contract-key_by_key-plain",
        "softmaxes-attend-online_in_two_parts-plain",
    ),
    "left": ("norms-norm-of_the_shifted_input-plain",),
}
QUICK = {name for names in FAST.values() for name in names}
#: Bases that the fast suite looks at, one of every kind of input and mask.
LOOKED_AT = ("plain", "start", "padded", "llama", "experts", "thresholded")
#: Which of two values is taken depends on the input, and DeepLIFT is not defined there.
UNDEFINED = {("thresholded", "deeplift"), ("experts", "deeplift")}


def by_id(spelling):
    return spelling.id


def by_name(base):
    return base.name


@pytest.mark.parametrize("spelling", marked(spellings(), QUICK, by_id))
def test_the_explanation_is_the_bases(spelling):
    slow = spelling.id not in QUICK
    methods = METHODS if slow else FEW
    wrong = verdict(spelling, compare_all(spelling, methods, each_alone=slow))
    if spelling.id in LEFT:
        assert wrong, f"right now: take {spelling.id} out of left.py"
        return
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("spelling", [p for p in marked(spellings(), QUICK, by_id) if not p.marks])
def test_each_method_alone_is_as_all_together(spelling):
    """The fast suite asks few methods, and one speaks for all that are refused together."""
    assert bool(verdict(spelling, compare_all(spelling))) == (spelling.id in LEFT)


@pytest.mark.parametrize("base", marked(BASES, LOOKED_AT, by_name))
def test_the_base_says_something_of_every_sample(base):
    """Maps of zeros, and maps that do not depend on the sample, are easily equal."""
    methods = FEW if base.name in LOOKED_AT else METHODS
    found = reference_results(base, methods)
    for method in methods:
        scores = found[method].value
        if scores is None:
            assert (base.name, method) in UNDEFINED, found[method].why
            continue
        scale = float(scores.abs().max())
        assert (scores.abs().amax(1) > 1e-3 * scale).all(), method
        assert all(float((scores[0] - scores[i]).abs().max()) > 1e-3 * scale for i in (1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=lambda b: b.name)
def test_rounding_stays_small(base):
    """What differs by more than the tolerance is not what two orders of a sum differ by."""
    model, source = Model(base).eval(), torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data *= 1 + 1e-13 * torch.randn(p.shape, generator=source, dtype=p.dtype)
    found, wanted = results(model, base, METHODS), reference_results(base)
    for name, one in wanted.items():
        assert one.value is None or gap(found[name].value, one.value) <= SCORES, name


def outcomes(**kinds):
    return {name: (Outcome(kind, 1.0, "no fft here"), 1.0) for name, kind in kinds.items()}


def test_the_verdict_can_be_any():
    plain, base = spellings()[0], spellings()[0].base
    refused = Spelling("f", "n", base, {}, refused="fft")
    either = Spelling("f", "n", base, {}, either=True)
    apart = Spelling("f", "n", base, {}, apart={"lrp": "for a reason"})
    assert verdict(plain, outcomes(lrp="same")) == []
    assert len(verdict(plain, outcomes(lrp="differs", gae="refused", cat="fails"))) == 3
    assert verdict(refused, outcomes(lrp="refused")) == []
    assert verdict(refused, outcomes(lrp="same")) == ["lrp: same"]
    assert verdict(either, outcomes(lrp="same", gae="refused")) == []
    assert len(verdict(either, outcomes(lrp="differs", gae="fails"))) == 2
    assert verdict(apart, outcomes(lrp="differs")) == []
    assert len(verdict(apart, outcomes(gae="differs"))) == 1
