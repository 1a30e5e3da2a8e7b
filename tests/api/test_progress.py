"""What a long call says it is at, to whoever looks."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.progress import Progress

import relprop
from relprop import progress
from relprop.commands.steps import Steps
from relprop.demo.model import digit_scene_model
from relprop.progress import SHOWN, counting
from tests.cli.test_entry import Terminal
from tests.targets.models import gpt2

IMAGES = torch.rand(3, 1, 32, 32)


@pytest.fixture
def updates(monkeypatch):
    """All that is shown, in order, whichever display shows it."""
    lines = []
    update = Progress.update

    def recorded(self, task, **fields):
        lines.append((fields.get("description"), fields.get("left")))
        update(self, task, **fields)

    monkeypatch.setattr(Progress, "update", recorded)
    return lines


def explained(updates, *names, **options):
    relprop.explain(digit_scene_model(), IMAGES[:1], 3, progress=True, **options)
    return [line for line, _ in updates if line]


def test_parts_and_no_estimate_before_one_is_done(updates):
    model = digit_scene_model()
    relprop.explain(model, IMAGES, 3, batch_size=1, progress=True)
    shown = [(line, left) for line, left in updates if line]
    assert [line for line, _ in shown] == ["part 1 of 3", "part 2 of 3", "part 3 of 3"]
    assert shown[0][1] == "" and all(re.match(r"about \d+ s left", left) for _, left in shown[1:])


def test_methods_of_a_comparison_by_name(updates):
    names = ["gae", "rollout", "attnlrp"]  # the last one in a forward pass of its own
    relprop.compare(digit_scene_model(), IMAGES[:1], names, 3, progress=True)
    shown = [line for line, _ in updates if line]
    counted = [line.partition(": ")[::2] for line in shown]
    assert [count for count, _ in counted] == [f"method {i + 1} of 3" for i in range(3)]
    assert {name for _, name in counted} == set(names)


@pytest.mark.parametrize(
    "method, options, last",
    [
        ("integrated_gradients", {"n_steps": 12}, "step 12 of 12"),
        ("smoothgrad", {"n_samples": 4}, "sample 4 of 4"),
        ("occlusion", {"window": 16}, "window 4 of 4"),
    ],
)
@pytest.mark.filterwarnings("ignore::relprop.errors.CompletenessWarning")
def test_steps_of_one_method(updates, method, options, last):
    assert explained(updates, method=method, **options)[-1] == last


def test_generated_tokens(updates):
    model = gpt2()
    given = torch.tensor([[4, 5, 6, 7]])
    relprop.explain_generation(model, torch.tensor([[1, 2]]), output_ids=given, progress=True)
    shown = [line for line, _ in updates if line]
    assert shown[0] == "target 1 of 4" and shown[-1] == "target 4 of 4"


class Streamer:
    """A user's own streamer."""

    def __init__(self):
        self.tokens, self.ended = [], 0

    def put(self, ids):
        self.tokens.append(ids)

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("ends", [False, True])
def test_tokens_while_they_are_generated(updates, ends):
    """What the model generates is the same, and the user's own streamer hears it; a text that ends
    early ends the count."""
    own, prompt, model = Streamer(), torch.tensor([[1, 2], [2, 3]]), gpt2()
    how = {"do_sample": True, "eos_token_id": None}
    silent = relprop.explain_generation(model, prompt, max_new_tokens=6, generate=how)
    assert not updates
    if ends:
        prompt, how = prompt[:1], {"eos_token_id": int(model(prompt[:1]).logits[0, -1].argmax())}
    found = relprop.explain_generation(
        model, prompt, max_new_tokens=6, generate=how | {"streamer": own}, progress=True
    )
    made, lines = found.ids.shape[1], [line for line, _ in updates if line]
    assert made == 1 if ends else torch.equal(found.ids, silent.ids)
    begun = [line for line in lines if line.startswith("token")]
    assert begun == [f"token {i + 1} of 6" for i in range(made)]
    assert ends or lines[len(begun)] == "target 1 of 6"
    assert len(own.tokens) == made + 1 and own.ended == 1


def test_nobody_looks_unless_asked(updates, capsys):
    relprop.explain(digit_scene_model(), IMAGES, 3, batch_size=1)
    assert not updates and not capsys.readouterr().err and SHOWN.get() is None


def test_what_is_shown_needs_no_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    relprop.explain(digit_scene_model(), IMAGES, 3, batch_size=1, progress=True)
    assert re.search(r"explaining: part\s+3 of 3", capsys.readouterr().err)


def test_below_a_notebooks_cell_one_output_changes(monkeypatch, capsys):
    """In a notebook's kernel, whether or not it has ipywidgets."""
    shown = []

    def display(bundle, raw, display_id):
        shown.append(bundle["text/plain"])
        return SimpleNamespace(update=lambda bundle, raw: shown.append(bundle["text/plain"]))

    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    relprop.explain(digit_scene_model(), IMAGES, 3, batch_size=1)
    assert not shown, "a call of less than two seconds"
    relprop.explain(digit_scene_model(), IMAGES, 3, batch_size=1, progress=True)
    assert shown[0].startswith("explaining: part 0 of 3") and "part 3 of 3" in shown[-1]
    assert "\x1b" not in "".join(shown) and "".join(capsys.readouterr()) == ""


STAGES = (
    "capturing the model",
    "reading its graph",
    "running the model",
    "running its graph",
    "gradients with the model's",
    "computing the scores",
)


@pytest.mark.parametrize("patience", [0.01, 60.0])
def test_a_terminal_shows_what_a_first_call_is_at_after_some_seconds(monkeypatch, patience):
    """Nobody asked, and nobody refused; what was shown is wiped off again."""
    stages, add = [], Progress.add_task

    def added(self, what, **fields):
        stages.append(what)
        return add(self, what, **fields)

    monkeypatch.setattr(Progress, "add_task", added)
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    relprop.explain(digit_scene_model(), IMAGES[:1], 3)
    assert [s for s in STAGES if not any(s in stage for stage in stages)] == []
    assert ("explaining: " in screen.getvalue()) == (patience < 1)
    assert sys.stderr is screen and SHOWN.get() is None
    before = screen.getvalue()
    relprop.explain(digit_scene_model(), IMAGES[:1], 3, progress=False)
    assert screen.getvalue() == before


class Closed(Terminal):
    def write(self, text):
        raise ValueError("I/O operation on closed file")


class Bare:
    """What a program puts in place of standard error."""

    def write(self, text):
        return len(text)


@pytest.mark.parametrize("stream", [None, Bare(), Closed()], ids=["none", "bare", "closed"])
def test_a_standard_error_that_is_none_or_closed_loses_no_answer(monkeypatch, stream):
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(sys, "stderr", stream)
    assert relprop.explain(digit_scene_model(), IMAGES[:1], 3).scores.any()
    if stream is not None and not isinstance(stream, Bare):
        stream.close()
        assert relprop.explain(digit_scene_model(), IMAGES[:1], 3).scores.any()


def test_progress_is_true_false_or_none():
    with pytest.raises(relprop.errors.OptionError, match="progress=1: True or False, or None"):
        relprop.explain(digit_scene_model(), IMAGES[:1], 3, progress=1)


def test_reports_steps_of_an_ascent_and_trials_of_a_search(updates, tmp_path):
    model = digit_scene_model()
    relprop.explain(model, IMAGES, 3).to_html(tmp_path / "report.html", progress=True)
    assert [line for line, _ in updates if line] == [f"sample {i} of 3" for i in (1, 2, 3)]
    updates.clear()
    relprop.activation_maximization(model, 3, start=IMAGES[:1], steps=4, progress=True)
    assert [line for line, _ in updates if line] == [f"step {i} of 4" for i in (1, 2, 3, 4)]
    updates.clear()
    relprop.compare(
        model, IMAGES[:1], "gae", 3, metric=lambda e: float(e.scores.max()), progress=True
    )
    assert any(re.match(r"method 4 of \d+: gae", line or "") for line, _ in updates)


def test_an_answer_and_its_passages(updates):
    from relprop.demo.lookup_model import lookup_model, lookup_tokenizer

    documents = ["Anna likes amber kites. It rained all day.", "Boris paints silver rivers."]
    how = {"processor": lookup_tokenizer(), "max_new_tokens": 12, "progress": True}
    relprop.cite(lookup_model(), "Boris paints what?", documents, **how)
    assert next(line for line, _ in updates if line) == "token 1 of 12"


def test_a_command_shows_what_is_counted_within_a_step():
    stream = Terminal()
    with Steps(2, stream=stream) as steps:
        steps.next("comparing")
        with counting("method", 3) as begin:
            begin("gae")
    assert "method 1 of 3: gae" in stream.getvalue() and SHOWN.get() is None
