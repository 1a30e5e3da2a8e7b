"""Captured graphs on disk: a later process reads them, and believes none."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import relprop
from relprop.errors import CacheWarning
from relprop.tracer import stored, trace
from tests.common.rows import marked
from tests.tracer.test_lengths import bert, ids, llama, masked, vectors

HERE = os.path.dirname(relprop.__path__[0])


class Pooled(nn.Module):
    """One attention, of which ``act`` is a part."""

    def __init__(self, act=torch.tanh):
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)
        self.act = act
        self.table = torch.linspace(0, 1, 8)

    def forward(self, x):
        return self.head(self.act(x + self.mix(x, x, x)[0] * self.table)).mean(1)


class Doubled(Pooled):
    def forward(self, x):
        return 2 * super().forward(x)


def made(kind, *given):
    torch.manual_seed(0)
    return kind(*given).eval()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(stored.VARIABLE, str(tmp_path / "graphs"))
    return tmp_path / "graphs"


X = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))


def scores(model, x=X, **how):
    return relprop.explain(model, x, 1, **how).scores


def only(folder):
    (path,) = folder.glob("*.safetensors")
    return path


@pytest.mark.parametrize(("kind", "given"), [(bert, masked), (llama, ids)])
def test_a_stored_graph_stands_for_a_capture(folder, captures, kind, given):
    first = relprop.explain(made(kind), given(7), 1 if kind is bert else None)
    again = relprop.explain(made(kind), given(7), 1 if kind is bert else None)
    assert len(captures) == 1
    assert (first.facts["stored"], again.facts["stored"]) == (False, True)
    torch.testing.assert_close(again.scores, first.scores, rtol=0, atol=0)


@pytest.mark.slow
def test_another_process_reads_it(tmp_path):
    code = """
        import sys; sys.path.insert(0, {here!r})
        import torch, relprop
        from tests.tracer.test_stored import Pooled, X, made
        found = relprop.explain(made(Pooled), X, 1)
        print(found.facts["stored"], found.scores.tolist())
    """
    script = textwrap.dedent(code).format(here=HERE)
    runs = []
    for seed in ("1", "2"):
        env = {**os.environ, stored.VARIABLE: str(tmp_path), "PYTHONHASHSEED": seed}
        call = [sys.executable, "-c", script]
        runs.append(subprocess.run(call, env=env, capture_output=True, text=True, check=True))
    first, second = (t.stdout.split(maxsplit=1) for t in runs)
    assert (first[0], second[0]) == ("False", "True")
    assert first[1] == second[1]


class Shortened(Pooled):
    def forward(self, x):
        return super().forward(x[:, : x.shape[1] - 1])


@pytest.mark.parametrize(("kind", "given", "few"), [(bert, masked, 1), (Shortened, vectors, 2)])
def test_of_one_or_two_stored_lengths_any_other_is_made(folder, captures, kind, given, few):
    model = made(kind)
    for length in (6, 9):
        relprop.explain(model, given(length), 1)
    assert len(captures) == few
    found = relprop.explain(made(kind), given(8), 1)
    assert len(captures) == few
    expected = relprop.explain(model, given(8), 1)
    torch.testing.assert_close(found.scores, expected.scores)


def test_other_code_and_other_settings_have_files_of_their_own(folder, captures):
    for model in (made(Pooled), made(Doubled), made(Pooled, torch.sin), made(Pooled)):
        scores(model)
    assert len(captures) == 3
    assert len(list(folder.glob("*.safetensors"))) == 3


@pytest.mark.slow
def test_code_that_a_model_imports_belongs_to_the_name(tmp_path):
    """An edit that outputs do not show: where a helper's gradient stops."""
    helper, script = tmp_path / "helper.py", tmp_path / "script.py"
    script.write_text(
        "import torch, relprop, helper\n"
        "class M(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.a = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x): return helper.normed(self.a(x))\n"
        "torch.manual_seed(0)\n"
        "found = relprop.explain(M().eval(), torch.ones(1, 4), 0, method='gradient_x_input')\n"
        "print(found.facts['stored'], found.scores.tolist())\n"
    )
    runs = []
    for stop in ("", ".detach()", ".detach()"):
        helper.write_text(f"def normed(x):\n    return x / x.norm(dim=-1, keepdim=True){stop}\n")
        env = {**os.environ, stored.VARIABLE: str(tmp_path / "graphs"), "PYTHONPATH": HERE}
        call = [sys.executable, str(script)]
        runs.append(subprocess.run(call, env=env, capture_output=True, text=True, check=True))
    first, second, third = (t.stdout.split(maxsplit=1) for t in runs)
    assert (first[0], second[0], third[0]) == ("False", "False", "True")
    assert first[1] != second[1] == third[1]


class Holder:
    """Hides a function from every key."""

    __slots__ = ("function",)


HELD = Holder()


class Hidden(Pooled):
    def forward(self, x):
        return HELD.function(super().forward(x))


@pytest.mark.parametrize(
    "other", marked(["value", "gradient", "one sample", "outputs"], ("gradient", "one sample"))
)
def test_a_stale_graph_is_captured_anew(folder, captures, other):
    changed = {
        "value": lambda y: 2 * y,
        "gradient": lambda y: y.detach() + 0 * y,
        "one sample": lambda y: y + (y.abs() - 0.1).relu() * torch.tensor([0.0, 9.0, 0.0]),
        "outputs": lambda y: {"logits": y, "hidden": 2 * y},
    }[other]
    x = torch.cat([0.01 * X, 90 * X])
    HELD.function = lambda y: y
    relprop.explain(made(Hidden), x, 1, method="gradient_x_input")
    HELD.function = changed
    found = relprop.explain(made(Hidden), x, 1, method="gradient_x_input")
    assert len(captures) == 2
    assert not found.facts["stored"]


def test_tensors_that_no_file_can_hold_are_no_error(folder):
    for odd in (torch.eye(4).to_sparse(), torch.zeros(3, device="meta")):
        model = made(Pooled)
        model.odd = odd
        scores(model)


def test_a_tensor_that_is_no_buffer_belongs_to_the_name(folder, captures):
    other = made(Pooled)
    other.table = torch.ones(8)
    assert not torch.equal(scores(made(Pooled)), scores(other))
    assert len(captures) == 2


@pytest.mark.parametrize("verify", [True, False])
def test_a_graph_of_another_model_is_not_believed(folder, captures, verify):
    scores(made(Pooled))
    path = only(folder)
    other = scores(made(Doubled))
    theirs = next(p for p in folder.glob("*.safetensors") if p != path)
    path.replace(theirs)
    found = scores(made(Doubled), verify=verify)
    assert len(captures) == 3
    torch.testing.assert_close(found, other)


@pytest.mark.parametrize(
    "damage", marked(["cut", "empty", "no graph", "operator"], ("cut", "operator"))
)
def test_a_damaged_file_is_no_file(folder, captures, damage):
    first = scores(made(Pooled))
    path = only(folder)
    with safe_open(path, "pt") as file:
        text = file.metadata()["graph"]
        held = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no graph":
        save_file(held, path, {"graph": "[]"})
    else:
        assert "aten.tanh.default" in text
        other = text.replace("aten.tanh.default", "aten.from_file.out")
        save_file(held, path, {"graph": other})
    again = scores(made(Pooled))
    assert len(captures) == 2
    torch.testing.assert_close(again, first)
    scores(made(Pooled))  # the file is whole again
    assert len(captures) == 2


def test_what_holds_for_some_values_alone_is_not_stored(folder):
    class Choosing(Pooled):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    scores(made(Choosing))
    assert not folder.exists()


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(stored.VARIABLE, str(file))
    with pytest.warns(CacheWarning, match="RELPROP_CACHE"):
        found = scores(made(Pooled))
    monkeypatch.delenv(stored.VARIABLE)
    torch.testing.assert_close(found, scores(made(Pooled)))


def test_nothing_is_stored_unless_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv(stored.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    scores(made(Pooled))
    assert not list(tmp_path.iterdir())


def test_what_no_call_has_compared_is_compared_before_it_is_used(monkeypatch):
    """A capture whose answer was refused is not vouched for by anyone."""
    calls = []
    compare = trace.verify
    monkeypatch.setattr(trace, "verify", lambda *a: (calls.append(a), compare(*a))[1])
    model = made(Pooled)
    with pytest.raises(relprop.RelpropError):
        relprop.explain(model, X, 99)
    assert not calls
    for _ in range(2):
        scores(model, verify=False)
    assert len(calls) == 1
