"""Tables: the numbers are the metrics', whatever the batch; floors, refusals, a user's own method;
what cannot be told from random is said."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import relprop
from relprop.data import Sample
from relprop.errors import InputError, OptionError
from relprop.evaluation import (
    Entry,
    ImagePerturbation,
    ImageTask,
    Segmentation,
    digit_scenes,
    evaluate,
)
from relprop.evaluation.base import Interval
from relprop.evaluation.entries import entries
from relprop.evaluation.measures import Batch
from relprop.evaluation.table import Cell
from relprop.evaluation.work import EvaluationWork, numbers
from relprop.runner.question import Question
from tools.evaluation.page import blocks, fenced, update

pytestmark = pytest.mark.filterwarnings("ignore:class sensitivity is not defined")
METHODS = ["transformer_attribution", "rollout"]


def brightness(model, images, target):
    return images.mean(1)


@pytest.fixture(scope="module")
def task():
    shipped = digit_scenes(8)
    return ImageTask(shipped.model, shipped.source)  # with all that is not costly


@pytest.fixture(scope="module")
def table(task):
    return evaluate(
        task,
        [
            *METHODS,
            brightness,
            ("patches", lambda model, images, target: images.mean(1)[:, ::4, ::4]),
        ],
    )


class TestNumbers:
    def test_are_the_metrics_own(self, task, table):
        samples = [task.source[i] for i in range(8)]
        images, masks = (
            torch.stack([s.inputs for s in samples]),
            torch.stack([s.mask for s in samples]),
        )
        labels, others = [s.label for s in samples], [s.others for s in samples]
        e = relprop.explain(task.model, images, labels)
        result = Segmentation()(e, masks)
        assert table["transformer_attribution", "mIoU"].interval.mean == pytest.approx(
            100 * result.mean_iou, abs=1e-4
        )
        assert table["transformer_attribution", "mAP"].interval.mean == pytest.approx(
            100 * result.mean_average_precision, abs=1e-3
        )
        curve = ImagePerturbation("negative", "target")(
            task.model, images, e, labels, normalize=lambda x: x, others=others
        )
        assert table[
            "transformer_attribution", "negative perturbation: target"
        ].interval.mean == pytest.approx(curve.auc)

    @pytest.mark.slow
    def test_do_not_depend_on_the_batch(self, task, table):
        again = evaluate(task, [*METHODS, brightness], batch_size=3)
        for row, column in again.cells:
            assert again[row, column].interval.mean == pytest.approx(
                table[row, column].interval.mean, abs=1e-4
            ), (row, column)

    @pytest.mark.slow
    def test_a_function_that_is_a_method_gets_its_numbers(self, task):
        def same(model, images, target):
            return relprop.explain(model, images, target).heatmap()

        both = evaluate(task, ["transformer_attribution", same])
        for column in both.columns:
            assert (
                both["same", column.name].interval
                == both["transformer_attribution", column.name].interval
            )

    def test_class_agnostic_rows_say_nothing_of_classes(self, table):
        assert ("rollout", "class sensitivity") not in table.cells and (
            "rollout",
            "negative perturbation: target",
        ) not in table.cells
        assert ("rollout", "negative perturbation: predicted") in table.cells
        assert table["brightness", "class sensitivity"].interval.mean == pytest.approx(1)

    def test_samples_limits(self, task):
        few = evaluate(task, ["rollout"], samples=3)
        assert few.samples == (3, 3)
        with pytest.raises(OptionError, match="samples=1"):
            evaluate(task, ["rollout"], samples=1)


class TestRows:
    def test_floors_are_always_there_and_random_is_seeded(self, task, table):
        assert table.rows[-2:] == ("random", "position")
        one, other = task.batch([0, 1]), task.batch([1])
        noise = task.floor(entries([])[0], one)
        assert not torch.equal(noise[0], noise[1]) and torch.equal(
            noise[1:], task.floor(entries([])[0], other)
        )
        position = task.floor(entries([])[1], one)
        assert torch.equal(position[0], position[1])

    def test_names(self):
        rows = entries(
            [
                "partial_lrp/lrp",
                ("w/o gradient", Question("transformer_attribution", {"use_gradient": False})),
                brightness,
            ]
        )
        assert [r.name for r in rows] == [
            "partial_lrp/lrp",
            "w/o gradient",
            "brightness",
            "random",
            "position",
        ]
        assert rows[0].call.rules == "lrp" and not entries(["rollout"])[0].class_specific
        assert entries(["position", "rollout"])[0].floor

    @pytest.mark.parametrize(
        ("methods", "complaint"),
        [
            (["nothing"], "no method"),
            (["rollout", "rollout"], "rollout is there twice"),
            ("rollout", "is a list"),
            ([3], "no name, function"),
            (brightness, "is a list"),
        ],
    )
    def test_refusals(self, methods, complaint):
        with pytest.raises(OptionError, match=complaint):
            entries(methods)

    def test_what_a_function_returns_is_checked(self, task):
        with pytest.raises(
            InputError, match=r"short\(model, inputs, target\) returned shape \[1, 32, 32\]"
        ):
            evaluate(task, [("short", lambda model, images, target: images[:1, 0])], samples=2)
        with pytest.raises(InputError, match="NaN"):
            evaluate(
                task, [("nan", lambda model, images, target: images[:, 0] * torch.nan)], samples=2
            )

    def test_a_function_that_knows_no_classes(self, task):
        seen = []

        def blind(model, images, target):
            seen.append(len(images))
            return images.mean(1)

        table = evaluate(task, [Entry("blind", function=blind, class_specific=False)], samples=4)
        assert seen == [4] and ("blind", "class sensitivity") not in table.cells

    def test_a_method_that_is_not_defined_is_named_with_its_reason(self):
        class Source:
            name, kind, labels = "noise", "image", None

            def identity(self):
                return {"name": "noise"}

            def __len__(self):
                return 3

            def __getitem__(self, i):
                return Sample(
                    str(i), torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(i)), i % 2
                )

        torch.manual_seed(0)
        cnn = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 2),
        )
        table = evaluate(ImageTask(cnn, Source()), ["rollout", "input_gradient"])
        assert (
            table.rows == ("input_gradient", "random", "position")
            and "no softmax attention" in table.refused["rollout"]
        )
        assert "rollout is not defined for this model" in str(table)


class TestTable:
    def test_says_what_cannot_be_told_from_random_and_what_is_worse(self, task):
        def noise(model, images, target):
            return torch.rand(
                len(images), 8, 8, generator=torch.Generator().manual_seed(len(images))
            )

        def background(model, images, target):
            return -images.mean(1)

        table = evaluate(task, [noise, background])
        assert table["noise", "negative perturbation: predicted"].like_random
        text = str(table)
        assert (
            "cannot tell noise from random" in text
            and "negative perturbation: predicted finds random better than background" in text
        )
        assert text.count("°") > 1 and "n = 8" in text and "segmentation `paper-code`" in text

    @pytest.mark.filterwarnings("ignore::relprop.errors.UndefinedValueWarning")
    def test_says_where_a_number_is_not_defined(self, task):
        def constant(model, images, target):
            return torch.ones(len(images), 8, 8)

        table = evaluate(task, [constant], samples=3)
        ranked = ["positive perturbation", "negative perturbation", "class sensitivity"]
        undefined = {name for name, rows in table.undefined.items() if rows == ("constant",)}
        assert all(any(name.startswith(r) for name in undefined) for r in ranked), undefined
        assert "class sensitivity is not defined for constant" in str(table)

    def test_the_best_is_none_that_is_defined_for_a_part_of_the_samples(self, table):
        name = next(c.name for c in table.columns if c.higher_is_better)
        row = next(r for r in table.rows if r not in (table.best[name], "random", "position"))
        for samples, best in ((8, row), (7, table.best[name])):  # of 8
            first = Cell(Interval(999.0, 998.0, 1000.0, samples))
            other = replace(table, cells={**table.cells, (row, name): first})
            assert other.best[name] == best

    def test_cells(self):
        interval = Interval(0.0, -1.0, 1.0, 5)
        assert Cell(interval, interval).like_random and not Cell(interval).like_random
        assert Cell(interval, Interval(-1.0, -2.0, -0.5, 5)).worse_than_random(True) and not Cell(
            interval, Interval(-1.0, -2.0, -0.5, 5)
        ).worse_than_random(False)

    def test_markdown_both_ways_and_json(self, table):
        lines = table.markdown().splitlines()
        assert (
            lines[0].count("|") == len(table.columns) + 2
            and "segmentation: mIoU ↑" in lines[0]
            and "positive perturbation: predicted ↓" in lines[0]
        )
        assert table.markdown(transposed=True).splitlines()[0].count("|") == len(table.rows) + 2
        assert "**" in table.markdown() and "| random | **" not in table.markdown()
        data = json.loads(table.to_json())
        assert (
            data["rows"] == list(table.rows)
            and len(data["cells"]) == len(table.cells)
            and data["columns"][0]["protocol"] == "paper-code"
        )

    def test_unknown_cells(self, table):
        with pytest.raises(OptionError, match="rows are transformer_attribution"):
            table["transformer_attribution", "nothing"]
        with pytest.raises(OptionError, match="rows are"):
            table["nothing", "mIoU"]


class TestMeasures:
    def test_the_rival_of_a_class_is_never_that_class(self):
        """Where the label is the class that the model finds least likely, as in every mistake
        between two classes, another one is taken."""
        samples = tuple(
            Sample(str(i), torch.zeros(1, 2, 2), label) for i, label in enumerate((0, 0, 1))
        )
        logits, labels = (
            torch.tensor([[-3.0, 1.0, 2.0], [4.0, 1.0, 2.0], [0.0, 1.0, 2.0]]),
            torch.tensor([0, 0, 1]),
        )
        assert Batch(
            (0, 1, 2), samples, None, logits.argmax(1), labels, logits, {}
        ).rival().tolist() == [1, 1, 0]

    @pytest.mark.slow
    def test_costly_ones_are_made_when_named(self, task):
        named = ImageTask(
            task.model, task.source, ["parameter randomisation", "infidelity", "max-sensitivity"]
        )
        table = evaluate(named, ["input_gradient", brightness], samples=2)
        assert [c.name for c in table.columns] == [
            "parameter randomisation",
            "infidelity",
            "max-sensitivity",
        ]
        assert table["brightness", "parameter randomisation"].interval.mean == pytest.approx(1)
        assert table["random", "max-sensitivity"].interval.mean == 0
        assert table["input_gradient", "parameter randomisation"].interval.mean < 0.9

    def test_a_name_that_the_data_does_not_allow(self, task):
        with pytest.raises(OptionError, match="'AOPC' cannot be made of 'digit scenes'"):
            evaluate(ImageTask(task.model, task.source, ["AOPC"]), ["rollout"], samples=2)

    def test_the_wrong_kind_of_data(self, task):
        class Texts:
            name, kind, labels = "texts", "text", None

        with pytest.raises(OptionError, match="data set of images"):
            ImageTask(task.model, Texts())


class TestPages:
    def test_update_leaves_the_rest_as_it_is(self, tmp_path):
        page = tmp_path / "page.md"
        page.write_text("before\n<!-- a: generated -->\nold\n<!-- /a -->\nafter\n")
        assert update(page, {"a": r"new \1", "b": "other"}) == ["a"]
        assert page.read_text() == "before\n<!-- a: generated -->\nnew \\1\n<!-- /a -->\nafter\n"
        with pytest.raises(InputError, match="no place for b"):
            update(page, {"b": "other"})
        assert fenced("a", "x").startswith("<!-- a: generated -->")

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::relprop.errors.UndefinedValueWarning")
    def test_the_papers_tables_have_all_rows(self, task):
        from tools.evaluation.papers import IMAGE_ROWS, TABLES, TEXT_ROWS

        rows = entries(IMAGE_ROWS)
        names = {row.name for row in rows}
        for paper in TABLES:
            assert set(paper.rows) <= (
                names if paper.task == "digit_scenes" else {row.name for row in entries(TEXT_ROWS)}
            ), paper.key
            assert {r for r, _ in paper.published} <= set(paper.rows) and {
                c for _, c in paper.published
            } <= set(paper.columns)
        kept = tuple(
            row for row in rows if row.name in TABLES[2].rows + TABLES[0].rows or row.floor
        )
        work = EvaluationWork(task, kept, 4)
        found = numbers(task, kept, ((r.index, row) for r in work(range(4)) for row in r.rows))
        parts = blocks({"digit_scenes": found})
        papers = ["cvpr-table-1", "cvpr-table-2", "cvpr-table-3"]
        assert list(parts) == [*papers, "differences-digit_scenes", "all-digit_scenes"]
        assert "| gae, balanced − gae | – |" in parts["differences-digit_scenes"]
        column, rollout = found.table().columns[0], next(r for r in kept if r.name == "rollout")
        assert (
            found.difference("rollout", "random", column)
            == found.cell(rollout, column).above_random
        )
        assert (
            "Published (ViT-B/16, ImageNet-val)" in parts["cvpr-table-1"]
            and "54.16" in parts["cvpr-table-1"]
            and "Spearman's ρ" in parts["cvpr-table-2"]
        )
        assert json.dumps(work.identity()) == json.dumps(EvaluationWork(task, kept, 4).identity())
