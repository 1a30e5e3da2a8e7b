"""relprop says the same of a model and of its twin, whichever way the function is spelled: by every
method, of a batch and of one sample, with the books balanced and padding at exactly 0."""

import warnings

import pytest

from tests.common.models import closeness
from tests.people.everything import PAIRS
from tests.people.explaining import (
    ALONE,
    EXACT,
    METHODS_ALONE,
    Found,
    found,
    gap,
    of_model,
    of_model_alone,
    of_twin,
    verdict,
)
from tests.people.hand import BY_HAND, READS, by_hand
from tests.people.left import LEFT
from tests.people.pairs import AT_THE_INPUT, METHODS

EVERY = [(name, method) for name, made in PAIRS.items() for method in METHODS]
EXPLAINED = [
    (name, method)
    for name, method in EVERY
    if method not in PAIRS[name]().refused and method not in LEFT.get(name, {})
]
BOOKS = ("transformer_attribution", "lrp", "attnlrp")


def of(name, method, results=of_model):
    """What was found; an error of the model is raised as it was."""
    result = results(name)[method]
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize(("name", "method"), EVERY)
def test_the_model_and_its_twin(name, method):
    found = verdict(name, method)
    if method in LEFT.get(name, {}):
        assert not found.right, f"right now: take {method} of {name} out of left.py"
        return
    assert found.right, f"{found.word}: {found.detail}"


@pytest.mark.parametrize(("name", "method"), EXPLAINED)
def test_the_twin_says_something(name, method):
    """Nothing equals nothing: the map that the model's is held against is not empty."""
    largest = [float(s.abs().max()) for s in of(name, method, of_twin).scores]
    assert not any(largest) if method in PAIRS[name]().silent else all(largest)


@pytest.mark.parametrize(("name", "method"), EXPLAINED)
def test_one_score_per_token(name, method):
    pair, found = PAIRS[name](), of(name, method)
    if method not in AT_THE_INPUT:
        assert tuple(s.shape[1] for s in found.scores) == pair.tokens


@pytest.mark.parametrize(("name", "method"), [(n, m) for n, m in EXPLAINED if m in METHODS_ALONE])
def test_a_sample_alone(name, method):
    found, alone = of(name, method), of(name, method, of_model_alone)
    row = slice(ALONE, ALONE + 1)
    its_row = Found(
        tuple(s[row] for s in found.scores),
        tuple(r[row] for r in found.rows),
        found.output[row],
        None,
    )
    assert gap(alone, its_row) <= EXACT


@pytest.mark.parametrize(("name", "method"), [(n, m) for n, m in EXPLAINED if m in BOOKS])
def test_the_books_balance(name, method):
    """To 1e-5·Σ|R| at every node, which is what ``Ledger.balanced`` asks for. Where relevance was
    one gradient, and kept none, the walk gives the same."""
    plain = of(name, method)
    if plain.residual is None:
        pair = PAIRS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the models' own code warns of
            walked = found(None, pair.model, pair.inputs, pair.target, method, ledger=True)
        plain, fast = walked, plain
        both = zip(fast.scores, plain.scores, strict=True)
        assert all(closeness(one, walked) <= 1e-6 for one, walked in both)
    assert plain.residual <= 1e-5


@pytest.mark.parametrize(
    ("name", "method"), [(n, m) for n, m in EXPLAINED if PAIRS[n]().padding is not None]
)
def test_padding_scores_nothing(name, method):
    pair, scores = PAIRS[name](), of(name, method).scores[0]
    padding = pair.padding_at_input if method in AT_THE_INPUT else pair.padding
    assert padding.any() and not padding.all(1).any()
    assert (scores[padding] == 0).all()


@pytest.mark.parametrize("method", BY_HAND)
@pytest.mark.parametrize("name", READS)
def test_by_hand(name, method):
    expected = by_hand(name, method)
    assert float(expected.abs().max()) > 0
    scores = of(name, method).scores[0]
    assert float((scores - expected).abs().max()) <= EXACT * float(expected.abs().max())
