"""The grammar of reviews: the label follows from the rationale and from nothing else, spans are
those of the words, and what is held out is."""

import gzip
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relprop.data import Source
from relprop.demo.reviews import FILE, SEEDS, Reviews
from relprop.errors import OptionError
from tools.reviews import LONGEST, SHORTEST, make_review, make_reviews, shipped

GOOD = set(
    (
        "wonderful brilliant charming moving funny clever gripping delightful superb "
        "enchanting splendid touching witty fresh thrilling lovely delight triumph joy "
        "gem treat masterpiece "
        "move charm thrill amuse enchant"
    ).split()
)
BAD = set(
    (
        "boring awful dull clumsy tedious stupid weak dreadful tiresome shallow lifeless "
        "silly stale pompous bland dreary bore mess chore failure disaster letdown annoy "
        "tire irritate "
        "disappoint depress"
    ).split()
)
NEGATIONS = r"\b(not|hardly|never|far from|anything but|by no means|failed to|nothing to)\b"
NEGATING = set("not hardly never far from anything but by no means failed nothing".split())
ANOTHER = (
    r"(sequel|remake|original|his earlier film|her previous picture|the other film "
    r"that evening|the film we saw before|last film of|last movie with)"
)
JOINED = r"\bwhereas\b|\bwhile\b|;|, but the|, but this|, but i |, but to|, but in"

reviews = st.builds(
    make_review, st.integers(0, 10_000), seed=st.integers(0, 1000), held_out=st.booleans()
)


def spoken(sample):
    return [sample.inputs[w.start : w.end] for w in sample.words]


def reasons(sample):
    return [w.lower() for w, reason in zip(spoken(sample), sample.rationale, strict=True) if reason]


def polarities(words):
    """What claims say, from nothing but their words in order: a sentiment word ends a claim, and
    words before it negate it."""
    said, negated = [], False
    for word in words:
        if word in GOOD | BAD:
            said.append((word in GOOD) != negated)
            negated = False
        else:
            assert word in NEGATING
            negated = True
    assert not negated, "a negation without a sentiment word"
    return said


@given(reviews)
def test_the_label_follows_from_the_rationale_alone(review):
    sample = review.sample("x")
    said = polarities(reasons(sample))
    assert said and set(said) == {bool(sample.label)}


@given(reviews)
def test_the_label_follows_from_the_text(review):
    """Read from the text: in sentences that name no other film every sentiment counts and says the
    label; in the others none does, unless two claims are joined."""
    sample = review.sample("x")
    counted = []
    for sentence in re.split(r"(?<=\.)\s", sample.inputs):
        words = re.findall(r"\w+", sentence.lower())
        sentiments = [w for w in words if w in GOOD | BAD]
        another = re.search(ANOTHER, sentence.lower())
        if re.search(JOINED, sentence.lower()) and another and sentiments:
            continue
        if another:
            continue
        for word in sentiments:
            before = sentence.lower().split(word)[0]
            assert ((word in GOOD) != bool(re.search(NEGATIONS, before))) == bool(sample.label), (
                sentence
            )
            counted.append(word)
    assert not Counter(counted) - Counter(reasons(sample))
    joined = any(re.search(JOINED, s.lower()) for s in sample.inputs.split(". "))
    assert joined or Counter(counted) == Counter(w for w in reasons(sample) if w in GOOD | BAD)


@given(reviews)
def test_spans_point_at_the_words(review):
    sample = review.sample("x")
    assert len(sample.words) == len(sample.rationale) and SHORTEST <= len(sample.words) <= LONGEST
    assert all(re.fullmatch(r"\w+|[^\w\s]", word) for word in spoken(sample))
    assert "".join(spoken(sample)) == re.sub(r"\s", "", sample.inputs)
    assert all(
        a.end <= b.start and a.text == 0
        for a, b in zip(sample.words, sample.words[1:], strict=False)
    )
    assert len(re.findall(r"\. ", sample.inputs)) >= 1, "several sentences"


@given(reviews)
def test_the_other_film_never_changes_the_label(review):
    plain, swapped = review.sample("x"), review.with_other_swapped().sample("x")
    assert swapped.label == plain.label and reasons(swapped) == reasons(plain)
    assert (swapped.inputs != plain.inputs) == bool(review.others)


@given(reviews)
def test_turning_the_negations_turns_the_label(review):
    plain, turned = review.sample("x"), review.turned().sample("x")
    assert turned.label == 1 - plain.label and set(polarities(reasons(turned))) == {
        bool(turned.label)
    }
    assert [w for w in reasons(turned) if w in GOOD | BAD] == [
        w for w in reasons(plain) if w in GOOD | BAD
    ]


@given(reviews)
def test_without_its_reasons_a_review_says_nothing_of_its_label(review):
    """What is left is drawn without regard to the label: neutral sentences hold no sentiment
    word."""
    for sentence in review.sentences:
        if isinstance(sentence, str):
            assert not set(re.findall(r"\w+", sentence.lower())) & (GOOD | BAD)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 1000), st.booleans())
def test_a_review_does_not_depend_on_how_many_there_are(n, more, seed, held_out):
    few, many = (
        make_reviews(n, seed=seed, held_out=held_out),
        make_reviews(n + more, seed=seed, held_out=held_out),
    )
    assert [(s.key, s.inputs, s.label, s.words, s.rationale) for s in few] == [
        (s.key, s.inputs, s.label, s.words, s.rationale) for s in many[:n]
    ]


def test_seeds_and_parts_differ():
    texts = [
        [s.inputs for s in make_reviews(20, seed=seed, held_out=part)]
        for seed in (0, 1)
        for part in (False, True)
    ]
    assert len({text for some in texts for text in some}) == 80


@pytest.mark.slow
def test_what_is_held_out_is_not_in_training():
    def combinations(held_out):
        claims = [
            c
            for i in range(3000)
            for r in [make_review(i, seed=3, held_out=held_out)]
            for c in (*r.claims, *r.others)
        ]
        return {
            (c.kind, c.negation is None, c.frame if c.negation is None else c.negation, c.word)
            for c in claims
        }

    training, held = combinations(False), combinations(True)
    assert held and not training & held

    def words(held_out):
        return {w.lower() for s in make_reviews(3000, seed=3, held_out=held_out) for w in spoken(s)}

    assert words(True) <= words(False), "every word of a held-out review is in training reviews"


@pytest.mark.slow
def test_labels_are_balanced_and_words_alone_do_not_tell():
    """A bag of words is hardly better than chance: logistic regression on counts of words."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    training, held = make_reviews(3000, seed=5, held_out=False), make_reviews(1000, seed=6)
    assert 0.45 < sum(s.label for s in held) / len(held) < 0.55
    counts = CountVectorizer()
    fitted = LogisticRegression(max_iter=2000).fit(
        counts.fit_transform([s.inputs for s in training]), [s.label for s in training]
    )
    right = fitted.score(counts.transform([s.inputs for s in held]), [s.label for s in held])
    assert right < 0.6, right


def fields(samples):
    return [(s.key, s.inputs, s.label, s.words, s.rationale) for s in samples]


def test_the_source():
    source = Reviews(5)
    assert isinstance(source, Source) and len(source) == 5 and source.kind == "text"
    assert source.labels == ("negative", "positive") and source[1].key == "1"
    assert source.identity() == {"name": "film reviews", "n": 5, "seed": 0}
    with pytest.raises(IndexError, match="no review 5"):
        source[5]


def test_the_shipped_file_is_what_the_grammar_makes():
    assert gzip.decompress(FILE.read_bytes()) == shipped()
    for seed in SEEDS:
        assert fields(Reviews(30, seed=seed)) == fields(make_reviews(30, seed=seed))


@pytest.mark.parametrize(
    "call",
    [lambda: Reviews(0), lambda: Reviews(1001), lambda: Reviews(4, seed=3)],
    ids=["none", "too many", "seed"],
)
def test_so_many_reviews_are_shipped(call):
    with pytest.raises(OptionError, match="1 to 1000 reviews of seed 0 or 30000001 are shipped"):
        call()


def test_a_number_of_reviews_is_needed():
    with pytest.raises(OptionError, match="review"):
        make_reviews(-1, seed=0)
