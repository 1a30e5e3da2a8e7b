"""Models whose weights accelerate keeps elsewhere between calls, in memory or on disk: explained as
the same models whole, left as they were, and never loaded whole."""

import copy
import functools
import os
import subprocess
import sys
import threading

import accelerate
import pytest
import torch
import transformers
from torch import nn

import relprop
from relprop.errors import InputError
from relprop.tracer import run, weights
from relprop.tracer.facts import is_batched
from relprop.tracer.offloaded import tensor_of
from tests.common.models import build, closeness, sample
from tests.common.rows import diagonal
from tests.e2e.test_opening import TEXTS, classifier, tokenizer
from tests.methods.test_chunks import lively_case
from tests.methods.test_segments import Held, llama
from tools.sweep.snapshot import differences, snapshot

EXACT = 1e-12
METHODS = ("transformer_attribution", "gradient_x_input", "attnlrp", "rollout", "gae")
pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")


@pytest.fixture(autouse=True)
def small_weights_are_let_go(monkeypatch):
    monkeypatch.setattr(weights, "LARGE", 1)
    monkeypatch.setattr(run, "AT_ONCE", 1)


def in_memory(model, folder):
    return accelerate.cpu_offload(model, execution_device="cpu")


def on_disk(model, folder):
    return accelerate.disk_offload(model, folder, "cpu", offload_buffers=True)


def by_turns(model, folder):
    owners = {n.rpartition(".")[0]: None for n in model.state_dict()}
    places = {n: ("cpu", "disk")[i % 2] for i, n in enumerate(owners)}
    return accelerate.dispatch_model(model, places, offload_dir=folder)


def one_by_parent(model, folder):
    """The weights of what is inside a block are brought by the hook of the block."""
    blocks = [type(m).__name__ for m in model.modules() if "Layer" in type(m).__name__]
    return accelerate.cpu_offload(model, "cpu", preload_module_classes=blocks)


def everything(model, case):
    """The model, with what its hooks hold and the function that each module calls."""
    found = snapshot(model, case[1])
    for path, module in model.named_modules():
        hooks = [vars(module).get("_hf_hook")]
        for hook in hooks:
            hooks += getattr(hook, "hooks", ())
        held = [{k: id(v) for k, v in vars(h).items()} for h in hooks if h is not None]
        found[f"{path}: hooks"] = held, id(vars(module).get("forward"))
    return found


def scores(model, case, method, memory):
    _, inputs, target = case
    explanation = relprop.explain(model, inputs, target, method=method, memory=memory)
    return explanation, explanation.scores


@functools.cache
def whole_case(name):
    """A model that is whole, its inputs and a target, and what each method says of it."""
    case = lively_case(name)
    case[0].double()
    return case, {m: scores(case[0], case, m, None)[1] for m in METHODS}


@pytest.mark.parametrize(
    ("offload", "name"),
    diagonal((in_memory, on_disk, by_turns, one_by_parent), ("padded BERT", "grouped queries")),
)
def test_offloaded_models_are_explained_as_whole_ones(name, offload, tmp_path):
    case, whole = whole_case(name)
    model = offload(copy.deepcopy(case[0]), tmp_path)
    before = everything(model, case)
    for method, theirs in whole.items():
        for memory in (None, 0):
            other, mine = scores(model, case, method, memory)
            assert closeness(mine, theirs) <= EXACT, (method, memory)
            assert other.facts["compared"].startswith("equal to the model's own output")
    assert not differences(before, everything(model, case))
    assert relprop.trace(model, case[1]) is relprop.trace(model, case[1])


def test_loaded_with_a_map_of_devices(tmp_path):
    case, whole = whole_case("grouped queries")
    case[0].save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"}
    places |= {"model.norm": "disk", "model.rotary_emb": "cpu", "lm_head": "disk"}
    model = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "model", dtype="auto", device_map=places, offload_folder=tmp_path / "weights"
    )
    assert any(p.is_meta for p in model.parameters())
    before = everything(model, case)
    for method, theirs in whole.items():
        assert closeness(scores(model, case, method, 0)[1], theirs) <= EXACT
    assert not differences(before, everything(model, case))


def test_weights_are_read_anew(tmp_path):
    model, x = in_memory(build().requires_grad_(False), tmp_path), sample()
    program, before = relprop.trace(model, x), relprop.explain(model, x, 1).output
    for kept in model.head._hf_hook.weights_map.dataset.values():
        kept.mul_(0.5)
    model(x)
    assert relprop.trace(model, x) is program
    assert closeness(relprop.explain(model, x, 1).output, model(x)[:, 1]) <= EXACT
    assert closeness(before, model(x)[:, 1]) > 0.1


def test_a_graph_that_only_values_give_is_captured_with_all_weights(tmp_path):
    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x):
            y = self.inner(x)
            return y if y.sum() > 0 else 2 * y

    whole = Deciding()
    model, x = on_disk(copy.deepcopy(whole), tmp_path), sample()
    with pytest.warns(relprop.RelpropWarning, match="all offloaded weights are loaded at once"):
        found = relprop.explain(model, x, 1)
    assert found.facts["front_end"] == "concrete"
    assert closeness(found.scores, relprop.explain(whole, x, 1).scores) <= EXACT
    assert all(p.is_meta for p in model.parameters())


def test_texts_are_prepared_for_where_the_model_runs(tmp_path):
    whole = classifier()
    model = by_turns(copy.deepcopy(whole), tmp_path)
    one, other = (relprop.explain(m, TEXTS, 1, processor=tokenizer()) for m in (whole, model))
    assert closeness(one.scores, other.scores) <= 1e-6
    pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer())
    assert closeness(relprop.explain(pipe, TEXTS, 1).scores, other.scores) <= 1e-6


def test_other_threads_may_call_the_model_meanwhile(tmp_path):
    case = lively_case("grouped queries")
    model, found = on_disk(copy.deepcopy(case[0]), tmp_path), []
    _, expected = scores(case[0], case, "attnlrp", 0)

    def explain():
        found.append(scores(model, case, "attnlrp", 0)[1])

    threads = [threading.Thread(target=explain) for _ in range(2)]
    for thread in threads:
        thread.start()
    own = [model(**case[1]).logits for _ in range(5)]
    for thread in threads:
        thread.join()
    assert all(torch.equal(o, own[0]) for o in own)
    assert len(found) == 2 and all(closeness(s, expected) <= 1e-6 for s in found)


def test_gradients_are_said_not_to_be_compared(tmp_path):
    found = relprop.explain(on_disk(build(), tmp_path), sample(), 1, memory=None)
    assert found.facts["compared"].endswith(
        "gradients not compared: a backward pass of the model would hold all offloaded weights"
    )


def test_a_weight_that_is_read_does_not_keep_its_file_mapped(tmp_path):
    model = lively_case("grouped queries")[0]
    model.save_pretrained(tmp_path / "model")
    places = dict.fromkeys((n for n, _ in model.named_parameters()), "disk")
    more = {"device_map": {n.rpartition(".")[0]: "disk" for n in places}}
    read = type(model).from_pretrained(
        tmp_path / "model", offload_folder=tmp_path / "offloaded", **more
    )
    held = [tensor_of(read, name) for name in places]
    assert all(t.device.type == "cpu" for t in held)
    with open("/proc/self/maps") as maps:
        assert not [line for line in maps if str(tmp_path) in line]


def test_weights_that_are_nowhere_are_refused():
    with torch.device("meta"):
        model = build()
    with pytest.raises(InputError, match=r"is on the meta device: the model has no weights yet"):
        relprop.explain(model, sample(), 1)


def test_segments_hold_the_weights_of_one(tmp_path):
    model, ids = llama(4, 8)
    model, most = on_disk(model, tmp_path), {}
    for memory in (None, 0):
        relprop.explain(model, ids, (7, 3), verify=False, memory=memory)  # captured
        with Held() as held:
            relprop.explain(model, ids, (7, 3), verify=False, memory=memory)
        most[memory] = held.most
    assert most[0] < 0.4 * most[None]


def test_weights_that_a_model_cuts_into_pieces_are_let_go(tmp_path):
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.Parameter(torch.randn(6, 8, 6) / 3)

        def forward(self, x):
            up, down, *_ = self.weights.unbind()
            return ((x @ up.T).relu() @ down).mean(1)

    whole, x = Cut(), torch.randn(2, 5, 6)
    model = on_disk(copy.deepcopy(whole), tmp_path)
    program = relprop.trace(model, x)
    made = set(weights.fetched(program, model))
    still = {n for n in program.graph.nodes if n.op == "get_attr" or not is_batched(n)}
    assert made == {n for n in still if n.op != "output"}
    one, other = (relprop.explain(m, x, 1, method="lrp", memory=0) for m in (whole, model))
    assert closeness(one.scores, other.scores) <= 1e-6


def test_the_graph_is_cut_by_the_weights_that_are_read(tmp_path):
    model, ids = llama(4, 4)
    offloaded = on_disk(copy.deepcopy(model), tmp_path)
    for limit in (40_000, 60_000):
        whole, parts = (relprop.explain(m, ids, (3, 3), memory=limit) for m in (model, offloaded))
        assert whole.facts["segments"] < parts.facts["segments"]
        assert parts.facts["memory"] <= limit


FITS = """
import resource, sys, threading, time, warnings
import accelerate, torch, transformers
from accelerate.utils import offload_weight
from accelerate.utils.offload import save_offload_index
import relprop

warnings.simplefilter("ignore")
folder, method = sys.argv[1:]
sizes = dict(num_hidden_layers=4, num_attention_heads=8, vocab_size=64, use_cache=False)
ids = torch.arange(3, 9)[None]

def read(what):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(l for l in lines if l.startswith(what)).split()[1]) * 1024

def offloaded(folder, **more):
    with accelerate.init_empty_weights(include_buffers=False):
        config = transformers.LlamaConfig(**sizes, **more)
        model = transformers.LlamaForCausalLM(config).eval()
    index = {}
    for name, p in model.named_parameters():
        index = offload_weight(torch.randn(p.shape) * 0.02, name, folder, index)
    save_offload_index(index, folder)
    return accelerate.disk_offload(model, folder, execution_device="cpu")

def explain(model):
    return relprop.explain(model, ids, (5, 3), method=method, memory=0)

explain(offloaded(folder + "/small", hidden_size=32, intermediate_size=64))
model = offloaded(folder + "/large", hidden_size=1024, intermediate_size=2816)
whole, largest = (f(p.numel() * 4 for p in model.parameters()) for f in (sum, max))
before, most, done = read("RssAnon"), [0], threading.Event()

def watch():
    while not done.wait(0.001):
        most[0] = max(most[0], read("RssAnon"))

threading.Thread(target=watch).start()
limit = read("VmData") + whole // 2
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
explain(model)
done.set()
print(whole, largest, most[0] - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["transformer_attribution", "attnlrp"])
def test_a_model_that_does_not_fit_is_explained(method, tmp_path):
    """200 MB of weights where 100 MB of memory are left: no more than a few of its largest weights
    are there at one time."""
    for name in ("small", "large"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-c", FITS, str(tmp_path), method]
    exact = {"MALLOC_MMAP_THRESHOLD_": "100000"}  # what is freed is given back at once
    said = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **exact}
    )
    whole, largest, most = map(int, said.stdout.split())
    assert whole > 2e8 and most < 6 * largest < whole / 2
