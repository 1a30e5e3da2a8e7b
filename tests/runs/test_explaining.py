"""``ExplainWork``: the same numbers as ``explain``, whatever the batch; what the rows say;
identities; bad input."""

import json

import pytest
import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.errors import InputError, OptionError
from relprop.runs import ExplainWork, explanation_of, fingerprints, read_run, run
from tests.common.rows import only
from tests.runs.sources import Pictures, Texts, bert, patches, tokenizer

#: Products of another batch size round otherwise, which the paper's skip rule magnifies.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12}


def done(work, folder, **options):
    run(work, folder, progress=False, **options)
    return read_run(folder)


def close(a, b, dtype):
    """Every tensor and number of two runs, relative to the largest score of the sample."""
    for i in range(a.samples):
        mine, theirs = a.tensors(i), b.tensors(i)
        assert mine.keys() == theirs.keys() and mine
        for name, t in mine.items():
            assert t.shape == theirs[name].shape and t.dtype == theirs[name].dtype
            if t.is_floating_point():
                assert t.dtype == dtype
                assert (t - theirs[name]).abs().max() <= TOLERANCE[dtype] * max(
                    float(t.abs().max()), 1e-30
                ), (i, name)
            else:
                assert torch.equal(t, theirs[name])
    for mine, theirs in zip(a.rows(), b.rows(), strict=True):
        for name, value in mine.items():
            assert (
                value == pytest.approx(theirs[name], rel=TOLERANCE[dtype])
                if isinstance(value, float)
                else value == theirs[name]
            ), name


@pytest.mark.parametrize("dtype", only([torch.float64], [torch.float32, torch.float64]), ids=str)
def test_images_are_explained_as_explain_does_whatever_the_batch_size(tmp_path, dtype):
    model, source = digit_scene_model().to(dtype), Pictures(6)
    methods = ["transformer_attribution", ("rollout", {"head_fusion": "max"})]
    runs = [
        done(
            ExplainWork(model, source, methods=methods, normalize=torch.nn.Threshold(0.1, 0.0)),
            tmp_path / str(n),
            batch_size=n,
        )
        for n in (1, 4, 6)
    ]
    images = torch.nn.functional.threshold(source.scenes.images, 0.1, 0.0).to(dtype)
    expected, rollout = (
        relprop.explain(model, images),
        relprop.explain(model, images, method="rollout", head_fusion="max"),
    )
    close(runs[0], runs[1], dtype)
    close(runs[2], runs[1], dtype)
    chances = model(images).detach().double().softmax(1).max(1)
    for i in range(6):
        tensors = runs[2].tensors(i)
        assert torch.equal(
            tensors["transformer_attribution.scores"], expected.scores[i]
        ) and torch.equal(tensors["rollout.row"], rollout.row[i])
        one, two = runs[2].rows_of(i)
        assert (one["method"], two["method"], one["key"], one["label"]) == (
            "transformer_attribution",
            "rollout",
            f"p{i:03d}",
            int(source.scenes.digits[i, 0]),
        )
        assert (
            json.loads(one["target"])
            == expected.target[i]
            == one["predicted"]
            == int(chances.indices[i])
        )
        assert one["output"] == float(expected.output[i]) and one["probability"] == pytest.approx(
            float(chances.values[i]), rel=1e-6
        )
        assert one["tokens"] is one["truncated"] is None and one["rules"] == "paper"
        again = explanation_of(runs[2], i, "transformer_attribution")
        torch.testing.assert_close(again.heatmap(), expected.heatmap()[i][None], rtol=0, atol=0)
        torch.testing.assert_close(again.identity, expected.identity[i][None], rtol=0, atol=1e-6)
        assert (
            torch.equal(again.content, expected.content[i][None])
            and again.target == expected.target[i : i + 1]
        )
    with pytest.raises(OptionError, match="there are transformer_attribution, rollout"):
        explanation_of(runs[2], 0)


def test_labels_and_scores_at_pixels(tmp_path):
    source, model = Pictures(5), patches(torch.float64)
    found = done(
        ExplainWork(model, source, target="label", methods=["gradient_x_input"], limit=4),
        tmp_path,
        batch_size=3,
    )
    expected = relprop.explain(
        model,
        source.scenes.images[:4].double(),
        source.scenes.digits[:4, 0].tolist(),
        method="gradient_x_input",
    )
    for i in range(4):
        torch.testing.assert_close(
            found.tensors(i)["scores"], expected.scores[i], rtol=1e-12, atol=1e-15
        )
        torch.testing.assert_close(
            explanation_of(found, i).heatmap(), expected.heatmap()[i][None], rtol=1e-12, atol=1e-15
        )
        (row,) = found.rows_of(i)
        assert json.loads(row["target"]) == row["label"] == int(source.scenes.digits[i, 0])
        assert row["probability"] == pytest.approx(
            float(
                model(source.scenes.images[i : i + 1].double()).detach().softmax(1)[0, row["label"]]
            ),
            rel=1e-12,
        )
    assert found.samples == 4


def test_images_of_several_shapes_are_put_together_by_shape(tmp_path):
    source, model = Pictures(7, mixed=True), patches(torch.float64)
    found = done(ExplainWork(model, source), tmp_path, batch_size=7)
    for i in range(7):
        expected = relprop.explain(model, source[i].inputs[None].double())
        assert expected.grid == ((4, 3) if i % 3 == 2 else (4, 4)) == explanation_of(found, i).grid
        torch.testing.assert_close(
            found.tensors(i)["scores"], expected.scores[0], rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize(
    "pairs, pad",
    [
        pytest.param(False, True, id="texts, padded"),
        pytest.param(True, False, id="pairs, by length", marks=pytest.mark.slow),
        pytest.param(True, True, id="pairs, padded", marks=pytest.mark.slow),
    ],
)
def test_texts_are_explained_as_alone_without_their_padding(tmp_path, pairs, pad):
    samples = 5 if pad else 4  # every length is a graph of its own
    model, source, reader = bert().double(), Texts(samples, pairs=pairs), tokenizer(pad=pad)
    methods = ["transformer_attribution", "gradient_x_input"]
    runs = [
        done(
            ExplainWork(model, source, methods=methods, processor=reader),
            tmp_path / str(n),
            batch_size=n,
        )
        for n in (1, 2, 5)
    ]
    close(runs[0], runs[1], torch.float64)
    close(runs[2], runs[1], torch.float64)
    for i in (0, 3):
        texts = source[i].inputs if pairs else (source[i].inputs,)
        inputs = reader(*[[t] for t in texts], return_tensors="pt", truncation=True, max_length=36)
        explanations = (
            relprop.explain(model, inputs, processor=reader),
            relprop.explain(model, inputs, processor=reader, method="gradient_x_input"),
        )
        for row, expected in zip(runs[2].rows_of(i), explanations, strict=True):
            tokens = json.loads(row["tokens"])
            assert (
                tokens == expected.tokens[0] == explanation_of(runs[2], i, row["method"]).tokens[0]
                and "[PAD]" not in tokens
            )
            assert (
                row["truncated"] == (i % 4 == 3) and json.loads(row["target"]) == expected.target[0]
            )
            mine = runs[2].tensors(i)
            for name in ("scores", "row"):
                scale = float(expected.scores.abs().max())
                assert (
                    mine[f"{row['method']}.{name}"] - getattr(expected, name)[0]
                ).abs().max() <= 1e-10 * max(scale, 1)
            assert torch.equal(mine[f"{row['method']}.content"], expected.content[0])


def test_padding_stops_where_the_model_has_no_more_positions(tmp_path):
    reader = tokenizer()
    reader.model_max_length = int(1e30)  # as tokenizers say that do not know
    found = done(ExplainWork(bert(45), Texts(4), processor=reader), tmp_path)
    assert [len(found.tensors(i)["scores"]) for i in range(4)] == [4, 5, 6, 42] and not any(
        r["truncated"] for r in found.rows()
    )
    work = ExplainWork(bert(45), Texts(4), processor=reader)
    assert [work.preparation.padded(n, work.model) for n in (3, 32, 33, 45, 50)] == [
        32,
        32,
        45,
        45,
        50,
    ] and work.preparation.padded(33, torch.nn.Identity()) == 33


def test_labels_go_by_name_where_both_know_the_names(tmp_path):
    model, source = bert(), Texts(4)
    model.config.id2label, model.config.label2id = {0: "good", 1: "bad"}, {"good": 0, "bad": 1}
    source.labels = ("bad", "good")
    work = ExplainWork(model, source, target="label", processor=tokenizer())
    assert work.identity()["classes"] == [1, 0]
    found = done(work, tmp_path)
    assert [(r["label"], r["target"]) for r in found.rows()] == [
        (0, "1"),
        (1, "0"),
        (0, "1"),
        (1, "0"),
    ]
    source.labels = ("bad", "other")
    assert (
        ExplainWork(model, source, target="label", processor=tokenizer()).identity()["classes"]
        is None
    )


def test_a_sample_without_a_label_fails_with_its_key(tmp_path):
    with pytest.raises(InputError, match=r"sample 'p001' \(number 1\): sample 'p001' has no label"):
        done(ExplainWork(patches(), Pictures(3, unlabelled=[1]), target="label"), tmp_path)
    summary = run(
        ExplainWork(patches(), Pictures(3, unlabelled=[1]), target="label"),
        tmp_path,
        resume=True,
        on_error="skip",
        progress=False,
    )
    assert summary.failed == 1 and summary.complete and read_run(tmp_path).failed[1].key == "p001"


def changed(work):
    with torch.no_grad():
        next(work.model.parameters()).view(-1)[0] += 1e-3
    return work


def identity(**options):
    return ExplainWork(patches(), Pictures(3), **options).identity()


def test_what_the_numbers_depend_on_is_in_the_identity():
    base = identity()
    assert base == identity() and json.loads(json.dumps(base)) == base
    others = [
        changed(ExplainWork(patches(), Pictures(3))).identity(),
        identity(target="label"),
        identity(methods=["rollout"]),
        identity(limit=2),
        identity(methods=[("transformer_attribution", {"rules": "stable"})]),
        identity(methods=[("transformer_attribution", {"normalize_rows": True})]),
        identity(precision="float64"),
        identity(on_unknown="error"),
        identity(normalize=torch.nn.Threshold(0.1, 0.0)),
        identity(normalize=torch.nn.Threshold(0.2, 0.0)),
        identity(
            methods=[
                (
                    "transformer_attribution",
                    {
                        "rules": relprop.rules.PAPER.with_rule(
                            torch.ops.aten.cumsum, relprop.rules.carry
                        )
                    },
                )
            ]
        ),
        identity(normalize=double),
        ExplainWork(patches(), Pictures(3, mixed=True)).identity(),
    ]
    texts = [json.dumps(i, sort_keys=True) for i in [base, *others]]
    assert len(set(texts)) == len(texts)
    with relprop.register_rule(torch.ops.aten.cumsum)(relprop.rules.carry):
        assert identity() != base
    assert identity() == base
    heads = torch.nn.TransformerEncoderLayer(
        8, 4, 16, batch_first=True
    )  # the same weights, but read as more heads
    assert (
        fingerprints.of_model(bert()) == fingerprints.of_model(bert())
        and fingerprints.of_model(heads)["weights"] != base["model"]["weights"]
    )


def double(image):
    return 2 * image


def test_the_same_weights_with_other_settings_are_another_model():
    model = bert()
    mine = fingerprints.of_model(model)
    model.config.num_attention_heads = 4
    other = fingerprints.of_model(model)
    assert mine["weights"] == other["weights"] and mine["settings"] != other["settings"]


def test_tokenizers_are_told_apart():
    reader = tokenizer()
    mine = fingerprints.of_tokenizer(reader)
    reader(["a", "the film"], padding=True, truncation=True, max_length=4)
    assert fingerprints.of_tokenizer(reader) == mine == fingerprints.of_tokenizer(tokenizer())
    assert fingerprints.of_tokenizer(tokenizer(pad=False)) != mine
    reader.truncation_side = "left"
    assert fingerprints.of_tokenizer(reader) != mine


class Nameless:
    def __call__(self, image):
        return image


@pytest.mark.parametrize(
    "make, error",
    [
        (
            lambda: ExplainWork(patches(), Pictures(2), target="best"),
            "target='best': 'predicted' or 'label'",
        ),
        (lambda: ExplainWork(patches(), Pictures(2), methods=[]), "methods is empty"),
        (
            lambda: ExplainWork(patches(), Pictures(2), methods=["rollout", "rollout"]),
            "methods has rollout twice",
        ),
        (lambda: ExplainWork(patches(), Pictures(2), methods="nothing"), "nothing"),
        (
            lambda: ExplainWork(patches(), Pictures(2), methods=[("rollout", {"colour": 1})]),
            "colour",
        ),
        (lambda: ExplainWork(patches(), Pictures(2), limit=0), "limit=0"),
        (lambda: ExplainWork(bert(), Texts(2)), "texts need what turns them into tokens"),
        (
            lambda: ExplainWork(bert(), Texts(2), processor=double),
            "processor=function is no tokenizer",
        ),
        (
            lambda: ExplainWork(bert(), Texts(2), processor=tokenizer(), normalize=double),
            "normalize is for images",
        ),
        (
            lambda: ExplainWork(patches(), Pictures(2), normalize=Nameless()).identity(),
            "Nameless prints only its address",
        ),
        (
            lambda: ExplainWork(patches(), Pictures(2), normalize=Nameless().__call__).identity(),
            "holds values that do not show in its source",
        ),
        (
            lambda: fingerprints.of_model(torch.nn.Linear(2, 2, device="meta")),
            "'bias' is on the meta device",
        ),
        (
            lambda: ExplainWork(patches(), Pictures(2), normalize=torch.nn.Flatten(0))([0]),
            "normalize gave Tensor .1024,. for sample 'p000'",
        ),
        (
            lambda: ExplainWork(patches(), Pictures(2), normalize=torch.nn.Linear(3, 3))([0]),
            "normalize does not take sample 'p000'",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_bad_choices(make, error):
    with pytest.raises((OptionError, InputError), match=error):
        make()
