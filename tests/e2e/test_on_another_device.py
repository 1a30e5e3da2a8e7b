"""What is made of an explanation whose tensors are on a device: every view, files, programs and
metrics. There need be no such device (``tests/common/devices.py``)."""

import contextlib
import copy
from types import SimpleNamespace

import pytest
import torch

import relprop
from relprop import evaluation
from relprop.demo.model import plain_model
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.demo.scenes import make_scenes
from relprop.runner import session
from relprop.tracer import bind, trace_program
from tests.common.devices import ONE, ZeroPadded, devices, placed, put, put_module

TEXTS = ["a wonderful film but the plot is dull", "it was bad"]


@contextlib.contextmanager
def there(model, inputs, monkeypatch):
    """A copy of the model on the device, and what it is captured as."""
    program = placed(trace_program(model, bind(inputs)), lambda node: ONE)
    far = copy.deepcopy(model)
    put_module(far, ONE)
    far._hf_hook = SimpleNamespace(execution_device=ONE)
    monkeypatch.setattr(session, "trace_program", lambda *_: program)
    plain = {True: torch.no_grad, False: contextlib.nullcontext}
    monkeypatch.setattr(torch, "inference_mode", lambda mode=True: plain[mode]())
    with devices():
        yield far


def of_a_picture(monkeypatch, stack):
    model, scenes = plain_model().eval(), make_scenes(2, seed=0)
    far = stack.enter_context(there(model, scenes.images, monkeypatch))
    return far, put(scenes.images, ONE), None


def of_texts(monkeypatch, stack):
    model, tokenizer = review_model().eval(), review_tokenizer()
    inputs = dict(tokenizer(TEXTS, return_tensors="pt", padding=True))
    return stack.enter_context(there(model, inputs, monkeypatch)), TEXTS, tokenizer


@pytest.fixture(params=[of_a_picture, pytest.param(of_texts, marks=pytest.mark.slow)])
def case(request, monkeypatch):
    with contextlib.ExitStack() as stack:
        yield request.param(monkeypatch, stack)


VIEWS = ("summary", "top", "to_dataframe", "to_json", "terminal", "__repr__", "_repr_html_")


@pytest.mark.parametrize("method", ["transformer_attribution", "gradient_x_input"])
def test_every_view_and_file(case, method, tmp_path):
    model, inputs, processor = case
    keep = ("matrix", "blocks") if method == "transformer_attribution" else ()
    e = relprop.explain(
        model, inputs, [0, 1], method=method, processor=processor, keep=keep, ledger=bool(keep)
    )
    assert isinstance(e.scores, ZeroPadded) and isinstance(e.scores * e.content, ZeroPadded)
    for view in VIEWS:
        assert getattr(e, view)() is not None
    e.heatmap() if processor is None else e.words()
    e.to_html(tmp_path / "one.html")
    relprop.report([e], tmp_path / "several.html")
    e.save(tmp_path / "e.safetensors")
    assert torch.equal(relprop.load(tmp_path / "e.safetensors").scores, e.scores.inner)


@pytest.mark.slow
def test_a_program_is_made_there(case):
    model, inputs, processor = case
    found = relprop.compile(model, inputs, processor=processor)(inputs, [0, 1])
    whole = relprop.explain(model, inputs, [0, 1], processor=processor)
    torch.testing.assert_close(found.scores.inner, whole.scores.inner)


def test_metrics_take_inputs_from_memory(monkeypatch):
    with contextlib.ExitStack() as stack:
        model, images, _ = of_a_picture(monkeypatch, stack)
        e = relprop.explain(model, images, [0, 1])
        for given in (images, images.inner):
            for metric in (
                evaluation.Infidelity(),
                evaluation.InputPerturbation(explained="target"),
            ):
                metric(model, given, e, [0, 1])
