"""Which passages an answer rests on: against what the user's own model says without them, and
against exact Shapley values."""

import itertools
import json
import math

import pytest
import torch
import transformers

import relprop
from relprop.errors import InputError, OptionError
from relprop.evaluation import LinearDatamodelingScore, TopKDrop
from tests.adapters.tokenizers_in_code import KINDS
from tests.common.models import closeness
from tests.common.rows import only

DOCUMENTS = [
    "The cats like noise. Dogs and cats like people.",
    "The unhappy dogs don't like the noise, naïve people say.",
    "Unlikely stories end. The end.",
]
ANSWER = "The cats like people. The dogs don't."
QUESTION = "Who likes noise?"
TEMPLATE = "{% for m in messages %}<|end|>{{ m['role'] }}\n{{ m['content'] }}{% endfor %}<|end|>\n"


def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval().double().requires_grad_(False)


def tokenizer(template=None):
    made = KINDS["byte-level BPE"]()
    made.chat_template = template
    return made


def cited(**options):
    return relprop.cite(model(), QUESTION, DOCUMENTS, ANSWER, processor=tokenizer(), **options)


def mean_log_probability(ids, gone, first, last):
    """Of the tokens from first to last, without the positions that are gone."""
    left = [k for k in range(ids.shape[1]) if k not in gone]
    logits = model()(ids[:, left]).logits[0].log_softmax(-1)
    places = [left.index(k) for k in range(first, last + 1)]
    return sum(float(logits[p - 1, ids[0, left[p]]]) for p in places) / len(places)


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_each_passage_is_worth_what_the_model_loses_without_it(template):
    found = relprop.cite(model(), QUESTION, DOCUMENTS, ANSWER, processor=tokenizer(template))
    assert [p.text for p in found.passages] == [
        "The cats like noise.",
        "Dogs and cats like people.",
        "The unhappy dogs don't like the noise, naïve people say.",
        "Unlikely stories end.",
        "The end.",
    ]
    assert [p.document for p in found.passages] == [0, 0, 1, 2, 2]
    assert [s.text for s in found.sentences] == ["The cats like people.", "The dogs don't."]
    assert found.answer == ANSWER and len(found) == 2
    ids = found.inputs["input_ids"]
    read = tokenizer().decode(ids[0])
    assert read.endswith(ANSWER) and ("user\nThe cats" in read) == (template is not None)
    for row, said in zip(found.scores, found.sentences, strict=True):
        assert said.text in tokenizer().decode(ids[0, said.first : said.last + 1])
        whole = mean_log_probability(ids, [], said.first, said.last)
        for score, passage in zip(row, found.passages, strict=True):
            assert tokenizer().decode(ids[0, passage.positions]).strip() == passage.text
            left = mean_log_probability(ids, passage.positions, said.first, said.last)
            assert float(score) == pytest.approx(whole - left, abs=1e-9)


@pytest.mark.parametrize(("by", "count"), [("whole", 3), ("lines", 3), ("paragraphs", 3)])
def test_any_method_and_any_passages(by, count):
    found = cited(by=by, method="attnlrp")
    assert len(found.passages) == count and found.explanations[0].method == "attnlrp"
    e = found.explanations[1]
    for score, passage in zip(found.scores[1], found.passages, strict=True):
        assert float(score) == pytest.approx(float(e.scores[0, passage.positions].sum()), abs=1e-12)
    assert e.target == (f"span({found.sentences[1].first}, {found.sentences[1].last})",)


def test_an_answer_that_is_generated_is_the_models_own():
    found = relprop.cite(
        model(), QUESTION, DOCUMENTS, processor=tokenizer(), max_new_tokens=5, method="random"
    )
    ids = found.inputs["input_ids"]
    made = model().generate(ids[:, : found.prompt], max_new_tokens=5, do_sample=False)
    assert torch.equal(made[:, : ids.shape[1]], ids)


@pytest.mark.parametrize(
    ("given", "method"),
    only(
        [(True, "attnlrp")],
        itertools.product((False, True), ("leave_one_out", "attnlrp")),
    ),
)
def test_several_questions_are_each_as_if_asked_alone(given, method):
    answers = [ANSWER, "The end.", "Dogs like cats."] if given else None
    questions = [QUESTION, "Who?", "Unlikely stories end, don't they?"]
    how = {"processor": tokenizer(), "max_new_tokens": 5, "method": method}
    found = relprop.cite(model(), questions, DOCUMENTS, answers, **how)
    assert len({f.inputs["input_ids"].shape[1] for f in found}) == len(found) == 3
    for one, question, answer in zip(found, questions, answers or [None] * 3, strict=True):
        alone = relprop.cite(model(), question, DOCUMENTS, answer, **how)
        assert (one.sentences, one.passages) == (alone.sentences, alone.passages)
        assert torch.equal(one.inputs["input_ids"], alone.inputs["input_ids"])
        assert float(alone.scores.abs().max()) > 0
        assert closeness(one.scores, alone.scores) <= 1e-9
    (alone,) = relprop.cite(model(), questions[1:2], DOCUMENTS, answers and answers[1:2], **how)
    assert closeness(alone.scores, found[1].scores) <= 1e-9


@pytest.mark.parametrize("kind", only(["byte-level BPE"], KINDS))
def test_what_explains_a_sentence_has_the_prompt_as_it_was_typed(kind):
    documents = ["The  cats like noise.", "Dogs and\tcats like people."]
    found = relprop.cite(
        model(), QUESTION, documents, "The end.", processor=KINDS[kind](), method="attnlrp"
    )
    typed = "\n\n".join([*documents, QUESTION])
    ends = [(typed.index(d), typed.index(d) + len(d)) for d in documents]
    parts = found.explanations[0].segments(ends).words()
    assert [name for name, _ in parts] == documents == [p.text for p in found.passages]
    assert [score for _, score in parts] == pytest.approx(found.scores[0].tolist(), rel=1e-9)


def test_prompts_of_ones_own():
    def prompt(documents, question):
        return f"{question}\n" + "\n".join(f"- {d}" for d in documents)

    found = cited(prompt=prompt, method="random")
    text = tokenizer().decode(found.inputs["input_ids"][0])
    assert text.startswith(f"{QUESTION}\n- The cats") and len(found.passages) == 5
    found = cited(prompt="{question} {documents} Say:", method="random")
    assert "people say.\n\nUnlikely" in tokenizer().decode(found.inputs["input_ids"][0])


def test_of_an_encoder_the_passages_are_in_its_own_text():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=300,
        d_model=16,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        d_kv=8,
        decoder_start_token_id=1,
        eos_token_id=0,
    )
    t5 = transformers.T5ForConditionalGeneration(config).eval().double().requires_grad_(False)
    found = relprop.cite(t5, QUESTION, DOCUMENTS, ANSWER, processor=tokenizer())
    inputs, said = found.inputs, found.sentences[1]
    places = [p - 1 for p in range(said.first, said.last + 1)]
    tokens = inputs["decoder_input_ids"][0, said.first : said.last + 1]

    def says(gone):
        left = [k for k in range(inputs["input_ids"].shape[1]) if k not in gone]
        logits = t5(
            input_ids=inputs["input_ids"][:, left],
            decoder_input_ids=inputs["decoder_input_ids"],
        ).logits[0]
        return float(logits[places].log_softmax(-1)[range(len(places)), tokens].mean())

    for k, passage in enumerate(found.passages):
        expected = says([]) - says(passage.positions)
        assert float(found.scores[1, k]) == pytest.approx(expected, abs=1e-9)


def test_tables_and_pages(tmp_path, capsys):
    found = cited(method="random")
    best = found.top(1, 2)
    assert [score for _, score in best] == found.scores[1].sort(descending=True).values[:2].tolist()
    frame = found.to_dataframe()
    assert len(frame) == 10 and set(frame["document"]) == {0, 1, 2}
    data = json.loads(found.to_json())
    assert data["sentences"][0]["scores"] == found.scores[0].tolist()
    assert found.to_html(tmp_path / "c.html").read_text().count('data-word="') == 5
    assert "<iframe" in found._repr_html_() and "5 passages of 3 documents" in repr(found)
    found.show(k=1)
    shares, said = found.scores[1] / found.scores[1].abs().sum(), capsys.readouterr().out
    assert f"{shares.max():.0%}  document {best[0][0].document}: {best[0][0].text}" in said
    found.show(k=1, raw=True)
    assert f"{best[0][1]:.3g}  document" in capsys.readouterr().out


def test_a_hostile_document_stays_text(tmp_path):
    bad = ["<script>alert(1)</script> cats. </bdi><b>dogs</b>"]
    found = relprop.cite(model(), "?", bad, ANSWER, processor=tokenizer(), method="random")
    for page in (found.to_html(tmp_path / "c.html").read_text(), found._repr_html_()):
        assert "<script>alert" not in page and "<b>dogs" not in page


def test_the_top_k_drop_and_the_datamodeling_score_are_the_models():
    found = cited()
    assert torch.allclose(TopKDrop(1)(model(), found), found.scores.max(1).values, atol=1e-9)
    ids, said = found.inputs["input_ids"], found.sentences[0]
    best = found.scores[0].argsort(descending=True)[:2].tolist()
    gone = [p for k in best for p in found.passages[k].positions]
    change = mean_log_probability(ids, [], said.first, said.last) - mean_log_probability(
        ids, gone, said.first, said.last
    )
    assert float(TopKDrop(2)(model(), found)[0]) == pytest.approx(change, abs=1e-9)

    from scipy.stats import spearmanr

    metric = LinearDatamodelingScore(subsets=8, seed=3)
    drawn = torch.rand(8, 5, generator=torch.Generator().manual_seed(3)) < 0.5
    drops = [float((row * found.scores[0]).sum()) for row in drawn]
    lists = [
        [p for k in range(5) if not row[k] for p in found.passages[k].positions] for row in drawn
    ]
    true = [mean_log_probability(ids, gone, said.first, said.last) for gone in lists]
    expected = spearmanr(drops, true).statistic
    assert float(metric(model(), found)[0]) == pytest.approx(expected, abs=1e-9)


def test_exact_shapley_values_have_the_largest_share_of_the_datamodeling_score():
    """Over all 2^5 subsets; of a model that is nearly linear in its passages, leaving one out and
    Shapley values rank alike."""
    found = cited()
    count, said = len(found.passages), found.sentences[0]
    ids = found.inputs["input_ids"]
    worth = {}
    for size in range(count + 1):
        for kept in itertools.combinations(range(count), size):
            gone = [p for k in set(range(count)) - set(kept) for p in found.passages[k].positions]
            worth[kept] = mean_log_probability(ids, gone, said.first, said.last)
    shapley = []
    for k in range(count):
        rest = [j for j in range(count) if j != k]
        shapley.append(
            sum(
                math.factorial(size)
                * math.factorial(count - size - 1)
                / math.factorial(count)
                * (worth[tuple(sorted((*kept, k)))] - worth[kept])
                for size in range(count)
                for kept in itertools.combinations(rest, size)
            )
        )
    everything = worth[tuple(range(count))] - worth[()]
    assert sum(shapley) == pytest.approx(everything, abs=1e-9)
    assert max(range(count), key=shapley.__getitem__) == int(found.scores[0].argmax())


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: cited(by="words"), OptionError, "by='words'"),
        (lambda: cited(by="documents"), OptionError, "'paragraphs'"),
        (
            lambda: relprop.cite(model(), ["a", "b"], ["a"], [ANSWER], processor=tokenizer()),
            InputError,
            "2 questions, and answers to 1",
        ),
        (
            lambda: relprop.cite(model(), [], ["a"], ANSWER, processor=tokenizer()),
            InputError,
            "question is list",
        ),
        (lambda: cited(prompt="none"), OptionError, "{documents} must be in it"),
        (lambda: cited(prompt=lambda d, q: q), InputError, "document 0 does not stand"),
        (lambda: cited().top(5), OptionError, "2 sentences"),
        (lambda: cited().top(0, 0), OptionError, "positive number"),
        (
            lambda: relprop.cite(model(), QUESTION, [], ANSWER, processor=tokenizer()),
            InputError,
            "list of texts",
        ),
        (
            lambda: relprop.cite(model(), QUESTION, ["a", " "], ANSWER, processor=tokenizer()),
            InputError,
            "empty",
        ),
        (
            lambda: relprop.cite(model(), 3, ["a"], ANSWER, processor=tokenizer()),
            InputError,
            "question",
        ),
        (
            lambda: relprop.cite(model(), QUESTION, ["a"], "", processor=tokenizer()),
            InputError,
            "answer is empty",
        ),
        (lambda: relprop.cite(model(), QUESTION, ["a"], ANSWER), InputError, "processor"),
        (lambda: TopKDrop(0), OptionError, "positive"),
        (lambda: TopKDrop(9)(model(), cited()), OptionError, "5 passages"),
        (lambda: LinearDatamodelingScore(left=1.0), OptionError, "between 0 and 1"),
    ],
)
def test_what_cannot_be_cited_is_refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
