"""A flat program gives what ``explain`` gives, for other inputs, batches and targets; what cannot
be one is refused by name; a saved one runs without this package."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers
from torch import nn

import relprop
from relprop.methods import METHODS
from relprop.runner.method import Method
from relprop.targets import output, token
from relprop.tracer import chunked
from tests.common.around import Written
from tests.common.models import build, closeness, sample, shared
from tests.common.rows import only
from tests.methods.table import made
from tests.targets.models import gpt2

METHOD = "attention_times_grad"  # a small program, for tests that are not about the method
OF_EACH_KIND = (
    "attention_norm",
    "attcat",
    "deeplift",
    "gae",
    "gradcam",
    "gradient_x_input",
    "partial_lrp",
    "rollout",
)


def close(flat, own):
    """Whether two explanations are the same but for rounding, in everything a person sees."""
    assert flat.target == own.target and flat.labels == own.labels
    mine, theirs = flat.predictions or (), own.predictions or ()
    assert [p[:2] for p in mine] == [p[:2] for p in theirs]
    assert (flat.method, flat.rules) == (own.method, own.rules)
    torch.testing.assert_close(flat.output, own.output, rtol=0, atol=1e-12)
    assert flat.streams.keys() == own.streams.keys()
    for name, theirs in own.streams.items():
        mine = flat.streams[name]
        largest = float(theirs.scores.abs().max())
        for kind in ("scores", "row", "identity"):
            a, b = getattr(mine, kind), getattr(theirs, kind)
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * max(1, largest))
        assert torch.equal(mine.content, theirs.content)
        assert torch.equal(mine.source, theirs.source)
        assert (mine.tokens, mine.grid, mine.image) == (theirs.tokens, theirs.grid, theirs.image)


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def explainer(model):
    return relprop.compile(model, sample(batch=2), ledger=True)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_batch_and_any_target(model, explainer, batch):
    inputs = sample(batch=batch, seed=batch)
    for target in (None, 2, -1, [i % 4 for i in range(batch)], torch.arange(batch) % 4):
        close(explainer(inputs, target), relprop.explain(model, inputs, target))


def test_without_a_backend_it_is_equal_but_for_rounding(model, explainer):
    """The head is linear in one position here, so that no sum is taken in another order; products
    of batches are rounded otherwise on some processors."""
    inputs = sample(batch=4, seed=9)
    mine, theirs = explainer(inputs, 1), relprop.explain(model, inputs, 1)
    assert closeness(mine.scores, theirs.scores) <= 1e-14
    assert closeness(mine.output, theirs.output) <= 1e-14


def test_a_recorded_run_does_not_look_at_masks(monkeypatch):
    """Of a large map: what hides nothing where it is recorded may hide something later."""
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    model = transformers.BertForSequenceClassification(config).double().eval()
    ids = torch.randint(3, 50, (2, 11))
    ones = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padded = ones | {"attention_mask": (torch.arange(11) < torch.tensor([[11], [8]])).long()}
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 11 * 11 * 4)
    asked = {"method": "gradient_x_input"}
    explainer = relprop.compile(model, ones, **asked)
    for inputs in (ones, padded):
        mine, theirs = explainer(inputs, 1), relprop.explain(model, inputs, 1, **asked)
        assert torch.allclose(mine.scores, theirs.scores, atol=1e-12, rtol=1e-9)


def test_the_books(model, explainer):
    inputs = sample(batch=4, seed=3)
    mine, theirs = explainer(inputs, 1).ledger, relprop.explain(model, inputs, 1).ledger
    assert [a.key for a in mine.accounts] == [a.key for a in theirs.accounts]
    assert mine.balanced() and mine.started.dtype == theirs.started.dtype
    for name, amount in theirs.totals().items():
        torch.testing.assert_close(mine.totals()[name], amount, rtol=0, atol=1e-12)
    assert relprop.compile(model, inputs, method=METHOD)(inputs).ledger is None


@pytest.mark.parametrize(
    "name", only(OF_EACH_KIND, (n for n, m in METHODS.items() if m.cheap and n != "random"))
)
def test_every_method(name):
    model, inputs = shared(depth=1, seed=3), sample(batch=4, seed=5)
    if name in ("attention_flow", "deeplift"):
        with pytest.raises(relprop.errors.OptionError, match=f"{name}.*looks at values"):
            relprop.compile(model, inputs[:2], method=name)
        return
    explainer = relprop.compile(model, inputs[:2], method=name, verify=False)
    flat, own = explainer(inputs, 1), relprop.explain(model, inputs, 1, method=name)
    close(flat, own)
    assert flat.facts.get("relevance") == own.facts.get("relevance")


@pytest.mark.parametrize("method", only(["attnlrp"], ["attnlrp", "lrp_gamma"]))
def test_one_gradient(bert, method):
    """Of padded texts, when the program was recorded with none; as ``explain`` has it, and walked
    where books are kept."""
    flat, inputs = relprop.compile(bert, texts([9, 9]), method=method), texts([9, 3, 1, 6])
    for target in (None, 2):
        found = flat(inputs, target)
        assert found.facts["relevance"] == "one gradient" and found.ledger is None
        close(found, relprop.explain(bert, inputs, target, method=method))


def test_one_gradient_is_a_smaller_program():
    model = build(depth=1)

    def calls(ledger):
        how = {"method": "attnlrp", "ledger": ledger, "verify": False}
        made = relprop.compile(model, sample(batch=2), **how)
        return len(made._knows.module.graph.nodes), made(sample(batch=3), 1)

    (few, fast), (many, walked) = calls(False), calls(True)
    assert 2 * few < many
    assert walked.ledger.balanced() and walked.facts["relevance"].startswith("walked")
    torch.testing.assert_close(fast.scores, walked.scores, rtol=1e-4, atol=1e-5)


def test_where_one_gradient_is_undefined_it_is_said():
    """cos(0) is not 0, so that R_in = R_out has no gradient form there; a program cannot walk
    instead, as ``explain`` does."""
    model, inputs = Written(lambda m, x: m.inner(torch.cos(x)), depth=1), sample(batch=2)
    explainer = relprop.compile(model, inputs, method="attnlrp", verify=False)
    inputs = inputs.clone()
    inputs[1, 2, 3] = 0
    assert "not 0 at 0" in relprop.explain(model, inputs, 1, method="attnlrp").facts["relevance"]
    with pytest.raises(relprop.RelpropError, match=r"(?s)not 0 at 0.*ledger=True"):
        explainer(inputs, 1)


def test_what_is_kept(model):
    inputs, keep = sample(batch=4), ("blocks", "matrix", "input")
    flat = relprop.compile(model, inputs[:2], keep=keep, verify=False)(inputs, 1)
    own = relprop.explain(model, inputs, 1, keep=keep)
    torch.testing.assert_close(flat.matrix, own.matrix, rtol=0, atol=1e-12)
    torch.testing.assert_close(flat.input, own.input, rtol=0, atol=1e-12)
    for mine, theirs in zip(flat.blocks, own.blocks, strict=True):
        assert mine.path == theirs.path
        for kind in ("attention", "gradient", "relevance"):
            a, b = getattr(mine, kind), getattr(theirs, kind)
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_weights_are_read_at_each_call():
    model, inputs = build(depth=1, seed=1), sample(batch=2)
    explainer = relprop.compile(model, inputs, method=METHOD)
    before = explainer(inputs, 1).scores
    model.load_state_dict(build(depth=1, seed=2).state_dict())  # in place
    close(explainer(inputs, 1), relprop.explain(model, inputs, 1, method=METHOD))
    model.head.weight = nn.Parameter(model.head.weight.detach() * 2)  # another tensor
    close(explainer(inputs, 1), relprop.explain(model, inputs, 1, method=METHOD))
    assert not torch.equal(before, explainer(inputs, 1).scores)


CHANGES = {
    "another module": lambda model: setattr(model.blocks[0].mlp, "1", nn.ReLU()),
    "one block more": lambda model: model.blocks.append(build(depth=1, seed=4).blocks[0]),
    "a setting": lambda model: setattr(model, "factor", 3.0),
    "a tensor that is no buffer": lambda model: model.shift.mul_(2),  # a constant of the graph
    "a buffer": lambda model: model.order.copy_(torch.tensor([1, 0, 2, 3, 4])),
}


@pytest.mark.parametrize("change", only(("another module", "a setting", "a buffer"), CHANGES))
def test_a_model_that_was_built_otherwise_is_refused(change):
    """Which the program does not read at each call as it does weights."""

    class Changing(type(build(depth=1))):
        """One that a setting, a tensor and places decide, too."""

        factor = 1.0

        def __init__(self, recipe):
            super().__init__(recipe)
            self.shift = torch.ones(5, 6, dtype=torch.float64)
            self.register_buffer("order", torch.arange(5))

        def forward(self, x):
            return super().forward(x[:, self.order] * self.factor + self.shift)

    model, inputs = build(depth=1, activation="gelu"), sample(batch=2)
    changing = Changing(model.recipe).double().eval()
    changing.load_state_dict(model.state_dict() | {"order": torch.arange(5)})
    explainer = relprop.compile(changing, inputs, method=METHOD)
    CHANGES[change](changing)
    for _ in range(2):
        with pytest.raises(relprop.errors.InputError, match=r"(?s)another than.*compile again"):
            explainer(inputs, 1)


def test_what_a_model_keeps_of_its_last_call_makes_it_no_other():
    class Keeping(type(build(depth=1))):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    model, inputs = Keeping(build(depth=1).recipe).double().eval(), sample(batch=3)
    model.load_state_dict(build(depth=1).state_dict())
    explainer = relprop.compile(model, inputs, method=METHOD)
    model(inputs)
    close(explainer(inputs, 1), relprop.explain(model, inputs, 1, method=METHOD))


def test_weights_that_are_no_longer_tied_are_refused():
    """Also while they are equal, since they need not stay so."""
    model, inputs = build(depth=1, ids=True, tied=True), sample(ids=True, batch=2)
    explainer = relprop.compile(model, inputs, method=METHOD)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(relprop.errors.InputError, match=r"embed.weight.*head.weight.*were one"):
        explainer(inputs, 1)


def test_inputs_that_lie_otherwise_in_memory(model, explainer):
    inputs = sample(batch=6)
    for lies in (inputs[::2], inputs.transpose(0, 2).contiguous().transpose(0, 2)):
        close(explainer(lies, 1), relprop.explain(model, lies, 1))


def test_keywords_in_any_order(bert):
    explainer, inputs = relprop.compile(bert, texts([9, 9]), method=METHOD), texts([9, 3, 1])
    turned = dict(reversed(inputs.items()))
    close(explainer(turned, 1), relprop.explain(bert, inputs, 1, method=METHOD))


def test_ids_without_a_row_are_said():
    inputs = sample(ids=True, batch=2)
    explainer = relprop.compile(build(depth=1, ids=True), inputs, method=METHOD)
    inputs[1, 2] = 99
    with pytest.raises(relprop.errors.InputError, match="fails on these inputs: IndexError"):
        explainer(inputs, 1)


def test_the_model_is_left_as_it_was(model):
    was = {name: t.clone() for name, t in model.state_dict().items()}
    model.train()
    explainer = relprop.compile(model, sample(batch=2), method=METHOD)
    explainer(sample(batch=3))
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(t, was[name]) for name, t in model.state_dict().items())
    model.eval()


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        num_labels=3,
        max_position_embeddings=32,
    )
    return transformers.BertForSequenceClassification(config).eval().double()


def texts(lengths, width=9):
    """Ids with padding, of so many words each."""
    ids = torch.randint(5, 50, (len(lengths), width), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("method", ["transformer_attribution", "cat"])
def test_padded_texts(bert, method):
    """What is padding in some sample need not have been when the program was recorded; ``cat``
    is told which tokens are content."""
    explainer = relprop.compile(bert, texts([9, 9]), method=method, verify=False)
    inputs = texts([9, 3, 1, 6])
    flat = explainer(inputs, "LABEL_1")
    own = relprop.explain(bert, inputs, "LABEL_1", method=method)
    close(flat, own)
    torch.testing.assert_close(flat.probability, own.probability, rtol=0, atol=1e-12)
    assert (flat.scores[1, 3:] == 0).all()


def test_the_next_token_of_each_text():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40,
        n_embd=32,
        n_layer=1,
        n_head=4,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.GPT2LMHeadModel(config).eval().double()
    explainer = relprop.compile(model, texts([9, 9]) | {"input_ids": torch.full((2, 9), 7)})
    inputs = {n: t % 40 for n, t in texts([9, 4, 6]).items()}
    for target in (None, 11, (2, 5), token(17), token(17, position=2)):
        close(explainer(inputs, target), relprop.explain(model, inputs, target))
    with pytest.raises(relprop.errors.TargetError, match="known only when the model has run"):
        explainer(inputs, token(position=2))


def test_a_pair_of_picture_and_text():
    """What ``None`` means for a model without classes."""

    def pair(model, x, y):
        x, y = model.inner(x), model.inner(y)
        return {"logits_per_image": x @ y.T, "embeds": x}

    model, inputs = Written(pair, depth=1), (sample(batch=2), sample(batch=2, seed=4))
    explainer = relprop.compile(model, inputs, method=METHOD)
    close(explainer(inputs), relprop.explain(model, inputs, method=METHOD))


@pytest.mark.parametrize(
    "compiled", only([None], [None, output("logits")[1], [output("logits")[1], 0]])
)
def test_targets_are_called_what_they_are_called_by(compiled):
    def named(model, x):
        return {"logits": model.inner(x), "doubled": model.inner(x) * 2}

    model, inputs = Written(named, depth=1), sample(batch=2)
    explainer = relprop.compile(model, inputs, compiled, method=METHOD, verify=False)
    for target in (None, 2, output("logits")[2], output(0)[1], [output("logits")[2], 1]):
        close(explainer(inputs, target), relprop.explain(model, inputs, target, method=METHOD))


def test_an_input_of_all_samples():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x, mask):
            return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0].mean(1)

    model, mask = Masked().double().eval(), torch.ones(5, 5).triu(1).bool()
    for compiled in (2, 5):  # 5: as many as the mask has rows
        explainer = relprop.compile(model, (sample(batch=compiled), mask), method=METHOD)
        for batch in (1, 3, 5):
            inputs = (sample(batch=batch), mask)
            close(explainer(inputs, 1), relprop.explain(model, inputs, 1, method=METHOD))
    unlike = (sample(batch=2), mask[:3])
    with pytest.raises(relprop.errors.InputError, match=r"input_1.*has 3 samples"):
        relprop.compile(model, unlike, method=METHOD)


# -- what is refused


def test_one_tensor_that_is_given_twice_is_two_inputs():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = build()

        def forward(self, x, scale, shift):
            return self.inner(x * scale + shift)

    model, x = Scaled().double().eval(), sample(batch=2)
    one, other = (torch.rand(x.shape[1:]).to(x.dtype) for _ in range(2))
    how = {"method": "gradient_x_input", "explain_inputs": [0]}
    explainer = relprop.compile(model.to(x.dtype), (x, one, one), 1, **how)
    close(explainer((x, one, other), 1), relprop.explain(model, (x, one, other), 1, **how))


@pytest.mark.parametrize("layers", [12, 14])
def test_as_many_rows_of_a_ledger_as_samples_are_recorded(layers):
    """The number of terms is a multiple of 5, by which nothing of the model can be divided."""

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
            self.head = nn.Linear(4, 6)

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x).tanh()
            return self.head(x.mean(1))

    model, how = Deep().double().eval(), {"method": "attnlrp", "ledger": True}
    explainer = relprop.compile(model, torch.rand(1, 4, 4).double(), 0, **how)
    x = torch.rand(7, 4, 4).double()
    flat, own = explainer(x, 0), relprop.explain(model, x, 0, **how)
    close(flat, own)
    assert flat.ledger.balanced()


def test_another_shape_says_the_captured_one(explainer):
    for inputs in (torch.rand(2, 7, 6).double(), torch.rand(2, 5, 6)):
        with pytest.raises(relprop.errors.InputError, match=r"input_0 float64 \(batch, 5, 6\)"):
            explainer(inputs)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (4, "out of range"),
        ((0, 1), "2 indices"),
        ([1, 2, 3], "3 entries for a batch of 2"),
        (lambda o: o[0, 1], "callable"),
        ("cat", "no label"),
        (output("other")[0], "another output"),
    ],
)
def test_targets_that_are_no_element(explainer, target, said):
    with pytest.raises(relprop.errors.TargetError, match=said):
        explainer(sample(batch=2), target)


def test_a_callable_target_is_refused_at_once(model):
    with pytest.raises(relprop.errors.TargetError, match="callable"):
        relprop.compile(model, sample(batch=2), lambda o: o[0, 1])


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("integrated_gradients", "runs the model several times"),
        ("occlusion", "runs the model several times"),
        ("random", "draws random numbers"),
    ],
)
def test_methods_that_are_no_one_program(model, method, said):
    with pytest.raises(relprop.errors.OptionError, match=f"{method}.*{said}"):
        relprop.compile(model, sample(batch=2), method=method)


def test_models_that_branch_on_values():
    def branching(model, x):
        return model.inner(x) if float(x.sum()) > 0 else model.inner(-x)

    with pytest.raises(relprop.errors.OptionError, match="captured sample by sample"):
        relprop.compile(Written(branching, depth=1), sample(batch=2), method="input_gradient")


def fickle(left):
    """The inputs, times another number at each call: by the recording, and by ``explain``."""
    return lambda at: {name: value * left.pop() for name, value in at.values.items()}


def one_by_one(at):
    """The inputs, each sample on its own."""
    return {n: torch.stack([v[i] for i in range(len(v))]) for n, v in at.values.items()}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fickle([2, 1]), "does not give what relprop.explain gives"),
        (one_by_one, "of any batch size could not be made of one for some samples: "),
    ],
    ids=["another_each_time", "sample_by_sample"],
)
def test_methods_that_python_makes_other_programs(model, method, said):
    METHODS["own"] = Method("own", method, level="input")
    try:
        with pytest.raises(relprop.errors.CaptureError, match=said):
            relprop.compile(model, sample(batch=2), method="own")
    finally:
        del METHODS["own"]


def test_values_that_are_not_finite_are_said(model):
    explainer = relprop.compile(model, sample(batch=2), method=METHOD)
    weight = model.head.weight.detach().clone()
    try:
        with torch.no_grad():
            model.head.weight[0, 0] = float("nan")
        with pytest.raises(relprop.errors.InputError, match=r"head.weight.*NaN"):
            explainer(sample(batch=2))
    finally:
        with torch.no_grad():
            model.head.weight.copy_(weight)


# -- other backends


def test_a_backend_of_ones_own():
    model, seen = shared(depth=1), []

    def backend(module, example):
        seen.append(module)
        return module.forward

    inputs = sample(batch=4)
    explainer = relprop.compile(model, inputs[:2], method=METHOD, backend=backend)
    close(explainer(inputs, 1), relprop.explain(model, inputs, 1, method=METHOD))
    assert seen


@pytest.fixture
def compiler():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        return get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("there is no C++ compiler")


@pytest.mark.slow
def test_inductor(model, compiler):
    inputs = sample(batch=4)
    explainer = relprop.compile(model, inputs[:2], backend="inductor")
    for batch, target in ((4, 1), (3, None)):
        flat, own = (
            explainer(inputs[:batch], target),
            relprop.explain(model, inputs[:batch], target),
        )
        torch.testing.assert_close(flat.scores, own.scores, rtol=0, atol=1e-10)
        assert flat.target == own.target


BARE_AHEAD = """
    import sys

    class NoRelprop:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "relprop":
                raise ImportError(name)

    sys.meta_path.insert(0, NoRelprop())
    import torch

    package = torch._inductor.aoti_load_package(sys.argv[1])
    torch.save(dict(package(*torch.load(sys.argv[2]))), sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["transformer_attribution", "attnlrp"])
def test_ahead_of_time(model, compiler, tmp_path, method):
    """Machine code for any batch, read by relprop and by torch alone."""
    made = relprop.compile(model, sample(batch=2), method=method)
    path = made.save(tmp_path / "x.pt2", ahead_of_time=True)
    inputs = sample(batch=3, seed=4)
    own = relprop.explain(model, inputs, [0, 1, 2], method=method)
    flat = relprop.load_explainer(path)(inputs, [0, 1, 2])
    torch.testing.assert_close(flat.scores, own.scores, rtol=0, atol=1e-10)
    torch.save([inputs, torch.tensor([0, 1, 2])], tmp_path / "inputs.pt")
    files = [str(tmp_path / name) for name in ("x.pt2", "inputs.pt", "found.pt")]
    command = [sys.executable, "-c", textwrap.dedent(BARE_AHEAD), *files]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    found = torch.load(tmp_path / "found.pt")
    torch.testing.assert_close(found["input_0.scores"], own.scores, rtol=0, atol=1e-10)


# -- on disk

BARE = """
    import json, sys

    class NoRelprop:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ("relprop", "transformers", "timm"):
                raise ImportError(name)

    sys.meta_path.insert(0, NoRelprop())
    import torch

    texts = {"relprop.json": ""}
    program = torch.export.load(sys.argv[1], extra_files=texts).module()
    found = program(*torch.load(sys.argv[2]))
    torch.save(dict(found), sys.argv[3])
    print(json.loads(texts["relprop.json"])["layouts"]["input_ids"]["source"])
"""


# one .pt2 in the fast suite: that which runs without relprop
ENDINGS = pytest.mark.parametrize("ending", only([".safetensors"], [".pt2", ".safetensors"]))


@ENDINGS
def test_one_gradient_is_saved(bert, tmp_path, ending):
    how = {"method": "attnlrp"}
    path = relprop.compile(bert, texts([9, 9]), verify=False, **how).save(tmp_path / f"x{ending}")
    inputs = texts([9, 3, 1, 6])
    close(relprop.load_explainer(path)(inputs, 1), relprop.explain(bert, inputs, 1, **how))


def test_a_saved_program_runs_with_torch_alone(bert, tmp_path):
    how = {"method": METHOD, "verify": False}
    path = relprop.compile(bert, texts([9, 9]), **how).save(tmp_path / "x.pt2")
    inputs = texts([9, 3, 1, 6])
    torch.save([*inputs.values(), torch.tensor([-1, 0, 1, 2])], tmp_path / "inputs.pt")
    files = [str(tmp_path / name) for name in ("x.pt2", "inputs.pt", "found.pt")]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BARE), *files],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == str(list(range(9)))
    found = torch.load(tmp_path / "found.pt")
    predicted = int(bert(**inputs).logits[0].argmax())
    own = relprop.explain(bert, inputs, [predicted, 0, 1, 2], method=METHOD)
    close(relprop.load_explainer(path)(inputs, [predicted, 0, 1, 2]), own)
    torch.testing.assert_close(found["input_ids.scores"], own.scores, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["output"], own.output, rtol=0, atol=1e-12)
    assert found["index"].tolist() == [[predicted], [0], [1], [2]]
    assert found["model.logits"].shape == (4, 3)
    assert path == tmp_path / "x.pt2"


@ENDINGS
@pytest.mark.parametrize("batch", only([4], [1, 4]))
def test_a_loaded_explainer_knows_what_the_model_knew(bert, tmp_path, batch, ending):
    explainer = relprop.compile(bert, texts([9, 9]), ledger=True, verify=False)
    path = explainer.save(tmp_path / f"x{ending}")
    loaded, inputs = relprop.load_explainer(path), texts([9, 3, 1, 6][-batch:])
    for target in (None, 2, "LABEL_1"):
        flat, own = loaded(inputs, target), relprop.explain(bert, inputs, target)
        close(flat, own)
        torch.testing.assert_close(flat.probability, own.probability, rtol=0, atol=1e-12)
        assert flat.ledger.balanced() and flat.facts["options"] == own.facts["options"]
    with pytest.raises(relprop.errors.InputError, match=r"input_ids int64 \(batch, 9\)"):
        loaded(texts([3], width=5))
    with pytest.raises(relprop.errors.OptionError, match="can be copied"):
        loaded.save(tmp_path / "y.pt2")


@ENDINGS
def test_grids_and_what_is_kept_come_back(tmp_path, ending):
    model, inputs, _ = made("ViT")
    how = {"method": "raw_attention", "keep": "blocks"}
    explainer = relprop.compile(model, inputs, verify=False, **how)
    flat = relprop.load_explainer(explainer.save(tmp_path / f"x{ending}"))(inputs, 3)
    own = relprop.explain(model, inputs, 3, **how)
    close(flat, own)
    assert torch.equal(flat.heatmap(), own.heatmap())
    assert [b.path for b in flat.blocks] == [b.path for b in own.blocks]
    assert torch.equal(flat.blocks[0].attention, own.blocks[0].attention)


def test_other_files_are_refused(tmp_path):
    from zipfile import ZipFile

    (tmp_path / "a.pt2").write_text("no archive")
    with ZipFile(tmp_path / "b.pt2", "w") as file:
        file.writestr("x", "y")
    linear = torch.export.export(nn.Linear(2, 2), (torch.rand(1, 2),))
    torch.export.save(linear, tmp_path / "c.pt2")
    (tmp_path / "d.safetensors").write_bytes(b"no header")
    relprop.explain(build(depth=1), sample(), 1).save(tmp_path / "e.safetensors")
    names = ("a.pt2", "b.pt2", "c.pt2", "missing.pt2", "d.safetensors", "e.safetensors")
    for name in (*names, "missing.safetensors"):
        with pytest.raises(relprop.errors.InputError, match="cannot be read as a saved explainer"):
            relprop.load_explainer(tmp_path / name)


def crafted(calls, wrong):
    """The calls of a file with something else in one of them."""
    given = next(i for i, (op, *_) in enumerate(calls) if op == "placeholder")
    added = next(i for i, (_, name, *_) in enumerate(calls) if name == "aten.add.Tensor")
    op, name, args, kwargs = calls[added]
    if wrong == "the name of an input":
        code = "x=__import__('pathlib').Path('done').touch()"
        return calls[:given] + [["placeholder", code, *calls[given][2:]]] + calls[given + 1 :]
    made = {
        "the name of an argument": [
            op,
            name,
            args,
            {"dict": {"z=__import__('pathlib').Path('done').touch(), y": 1}},
        ],
        "another library": [op, "relprop.grouped.default", args, kwargs],
        "Python": [op, "operator.attrgetter", args, kwargs],
        "os": [op, "os.system.default", {"tuple": ["touch done"]}, kwargs],
        "a file": [op, "aten.from_file.default", {"tuple": ["done", True, 16]}, kwargs],
        "a method": ["call_method", "__class__.__init__", args, kwargs],
    }[wrong]
    return [*calls[:added], made, *calls[added + 1 :]]


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A saved explainer of a small program."""
    explainer = relprop.compile(model, sample(batch=2), method=METHOD, verify=False)
    return explainer.save(tmp_path_factory.mktemp("saved") / "x.safetensors")


@pytest.mark.parametrize(
    "wrong",
    [
        "the name of an input",
        "the name of an argument",
        "another library",
        "Python",
        "os",
        "a file",
        "a method",
    ],
)
def test_nothing_in_a_list_of_calls_is_code(saved, tmp_path, monkeypatch, wrong):
    """What stands in a file decides which operators run: none but those of PyTorch on
    tensors, whatever else is written there."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    monkeypatch.chdir(tmp_path)
    inputs = sample(batch=2)
    with safe_open(saved, "pt") as file:
        about = file.metadata()
    calls = json.dumps(crafted(json.loads(about["calls"]), wrong))
    save_file(load_file(saved), "y.safetensors", about | {"calls": calls})
    if "name" not in wrong:
        with pytest.raises(relprop.errors.InputError, match=r"cannot be read as a saved explainer"):
            relprop.load_explainer("y.safetensors")
    elif wrong == "the name of an argument":
        with pytest.raises(relprop.errors.RelpropError):
            relprop.load_explainer("y.safetensors")(inputs, 1)
    else:  # inputs have no names there
        relprop.load_explainer("y.safetensors")(inputs, 1)
    assert not (tmp_path / "done").exists()


def test_machine_code_is_no_list_of_calls(model, tmp_path):
    explainer = relprop.compile(model, sample(batch=2), method=METHOD, verify=False)
    with pytest.raises(relprop.errors.OptionError, match=r"machine code: save it as x\.pt2"):
        explainer.save(tmp_path / "z.safetensors", ahead_of_time=True)


def test_weights_that_two_layers_share_stand_in_a_list_of_calls(tmp_path):
    ids = torch.randint(3, 30, (2, 6))
    model = gpt2()
    explainer = relprop.compile(model, ids, (5, 3), method="attnlrp")
    loaded = relprop.load_explainer(explainer.save(tmp_path / "x.safetensors"))
    assert torch.equal(loaded(ids, (5, 3)).scores, explainer(ids, (5, 3)).scores)


def test_an_adapter_of_ones_own_is_not_saved_in_silence(model, tmp_path):
    class Own(relprop.adapters.Adapter):
        """Knows more than a saved explainer remembers."""

    relprop.adapters.register(Own)
    try:
        explainer = relprop.compile(model, sample(batch=2), method=METHOD, verify=False)
        with pytest.warns(relprop.RelpropWarning, match="does not know what adapter 'Own'"):
            explainer.save(tmp_path / "x.safetensors")
    finally:
        relprop.adapters.remove(Own)


def test_a_weight_that_is_another_one_is_said():
    model, inputs = build(depth=1, seed=1), sample(batch=2)
    explainer = relprop.compile(model, inputs, method=METHOD, verify=False)
    head = model.head
    model.head = nn.Linear(head.in_features, 7, dtype=torch.float64)
    with pytest.raises(
        relprop.errors.InputError, match=r"'head.weight', \(4, \d+\)(?s:.*)of \(7, "
    ):
        explainer(inputs, 1)
    model.head = nn.Identity()
    with pytest.raises(relprop.errors.InputError, match=r"'head.weight'(?s:.*)has none now"):
        explainer(inputs, 1)
    model.head = head
    explainer(inputs, 1)


def test_what_comes_back_are_ordinary_tensors(model, explainer):
    found = explainer(sample(batch=1), 1)
    assert not found.scores.is_inference() and not found.output.is_inference()
    found.scores.requires_grad_().square().sum().backward()
