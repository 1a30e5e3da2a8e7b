"""A graph that is cut into segments gives the numbers of the whole: gradient, relevance and roll-up
go through one segment after another, the last one first."""

import psutil
import pytest
import torch
import transformers

import relprop
from relprop.errors import OptionError
from relprop.runner import memory, verification
from relprop.runner.memory import free_memory
from tests.common.rows import only
from tests.methods.test_chunks import (
    AT_INPUT,
    EXACT,
    MODELS,
    ROW_WISE,
    TINY,
    LargestTensor,
    assert_same,
    explained,
    gap,
    in_chunks,
    lively,
    lively_case,
    of_whole,
)

LEAST = {"memory": 0}


@pytest.fixture(params=only(("padded BERT", "encoder and decoder"), MODELS), scope="module")
def case(request):
    return lively_case(request.param)


@pytest.fixture(scope="module")
def whole(case):
    return of_whole(case)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize("method", ROW_WISE + AT_INPUT)
def test_segments_change_nothing(case, whole, method):
    parts = explained(case, method, **LEAST)
    cut = parts.facts["segments"]
    assert whole[method].facts["segments"] == 1
    assert cut == 1 if "not_cut" in parts.facts else cut >= 2
    assert ("not_cut" in parts.facts) == (method == "gae" and len(parts.streams) > 1)
    assert_same(whole[method], parts)


def test_segments_and_chunks_together(case, whole, monkeypatch):
    in_chunks(monkeypatch)
    parts = explained(case, "transformer_attribution", **LEAST)
    assert parts.facts["segments"] >= 2
    for name, one in whole["transformer_attribution"].streams.items():
        assert gap(one.scores, parts[name].scores) < EXACT


def test_several_targets_terms_and_methods_in_segments():
    model, inputs, _ = MODELS["grouped queries"]()
    lively(model)
    targets = [(7, 3), lambda out: out.logits[0, 7, 3] - out.logits[0, 7, 5], (4, 9)]
    of = {"precision": "float64"}
    whole = relprop.explain_many(model, inputs, targets, memory=None, **of)
    parts = relprop.explain_many(model, inputs, targets, memory=0, **of)
    for one, other in zip(whole, parts, strict=True):
        assert one.facts["segments"] < other.facts["segments"]
        assert gap(one.scores, other.scores) < EXACT
    methods = ["transformer_attribution", "attcat", "cat", "gradient_x_input"]
    one = relprop.compare(model, inputs, methods, (7, 3), memory=None, **of).explanations
    other = relprop.compare(model, inputs, methods, (7, 3), memory=0, **of).explanations
    assert [other[m].facts["segments"] > 1 for m in methods] == [True, False, True, True]
    assert all(gap(one[m].scores, other[m].scores) < EXACT for m in methods)
    assert "not compared: the graph is cut" in other["cat"].facts["compared"]


def test_relevance_at_the_input_beside_the_scores():
    case = MODELS["ViT"]()
    case = lively(case[0]), *case[1:]
    whole = explained(case, "transformer_attribution", memory=None, keep="input")
    parts = explained(case, "transformer_attribution", keep="input", **LEAST)
    assert parts.facts["segments"] > 1
    assert gap(whole.input, parts.input) < EXACT


def test_what_holds_a_map_is_not_cut():
    case = MODELS["padded BERT"]()
    whole = explained(case, "transformer_attribution", keep="blocks", memory=10**6)
    assert whole.facts["segments"] == 1 and "not_cut" not in whole.facts
    found = explained(case, "transformer_attribution", keep="blocks", **LEAST)
    assert found.facts["segments"] == 1
    assert found.facts["not_cut"].startswith("an attention map is whole (bert.encoder.layer.0")
    assert found.facts["not_cut"].endswith("keep='blocks')")


def llama(layers, tokens):
    shape = {**TINY, "num_hidden_layers": layers, "max_position_embeddings": tokens}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()
    return model, torch.randint(3, 50, (1, tokens))


def test_maps_that_do_not_fit_are_refused_with_the_number():
    model, ids = llama(2, 1600)
    with pytest.raises(OptionError, match=r"keeps 2 attention maps whole, 0\.164 GB for 1 samples"):
        relprop.explain(model, ids, (1599, 3), method="attcat", verify=False, memory=10**8)


class Held(LargestTensor):
    """The largest sum of all tensors that are alive at one time."""

    def __init__(self):
        super().__init__()
        self.sizes, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        import weakref

        made = super().__torch_dispatch__(func, types, args, kwargs)
        for t in torch.utils._pytree.tree_leaves(made):
            if not isinstance(t, torch.Tensor) or t.device.type == "meta":
                continue
            storage = t.untyped_storage()
            key = storage._cdata
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, key, None)
        self.most = max(self.most, sum(self.sizes.values()))
        return made


def test_memory_hardly_grows_with_depth():
    most = {}
    for layers, limit in [(2, 0), (8, 0), (8, None)]:
        model, ids = llama(layers, 128)
        how = {"verify": False, "memory": limit}
        relprop.explain(model, ids, (127, 3), **how)
        with Held() as held:
            relprop.explain(model, ids, (127, 3), **how)
        most[layers, limit] = held.most
    assert most[8, 0] < 1.6 * most[2, 0]
    assert most[8, 0] < 0.4 * most[8, None]


def test_the_graph_is_cut_where_memory_says_so(monkeypatch):
    model, ids = llama(4, 64)
    assert relprop.explain(model, ids, (63, 3)).facts["segments"] == 1
    monkeypatch.setattr(memory, "free_memory", lambda device: 2**10)
    monkeypatch.setattr(memory, "LITTLE", 0)
    found = relprop.explain(model, ids, (63, 3))
    assert found.facts["segments"] > 4 and found.facts["memory"] > 0
    assert relprop.explain(model, ids, (63, 3), memory=10**9).facts["segments"] == 1
    report = relprop.check(model, ids)
    once, twice, four = report.memory
    assert once.least < once.whole < twice.whole < four.whole < 16 * once.whole
    assert "for 4 × the tokens" in str(report)


@pytest.mark.parametrize("wrong", [-1, 2.5, "much", True])
def test_memory_is_a_number_of_bytes(wrong):
    model, ids = llama(1, 8)
    with pytest.raises(OptionError, match=r"memory=.*'auto', a number of bytes, or None"):
        relprop.explain(model, ids, (7, 3), memory=wrong)


def test_a_call_without_memory_left_is_made_again_in_segments(monkeypatch):
    from relprop.runner import answers

    model, ids = llama(4, 64)
    whole = relprop.explain(model, ids, (63, 3), precision="float64")
    run = answers.run

    def full(needs, part, *more):
        if not needs[0].backward.segments:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return run(needs, part, *more)

    seen, gaps = [], verification.gaps

    def compared(program, values, expected, *more):
        seen.append(list(expected))
        return gaps(program, values, expected, *more)

    monkeypatch.setattr(answers, "run", full)
    monkeypatch.setattr(verification, "gaps", compared)
    with pytest.warns(relprop.RelpropWarning, match="no memory left; once more"):
        found = relprop.explain(model, ids, (63, 3), precision="float64")
    assert seen == [["logits"]]
    assert found.facts["segments"] > 1 and gap(whole.scores, found.scores) < EXACT
    with pytest.raises(relprop.errors.RelpropError, match=r"no memory left.*can't allocate"):
        relprop.explain(model, ids, (63, 3), method="attcat", memory=0)
    with (
        pytest.warns(relprop.RelpropWarning, match="no memory left; once more"),
        pytest.raises(relprop.errors.RelpropError, match=r"no memory left: .*\n.*shorter input"),
    ):
        relprop.explain(model, ids, (63, 3), method="attcat")


def test_a_batch_for_which_no_memory_is_left_is_halved(monkeypatch):
    from relprop.runner import answers

    model, ids = llama(2, 32)
    ids = torch.cat([ids, ids.flip(-1), ids.roll(5, -1)])[:3]
    words = [(31, 3), (20, 4), (7, 5)]
    whole = relprop.explain(model, ids, words, precision="float64")
    run, sizes = answers.run, []

    def full(needs, part, *more):
        sizes.append(part.batch)
        if part.batch > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")
        return run(needs, part, *more)

    monkeypatch.setattr(answers, "run", full)
    with pytest.warns(relprop.RelpropWarning, match="no memory left; once more") as said:
        found = relprop.explain(model, ids, words, precision="float64")
    assert sizes == [3, 3, 1, 2, 1, 1]
    assert ["halves of the batch" in str(w.message) for w in said] == [False, True, True]
    assert gap(whole.scores, found.scores) < EXACT


def test_free_memory_is_what_the_machine_or_its_container_says(tmp_path, monkeypatch):
    cpu = torch.device("cpu")
    assert 0 < free_memory(cpu) <= psutil.virtual_memory().total
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    whole = free_memory(cpu)
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 1500\n")
    assert free_memory(cpu) == 3500  # what is kept of files counts as free
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(cpu) >= whole // 2


@pytest.mark.parametrize(("kind", "used"), [("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")])
def test_free_memory_is_within_the_limits_of_the_process(kind, used, monkeypatch):
    taken = getattr(psutil.Process().memory_info(), used)
    limits = {getattr(psutil, kind): taken + 2**20}
    monkeypatch.setattr(
        psutil.Process, "rlimit", lambda self, k: (limits.get(k, psutil.RLIM_INFINITY),) * 2
    )
    assert free_memory(torch.device("cpu")) < 2**24
    limits[getattr(psutil, kind)] = taken // 2
    assert free_memory(torch.device("cpu")) == 0
