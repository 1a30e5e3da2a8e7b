"""Where relevance explodes, it is said by how much and by which rules, and the advice holds."""

import copy

import pytest
import torch

import relprop
from relprop.errors import ExplodedScoresWarning
from tests.common.rows import only
from tests.targets import models


def explained(**how):
    model = copy.deepcopy(models.whisper(4, 64, 50)).float()
    features = torch.randn(2, 8, 100, generator=torch.Generator().manual_seed(0))
    inputs = {"input_features": features, "decoder_input_ids": torch.tensor([[1, 5, 6]] * 2)}
    return relprop.explain(model, inputs, 7, **how)


@pytest.fixture(scope="module")
def exploded():
    with pytest.warns(ExplodedScoresWarning, match=r"sizes sum to .* by rules 'epsilon'"):
        return explained(method="epsilon_lrp")


def test_scores_far_beyond_what_relevance_started_with_are_a_concern(exploded, tmp_path):
    size = sum(s.scores.abs().sum(1) for s in exploded.streams.values())
    assert torch.allclose(exploded.started, exploded.output.abs())
    for i in range(2):
        there = "it explodes" in " ".join(exploded.concerns(i))
        assert there == bool(size[i] > 1e4 * exploded.started[i])
    loaded = relprop.load(exploded.save(tmp_path / "e.safetensors"))
    assert loaded.concerns(1) == exploded[1].concerns() == exploded.concerns(1)


@pytest.mark.parametrize("rules", only(["attnlrp"], ["attnlrp", "cp_lrp", "lrp_gamma"]))
def test_the_advice_holds(rules):
    e = explained(method="epsilon_lrp", rules=rules)
    assert not any(e.exploded)


def test_terms_that_cancel_are_what_relevance_started_with():
    """A difference of logits near 0 is no explosion."""
    ids = models.words(2, 5, seed=6)

    def near(out):
        return out.logits[0, -1, 3] - 0.5 * out.logits[0, -1, 4]

    e = relprop.explain(models.gpt2(), ids, near, method="attnlrp")
    logits = models.gpt2()(ids).logits[:, -1]
    assert torch.allclose(e.started, logits[:, 3].abs() + 0.5 * logits[:, 4].abs())
