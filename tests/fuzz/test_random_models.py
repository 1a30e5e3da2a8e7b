"""Random models that nobody has seen: each is explained, none raises anything raw, the books
balance, and a sample is in a batch what it is alone."""

import os
import random
import traceback
import warnings

import pytest
import torch

import relprop
from relprop.errors import RelpropError, RelpropWarning
from tests.common.models import closeness
from tests.common.rows import only
from tests.fuzz.random_models import CLASSES, Grown

METHODS = (
    *("transformer_attribution",) * 4,
    *("lrp", "partial_lrp", "attnlrp", "rollout", "gradcam", "gae", "attention_times_grad"),
    *("epsilon_lrp", "gradient_x_input"),
)
#: In float64: the books by Σ|R| at a node; a batch by its largest score.
BALANCED, SAME = 1e-12, 1e-9


def state_of(model):
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    return tensors, [m.training for m in model.modules()], torch.get_rng_state()


def unchanged(model, before):
    tensors, training, chance = before
    return (
        all(v.equal(tensors[k]) for k, v in model.state_dict().items())
        and training == [m.training for m in model.modules()]
        and chance.equal(torch.get_rng_state())
    )


def examined(seed):
    """What is wrong with the explanation of one model; ``None`` where nothing is."""
    draw = random.Random(f"question {seed}")
    model, source = Grown(seed), torch.Generator().manual_seed(seed)
    x, method = model.stem.example(3, source), draw.choice(METHODS)
    k = draw.randrange(CLASSES)
    several = model.head.form == "tuple"
    asked = {"method": method, "target": relprop.targets.output("[0]")[k] if several else k}
    if method not in ("rollout", "gradcam", "gae", "attention_times_grad", "gradient_x_input"):
        asked["ledger"] = True
    before = state_of(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RelpropWarning)
            e = relprop.explain(model, x, **asked)
            alone = [relprop.explain(model, x[i : i + 1], **asked) for i in range(3)]
    except RelpropError as error:
        return f"{method}: refused: {error}"
    except Exception:
        return f"{method}: raw: {traceback.format_exc()}"
    if not unchanged(model, before):
        return f"{method}: the model or the random state changed"
    if not torch.isfinite(e.scores).all():
        return f"{method}: scores are not finite"
    if e.ledger is not None and not e.ledger.balanced(BALANCED):
        return f"{method}: the books are off by {e.ledger.worst():.1e}"
    apart = max(closeness(e.scores[i : i + 1], one.scores) for i, one in enumerate(alone))
    if not apart <= SAME:
        return f"{method}: a sample is off by {apart:.1e} in a batch"
    with torch.no_grad():
        out = model(x)
    logits = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
    if not closeness(e.output, logits[:, k]) <= SAME:
        return f"{method}: y_t is not the model's"
    return None


def seeds():
    """The numbers of the models: RANDOM_MODELS in the environment says the first and the last."""
    first, last = (int(n) for n in os.environ.get("RANDOM_MODELS", "100:2100").split(":"))
    return range(first, last)


@pytest.mark.parametrize(
    "models", only([range(5)], [range(5), range(5, 20), seeds()]), ids=["five", "twenty", "all"]
)
def test_random_models_are_explained(models):
    found = {seed: said for seed in models if (said := examined(seed))}
    assert not found, "\n".join(f"{seed}: {said}" for seed, said in found.items())


def test_a_wrong_number_is_found(monkeypatch):
    """The examination can fail."""
    explain = relprop.explain

    def wrong(model, x, **options):
        e = explain(model, x, **options)
        if len(x) == 3:
            e.scores[1] += 1e-6 * e.scores.abs().max()
        return e

    monkeypatch.setattr(relprop, "explain", wrong)
    assert "in a batch" in (examined(0) or "")
