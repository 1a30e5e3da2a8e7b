"""relprop says the same of a model and of its twin, whichever way the function is spelled: by every
method, of a batch and of one sample, with the books balanced and padding at exactly 0.

The fast suite asks one pair of every kind of form, by the methods that see most of the graph."""

import warnings

import pytest

from tests.common.models import closeness
from tests.people.everything import PAIRS
from tests.people.explaining import EXACT, Found, explain, found, gap, of_model, of_twin, verdict
from tests.people.hand import BY_HAND, READS, by_hand
from tests.people.left import LEFT
from tests.people.pairs import AT_THE_INPUT, METHODS, one

#: Of almost every file one model, or some where one thing is written in several ways. Without those
#: that take longest: two towers, DiT, and a translator (Whisper has an encoder and a decoder, too).
FAST = """
    annotated_transformer bert cache_prompt_then_step core_buffer core_flash core_vmap
    decision_transformer einsum_gpt2 ft_transformer gated_output graphormer latent_attention
    learned_pool lecture_gpt linformer llama mingpt moe_dispatched patch_tst roberta
    set_transformer shaw siamese_by_views swin t5 tab_transformer vit_in_loops vit_unfolded
    whisper x_memory_key_values x_scaled_residual
""".split()
QUICK = ("transformer_attribution", "attnlrp")
ALONE = 1  # the sample that is also explained alone
#: By these, which read attention, gradient and relevance, values put to zero, and the input; that
#: samples do not meet by any method is also asked in ``tests/methods/table.py``.
METHODS_ALONE = ("transformer_attribution", "value_zeroing", "attnlrp", "gradient_x_input")
BOOKS = ("transformer_attribution", "lrp", "attnlrp")


def rows(names, quick, all_methods):
    """Names with methods: those of the fast suite with few, and every one with all."""
    return [
        *(pytest.param(n, quick, id=n) for n in FAST if n in names),
        *(pytest.param(n, all_methods, id=f"{n}-all", marks=pytest.mark.slow) for n in names),
    ]


def explained(name, methods):
    """The methods of these that are not refused and give what the twin has."""
    left = {*PAIRS[name]().refused, *LEFT.get(name, {})}
    return [method for method in methods if method not in left]


def raised(result):
    """What was found; an error of the model is raised as it was."""
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.parametrize(("name", "methods"), rows(PAIRS, QUICK, METHODS))
def test_the_model_and_its_twin(name, methods):
    """And nothing equals nothing: what the model's map is held against is not empty."""
    pair, wrong = PAIRS[name](), []
    for method in methods:
        its = verdict(name, method, methods)
        if its.right == (method in LEFT.get(name, {})):
            wrong.append(f"{method}: {its.word}: {its.detail} (right now? take it out of left.py)")
    assert not wrong, "\n".join(wrong)
    for method in explained(name, methods):
        scores = raised(of_model(name, methods)[method]).scores
        largest = [float(s.abs().max()) for s in of_twin(name, methods)[method].scores]
        assert not any(largest) if method in pair.silent else all(largest), method
        if method not in AT_THE_INPUT:
            assert tuple(s.shape[1] for s in scores) == pair.tokens, method
        if pair.padding is not None:
            padding = pair.padding_at_input if method in AT_THE_INPUT else pair.padding
            assert padding.any() and not padding.all(1).any()
            assert (scores[0][padding] == 0).all(), method


@pytest.mark.parametrize(("name", "methods"), rows(PAIRS, QUICK, METHODS))
def test_a_sample_alone(name, methods):
    pair, row = PAIRS[name](), slice(ALONE, ALONE + 1)
    asked = tuple(m for m in METHODS_ALONE if m in explained(name, methods))
    alone = explain(pair.model, one(pair.inputs, ALONE), pair.target, asked)
    for method in asked:
        together = raised(of_model(name, methods)[method])
        its_row = Found(
            tuple(s[row] for s in together.scores),
            tuple(r[row] for r in together.rows),
            together.output[row],
            None,
        )
        assert gap(raised(alone[method]), its_row) <= EXACT, method


@pytest.mark.parametrize(("name", "methods"), rows(PAIRS, QUICK, METHODS))
def test_the_books_balance(name, methods):
    """To 1e-5·Σ|R| at every node, which is what ``Ledger.balanced`` asks for. Where relevance was
    one gradient, and kept none, the walk gives the same."""
    pair = PAIRS[name]()
    for method in [m for m in BOOKS if m in explained(name, methods)]:
        plain = raised(of_model(name, methods)[method])
        if plain.residual is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the models' own code warns of
                walked = found(None, pair.model, pair.inputs, pair.target, method, ledger=True)
            plain, fast = raised(walked), plain
            both = zip(fast.scores, plain.scores, strict=True)
            assert all(closeness(one, walked) <= 1e-6 for one, walked in both), method
        assert plain.residual <= 1e-5, method


@pytest.mark.parametrize(("name", "methods"), rows(READS, QUICK[:1] + BY_HAND, METHODS))
def test_by_hand(name, methods):
    for method in BY_HAND:
        expected = by_hand(name, method)
        assert float(expected.abs().max()) > 0
        scores = raised(of_model(name, methods)[method]).scores[0]
        assert closeness(scores, expected) <= EXACT, method
