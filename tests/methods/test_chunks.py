"""Large attention maps are never whole: the site runs some queries at a time, forward, backward, by
the rules and through the roll-up, and every number is that of the whole map."""

import dataclasses
import warnings

import pytest
import timm
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import relprop
from relprop.interpreter import crossing
from relprop.rules.sums import Add
from relprop.runner import memory
from relprop.tracer import bind, chunked, trace_program
from tests.common.rows import diagonal, only

EXACT = 1e-11
ROW_WISE = ("transformer_attribution", "rollout", "gae", "attention_grad", "partial_lrp", "cat")
FEWER = {"integrated_gradients": {"n_steps": 3}}
AT_INPUT = ("gradient_x_input", "integrated_gradients", "lrp", "attnlrp", "cp_lrp", "epsilon_lrp")
IDS = torch.randint(3, 50, (2, 11), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(11) < torch.tensor([[11], [8]])).long()
TINY = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}


def _text(kind, config, **more):
    model = kind(config).eval()
    return model, {"input_ids": IDS, "attention_mask": MASK, **more}


def _bert():
    return *_text(transformers.BertForSequenceClassification, transformers.BertConfig(**TINY)), 1


def _deberta():
    config = transformers.DebertaV2Config(
        **TINY, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=8
    )
    return *_text(transformers.DebertaV2ForSequenceClassification, config), 1


def _llama():
    config = transformers.LlamaConfig(**TINY, num_key_value_heads=2)
    return *_text(transformers.LlamaForCausalLM, config), (7, 3)


def _windows():
    config = transformers.MistralConfig(**TINY, num_key_value_heads=2, sliding_window=4)
    return *_text(transformers.MistralForCausalLM, config), (7, 3)


def _sinks():
    config = transformers.GptOssConfig(
        **TINY,
        num_key_value_heads=2,
        head_dim=4,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=4,
    )
    return *_text(transformers.GptOssForCausalLM, config), (7, 3)


def _t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4
    )
    more = {"decoder_input_ids": IDS[:, :8]}
    return *_text(transformers.T5ForConditionalGeneration, config, **more), (7, 3)


def _bloom():
    """A mask of numbers, which all layers read."""
    config = transformers.BloomConfig(vocab_size=50, hidden_size=16, n_layer=2, n_head=4)
    return *_text(transformers.BloomForCausalLM, config), (7, 3)


class _Halves(torch.nn.Module):
    """A text model whose heads' results are read in two parts, by whoever reads them."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(16) for _ in range(2)])
        self.qkv = torch.nn.ModuleList([torch.nn.Linear(16, 48) for _ in range(2)])
        self.out = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(2)])
        self.head = torch.nn.Linear(16, 3)

    def forward(self, input_ids):
        h = self.words(input_ids)
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            q, k, v = qkv(norm(h)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            found = (q @ k.mT / 2).softmax(-1) @ v
            turned = torch.cat([found[..., 2:], found[..., :2].tanh()], -1)
            h = h + out(turned.transpose(1, 2).flatten(2))
        return self.head(h[:, 0])


def _picture(name, **changes):
    model = timm.create_model(name, img_size=32, num_classes=5, **changes).eval()
    generator = torch.Generator().manual_seed(0)
    return model, torch.randn(2, 3, 32, 32, generator=generator), 1


def lively(model):
    """The model with weights of a size at which attention is uneven and no layer scale hides it."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.dim() > 1 else 0.1) + ("norm" in name.lower()))
            if "gamma" in name:
                p.fill_(0.5)
    return model


MODELS = {
    "padded BERT": _bert,
    "relative positions from the input": _deberta,
    "grouped queries": _llama,
    "sliding windows": _windows,
    "sinks": _sinks,
    "encoder and decoder": _t5,
    "masks of numbers": _bloom,
    "results read twice": lambda: (_Halves().eval(), IDS, 1),
    "ViT": lambda: _picture("vit_tiny_patch16_224", patch_size=8, embed_dim=24, depth=2),
    "talking heads": lambda: _picture("cait_xxs24_224", patch_size=8, embed_dim=24, depth=2),
    "windows of a picture": lambda: _picture(
        "swin_tiny_patch4_window7_224", window_size=4, embed_dim=12, depths=(2, 2)
    ),
}


#: Heads of their own and shared ones, masks of booleans and of numbers.
FEW = ("padded BERT", "grouped queries", "masks of numbers")


def lively_case(name):
    """One of the models with its inputs and target, by its name."""
    torch.manual_seed(0)
    model, inputs, target = MODELS[name]()
    return lively(model), inputs, target


@pytest.fixture(params=only(FEW, MODELS), scope="module")
def case(request):
    return lively_case(request.param)


@pytest.fixture(scope="module")
def whole(case):
    """What every method says of a graph in one piece with whole maps, from one call."""
    return of_whole(case)


def of_whole(case):
    model, inputs, target = case
    asked = [(m, FEWER.get(m, {})) for m in ROW_WISE + AT_INPUT]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return relprop.compare(model, inputs, asked, target, precision="float64", memory=None)


def explained(case, method, **options):
    model, inputs, target = case
    options = {**FEWER.get(method, {}), **options}
    return relprop.explain(model, inputs, target, method=method, precision="float64", **options)


def sites_of(case):
    """The attention sites of a case's model."""
    model, inputs, _ = case
    return trace_program(model, bind(inputs)).sites


def in_chunks(monkeypatch, rows=3):
    """From now on every site is cut into chunks of so many queries; returns those that were."""
    seen = set()

    def chunk_rows(attention, batch):
        seen.add(attention.site.contraction)
        return rows

    monkeypatch.setattr(chunked, "CHUNK_BYTES", 0)
    monkeypatch.setattr(chunked, "chunk_rows", chunk_rows)
    return seen


def gap(one, other):
    """The largest difference of two tensors, over the largest number of the first."""
    return float((one - other).abs().max() / one.abs().max())


def assert_same(whole, parts):
    """The same scores, and the same books."""
    for name in whole.streams:
        assert gap(whole[name].scores, parts[name].scores) < EXACT
    if whole.ledger is not None:
        one, other = whole.ledger.totals(), parts.ledger.totals()
        assert parts.ledger.balanced()
        scale = max(float(amount.abs().max()) for amount in one.values())
        assert all((one[k] - other[k]).abs().max() < 1e-9 * scale for k in one)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize("method", ROW_WISE + AT_INPUT)
def test_chunks_change_nothing(case, whole, method, monkeypatch):
    cut = in_chunks(monkeypatch)
    parts = explained(case, method)
    whole_maps = method == "gae" and len(parts.streams) > 1
    assert len(cut) == (0 if whole_maps else len(sites_of(case)))
    assert_same(whole[method], parts)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize("rules", only(["reference"], ["stable", "reference", "reference_lrp"]))
def test_chunks_change_nothing_by_other_rules(case, rules, monkeypatch):
    whole = explained(case, "transformer_attribution", rules=rules)
    cut = in_chunks(monkeypatch)
    parts = explained(case, "transformer_attribution", rules=rules)
    assert len(cut) == len(sites_of(case))
    # the authors' denominators are not guarded: rounding grows in them
    assert all(gap(whole[n].scores, parts[n].scores) < 100 * EXACT for n in whole.streams)


SOFTMAX_ALONE = set(MODELS) - {"relative positions from the input", "sinks", "masks of numbers"}


@pytest.fixture
def kernel_calls(monkeypatch):
    """The calls of PyTorch's kernel from now on."""
    calls, made = [], chunked.KernelCall.made

    def counted(call):
        calls.append(call)
        return made(call)

    monkeypatch.setattr(chunked.KernelCall, "made", counted)
    return calls


def test_pytorchs_kernel_runs_what_is_softmax_attention_and_nothing_else(
    case, request, monkeypatch, kernel_calls
):
    in_chunks(monkeypatch)
    explained(case, "gradient_x_input")
    name = next(n for n in MODELS if n in request.node.name)
    assert bool(kernel_calls) == (name in SOFTMAX_ALONE)
    assert all(call.is_fused for call in kernel_calls)


def test_a_causal_mask_is_never_made(monkeypatch, kernel_calls):
    model, inputs, target = _llama()
    in_chunks(monkeypatch)
    relprop.explain(model, {"input_ids": inputs["input_ids"]}, target, method="gradient_x_input")
    assert kernel_calls
    assert all(call.causal and call.mask is None for call in kernel_calls)
    assert all(call.queries.shape[-2] == IDS.shape[1] for call in kernel_calls)


@pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
@pytest.mark.parametrize(
    ("name", "method"),
    diagonal(
        ["padded BERT", "grouped queries", "sliding windows"], ["gradient_x_input", "attnlrp"]
    ),
)
def test_a_mask_that_hides_nothing_is_none(name, method, monkeypatch, kernel_calls):
    model, inputs, target = lively_case(name)
    alone = model, inputs | {"attention_mask": torch.ones_like(IDS)}, target
    whole = explained(alone, method)
    in_chunks(monkeypatch)
    kernel_calls.clear()
    parts = explained(alone, method)
    assert gap(whole.scores, parts.scores) < EXACT
    assert {call.mask is None for call in kernel_calls} == {name != "sliding windows"}
    assert {len(IDS[0]) == call.queries.shape[-2] for call in kernel_calls} == {
        call.mask is None for call in kernel_calls
    }
    assert {call.causal for call in kernel_calls} == {name == "grouped queries"}
    explained((model, inputs, target), method)  # one of two is padded
    assert kernel_calls[-1].mask is not None


class Bias(torch.nn.Module):
    """Attention with a bias of its own input, which may be 0 and has a gradient all the same."""

    def __init__(self):
        super().__init__()
        self.project, self.head = torch.nn.Linear(4, 12), torch.nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        bias = (x[..., :1] * x[..., 1:2].mT).relu()
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.head(y[:, -1])


def test_a_bias_of_zeros_keeps_its_gradient(monkeypatch, kernel_calls):
    x = torch.randn(2, 11, 4).abs()
    x[..., 0] = 0
    case = lively(Bias()), x, 1
    whole = explained(case, "gradient_x_input")
    in_chunks(monkeypatch)
    parts = explained(case, "gradient_x_input")
    assert gap(whole.scores, parts.scores) < EXACT
    assert kernel_calls and all(call.mask is not None for call in kernel_calls)


class WideValues(torch.nn.Module):
    """Causal attention whose values have more features than its keys, which PyTorch's fused kernels
    on a CPU do not take."""

    def __init__(self):
        super().__init__()
        self.project, self.head = torch.nn.Linear(4, 4 + 4 + 6), torch.nn.Linear(6, 3)

    def forward(self, x):
        q, k, v = self.project(x).split((4, 4, 6), -1)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(y[:, -1])


def test_where_no_kernel_is_fused_the_map_is_made_in_chunks(monkeypatch, kernel_calls):
    case = lively(WideValues()), torch.randn(2, 11, 4), 1
    whole = explained(case, "gradient_x_input")
    in_chunks(monkeypatch)
    parts = explained(case, "gradient_x_input")
    assert gap(whole.scores, parts.scores) < EXACT
    assert kernel_calls and max(call.queries.shape[-2] for call in kernel_calls) == 3


@pytest.mark.parametrize("method", only(["attnlrp"], ["transformer_attribution", "attnlrp"]))
def test_half_precision_is_no_worse_in_chunks(method, monkeypatch):
    case = MODELS["ViT"]()
    model, inputs, target = lively(case[0]), *case[1:]
    exact = relprop.explain(model, inputs, target, method=method, precision="float64").scores
    half = model.bfloat16(), inputs.bfloat16(), target
    whole = relprop.explain(*half, method=method).scores
    in_chunks(monkeypatch)
    parts = relprop.explain(*half, method=method).scores
    assert gap(exact, parts) < 1.5 * gap(exact, whole)


def whole_maps(model, inputs, target=1, **options):
    found = relprop.explain(model, inputs, target, **options).facts["whole_maps"]
    return {why for _, _, why in (line.partition(": ") for line in found)}


@relprop.methods.row_wise()
def _squares(at):
    return at.matrices(lambda values: values.attention.square() + 1)


def test_what_must_be_whole_is_named(monkeypatch):
    model, inputs, _ = _bert()
    assert whole_maps(model, inputs) == set()
    in_chunks(monkeypatch)
    assert whole_maps(model, inputs) == set()
    assert whole_maps(model, inputs, method="attcat") == {"method 'attcat' reads whole maps"}
    assert whole_maps(model, inputs, head_fusion="max") == {"head_fusion='max'"}
    assert whole_maps(model, inputs, normalize_rows=True) == {"normalize_rows"}
    assert whole_maps(model, inputs, keep="blocks") == {"keep='blocks'"}
    own = relprop.rules.Rule(lambda relevance, call: call.only(relevance), "mine")
    for rule, whole in ((own, True), (dataclasses.replace(own, row_wise=True), False)):
        rules = relprop.rules.PAPER.with_rule(torch.ops.aten._safe_softmax, rule)
        found = whole_maps(model, inputs, rules=rules)
        assert found == ({"rule 'mine' is not said to be row-wise"} if whole else set())


def test_a_sum_that_is_not_balanced_is_not_taken_for_lemma_2():
    def of(function, **more):
        return relprop.rules.Rule(function, "add", "balance", **more)

    assert of(Add()).balancing == Add()
    assert of(Add(normalise=False)).balancing is None
    assert of(Add(), lone=relprop.rules.carry).balancing is None


def test_a_map_that_the_model_returns_is_whole(monkeypatch):
    config = transformers.BertConfig(**TINY, attn_implementation="eager", output_attentions=True)
    model, inputs = _text(transformers.BertForSequenceClassification, config)
    before = relprop.explain(model, inputs, 1)
    in_chunks(monkeypatch)
    after = relprop.explain(model, inputs, 1)
    assert len(after.facts["whole_maps"]) == 2
    assert torch.equal(before.scores, after.scores)


def test_a_users_row_wise_method_sees_rows(monkeypatch):
    case = MODELS["padded BERT"]()
    relprop.methods.register("squares", _squares, class_specific=False)
    try:
        whole = explained(case, "squares")
        assert in_chunks(monkeypatch) is not None
        parts = explained(case, "squares")
    finally:
        relprop.methods.remove("squares")
    assert parts.facts["whole_maps"] == [] and gap(whole.scores, parts.scores) < EXACT


def test_a_row_wise_method_that_reads_whole_maps_is_refused(monkeypatch):
    @relprop.methods.row_wise()
    def first(at):
        return {v.site.contraction: v.attention for v in at.sites}

    relprop.methods.register("first", first, class_specific=False)
    in_chunks(monkeypatch)
    try:
        with pytest.raises(relprop.errors.OptionError, match=r"2 of 2 maps.*\n.*at\.matrices"):
            explained(MODELS["padded BERT"](), "first")
    finally:
        relprop.methods.remove("first")


def test_queries_that_no_relevance_reaches_are_not_walked(monkeypatch):
    """From one position of the last layer relevance goes to that and those before it."""
    case = lively_case("grouped queries")
    in_chunks(monkeypatch, rows=1)
    walked, whole = [], crossing.walk
    monkeypatch.setattr(crossing, "walk", lambda *a: walked.append(a[5]) or whole(*a))
    made = explained(case, "lrp")
    assert sum(walked) == 1 + 8  # of 11 queries in each of two layers
    assert made.ledger.balanced()


def test_the_map_of_a_long_text_is_never_made():
    config = transformers.LlamaConfig(**TINY, max_position_embeddings=2048)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 50, (1, 2048))
    largest = LargestTensor()
    with largest:
        explained = relprop.explain(model, ids, (2047, 3), verify=False)
    assert explained.facts["whole_maps"] == []
    assert largest.bytes <= 2 * chunked.CHUNK_BYTES < 4 * 2048 * 2048 * 4


@pytest.mark.parametrize(
    "method",
    only(["transformer_attribution"], ["rollout", "transformer_attribution", "attnlrp"]),
)
def test_nor_is_its_mask(method, monkeypatch):
    config = transformers.LlamaConfig(**TINY, max_position_embeddings=512)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(3, 50, (1, 512))
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 2**15)
    relprop.explain(model, ids, (511, 3), method=method, verify=False)
    largest = LargestTensor()
    with largest:
        relprop.explain(model, ids, (511, 3), method=method, verify=False)
    assert largest.bytes < 512 * 512


class LargestTensor(TorchDispatchMode):
    """The size of the largest tensor that any operation gives."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for t in tree_leaves(made):
            held = isinstance(t, torch.Tensor) and not isinstance(t, FakeTensor)
            if held and t.device.type != "meta":
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("method", only(["lrp"], ["transformer_attribution", "lrp", "partial_lrp"]))
def test_chunks_are_made_once_for_all_targets_as_far_as_memory_allows(monkeypatch, method):
    """What is kept changes no number; without room every target makes its chunks anew."""
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 400)
    model, inputs, _ = _llama()
    targets, made, inside = [(i, 3) for i in (4, 6, 7, 10)], [], chunked.Chunked.values

    def counting(self, fixed, given, count):
        made.append(count)
        return inside(self, fixed, given, count)

    monkeypatch.setattr(chunked.Chunked, "values", counting)
    found, counts = [], []
    for room in (memory.KEPT, 9000, 0):
        monkeypatch.setattr(memory, "KEPT", room)
        made.clear()
        found.append(relprop.explain_many(model, inputs, targets, method=method))
        counts.append(len(made))
    assert counts[0] < counts[1] < counts[2] and counts[0] < counts[2] / 2
    for kept, some, none in zip(*found, strict=True):
        assert torch.equal(kept.scores, none.scores) and torch.equal(some.scores, none.scores)
        assert kept.ledger.balanced() and kept.ledger.worst() == none.ledger.worst()
