"""``probe.set``: what it makes of a run, beside PyTorch's own hooks on the user's modules."""

import itertools
import warnings
from difflib import SequenceMatcher

import pytest
import timm
import torch
import transformers as hf
from torch import nn

import relprop
from relprop.demo.model import digit_scene_model
from relprop.errors import OptionError, RelpropError
from tests.common.models import closeness
from tests.common.rows import diagonal, only

pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
#: Models that calculate in float32 inside.
WITHIN = {"llama": 1e-6, "mixtral": 1e-6, "t5": 1e-6}
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
}
IDS = torch.randint(5, 50, (2, 6), generator=torch.Generator().manual_seed(0))


class Gathered(nn.Module):
    """A model that nobody knows: tokens attend to a bank of learned ones, and to each other."""

    def __init__(self):
        super().__init__()
        self.inside, self.bank = nn.Linear(6, 8), nn.Parameter(torch.randn(3, 8))
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.mix, self.head = (
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        x = self.inside(x)
        both = torch.cat([x, self.bank.expand(len(x), -1, -1)], 1)
        q, k, v = (
            f(t).unflatten(2, (2, 4)).transpose(1, 2)
            for f, t in ((self.q, x), (self.k, both), (self.v, both))
        )
        a = (q @ k.transpose(2, 3) / 2).softmax(3)
        x = x + self.out((a @ v).transpose(1, 2).flatten(2))
        return self.head((x + self.mix(x)).mean(1))


def llama(name, **options):
    config = getattr(hf, f"{name}Config")(**SMALL, num_key_value_heads=2, **options)
    return getattr(hf, f"{name}ForCausalLM")(config)


DECODER = (
    "model.embed_tokens",
    "model.layers.1.mlp",
    "model.layers.0.self_attn",
    "model.layers.1.self_attn.o_proj",
)
#: A model, its inputs, the target, its embedding, two modules, an output projection and its heads.
CASES = {
    "vit": lambda: (
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=32, num_heads=4),
        torch.rand(2, 3, 32, 32).double(),
        3,
        ("patch_embed", "blocks.1.mlp", "blocks.0.attn", "blocks.1.attn.proj"),
    ),
    "bert": lambda: (
        hf.BertForSequenceClassification(hf.BertConfig(**SMALL)),
        {"input_ids": IDS},
        1,
        (
            "bert.embeddings.word_embeddings",
            "bert.encoder.layer.1.output",
            "bert.encoder.layer.0.attention.self",
            "bert.encoder.layer.1.attention.output.dense",
        ),
    ),
    "gpt2": lambda: (
        hf.GPT2LMHeadModel(
            hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, n_positions=16)
        ),
        {"input_ids": IDS},
        (5, 3),
        (
            "transformer.wte",
            "transformer.h.1.mlp",
            "transformer.h.0.attn",
            "transformer.h.1.attn.c_proj",
        ),
    ),
    "llama": lambda: (
        llama("Llama"),
        {"input_ids": IDS},
        (5, 3),
        DECODER,
    ),
    "mixtral": lambda: (
        llama("Mixtral", num_local_experts=4, experts_implementation="eager"),
        {"input_ids": IDS},
        (5, 3),
        DECODER,
    ),
    "t5": lambda: (
        hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50)
        ),
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :4]},
        (3, 3),
        (
            "encoder.embed_tokens",
            "encoder.block.1.layer.1.DenseReluDense",
            "decoder.block.0.layer.1.EncDecAttention",
            "encoder.block.0.layer.0.SelfAttention.o",
        ),
    ),
    "vilt": lambda: (
        hf.ViltForQuestionAnswering(
            hf.ViltConfig(**SMALL, image_size=16, patch_size=8, num_labels=4)
        ),
        {"input_ids": IDS, "pixel_values": torch.rand(2, 3, 16, 16).double()},
        1,
        (
            "vilt.embeddings.text_embeddings.word_embeddings",
            "vilt.encoder.layer.1.intermediate",
            "vilt.encoder.layer.0.attention",
            "vilt.encoder.layer.1.attention.output.dense",
        ),
    ),
    "unknown to all": lambda: (
        Gathered(),
        torch.rand(2, 5, 6).double(),
        2,
        ("inside", "mix", "q", "out"),
    ),
}


class Case:
    """A model with what a run of it gives by PyTorch alone, some hooks in place."""

    def __init__(self, name):
        torch.manual_seed(0)
        self.model, self.inputs, self.target, self.places = CASES[name]()
        self.model = self.model.double().eval()
        self.within = WITHIN.get(name, 1e-9)
        self.modules = dict(self.model.named_modules())

    def run(self, hooks, before=False):
        """y and its gradient at the embedding's output; ``hooks``: by module."""
        seen = []
        handles = [
            self.modules[path].register_forward_pre_hook(hook)
            if before
            else self.modules[path].register_forward_hook(hook)
            for path, hook in hooks.items()
        ]
        embed = self.modules[self.places[0]]
        handles.append(embed.register_forward_hook(lambda m, a, out: seen.append(out)))
        try:
            given = self.inputs
            out = self.model(**given) if isinstance(given, dict) else self.model(given)
        finally:
            for handle in handles:
                handle.remove()
        out = getattr(out, "logits", out)
        y = (
            out[:, self.target]
            if isinstance(self.target, int)
            else out[(slice(None), *self.target)]
        )
        return y.detach(), torch.autograd.grad(y.sum(), seen[0], allow_unused=True)[0]

    def probe(self):
        return relprop.instrument(self.model, self.inputs, self.target)


def replaced(make):
    """A forward hook that changes the first tensor of what a module returns."""

    def hook(module, args, out):
        return (make(out[0]), *out[1:]) if isinstance(out, tuple) else make(out)

    return hook


WAYS = {
    "zero": (0.0, torch.zeros_like),
    "a number": (0.3, lambda v: torch.full_like(v, 0.3)),
    "a function": (lambda v: v * 1.5 + 0.1, lambda v: v * 1.5 + 0.1),
}


@pytest.mark.parametrize(
    ("name", "way"),
    only(
        [("vit", "zero"), ("bert", "a number"), ("t5", "a function"), ("unknown to all", "zero")],
        itertools.product(CASES, WAYS),
    ),
)
def test_it_is_what_a_hook_of_torch_makes(name, way):
    case, (value, make) = Case(name), WAYS[way]
    with case.probe() as probe:
        for path in case.places[1:3]:
            y, slope = case.run({path: replaced(make)})
            probe.set(path, value)
            assert closeness(probe.output(), y) <= case.within
            found = probe.gradient(case.places[0])[case.places[0]]
            if slope is not None:  # the changed run depends on the input
                assert closeness(found, slope) <= case.within
            shown = probe.value(path)[path]
            assert callable(value) or bool((shown == value).all())
            if probe.relevance(path)[path].any() or way == "a function":
                assert probe.ledger().balanced(1e-5)
            probe.clear()
        assert closeness(probe.output(), case.run({})[0]) <= case.within


@pytest.mark.parametrize("name", only(("vit", "t5", "unknown to all"), CASES))
def test_parts_of_a_value(name):
    """Positions, features and samples of a module's output, and heads before they are joined."""
    case = Case(name)
    path, projection = case.places[1], case.places[3]

    def part(v):
        changed = v.clone()
        changed[:, [1, 3], :4] = 0.5
        return changed

    def head(module, args):
        cut = args[0].unflatten(2, (2 if name == "unknown to all" else 4, -1)).clone()
        cut[1, :, 1] = 0
        return (cut.flatten(2),)

    with case.probe() as probe:
        probe.set(path, 0.5, positions=[1, 3], features=slice(4))
        assert closeness(probe.output(), case.run({path: replaced(part)})[0]) <= case.within
        assert probe.ledger().balanced(1e-5)
        probe.clear()
        alike = {n: SequenceMatcher(None, n, projection) for n in probe.names("*:heads")}
        heads = max(alike, key=lambda n: alike[n].find_longest_match().size)
        probe.set(heads, 0.0, heads=1, samples=-1)
        y, _ = case.run({projection: head}, before=True)
        assert closeness(probe.output(), y) <= case.within
        many = probe.many([{"name": path, "value": v, "positions": 0} for v in (0.0, 1.0)])
        for found, v in zip(many, (0.0, 1.0), strict=True):
            probe.set(path, v, positions=0)
            assert closeness(found, probe.output()) <= 1e-12
            probe.clear()
            probe.set(heads, 0.0, heads=1, samples=-1)


MODEL, IMAGES = (
    digit_scene_model().double(),
    torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0)).double(),
)


def probing(**how):
    return relprop.instrument(MODEL, IMAGES, 3, **how)


def test_settings_follow_one_another():
    """A function sees what was set before it, and what is set at one place twice is set last."""
    with probing() as probe:
        probe.set("blocks.1.mlp", 0.0)
        seen = probe.value("blocks.2")["blocks.2"]
        probe.set("blocks.2", lambda v: v * 2)
        assert closeness(probe.value("blocks.2")["blocks.2"], 2 * seen) <= 1e-12
        probe.set("blocks.2", lambda v: v / 2)
        assert closeness(probe.value("blocks.2")["blocks.2"], seen) <= 1e-12
        probe.set("blocks.2", 1.0)
        assert bool((probe.value("blocks.2")["blocks.2"] == 1).all())


def test_the_books_name_what_is_set():
    with probing() as probe:
        start = probe.ledger().totals()["started"]
        probe.set("blocks.2.mlp", 0.25, positions=0)
        books = probe.ledger()
        assert books.balanced() and float(books.absorbed()["set blocks.2.mlp"].abs().min()) > 0
        assert closeness(books.totals()["started"], start) <= 1e-12
        relevance = probe.relevance("blocks.2.mlp.act")["blocks.2.mlp.act"]
        assert bool((relevance[:, 0] == 0).all() and relevance[:, 1:].any(2).all())


def test_a_map_is_set_as_it_is_and_methods_explain_the_changed_run():
    with probing() as probe:
        uniform = torch.full((65, 65), 1 / 65).double()
        probe.set("blocks.3.attn:softmax", uniform, heads=[0, 2])
        shown = probe.value("blocks.3.attn:softmax")["blocks.3.attn:softmax"]
        assert bool((shown[:, [0, 2]] == uniform).all() and (shown[:, 1] != uniform).any())
        rollout = probe.explanation(method="rollout")
        assert rollout.scores.shape == (2, 65)
        changed = probe.explanation(
            method="gradient_x_input",
        ).scores
    plain = relprop.explain(MODEL, IMAGES, 3, method="gradient_x_input").scores
    assert closeness(changed, plain) > 1e-3


class Several(nn.Module):
    """Modules that return a tuple, a mapping, what is in another order, and nothing new."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            first = self.a(x).tanh()
            return first, self.b(first).tanh()

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x):
            late = self.a(x).relu()
            return {"late": late, "early": x * 0.5, "count": 3, "summed": late.sum(-1)}

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.pair, self.named, self.drop = self.Pair(), self.Named(), nn.Dropout()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x, gate = self.pair(self.pair(x)[0])
        found = self.named(self.drop(x))
        x = x + found["late"] * found["early"] + found["summed"][..., None]
        return self.head(x.mean(1)) + gate.mean((1, 2))[:, None]


def test_names_are_what_a_hook_of_torch_sees():
    """Of a module that returns several tensors the first has its name; a second call its own."""
    model, x = Several().double().eval(), torch.rand(2, 5, 8).double()
    seen = {}
    for path, module in model.named_modules():
        module.register_forward_hook(lambda m, a, out, p=path: seen.setdefault(p, []).append(out))
    model(x)
    for module in model.modules():
        module._forward_hooks.clear()
    (first, again), (named,) = seen["pair"], seen["named"]
    with relprop.instrument(model, x, 1) as probe:
        for name, expected in (
            ("pair", first[0]),
            ("pair@1", again[0]),
            ("pair@1[1]", again[1]),
            ("pair.b@1", seen["pair.b"][1]),
            ("named", named["late"]),
            ("named[early]", named["early"]),
            ("named[summed]", named["summed"]),
            ("attention", seen["attention"][0][0]),
        ):
            assert closeness(probe.value(name)[name], expected.detach()) <= 1e-9, name
        assert "drop" not in probe.names() and "pair[1]" not in probe.names()  # nobody reads it
        with pytest.raises(OptionError, match="not so for dropout"):
            probe.value("drop")
        probe.set("pair@1[1]", 0.0)
        assert closeness(probe.output(), (model(x)[:, 1] - again[1].mean((1, 2))).detach()) <= 1e-9


@pytest.mark.parametrize("name", only(("vit", "t5", "unknown to all"), CASES))
def test_every_name_of_a_module_is_what_it_returns(name):
    case, seen = Case(name), {}

    def hook(path):
        def see(module, args, out):
            call = f"{path}@{len(seen[path])}" if (path in seen) else path
            seen.setdefault(path, []).append(call)
            seen[call, "value"] = out[0] if isinstance(out, tuple) else out

        return see

    torch.manual_seed(3)  # ViLT draws the order of its patches
    case.run({path: hook(path) for path in case.modules if path})
    with case.probe() as probe:
        names = [n for n in probe.names() if ":" not in n and "[" not in n]
        assert set(case.places) <= set(names)
        for n in names if name != "vilt" else ():
            value = seen[n, "value"]
            value = (value if isinstance(value, torch.Tensor) else value[0]).detach()
            assert closeness(probe.value(n)[n].reshape(value.shape), value) <= case.within, n


def test_a_part_is_ablated_by_other_samples():
    name, others = "blocks.2.attn:heads", torch.rand(5, 1, 32, 32).double()
    with relprop.instrument(MODEL, others, 3) as probe:
        of_others = probe.value(name)[name]
    with probing() as probe:
        own = probe.value(name)[name]
        for by, how, value in (
            ("zero", {}, torch.zeros(1).double()),
            ("mean", {"reference": others}, of_others.mean(0)[:, 1]),
            ("mean", {"reference": of_others[:1] * 0}, None),
            ("mean", {}, own.mean(0)[:, 1]),
            ("resample", {}, own.flip(0)[:, :, 1]),
        ):
            if value is None:
                with pytest.raises(RelpropError):
                    probe.ablate(name, by, **how, heads=1)
                continue
            probe.ablate(name, by, **how, heads=1)
            shown, found = probe.value(name)[name], probe.output()
            assert closeness(shown[:, :, 1], value.expand_as(shown[:, :, 1])) <= 1e-12
            assert bool((shown[:, :, 0] == own[:, :, 0]).all()) and probe.ledger().balanced()
            probe.clear()
            setting = {"name": name, "value": shown}
            assert closeness(probe.many([setting])[0], found) <= 1e-12
        probe.ablate(name, "resample", reference=others, seed=1)
        shown = probe.value(name)[name]
        drawn = {
            i: [k for k in range(5) if torch.allclose(shown[i], of_others[k])] for i in range(2)
        }
        assert all(len(found) == 1 for found in drawn.values())


def test_references_of_other_lengths_and_padded_ones_are_refused():
    case, name = Case("bert"), "bert.encoder.layer.0"
    mask = torch.ones_like(IDS)
    with relprop.instrument(case.model, {"input_ids": IDS, "attention_mask": mask}, 1) as probe:
        others = {"input_ids": IDS.flip(1), "attention_mask": mask}
        probe.ablate(name, "mean", reference=others)
        probe.clear()
        padded = others | {"attention_mask": mask.index_fill(1, torch.tensor([5]), 0)}
        with pytest.raises(OptionError, match="padded texts"):
            probe.ablate(name, "mean", reference=padded)
        shorter = {n: t[:, :4] for n, t in others.items()}
        with pytest.raises(OptionError, match=r"has \[4, 32\] there, one of the run \[6, 32\]"):
            probe.ablate(name, "resample", reference=shorter)


def test_the_own_batch_is_said():
    with probing() as probe, pytest.warns(relprop.errors.SharedBatchWarning, match="own 2 samples"):
        probe.ablate("blocks.1.mlp", "mean")
    strict = relprop.instrument(MODEL, IMAGES, 3, strict=True)
    with strict as probe, pytest.raises(RelpropError, match="own 2 samples"):
        probe.ablate("blocks.1.mlp", "mean")


class Around(nn.Module):
    """A module that reads what it returns itself, and one whose outputs depend on each other."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x, mask):
            h = self.linear(x)
            return h, (h * mask).tanh()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.pool = Around.Inner(), nn.Linear(4, 4)

        def forward(self, x, mask):
            h, masked = self.inner(x, mask)
            return h, self.pool(h.mean(1)).tanh(), masked

    def __init__(self):
        super().__init__()
        self.outer, self.head = self.Outer(), nn.Linear(4, 3)

    def forward(self, x, mask):
        h, pooled, masked = self.outer(x, mask)
        return self.head(h.sin().mean(1) + pooled * masked.mean(1))


@pytest.mark.parametrize(
    ("path", "way"), diagonal(["outer", "outer.inner", "outer.inner.linear"], WAYS)
)
def test_a_module_is_changed_for_those_outside_of_it(path, way):
    """What a module reads of its own result is as it was, as behind a hook; and settings of modules
    around one another are each for its own readers."""
    value, make = WAYS[way]
    torch.manual_seed(1)
    model, x, mask = Around().double().eval(), torch.randn(2, 3, 4).double(), torch.ones(2, 3, 1)
    mask[1, 2] = 0
    mask = mask.double()
    plain = model(x, mask)[:, 1].detach()
    modules = dict(model.named_modules())
    outer = modules["outer"].register_forward_hook(replaced(lambda v: v + 1))
    handle = modules[path].register_forward_hook(replaced(make))
    both = model(x, mask)[:, 1].detach()
    outer.remove()
    expected = model(x, mask)[:, 1].detach()
    handle.remove()
    with relprop.instrument(model, {"x": x, "mask": mask}, 1) as probe:
        inner = model.outer.inner(x, mask)
        for name, seen in (("outer.inner", inner[0]), ("outer.inner[1]", inner[1])):
            assert closeness(probe.value(name)[name], seen.detach()) <= 1e-12
        assert closeness(probe.many([{"name": path, "value": value}])[0], expected) <= 1e-12
        probe.set(path, value)
        assert closeness(probe.output(), expected) <= 1e-12 and probe.ledger().balanced()
        if path != "outer":
            probe.set("outer", lambda v: v + 1)
            assert closeness(probe.output(), both) <= 1e-12
            probe.clear()
            probe.set("outer", lambda v: v + 1)
            probe.set(path, value)
            assert closeness(probe.output(), both) <= 1e-12
        probe.clear()
        assert closeness(probe.output(), plain) <= 1e-12


@pytest.mark.parametrize("path", only(["stem.1"], ["stem", "stem.1"]))
def test_readers_of_the_same_numbers_laid_out_otherwise(path):
    """A norm over channels turns them last and back; what is added reads them before they are
    turned back, in the graph."""
    torch.manual_seed(0)
    model = timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 16, 32))
    model, x = model.double().eval(), torch.rand(2, 3, 64, 64).double()
    handle = model.get_submodule(path).register_forward_hook(replaced(lambda v: v * 1.5 + 0.1))
    y = model(x)[:, 3].detach()
    handle.remove()
    setting = {"name": path, "value": lambda v: v * 1.5 + 0.1}
    with relprop.instrument(model, x, 3) as probe, warnings.catch_warnings():
        warnings.simplefilter("error", relprop.errors.PartlySetWarning)
        probe.set(**setting)
        assert closeness(probe.output(), y) <= 1e-9
        probe.clear()
        other = {"name": "head", "value": 0.0}
        many = probe.many([other, setting, other])
        assert closeness(many[1], y) <= 1e-9 and not many[[0, 2]].any()


class Gate(nn.Module):
    """``1 - gate`` is a sigmoid of its own in the graph, which reads past what the gate returns."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()), nn.Linear(4, 3)

    def forward(self, x):
        gate = self.gate(x)
        return self.head((x.sin() * gate + x * (1 - gate)).mean(1))


def test_what_is_read_past_a_set_value_is_said():
    torch.manual_seed(0)
    model, x = Gate().double().eval(), torch.randn(2, 3, 4).double()
    handle = model.gate.register_forward_hook(replaced(torch.zeros_like))
    y = model(x)[:, 1].detach()
    handle.remove()
    with relprop.instrument(model, x, 1) as probe, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        probe.set("gate", 0.0)
        right = closeness(probe.output(), y) <= 1e-12
        assert right != any(w.category is relprop.errors.PartlySetWarning for w in said)


def test_all_names_of_a_node_follow_it():
    """What is set at an operation is what a module returns, if that is it: also as its second
    tensor, the first of which is no value of the graph."""
    case = Case("mixtral")
    with case.probe() as probe:
        assert "model.layers.0.mlp.gate" not in probe.names()
        name, labels = "model.layers.0.mlp.gate[1]", probe.session.program.labels
        operation = next(n for n in labels if ":" in n and labels[n] is labels[name])
        probe.set(operation, 0.25)
        assert bool((probe.value(name)[name] == 0.25).all())


def test_of_nearly_equal_values_the_name_is_of_the_nearest():
    torch.manual_seed(0)
    model = hf.BeitForImageClassification(
        hf.BeitConfig(
            **SMALL | {"num_hidden_layers": 3},
            image_size=32,
            patch_size=8,
            layer_scale_init_value=1e-6,
            output_hidden_states=True,
        )
    )
    model, x = model.double().eval(), torch.randn(2, 3, 32, 32).double()
    states = model(x).hidden_states
    with relprop.instrument(model, x, 1) as probe:
        found = probe.value("beit[[]hidden_states*")
        assert len(found) >= 2
        for name, value in found.items():
            assert closeness(value, states[int(name[-3])].detach()) <= 1e-12, name


def test_two_attentions_of_one_module_have_heads_of_their_own():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.out = nn.ModuleList(nn.Linear(8, 24) for _ in range(2)), nn.Linear(8, 3)

        def attended(self, x, p):
            q, k, v = p(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            return ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)

        def forward(self, x):
            for p in self.p:
                x = x + self.attended(x, p)
            return self.out(x.mean(1))

    torch.manual_seed(0)
    model, x = Twice().double().eval(), torch.randn(2, 5, 8).double()
    first = model.attended(x, model.p[0])
    second = model.attended(x + first, model.p[1])
    with relprop.instrument(model, x, 1) as probe:
        for name, seen in ((":heads", first), (":heads#1", second)):
            assert closeness(probe.value(name)[name].flatten(2), seen.detach()) <= 1e-12


def test_heads_where_they_are_gathered_in_other_ways():
    small = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50}
    for model, at in (
        (hf.BloomModel(hf.BloomConfig(**small)), "h.1.self_attention"),
        (hf.DebertaV2Model(hf.DebertaV2Config(**SMALL)), "encoder.layer.1.attention.self"),
    ):
        model = model.double().eval()
        seen = []
        path = at + ".dense" if "h.1" in at else "encoder.layer.1.attention.output.dense"
        handle = model.get_submodule(path).register_forward_pre_hook(
            lambda m, a, s=seen: s.append(a[0])
        )
        model(IDS)
        handle.remove()
        with relprop.instrument(model, IDS, (0, 1)) as probe:
            (heads,) = probe.value(f"*{at}:heads").values()
        assert closeness(heads.flatten(2), seen[0].detach()) <= 1e-9


def test_masks_of_booleans_are_places():
    mask = torch.zeros(65, dtype=torch.bool)
    mask[[3, 4]] = True
    found = []
    for at in ([3, 4], mask, mask.tolist(), mask.numpy(), torch.tensor([3, 4]), slice(3, 5)):
        with probing() as probe:
            probe.set("blocks.1", 0.0, positions=at)
            found.append(probe.output())
    assert all(torch.equal(f, found[0]) for f in found)


def test_parts_behind_values_that_are_set():
    """Axes hold what they held, also where nothing depends on the input any more."""
    case = Case("bert")
    first, second = "bert.encoder.layer.0", "bert.encoder.layer.1.attention"

    def place(v, value, at):
        v = v.clone()
        v[:, at] = value
        return v

    y, _ = case.run(
        {
            first: replaced(lambda v: place(torch.full_like(v, 0.5), 0.1, 1)),
            second: replaced(lambda v: place(v, 0.2, 3)),
        }
    )
    with case.probe() as probe:
        probe.set(first, 0.5)
        probe.set(first, 0.1, positions=1)
        probe.set(second, 0.2, positions=3)
        assert closeness(probe.output(), y) <= 1e-9
        target = relprop.targets.unit("bert.encoder.layer.1", 3, position=5)
    with relprop.instrument(case.model, case.inputs, target) as probe:
        probe.set(first, 0.5)
        shown = probe.value("bert.encoder.layer.1")["bert.encoder.layer.1"]
        assert closeness(probe.output(), shown[:, 5, 3]) <= 1e-12


def test_models_without_attention_have_positions_and_channels():
    class Series(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv1d(4, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1)
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(self.second(self.first(x).relu()).mean(2))

    torch.manual_seed(0)
    model, x = Series().double().eval(), torch.randn(2, 4, 10).double()

    def channel(v):
        v = v.clone()
        v[:, 1] = 0
        return v

    handle = model.second.register_forward_hook(replaced(channel))
    y = model(x)[:, 1].detach()
    handle.remove()
    with relprop.instrument(model, x, 1) as probe:
        shown = probe.value("second")["second"]
        probe.set("second", 0.0, features=1)
        assert closeness(probe.output(), y) <= 1e-12
        with pytest.raises(OptionError, match="8 is no place among 6"):
            probe.set("second", 0.0, features=8)
    for at, expected in ((None, shown[:, 2].mean(1)), (4, shown[:, 2, 4])):
        e = relprop.explain(
            model, x, relprop.targets.unit("second", 2, position=at), method="gradient_x_input"
        )
        assert closeness(e.output, expected) <= 1e-12
    mamba = hf.MambaForCausalLM(
        hf.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=50, state_size=4)
    )
    target = relprop.targets.unit("backbone.layers.0", 3, position=2)
    e = relprop.explain(mamba.eval(), IDS, target, method="gradient_x_input")
    assert e.scores[:, :3].any() and not e.scores[:, 3:].any()


def test_many_settings_of_a_mixture_of_experts():
    case = Case("mixtral")
    path = "model.layers.0.self_attn"
    with case.probe() as probe:
        many = probe.many([{"name": path, "value": v} for v in (0.0, 0.5)])
        for found, value in zip(many, (0.0, 0.5), strict=True):
            probe.set(path, value)
            assert closeness(found, probe.output()) <= 1e-12
            probe.clear()


def test_a_value_too_large_for_a_half_model_is_refused():
    model = digit_scene_model().half()
    said = r"not finite, as torch\.float16 has it"
    probe = relprop.instrument(model, IMAGES.half(), 3)
    with probe, pytest.raises(OptionError, match=said):
        probe.set("blocks.0", 1e6)


def test_steering_is_what_a_hook_of_torch_makes():
    case, step = Case("vit"), torch.linspace(-1, 1, 32).double()
    path = case.places[1]
    y, slope = case.run({path: replaced(lambda v: v + 0.5 * step)})
    with case.probe() as probe:
        probe.steer(path, step, 0.5)
        assert closeness(probe.output(), y) <= 1e-9
        assert closeness(probe.gradient("patch_embed")["patch_embed"], slope) <= 1e-9
        assert probe.ledger().balanced(1e-5)


def test_many_settings_of_many_nodes_are_those_one_by_one():
    settings = [
        {"name": "blocks.2.attn:heads", "value": 0.0, "heads": h, "positions": p}
        for h in range(4)
        for p in (0, slice(1, None))
    ]
    settings[3:3] = [
        {"name": "blocks.0", "value": lambda v: v * 0.5, "samples": 1},
        {"name": "head", "value": 1.0},
        {"name": "blocks.3.attn:softmax", "value": torch.eye(65).double()},
    ]
    with probing() as probe:
        probe.set("blocks.1.mlp", 0.1, positions=2)
        many = probe.many(settings)
        for setting, found in zip(settings, many, strict=True):
            probe.set(**setting)
            assert closeness(found, probe.output()) <= 1e-12
            probe.clear()
            probe.set("blocks.1.mlp", 0.1, positions=2)


def test_an_explanation_follows_the_rules_of_its_method():
    for rules, method, like in (
        (None, "attnlrp", {}),
        ("attnlrp", "attnlrp", {}),
        ("epsilon", "attnlrp", {"rules": "epsilon"}),
        ("epsilon", "rollout", {}),
        (None, "transformer_attribution", {}),
    ):
        with probing(rules=rules) as probe:
            found = probe.explanation(method=method).scores
        expected = relprop.explain(MODEL, IMAGES, 3, method=method, ledger=True, **like)
        assert closeness(found, expected.scores) <= 1e-9


def test_conditioned_relevance_and_the_rest_are_the_whole():
    """Relevance is linear: what half the units of a layer hand down and what the others do are all
    of it (what the skip connection carries past them is in both)."""
    layer, some = (
        "blocks.2.mlp.fc1",
        torch.zeros(384).double().index_fill(0, torch.arange(0, 384, 2), 1),
    )
    found = {}
    for name, mask in {"some": some, "others": 1 - some, "all": some * 0 + 1, "none": 0}.items():
        with probing(rules="attnlrp") as probe:
            probe.hook(layer, lambda relevance, mask=mask: relevance * mask)
            found[name] = probe.explanation(method="attnlrp", keep="input").input
    both = found["some"] + found["others"]
    assert closeness(both, found["all"] + found["none"]) <= 1e-9
    assert closeness(found["some"], found["none"]) > 1e-3


def test_what_was_predicted_stays_the_target():
    with relprop.instrument(MODEL, IMAGES) as probe:
        best = MODEL(IMAGES).argmax(1)
        many = probe.many([{"name": "blocks.3", "value": lambda v: -v}])
        probe.set("blocks.3", lambda v: -v)
        assert closeness(probe.output(), many[0]) <= 1e-12
        assert probe.explanation(method="gae").target == tuple(best.tolist())
        assert probe.explanation(method="gae", average=relprop.methods.noise(2, 0.1)).scores.any()


def test_what_runs_the_model_itself_is_refused():
    case = Case("bert")
    with case.probe() as probe:
        probe.set(case.places[1], lambda v: v * 1.5)
        with pytest.raises(OptionError, match="no value is set or read inside"):
            probe.explanation(method="leave_one_out")


def test_a_function_keeps_the_type_of_a_half_model():
    model = digit_scene_model().bfloat16()
    with relprop.instrument(model, IMAGES.bfloat16(), 3) as probe:
        probe.set("blocks.2.mlp", lambda v: v + torch.ones(96))
        assert probe.value("blocks.2.mlp")["blocks.2.mlp"].dtype == torch.bfloat16
        assert bool(probe.output().isfinite().all())


def test_hooks_on_relevance_stay_where_they_are():
    with probing() as probe:
        probe.hook("blocks.3.mlp.fc2", lambda r: r * 0)
        probe.set("blocks.1.mlp", lambda v: v * 0.5)
        assert not probe.relevance("blocks.3.mlp.fc1")["blocks.3.mlp.fc1"].any()
        probe.clear()
        assert not probe.relevance("blocks.3.mlp.fc1")["blocks.3.mlp.fc1"].any()


def test_what_cannot_be_set_is_refused_and_nothing_is_left_behind():
    before = {n: p.clone() for n, p in MODEL.named_parameters()}
    with probing() as probe:
        y, places = probe.output(), "blocks.2.mlp"
        for call, said in (
            (lambda: probe.set("blocks.*.mlp", 0), "names 4 nodes"),
            (lambda: probe.set("blocks.9", 0), "no node is called"),
            (lambda: probe.set(places, torch.zeros(7)), r"has shape \[7\]"),
            (lambda: probe.set(places, 0, positions=99), "99 is no place among 65"),
            (
                lambda: probe.set(places, 0, heads=0),
                "65 × 96 for one sample, of which no one axis holds heads",
            ),
            (lambda: probe.set(places, lambda v: 3), "returned int"),
            (lambda: probe.set(places, lambda v: v.nothing), "the function fails"),
            (lambda: probe.set(places, lambda v: v.round().long()), "returned torch.int64"),
            (lambda: probe.set(places, lambda v: v[:, :, :3]), "the same shape"),
            (lambda: probe.set(places, torch.zeros_like), "makes nothing of the value"),
            (
                lambda: probe.set(places, lambda v: torch.from_numpy(v.detach().numpy() * 2)),
                "leaves tensor operations",
            ),
            (lambda: probe.set(places, "a"), "a number, a tensor or a function"),
            (lambda: probe.set(places, float("nan")), "not finite"),
            (lambda: probe.set(places, 0, positions=True), "no place"),
            (lambda: probe.set(places, 0, positions=slice(100, 200)), "no place"),
            (lambda: probe.many([]), "a list of settings"),
            (lambda: probe.many([{"name": places, "value": 0, "position": 3}]), "a list of set"),
            (lambda: probe.set("patch_embed.proj", 0, positions=0), "no one axis holds positions"),
            (lambda: probe.set(places, lambda v: v.mul_(2)), "writes into the value"),
            (lambda: probe.set(places, lambda v: v - v.mean(0)), "of a sample alone"),
            (lambda: probe.set(places, torch.no_grad()(lambda v: v * 2)), "uses torch.no_grad"),
            (lambda: probe.ablate(places, "none"), "'zero', 'mean' or 'resample'"),
            (lambda: probe.ablate(places, reference=IMAGES), "is for 'mean' and 'resample'"),
            (lambda: probe.steer(places, 3), "a tensor and a number are needed"),
            (lambda: probe.steer(places, torch.ones(7)), r"shape \[7\], and one sample's value"),
            (lambda: probe.steer(places, torch.ones(2, 65, 96)), "does not stretch"),
            (lambda: probe.steer(places, torch.ones(96), "a"), "a tensor and a number are needed"),
            (lambda: probe.steer(places, torch.full((96,), torch.nan)), "not finite"),
            (lambda: probe.set(places, lambda v: v / 0), "not finite"),
            (lambda: probe.set(places, lambda v: v if v.sum() > 0 else -v), "branches on values"),
            (lambda: probe.set(places, torch.eye(96).to_sparse()), "a sparse one"),
            (lambda: probe.set(places, 0, positions=torch.ones(7, dtype=torch.bool)), "no place"),
            (lambda: probe.set(places, 0, positions=[True, False]), "no place"),
            (lambda: probe.ablate(places, position=3), "position= chooses no part of a value"),
            (
                lambda: probe.ablate(places, "resample", reference=IMAGES, seed="a"),
                "an integer is needed",
            ),
            (
                lambda: probe.set(places, lambda v: v * v.sum().item()),
                "cannot be followed|of a sample alone",
            ),
        ):
            with pytest.raises(OptionError, match=said):
                call()
            assert torch.equal(probe.output(), y)
    with pytest.raises(RelpropError, match="closed"):
        probe.output()
    assert all(torch.equal(p, before[n]) for n, p in MODEL.named_parameters())
    assert not any(m._forward_hooks for m in MODEL.modules())
