"""Texts in tables: the numbers are the metrics' own, words are the sample's, a user's function has
a number per token; runs on disk and the command line."""

import dataclasses
import json
import re

import pytest
import torch
from typer.testing import CliRunner

import relprop
from relprop.cli import app
from relprop.errors import InputError, OptionError, RelpropError
from relprop.evaluation import AOPC, LOdds, TextTask, TokenF1, digit_scenes, evaluate, reviews
from relprop.evaluation.text_task import _apart
from tools.evaluation.__main__ import app as tables
from tools.evaluation.papers import TABLES
from tools.evaluation.tasks import SHIPPED, measure, measure_shipped, write_page

pytestmark = pytest.mark.filterwarnings(
    "ignore:class sensitivity is not defined", "ignore:Kendall's τ is not defined"
)
METHODS = ["attcat", "rollout"]


@pytest.fixture(scope="module")
def task():
    return reviews(6)


@pytest.fixture(scope="module")
def table(task):
    return evaluate(task, METHODS)


class TestNumbers:
    def test_are_the_metrics_own(self, task, table):
        samples = [task.source[i] for i in range(6)]
        encoded = task.tokenizer(
            [s.inputs for s in samples],
            padding=True,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        content = (encoded.pop("special_tokens_mask") == 0) & (encoded["attention_mask"] == 1)
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            predicted = task.model(**inputs).logits.argmax(1)
        e = relprop.explain(task.model, inputs, predicted, method="attcat")
        words = task.batch(range(6)).parts["words"]
        aopc = AOPC()(task.model, inputs, e.scores, pad_id=task.tokenizer.pad_token_id, words=words)
        odds = LOdds()(
            task.model, inputs, e.scores, replace_with=task.tokenizer.pad_token_id, words=words
        )
        assert table["attcat", "AOPC"].interval.mean == pytest.approx(aopc.mean, abs=1e-5)
        assert table["attcat", "LOdds"].interval.mean == pytest.approx(odds.mean, abs=1e-4)
        labels = torch.tensor([s.label for s in samples])
        scores = relprop.explain(task.model, inputs, labels, method="attcat").scores
        best = [
            torch.stack([row[word].max() for word in sample])
            for row, sample in zip(scores, words, strict=True)
        ]
        f1 = TokenF1(tuple(range(2, 17, 2)))(best, [s.rationale for s in samples])
        assert table["attcat", "token-F1: k = 4"].interval.mean == pytest.approx(
            100 * float(f1[:, 1].mean()), abs=1e-6
        )
        assert content.sum() == sum(len(word) for sample in words for word in sample)

    @pytest.mark.slow
    def test_do_not_depend_on_batch_or_padding(self, task, table):
        again = evaluate(task, METHODS, batch_size=1)
        assert len({tuple(task.batch([i]).inputs["input_ids"].shape) for i in range(6)}) > 1
        for row, column in table.cells:
            assert again[row, column].interval.mean == pytest.approx(
                table[row, column].interval.mean, abs=2e-3
            ), (row, column)

    def test_the_rationale_itself_is_best(self, task):
        def oracle(model, inputs, target):
            return truth[inputs["input_ids"].shape[0]][:, : inputs["input_ids"].shape[1]]

        batch = task.batch(range(6))
        marked = torch.zeros(batch.parts["content"].shape)
        for row, pieces, sample in zip(marked, batch.parts["pieces"], batch.samples, strict=True):
            row[
                [
                    token
                    for word, reason in zip(pieces, sample.rationale, strict=True)
                    if reason
                    for token in word
                ]
            ] = 1
        truth = {6: marked, 12: marked.repeat_interleave(2, 0)}
        found = evaluate(
            task,
            [relprop.evaluation.Entry("oracle", function=oracle, class_specific=False), "attcat"],
        )
        reasons = [sum(task.source[i].rationale) for i in range(6)]
        exact = [i for i in range(6) if reasons[i] in (2, 4, 6, 8)]
        assert exact and found.best["token-F1: mean over k"] == "oracle"

    def test_functions_need_a_number_per_token(self, task):
        with pytest.raises(InputError, match=r"a number for each of \d+ tokens"):
            evaluate(
                task,
                [("short", lambda model, inputs, target: torch.rand(len(target), 3))],
                samples=2,
            )

    def test_labels_are_the_models_by_name(self, task):
        class Reversed:
            """The same reviews, whose labels are numbered the other way round."""

            name, kind, labels = "reversed", "text", ("positive", "negative")

            def __len__(self):
                return 3

            def __getitem__(self, i):
                sample = task.source[i]
                return dataclasses.replace(sample, label=1 - sample.label)

        found = TextTask(task.model, Reversed(), tokenizer=task.tokenizer).batch([0, 1, 2])
        assert torch.equal(found.labels, task.batch([0, 1, 2]).labels) and torch.equal(
            found.labels, found.predicted
        )

    def test_a_tokenizer_is_needed(self, task):
        with pytest.raises(OptionError, match="fast tokenizer"):
            TextTask(task.model, task.source)

    def test_a_token_of_two_words_belongs_to_the_first(self):
        assert _apart([(1, 2), (2, 3), (), (3,)]) == [[1, 2], [3]]


class TestRuns:
    def test_a_run_on_disk_has_the_same_numbers_and_goes_on(self, task, tmp_path):
        direct = evaluate(task, METHODS)
        first = measure(task, METHODS, tmp_path / "run", batch_size=4, progress=False).table()
        again = measure(
            task, METHODS, tmp_path / "run", batch_size=4, resume=True, progress=False
        ).table()
        for at, cell in direct.cells.items():
            assert first[at].interval.mean == pytest.approx(cell.interval.mean, abs=2e-3)
            assert again[at].interval == first[at].interval
        with pytest.raises(RelpropError, match="something else"):
            measure(task, ["attcat"], tmp_path / "run", resume=True, progress=False)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::relprop.errors.UndefinedValueWarning")
    def test_the_shipped_tables(self, tmp_path, monkeypatch):
        rows = tuple(dict.fromkeys(r for p in TABLES if p.task == "reviews" for r in p.rows))
        monkeypatch.setitem(SHIPPED, "reviews", lambda samples: (reviews(samples), rows))
        page = tmp_path / "docs" / "page.md"
        (page.parent / "pictures").mkdir(parents=True)
        page.write_text("kept\n<!-- attcat-table-1: generated -->\n<!-- /attcat-table-1 -->\n")
        said = []
        out = tmp_path / "out"
        found = measure_shipped(out, samples=4, only=["reviews"], log=said.append, progress=False)
        write_page(found, out, "make evaluate", page_to_update=page, log=said.append)
        assert list(found) == ["reviews"] and "attcat-table-1" in said[1]
        assert (
            page.read_text().startswith("kept\n")
            and "| attcat |" in page.read_text()
            and "0.371" in page.read_text()
        )
        assert (
            page.parent / "pictures" / "evaluation-token-f1.png"
        ).stat().st_size > 5000 and "Figure 4" in (tmp_path / "out" / "evaluation.md").read_text()
        with pytest.raises(OptionError, match="nothing"):
            measure_shipped(tmp_path / "other", samples=4, only=["nothing"])


class TestCommandLine:
    @pytest.mark.slow
    def test_a_table_of_ones_own_data(self, tmp_path):
        out = tmp_path / "run of mine"
        arguments = [
            "evaluate",
            "--data",
            "demo:digits",
            "--model",
            "demo:digits",
            "--method",
            "rollout",
            "--method",
            "transformer_attribution:rules=stable",
            "--samples",
            "4",
        ]
        result = CliRunner().invoke(
            app, [*arguments, "--measure", "segmentation", "--out", str(out), "--json"]
        )
        assert result.exit_code == 0, result.output
        data = json.loads(next(line for line in result.output.splitlines() if line.startswith("{")))
        assert data["rows"] == [
            "rollout",
            "transformer_attribution:rules=stable",
            "random",
            "position",
        ]
        assert (
            "segmentation: mIoU" in (out / "table.md").read_text()
            and json.loads((out / "table.json").read_text()) == data
        )

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            (["--model", "demo:digits"], "evaluate needs --data; the papers' tables"),
        ],
    )
    def test_refusals(self, arguments, complaint, tmp_path):
        result = CliRunner().invoke(app, ["evaluate", "--out", str(tmp_path / "run"), *arguments])
        assert result.exit_code and isinstance(result.exception, OptionError)
        assert re.search(complaint, str(result.exception))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::relprop.errors.RelpropWarning")  # two samples are few
    def test_the_shipped_tables_as_json(self, tmp_path):
        out = tmp_path / "tables"
        arguments = ["--only", "reviews", "--samples", "2", "--out", str(out), "--json"]
        said = CliRunner().invoke(tables, arguments)
        assert said.exit_code == 0, said.output
        assert json.loads(said.stdout)["runs"] == {"reviews": str(out / "reviews")}
        assert "| transformer_attribution" in (out / "evaluation.md").read_text()

    def test_scenes_and_reviews_differ(self):
        assert digit_scenes(2).kind == "image" and reviews(2).kind == "text"
