"""``datasets`` by column names, from memory and from disk, and SQuAD in its own file and as a data
set."""

import json

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Features, Value
from PIL import Image

from relprop.data import HuggingFaceData, Squad, split_words
from relprop.errors import InputError, OptionError
from tests.data.laws import holds_the_laws


@pytest.fixture
def nli():
    """As GLUE's MNLI."""
    classes = ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = Features(
        {
            "premise": Value("string"),
            "hypothesis": Value("string"),
            "label": classes,
            "idx": Value("int32"),
        }
    )
    rows = {
        "premise": ["A cat sat.", "Dogs bark"],
        "hypothesis": ["It sat.", "Cats bark"],
        "label": [0, -1],
        "idx": [10, 11],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_pairs(nli):
    source = HuggingFaceData(nli, text="premise", pair="hypothesis", key="idx")
    holds_the_laws(
        source,
        2,
        lambda: HuggingFaceData(nli, text="premise", pair="hypothesis", key="idx"),
        fork=True,
    )
    assert source.labels == ("entailment", "neutral", "contradiction") and source.kind == "text"
    assert [(s.inputs, s.label, s.key) for s in source] == [
        (("A cat sat.", "It sat."), 0, "10"),
        (("Dogs bark", "Cats bark"), None, "11"),
    ]


def test_from_disk(nli, tmp_path):
    nli.save_to_disk(tmp_path / "nli")
    options = {"text": "premise", "pair": "hypothesis"}
    source = HuggingFaceData(tmp_path / "nli", **options)
    holds_the_laws(source, 2, lambda: HuggingFaceData(str(tmp_path / "nli"), **options))
    assert source.name == "nli" and source[0].inputs == ("A cat sat.", "It sat.")
    both = datasets.DatasetDict({"train": nli, "test": nli.select([1])})
    both.save_to_disk(tmp_path / "both")
    assert HuggingFaceData(tmp_path / "both", split="test", **options)[0].inputs[0] == "Dogs bark"
    assert len(HuggingFaceData(both, split="train", **options)) == 2
    with pytest.raises(OptionError, match=r"(?s)split=None: the data set has 'train', 'test'"):
        HuggingFaceData(tmp_path / "both", **options)


def test_what_a_format_says_does_not_matter(nli):
    rows = nli.map(lambda row: {"text": row["premise"]}).select_columns(["text", "label"])
    plain = HuggingFaceData(rows)
    for kind in ("torch", "numpy", "pandas"):
        source = HuggingFaceData(rows.with_format(kind))
        assert [(s.inputs, s.label) for s in source] == [
            (s.inputs, s.label) for s in plain
        ] and source.identity() == plain.identity()


def test_a_users_transform_stays(nli):
    source = HuggingFaceData(
        nli.with_transform(lambda rows: {**rows, "premise": [t.upper() for t in rows["premise"]]}),
        text="premise",
    )
    assert source[0].inputs == "A CAT SAT."
    assert source.identity() != HuggingFaceData(nli, text="premise").identity()
    made = nli.with_transform(
        lambda rows: {
            "both": [
                " ".join(pair) for pair in zip(rows["premise"], rows["hypothesis"], strict=True)
            ]
        }
    )
    assert HuggingFaceData(made, text="both", label=None)[0].inputs == "A cat sat. It sat."
    with pytest.raises(
        InputError, match="no column for text='premise', label='label'; there are 'both'"
    ):
        HuggingFaceData(made, text="premise")[0]


def test_identity_tells_rows_apart(nli):
    identity = HuggingFaceData(nli, text="premise").identity()
    assert (
        identity != HuggingFaceData(nli.select([1, 0]), text="premise").identity()
        and identity != HuggingFaceData(nli, text="hypothesis").identity()
    )
    json.dumps(identity)


def test_labels_by_name_and_number():
    names = HuggingFaceData(
        datasets.Dataset.from_dict({"text": ["x", "y", "z"], "label": ["pos", "neg", None]})
    )
    assert names.labels == ("neg", "pos") and [s.label for s in names] == [1, 0, None]
    numbers = HuggingFaceData(
        datasets.Dataset.from_dict({"text": ["x", "y"], "stars": [4, 0]}), label="stars"
    )
    assert numbers.labels is None and [s.label for s in numbers] == [4, 0]
    assert HuggingFaceData(datasets.Dataset.from_dict({"text": ["x"]}), label=None)[0].label is None
    stars = Features({"text": Value("string"), "label": ClassLabel(names=["1", "2", "0"])})
    rows = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [1, 0]}, features=stars)
    assert [s.label for s in HuggingFaceData(rows)] == [1, 0]  # places among the names
    for label, said in (
        ([0, 1], r"(?s)label .*: a number from 0 on, or a name, is needed.*row 0"),
        (0.5, "labels are numbers with fractions"),
    ):
        with pytest.raises(InputError, match=said):
            HuggingFaceData(datasets.Dataset.from_dict({"text": ["x"], "label": [label]}))[0]


def test_words_and_rationales():
    rows = datasets.Dataset.from_dict(
        {"tokens": [["I", "like", "it", "."]], "why": [[0, 1, 0, 0]], "label": [1]}
    )
    sample = HuggingFaceData(rows, text="tokens", rationale="why")[0]
    assert (
        sample.inputs == "I like it ."
        and sample.rationale == (False, True, False, False)
        and len(sample.words) == 4
    )


def pictures(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 7, 3), dtype=np.uint8)
    files = [tmp_path / f"{i}.png" for i in range(2)]
    for p, file in zip(pixels, files, strict=True):
        Image.fromarray(p).save(file)
    features = Features({"img": datasets.Image(), "label": ClassLabel(names=["cat", "dog"])})
    return pixels, datasets.Dataset.from_dict(
        {"img": [str(f) for f in files], "label": [1, 0]}, features=features
    )


def test_pictures(tmp_path):
    pixels, rows = pictures(tmp_path)
    source = HuggingFaceData(rows, size=(6, 7))
    holds_the_laws(source, 2, lambda: HuggingFaceData(rows, size=(6, 7)))
    assert (
        source.kind == "image"
        and source.labels == ("cat", "dog")
        and [s.label for s in source] == [1, 0]
    )
    assert torch.equal(source[1].inputs, torch.from_numpy(pixels[1]).permute(2, 0, 1) / 255)
    (tmp_path / "1.png").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"(?s)the row cannot be read.*row 1"):
        source[1]


def test_bad_input(nli, tmp_path):
    rows = {
        "which column": (
            lambda: HuggingFaceData(nli)[0],
            OptionError,
            "'premise', 'hypothesis', 'label', 'idx': which is explained",
        ),
        "column": (
            lambda: HuggingFaceData(nli, text="sentence")[0],
            InputError,
            "no column for text='sentence'; there are 'premise'",
        ),
        "no label": (
            lambda: HuggingFaceData(nli.remove_columns("label"), text="premise")[0],
            InputError,
            "(?s)no column for label='label'.*label=None",
        ),
        "text and image": (
            lambda: HuggingFaceData(nli, text="premise", image="hypothesis")[0],
            OptionError,
            "exclude each other",
        ),
        "no pictures": (
            lambda: HuggingFaceData(nli, image="premise")[0],
            InputError,
            "(?s)the picture is str.*cast_column",
        ),
        "numbers": (
            lambda: HuggingFaceData(nli, text="idx")[0],
            InputError,
            "(?s)column 'idx' holds int 10.*row 0",
        ),
        "streams": (
            lambda: HuggingFaceData(nli.to_iterable_dataset(), text="premise"),
            InputError,
            "IterableDataset is no map-style",
        ),
        "split": (lambda: HuggingFaceData(nli, split="test"), OptionError, "split='test'"),
        "folder": (
            lambda: HuggingFaceData(tmp_path),
            InputError,
            "holds no data set as save_to_disk makes it",
        ),
        "nowhere": (lambda: HuggingFaceData(tmp_path / "none"), InputError, "does not exist"),
    }
    for name, (call, error, said) in rows.items():
        with pytest.raises(error, match=said):
            call()
            pytest.fail(name)


CONTEXT = "The Norse settled in Normandy, in France, about 911. It was Rollo's."
QUESTIONS = [
    {
        "id": "a",
        "question": "Where did they settle?",
        "answers": [
            {"text": "Normandy", "answer_start": 21},
            {"text": "in France", "answer_start": 31},
        ],
    },
    {"id": "b", "question": "Whose was it?", "answers": [{"text": "Rollo", "answer_start": 60}]},
    {"id": "c", "question": "Why?", "answers": [], "is_impossible": True},
]


def squad_file(path, questions=QUESTIONS, context=CONTEXT):
    path.write_text(
        json.dumps(
            {
                "version": "v2.0",
                "data": [
                    {"title": "Normans", "paragraphs": [{"context": context, "qas": questions}]}
                ],
            }
        )
    )
    return path


def squad_rows():
    answers = [
        {name: [a[name] for a in q["answers"]] for name in ("text", "answer_start")}
        for q in QUESTIONS
    ]
    return datasets.Dataset.from_list(
        [
            {
                "id": q["id"],
                "title": "Normans",
                "context": CONTEXT,
                "question": q["question"],
                "answers": a,
            }
            for q, a in zip(QUESTIONS, answers, strict=True)
        ]
    )


@pytest.mark.parametrize("kind", ["file", "data set", "folder"])
def test_squad(tmp_path, kind):
    squad_rows().save_to_disk(tmp_path / "squad")
    path = squad_file(tmp_path / "dev-v2.0.json")
    make = {
        "file": lambda: Squad(path),
        "data set": lambda: Squad(squad_rows()),
        "folder": lambda: Squad(tmp_path / "squad"),
    }[kind]
    source = make()
    holds_the_laws(source, 3, make)
    assert (
        [s.key for s in source] == ["a", "b", "c"]
        and source.labels is None
        and source.kind == "text"
    )
    for sample, question, answer in zip(
        source, QUESTIONS, (["Normandy", "in", "France"], ["Rollo"], None), strict=True
    ):
        assert sample.inputs == (question["question"], CONTEXT) and sample.words == split_words(
            CONTEXT, 1
        )
        found = (
            None
            if sample.rationale is None
            else [
                CONTEXT[w.start : w.end]
                for w, inside in zip(sample.words, sample.rationale, strict=True)
                if inside
            ]
        )
        assert found == answer


BAD_SQUAD = {
    "elsewhere": (
        [{**QUESTIONS[0], "answers": [{"text": "Normandy", "answer_start": 20}]}],
        "answer 'Normandy' is not at character 20",
    ),
    "before": (
        [{**QUESTIONS[0], "answers": [{"text": "s", "answer_start": -2}]}],
        "answer 's' is not at character -2",
    ),
    "no start": (
        [{**QUESTIONS[0], "answers": [{"text": "Normandy"}]}],
        "answers need text and answer_start: 'answer_start'",
    ),
    "no number": (
        [{**QUESTIONS[0], "answers": [{"text": "Normandy", "answer_start": "21"}]}],
        "answers need texts, and numbers",
    ),
    "no question": ([{"id": "a", "answers": []}], "(?s)not SQuAD's JSON.*no 'question'"),
}


@pytest.mark.parametrize("questions, said", BAD_SQUAD.values(), ids=BAD_SQUAD)
def test_malformed_squad(tmp_path, questions, said):
    with pytest.raises(InputError, match=said):
        Squad(squad_file(tmp_path / "dev.json", questions))[0]


def test_not_squad(tmp_path, nli):
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "y.json").write_text("{")
    for name, said in (("x", "no 'data'"), ("y", "not SQuAD's JSON")):
        with pytest.raises(InputError, match=said):
            len(Squad(tmp_path / f"{name}.json"))
    with pytest.raises(InputError, match="no column answers, context, id, question"):
        Squad(nli)
