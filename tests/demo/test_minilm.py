"""A real sentence encoder from a package: its weights are those of the original, and the similarity
of two real sentences is explained."""

import hashlib
import importlib.util

import pytest
import torch

import relprop
from examples import minilm
from relprop.errors import InputError, OptionError

needed = pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None, reason="the extra minilm is not installed"
)
PAIRS = (
    ["A man is playing the guitar on stage.", "The cat sleeps on the warm sofa."],
    [
        "Someone performs music in front of an audience.",
        "Interest rates were raised by the central bank.",
    ],
)
#: SHA-256 of model.safetensors as sentence-transformers publishes it.
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def pair():
    tokenizer = minilm.minilm_tokenizer()
    return minilm.similarity_model(), minilm.similarity_inputs(*PAIRS, tokenizer), tokenizer


@needed
def test_the_weights_are_the_published_ones():
    with open(minilm.folder() / "model.safetensors", "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == PUBLISHED


@needed
def test_what_is_alike_is_alike(pair):
    model, inputs, _ = pair
    with torch.no_grad():
        alike, unlike = model(**inputs)[:, 0].tolist()
        itself = model(**{k: inputs[k.replace("second", "first")] for k in inputs})[:, 0]
    assert alike > 0.4 and abs(unlike) < 0.15 and torch.allclose(itself, torch.ones(2), atol=1e-5)


@needed
def test_padding_changes_nothing(pair):
    model, inputs, tokenizer = pair
    alone = minilm.similarity_inputs(*([texts[1]] for texts in PAIRS), tokenizer)
    with torch.no_grad():
        assert torch.allclose(model(**alone), model(**inputs)[1:], atol=1e-5)


@pytest.mark.slow
@needed
def test_the_similarity_of_two_sentences_is_explained(pair):
    """Both sentences have scores by word; AttnLRP's add up to the cosine, less what biases absorb,
    and most of it is on what the sentences share."""
    model, inputs, tokenizer = pair
    e = relprop.explain(model, inputs, method="attnlrp", processor=tokenizer, ledger=True)
    first, second = (e[name].words(0) for name in ("first_input_ids", "second_input_ids"))
    assert [w for w, _ in first] == "a man is playing the guitar on stage .".split() and [
        w for w, _ in second
    ] == "someone performs music in front of an audience .".split()
    assert e.ledger.worst() < 1e-5
    assert {w for w, _ in sorted(first, key=lambda x: -x[1])[:2]} == {"guitar", "stage"} and {
        w for w, _ in sorted(second, key=lambda x: -x[1])[:2]
    } == {"performs", "music"}
    for method in ("transformer_attribution", "gae", "rollout", "attcat"):
        e = relprop.explain(model, inputs, method=method, processor=tokenizer)
        for name, texts in zip(("first_input_ids", "second_input_ids"), PAIRS, strict=True):
            assert (
                e[name].scores.shape == inputs[name].shape
                and torch.isfinite(e[name].scores).all()
                and float(e[name].scores.abs().max()) > 0
            )
            assert len(e[name].words(1)) == len(texts[1].replace(".", " .").split())


@needed
@pytest.mark.parametrize("given", [("a", "b"), ([], []), (["a"], ["b", "c"])])
def test_pairs_are_needed(given):
    with pytest.raises(InputError, match="two lists of sentences"):
        minilm.similarity_inputs(*given)


def test_without_the_package_it_says_which_extra(monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(OptionError, match=r"relprop\[minilm\]"):
        minilm.minilm()
