"""``average=``: the mean of a method's scores over noise, or over a path, beside the same calls one
by one."""

import math

import pytest
import torch
import transformers as hf

import relprop
from relprop.errors import OptionError
from relprop.methods import METHODS, noise, path
from tests.common.models import build, closeness, sample
from tests.common.rows import only
from tests.methods.table import SMALL

pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
MODEL, X = build(), sample()
NOISY = noise(3, 0.1, seed=4)
#: One point by one differs by how products are summed; LRP divides by small sums.
SAME = 1e-9


def drawn(x, count=3, sigma=0.1, seed=4):
    """The draws by hand: the same noise for every sample, by its own range."""
    source = torch.Generator().manual_seed(seed)
    spread = sigma * (x.flatten(1).amax(1) - x.flatten(1).amin(1))
    for _ in range(count):
        one = torch.randn(x.shape[1:], generator=source, dtype=torch.float64)
        yield x + spread.reshape(-1, *[1] * (x.dim() - 1)) * one


def scores(x=X, target=1, **how):
    return relprop.explain(MODEL, x, target, **how).scores


#: Of pictures, of texts, and of no model at all.
APART = ("vit_cx", "leave_one_out", "random")


@pytest.mark.parametrize(
    "method",
    only(("gae", "attnlrp", "smoothgrad", "rollout"), (n for n in METHODS if n not in APART)),
)
def test_the_mean_of_any_method_is_that_of_its_calls(method):
    small = {"n_steps": 3} if method == "integrated_gradients" else {}
    small |= {"n_samples": 2} if method in ("smoothgrad", "gradient_shap") else {}
    found = relprop.explain(MODEL, X, 1, method=method, average=NOISY, **small)
    by_hand = [scores(x, method=method, **small) for x in drawn(X)]
    assert closeness(found.scores, torch.stack(by_hand).mean(0)) <= SAME
    plain = relprop.explain(MODEL, X, 1, method=method, **small)
    assert torch.equal(found.output, plain.output) and found.target == plain.target
    assert closeness(scores(method=method, average=noise(2, 0.0), **small), plain.scores) <= SAME
    assert found.facts["average"] == str(NOISY) and "average" not in plain.facts


@pytest.mark.parametrize(
    "method", only(["attcat", "attnlrp"], ["transformer_attribution", "attcat", "attnlrp", "lrp"])
)
def test_parts_and_segments_and_chunks_change_nothing(method):
    whole = scores(method=method, average=NOISY)
    assert closeness(scores(method=method, average=NOISY, batch_size=1), whole) <= SAME
    cut = relprop.explain(MODEL, X, 1, method=method, average=NOISY, memory=20_000)
    assert cut.facts["segments"] > 1 or method == "attcat"
    assert closeness(cut.scores, whole) <= SAME


def test_on_the_way_gradient_times_input_is_integrated_gradients():
    for baseline in (None, 0.3, X.flip(0)):
        way = path(9, baseline)
        found = relprop.explain(
            MODEL, X, 1, method="gradient_x_input", average=way, keep="input", batch_size=1
        )
        captum = relprop.explain(
            MODEL, X, 1, method="integrated_gradients", n_steps=9, baseline=baseline, keep="input"
        )  # whose steps are in single precision
        assert closeness(found.scores, captum.scores) <= 1e-6
        assert closeness(found.input, captum.input) <= 1e-6


def test_on_the_way_other_methods_are_as_they_are():
    found = scores(method="gae", average=path(2))
    near, far = (scores(X * (1 + s / math.sqrt(3)) / 2, method="gae") for s in (-1, 1))
    assert closeness(found, (near + far) / 2) <= SAME


def test_smoothgrad_is_the_magnitude_of_the_noisy_gradient():
    relprop.methods.register(
        "signed_gradient", lambda at: at.gradients, needs=["gradient"], level="input", signed=True
    )
    try:
        around = noise(5, 0.2, seed=1)
        mean = relprop.explain(MODEL, X, 1, method="signed_gradient", average=around, keep="input")
        smooth = relprop.explain(
            MODEL, X, 1, method="smoothgrad", n_samples=5, stdev=0.2, seed=1, keep="input"
        )
    finally:
        relprop.methods.remove("signed_gradient")
    assert closeness(mean.input.abs(), smooth.input) <= SAME


def test_noise_of_ids_is_added_to_their_embeddings():
    torch.manual_seed(0)
    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, vocab_size=30)).double().eval()
    ids = torch.randint(5, 30, (2, 6))
    embedded = model.get_input_embeddings()(ids).detach()
    for method in ("gae", "attnlrp", "gradient_x_input"):
        found = relprop.explain(model, {"input_ids": ids}, 1, method=method, average=NOISY)
        by_hand = [
            relprop.explain(model, {"inputs_embeds": e}, 1, method=method).scores
            for e in drawn(embedded)
        ]
        assert closeness(found.scores, torch.stack(by_hand).mean(0)) <= SAME


def test_the_target_is_that_of_the_input():
    """Where noise changes the prediction, what is explained stays what was predicted."""
    wide, best = noise(6, 3.0), MODEL(X).argmax(-1).tolist()
    moved = [MODEL(x).argmax(-1).tolist() for x in drawn(X, 6, 3.0, 0)]
    assert any(m != best for m in moved)
    for method in ("gae", "attnlrp"):
        assert torch.equal(
            scores(target=None, method=method, average=wide),
            scores(target=best, method=method, average=wide),
        )


def test_targets_of_any_kind():
    pair = relprop.targets.contrast(1, 2)
    difference = [scores(target=t, method="attnlrp", average=NOISY) for t in (1, 2, pair)]
    assert closeness(difference[2], difference[0] - difference[1]) <= SAME

    def squared(out):
        return out[0, 1] ** 2

    found = scores(target=squared, method="gae", average=NOISY)
    by_hand = [scores(x, squared, method="gae") for x in drawn(X)]
    assert closeness(found, torch.stack(by_hand).mean(0)) <= SAME
    rows = relprop.explain_many(MODEL, X, [1, 2], method="gae", average=NOISY)
    assert torch.equal(rows[1].scores, scores(target=2, method="gae", average=NOISY))


def test_a_balanced_gradient_has_means_too():
    how = {"method": "gae", "gradient": "balanced"}
    by_hand = [scores(x, **how) for x in drawn(X)]
    assert closeness(scores(average=NOISY, **how), torch.stack(by_hand).mean(0)) <= SAME


def test_what_has_no_mean_is_refused():
    for options, said in (
        ({"average": 3}, r"average=3: points around(.|\n)*relprop.methods.noise\(n=10\)"),
        ({"average": NOISY, "keep": "blocks"}, r"leave blocks out of keep="),
        ({"average": NOISY, "ledger": True}, "keeps no books"),
        ({"average": noise(2, {"pixels": 0.1})}, "sigma for 'pixels': the explained inputs are"),
        ({"average": noise(2, -1.0)}, "sigma=-1.0: a number that is not negative"),
        ({"average": path(2, torch.zeros(7))}, "has shape"),
    ):
        with pytest.raises(OptionError, match=said):
            relprop.explain(MODEL, X, 1, **options)
    for make in (lambda: noise(0), lambda: path(2.5), lambda: noise(3, seed=0.5)):
        with pytest.raises(OptionError, match="integer"):
            make()
    with pytest.raises(OptionError, match="a flat program runs the model once"):
        relprop.compile(MODEL, X, average=NOISY)


def test_the_process_keeps_its_random_state():
    torch.manual_seed(5)
    scores(method="gae", average=NOISY)
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))
