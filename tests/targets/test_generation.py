"""Every step of a generation equals ``explain`` on the input cut there, from one pass; samples end
by themselves; nothing is disturbed."""

import copy
import itertools
import re

import pytest
import torch
import transformers as hf
from torch import nn

import relprop
import relprop.runner.run
from relprop.errors import InputError, OptionError, RelpropError
from tests.common.models import closeness, randomise
from tests.common.rows import diagonal, only
from tests.e2e.test_non_invasive import assert_undisturbed, snapshot
from tests.targets import models
from tests.targets.models import END, PAD, START, words

EXACT = 1e-9
APART = {torch.float64: EXACT, torch.float32: 1e-3}
CAUSAL = {"gpt2": models.gpt2, "llama": models.llama}
SEQ2SEQ = {"t5": models.t5, "bart": models.bart}
LEFT = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])


def prompts(**changes):
    return {
        "input_ids": words(3, 5, seed=6),
        "attention_mask": torch.ones(3, 5, dtype=torch.long),
        **changes,
    }


def positions(mask):
    return (mask.cumsum(1) - 1).masked_fill(mask == 0, 0)


def longer(mask, count):
    return torch.cat([mask, mask.new_ones(3, count)], 1)


@pytest.mark.parametrize("name", only(["gpt2"], CAUSAL))
def test_each_row_is_explain_on_what_came_before(name):
    model, inputs = CAUSAL[name](), prompts()
    g = relprop.explain_generation(model, inputs, max_new_tokens=5, generate={"eos_token_id": None})
    assert torch.equal(
        torch.cat([inputs["input_ids"], g.ids], 1),
        model.generate(**inputs, max_new_tokens=5, do_sample=False, eos_token_id=None),
    )
    assert (
        g.scores.shape == g.row.shape == (3, 5, 9)
        and g.output.shape == (3, 5)
        and g.prompt == 5
        and len(g) == 3
    )
    for k in (0, 3, 4):
        ids = torch.cat([inputs["input_ids"], g.ids[:, :k]], 1)
        e = relprop.explain(
            model, {"input_ids": ids, "attention_mask": longer(inputs["attention_mask"], k)}
        )
        assert e.target == g.steps[k].target == tuple((4 + k, t) for t in g.ids[:, k].tolist())
        assert (
            closeness(g.scores[:, k, : 5 + k], e.scores) <= EXACT
            and closeness(g.row[:, k, : 5 + k], e.row) <= EXACT
        )
        assert closeness(g.output[:, k], e.output) <= 1e-12 and float(e.scores.abs().max()) > 1e-3
        assert not g.scores[:, k, 5 + k :].any() and not g.row[:, k, 5 + k :].any()


@pytest.mark.parametrize(
    ("name", "dtype"),
    only(
        [("gpt2", torch.float32), ("whisper", torch.float64)],
        itertools.product([*CAUSAL, *SEQ2SEQ, "whisper"], APART),
    ),
)
def test_rows_and_explain_differ_by_rounding_alone(name, dtype):
    """As far as docs/targets.md says: sums over another number of positions round otherwise."""
    model, apart = copy.deepcopy(getattr(models, name)()).to(dtype), APART[dtype]
    chance, ids = torch.Generator().manual_seed(0), words(3, 4, seed=7)
    inputs = {"input_ids": words(3, 5, seed=6)}
    if name == "whisper":
        inputs = {"input_features": torch.randn(3, 8, 20, generator=chance).to(dtype)}
    g = relprop.explain_generation(model, inputs, output_ids=ids)
    for k in (0, 2):
        cut = {"input_ids": torch.cat([words(3, 5, seed=6), ids[:, :k]], 1)}
        if name not in CAUSAL:
            start = torch.full((3, 1), model.config.decoder_start_token_id)
            cut = {**inputs, "decoder_input_ids": torch.cat([start, ids[:, :k]], 1)}
        e = relprop.explain(model, cut, ids[:, k])
        rows = [(s.scores, g[n].scores[:, k, : s.scores.shape[1]]) for n, s in e.streams.items()]
        alone, row = (torch.cat(both, 1) for both in zip(*rows, strict=True))
        assert bool(alone.any()) and closeness(row, alone) <= apart


@pytest.mark.parametrize("name", only(["llama"], CAUSAL))
def test_prompts_padded_on_the_left(name):
    """Positions are counted as ``generate`` counts them; pads score nothing; each prompt is
    explained as without pads."""
    model, inputs = CAUSAL[name](), prompts(attention_mask=LEFT)
    g = relprop.explain_generation(model, inputs, max_new_tokens=4, generate={"eos_token_id": None})
    assert torch.equal(
        g.ids, model.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None)[:, 5:]
    )
    for k in (0, 3):
        mask = longer(LEFT, k)
        cut = {
            "input_ids": torch.cat([inputs["input_ids"], g.ids[:, :k]], 1),
            "attention_mask": mask,
            "position_ids": positions(mask),
        }
        e = relprop.explain(model, cut, g.ids[:, k])
        assert closeness(g.scores[:, k, : 5 + k], e.scores) <= EXACT
    assert not g.scores.transpose(1, 2)[:, :5][LEFT == 0].any()
    for i, pads in [(1, 2), (2, 1)]:
        alone = relprop.explain_generation(
            model,
            {"input_ids": inputs["input_ids"][i : i + 1, pads:]},
            max_new_tokens=4,
            generate={"eos_token_id": None},
        )
        assert torch.equal(alone.ids, g.ids[i : i + 1])
        assert closeness(alone.scores, g.scores[i : i + 1, :, pads:]) <= 1e-7
    assert g.content[:, :5].equal(LEFT.bool())


@pytest.mark.parametrize(
    ("name", "begun"), diagonal(SEQ2SEQ, ["at the start token", "at a prompt"])
)
def test_an_encoder_decoder_has_rows_for_both_of_its_inputs(name, begun):
    model, mask = SEQ2SEQ[name](), torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 4 + [0]])
    inputs = prompts(attention_mask=mask)
    if begun == "at a prompt":
        inputs |= {
            "decoder_input_ids": torch.tensor([[START, 7], [START, 9], [START, 8]]),
            "decoder_attention_mask": torch.ones(3, 2, dtype=torch.long),
        }
    g = relprop.explain_generation(model, inputs, max_new_tokens=4, generate={"eos_token_id": None})
    sequences = model.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None)
    before = sequences.shape[1] - 4
    assert (
        torch.equal(g.ids, sequences[:, before:])
        and g.prompt == before
        and g.stream == "decoder_input_ids"
    )
    assert g.streams == ("input_ids", "decoder_input_ids")
    source, target = g["input_ids"].scores, g["decoder_input_ids"].scores
    assert source.shape == (3, 4, 5) and target.shape == (3, 4, before + 3)
    for k in (1, 3):
        e = relprop.explain(
            model,
            {
                "input_ids": inputs["input_ids"],
                "attention_mask": mask,
                "decoder_input_ids": sequences[:, : before + k],
            },
            g.ids[:, k],
        )
        assert closeness(source[:, k], e["input_ids"].scores) <= EXACT
        assert closeness(target[:, k, : before + k], e["decoder_input_ids"].scores) <= EXACT
        assert (
            not target[:, k, before + k :].any() and float(e["input_ids"].scores.abs().max()) > 1e-4
        )
    assert not source.transpose(1, 2)[mask == 0].any()
    with pytest.raises(
        OptionError, match="2 inputs are explained: 'input_ids', 'decoder_input_ids'"
    ):
        assert g.scores is None


def test_a_sample_ends_at_its_own_end_token():
    model, inputs = models.llama(), prompts()
    free = relprop.explain_generation(
        model, inputs, max_new_tokens=5, generate={"eos_token_id": None}
    )
    ends = [free.ids[0, 1].item(), free.ids[1, 2].item()]
    lengths = [
        next((k + 1 for k, t in enumerate(row) if t in ends), 5) for row in free.ids.tolist()
    ]
    assert len(set(lengths)) > 1
    g = relprop.explain_generation(model, inputs, max_new_tokens=5, generate={"eos_token_id": ends})
    assert g.ids.shape[1] == max(lengths) and [int((row >= 0).sum()) for row in g.ids] == lengths
    for i, n in enumerate(lengths):
        assert torch.equal(g.ids[i, :n], free.ids[i, :n])
        assert closeness(g.scores[i, :n], free.scores[i, :n, : g.scores.shape[2]]) <= EXACT
        for k in range(n, max(lengths)):
            assert not g.row[i, k].any() and g.output[i, k] == 0 and g.steps[k].target[i] is None
            assert not g.steps[k].ledger.started[i] and g.steps[k].ledger.balanced(1e-12)
        assert g.labels[i][n:] == [""] * (max(lengths) - n)
    parts = relprop.explain_generation(
        model, inputs, max_new_tokens=5, generate={"eos_token_id": ends}, batch_size=1
    )
    assert closeness(parts.scores, g.scores) <= EXACT and torch.equal(parts.ids, g.ids)


def test_all_steps_come_from_one_forward_pass(monkeypatch):
    calls = []
    forward = relprop.runner.run.forward
    monkeypatch.setattr(
        relprop.runner.run,
        "forward",
        lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs),
    )
    g = relprop.explain_generation(
        models.llama(), prompts(), max_new_tokens=6, generate={"eos_token_id": None}
    )
    assert len(g.steps) == 6 and len(calls) == 1


# -- output that was generated before
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", only(["llama", "bart"], [*CAUSAL, *SEQ2SEQ]))
@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
def test_given_output_is_explained_as_generated_output(name):
    model, inputs = getattr(models, name)(), prompts(attention_mask=LEFT)
    g = relprop.explain_generation(model, inputs, max_new_tokens=3)
    again = relprop.explain_generation(model, inputs, output_ids=g.ids)
    assert torch.equal(again.ids, g.ids)
    for name in g.streams:
        assert closeness(again[name].scores, g[name].scores) <= EXACT
    other = relprop.explain_generation(model, inputs, output_ids=[[9, 8], [7, END], [END, 12]])
    assert other.ids.tolist() == [[9, 8], [7, END], [END, -1]]


class Plain(nn.Module):
    """A language model of a few lines, causal or not."""

    def __init__(self, causal=True):
        super().__init__()
        self.embed, self.position, self.head, self.causal = (
            nn.Embedding(31, 8),
            nn.Embedding(16, 8),
            nn.Linear(8, 31),
            causal,
        )

    def forward(self, ids):
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1]))
        for _ in range(2):
            later = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(
                1 if self.causal else ids.shape[1]
            )
            x = x + (x @ x.mT / 3).masked_fill(later, float("-inf")).softmax(-1) @ x
        return self.head(x)


@pytest.mark.parametrize(
    "form",
    [lambda ids: ids, lambda ids: (ids,), lambda ids: {"ids": ids}],
    ids=["tensor", "tuple", "dict"],
)
def test_a_plain_causal_model_with_given_output(form):
    model, ids, out = (
        randomise(Plain()).double(),
        words(),
        torch.tensor([[3, 4, 5], [6, 7, -1], [8, 9, 10]]),
    )
    g = relprop.explain_generation(model, form(ids), output_ids=out, processor=models.tokenizer())
    assert g.scores.shape == (3, 3, 9) and torch.equal(g.ids, out)
    for k in range(3):
        e = relprop.explain(
            model,
            torch.cat([ids, out[:, :k].clamp(min=0)], 1),
            [(6 + k, max(t, 0)) for t in out[:, k].tolist()],
        )
        real = out[:, k] >= 0
        assert closeness(g.scores[real, k, : 7 + k], e.scores[real]) <= EXACT
    assert not g.row[1, 2].any()
    assert g.tokens[0][7:] == ["[UNK]", "[MASK]"] and g.labels[1] == ["w6", "w7", ""]


# -- how it is asked for
# --------------------------------------------------------------------------------------------------


def test_sampling_is_seeded_and_the_random_state_put_back():
    model, inputs = models.llama(), prompts()
    before = torch.get_rng_state()
    a, b, c = (
        relprop.explain_generation(
            model,
            inputs,
            max_new_tokens=6,
            generate={"do_sample": True, "temperature": 3.0, "eos_token_id": None},
            seed=s,
        )
        for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a.ids, b.ids) and closeness(a.scores, b.scores) == 0
    assert not torch.equal(a.ids, c.ids)
    greedy = relprop.explain_generation(model, inputs, max_new_tokens=6)
    assert not torch.equal(a.ids[:, :3], greedy.ids[:, :3])


def undisturbed_calls():
    def generate(model, inputs):
        relprop.explain_generation(model, inputs, max_new_tokens=3, generate={"do_sample": True})

    def fail_late(model, inputs):
        with pytest.raises(RelpropError):
            relprop.explain_generation(model, inputs, max_new_tokens=3, layers=[99])

    return {"success": generate, "failure": fail_late}


@pytest.mark.parametrize(("make", "name"), diagonal([models.gpt2, models.t5], undisturbed_calls()))
def test_the_model_is_left_as_it_was(make, name):
    model, inputs = make(), prompts()
    model.train()
    next(model.modules()).register_forward_hook(lambda module, args, out: None)
    try:
        before, config, generation = (
            snapshot(model, inputs.values()),
            model.config.to_dict(),
            model.generation_config.to_dict(),
        )
        undisturbed_calls()[name](model, inputs)
        assert_undisturbed(before, snapshot(model, inputs.values()))
        assert model.config.to_dict() == config and model.generation_config.to_dict() == generation
    finally:
        model.eval()
        model._forward_hooks.clear()


def test_options_of_explain():
    model, inputs = models.llama(), prompts()
    g = relprop.explain_generation(
        model, inputs, max_new_tokens=2, method="rollout", keep="blocks", precision="float32"
    )
    assert (
        g.scores.dtype == torch.float32
        and g.steps[1].method == "rollout"
        and len(g.steps[0].blocks) == 2
    )
    plain = relprop.explain(model, prompts(), method="rollout", precision="float32")
    assert closeness(g.scores[:, 0, :5], plain.scores) <= 1e-5
    lrp = relprop.explain_generation(model, inputs, max_new_tokens=2, method="lrp")
    assert (
        closeness(lrp.scores[:, 0, :5], relprop.explain(model, inputs, method="lrp").scores)
        <= EXACT
    )


def test_half_precision_weights():
    model = randomise(models.llama()).to(torch.bfloat16)
    try:
        g = relprop.explain_generation(
            model, prompts(), max_new_tokens=3, generate={"eos_token_id": None}
        )
        assert g.scores.shape == (3, 3, 7) and torch.isfinite(g.scores).all() and g.scores.any()
    finally:
        models.llama.cache_clear()


def test_what_goes_on_beside_the_tokens():
    """Token types repeat the last one, positions are counted on; both as ``generate`` does it."""
    model = models.gpt2()
    inputs = prompts(
        token_type_ids=torch.tensor([[3, 3, 4, 4, 5]] * 3),
        position_ids=torch.tensor([[2, 3, 4, 5, 6]] * 3),
    )
    g = relprop.explain_generation(model, inputs, max_new_tokens=3, generate={"eos_token_id": None})
    whole = {
        "input_ids": torch.cat([inputs["input_ids"], g.ids[:, :2]], 1),
        "attention_mask": torch.ones(3, 7, dtype=torch.long),
        "token_type_ids": torch.tensor([[3, 3, 4, 4, 5, 5, 5]] * 3),
        "position_ids": torch.arange(2, 9).expand(3, -1),
    }
    e = relprop.explain(model, whole)
    assert closeness(g.scores[:, 2], e.scores) <= EXACT and e.target == g.steps[2].target


def test_labels():
    model, tok = models.llama(), models.tokenizer()
    inputs = tok(
        ["w5 w6 w7", "w8 w9"],
        padding=True,
        padding_side="left",
        return_tensors="pt",
        return_token_type_ids=False,
    )
    bare = relprop.explain_generation(
        model, inputs, max_new_tokens=2, generate={"eos_token_id": None}
    )
    assert bare.tokens[1] == ["[PAD]", "w8", "w9", str(bare.ids[1, 0].item())] and bare.labels[
        0
    ] == [str(t) for t in bare.ids[0].tolist()]
    g = relprop.explain_generation(
        model, inputs, max_new_tokens=2, generate={"eos_token_id": None}, processor=tok
    )
    text = tok.convert_ids_to_tokens(g.ids[1])
    assert g.tokens[1] == ["[PAD]", "w8", "w9", text[0]] and g.labels[1] == text
    assert repr(g) == (
        "Generation(2 samples, 2 steps, 'input_ids': 4 tokens, output "
        f"{' '.join(g.labels[0])!r}, ..., method 'transformer_attribution', rules 'paper')"
    )


def test_speech_is_generated_too():
    model = models.whisper(1, 16, 20)
    sound = torch.randn(2, 8, 40, dtype=torch.float64)
    g = relprop.explain_generation(model, {"input_features": sound}, max_new_tokens=3)
    decoder = torch.cat([torch.full((2, 1), START), g.ids[:, :-1].clamp(min=0)], 1)
    e = relprop.explain(model, {"input_features": sound, "decoder_input_ids": decoder})
    assert g.streams == tuple(e.streams) and e.target == g.steps[-1].target
    for name in e.streams:
        assert closeness(g[name].scores[:, -1], e[name].scores) <= EXACT


def test_a_pipeline():
    """Its own tokenizer pads, and labels."""
    tok = models.tokenizer()
    tok.padding_side = "left"
    pipe = hf.pipeline("text-generation", model=models.llama(), tokenizer=tok)
    g = relprop.explain_generation(
        pipe, ["w5 w6 w7", "w8 w9"], max_new_tokens=2, generate={"eos_token_id": None}
    )
    assert g.tokens[1][:3] == ["[PAD]", "w8", "w9"] and g.labels[1] == tok.convert_ids_to_tokens(
        g.ids[1]
    )
    inputs = tok(
        ["w5 w6 w7", "w8 w9"], padding=True, return_tensors="pt", return_token_type_ids=False
    )
    assert (
        closeness(
            g.scores,
            relprop.explain_generation(
                models.llama(), inputs, max_new_tokens=2, generate={"eos_token_id": None}
            ).scores,
        )
        <= EXACT
    )


@pytest.mark.parametrize("form", ["text", "texts", "ready", "pipeline", "encoder"])
def test_pairs_count_characters_of_what_was_typed(form):
    """However often spaces stand in it; behind it stands the output."""
    tok, typed = models.tokenizer(), "w5   w6\n\nw7 w8"
    tok.padding_side, how = "left", {"max_new_tokens": 3, "generate": {"eos_token_id": None}}
    model = models.t5() if form == "encoder" else models.llama()
    if form == "pipeline":
        model = hf.pipeline("text-generation", model=model, tokenizer=tok)
    inputs = typed if form == "text" else [typed, "w9"]
    if form == "ready":
        inputs = tok(inputs, padding=True, return_tensors="pt")
    g = relprop.explain_generation(
        model, inputs, processor=None if form == "pipeline" else tok, **how
    )
    last = g.steps[-1]["input_ids"]
    parts = [(typed.index(w), typed.index(w) + 2) for w in ("w6", "w8")]
    by = parts if form == "text" else [parts, [(0, 2)]]
    found, scores = (
        last.segments(by).words(0),
        dict(zip(last.tokens[0], last.scores[0].tolist(), strict=True)),
    )
    assert found == [("w6", scores["w6"]), ("w8", scores["w8"])]
    (text, *_), said = last.streams["input_ids"].texts, g.labels[0]
    assert text.text.startswith(re.sub(r"\s", " ", typed) if form == "ready" else typed)
    if form != "encoder":
        assert [text.text[a:b].strip() for a, b in text.spans[-2:]] == said[:2]


# -- refused
# --------------------------------------------------------------------------------------------------


def run(make=models.llama, inputs=None, **options):
    return relprop.explain_generation(make(), prompts() if inputs is None else inputs, **options)


def no_causal_model():
    return randomise(Plain(causal=False)).double()


REFUSED = {
    "padding on the right": (
        InputError,
        lambda: run(inputs=prompts(attention_mask=LEFT.flip(1))),
        r"prompt of sample 1 ends in padding.*padding_side = 'left'",
    ),
    "a mask of four axes": (
        InputError,
        lambda: run(inputs=prompts(attention_mask=torch.ones(3, 1, 5, 5) > 0)),
        r"'attention_mask' is \[3, 1, 5, 5\]; one that can be continued",
    ),
    "no prompt": (
        InputError,
        lambda: run(inputs={"inputs_embeds": torch.randn(1, 3, 16)}),
        r"there is no 'input_ids' among the inputs \(inputs_embeds\)",
    ),
    "something beside the tokens": (
        InputError,
        lambda: run(
            inputs=prompts(labels_of_mine=torch.ones(3, 5, dtype=torch.long)),
            output_ids=[[1], [2], [3]],
        ),
        r"input 'labels_of_mine' has an entry for every position of the prompt",
    ),
    "beams": (
        OptionError,
        lambda: run(generate={"num_beams": 3}),
        r"generate=\{'num_beams': ...\}: the steps of one sequence per sample.*output_ids=",
    ),
    "several outputs": (
        OptionError,
        lambda: run(generate={"num_return_sequences": 2, "do_sample": True}),
        r"one sequence per sample",
    ),
    "what is set here": (
        OptionError,
        lambda: run(generate={"max_new_tokens": 3}),
        r"generate=\{'max_new_tokens': ...\}: it is set here",
    ),
    "no tokens": (
        OptionError,
        lambda: run(max_new_tokens=0),
        r"max_new_tokens=0: a positive integer",
    ),
    "generated and given": (
        OptionError,
        lambda: run(max_new_tokens=2, output_ids=[[1], [2], [3]]),
        r"output_ids is what was generated: leave max_new_tokens and generate out",
    ),
    "an option generate does not know": (
        InputError,
        lambda: run(generate={"top_q": 3}),
        r"the model's own generate\(\) fails: ValueError.*top_q",
    ),
    "output of another batch": (
        InputError,
        lambda: run(output_ids=[[1, 2]]),
        (
            r"output_ids is a int64 tensor \[1, 2\]; it is integers, \(batch, new tokens\), "
            r"for a batch of 3"
        ),
    ),
    "output of floats": (
        InputError,
        lambda: run(output_ids=torch.rand(3, 2)),
        r"output_ids is a float32 tensor",
    ),
    "output out of the vocabulary": (
        InputError,
        lambda: run(output_ids=[[40], [2], [3]]),
        r"holds token 40; the model's vocabulary has 31",
    ),
    "a sample without output": (
        InputError,
        lambda: run(output_ids=[[1], [-1], [3]]),
        r"output_ids of sample 1 holds no token",
    ),
    "output with the prompt": (
        InputError,
        lambda: run(output_ids=torch.cat([prompts()["input_ids"], words(3, 2)], 1)),
        r"repeats the prompt: give what comes after its 5 tokens",
    ),
    "output with the start token": (
        InputError,
        lambda: run(models.t5, output_ids=[[PAD, 5], [PAD, 6], [PAD, 7]]),
        r"begins with the decoder's start token",
    ),
    "a model that does not generate": (
        OptionError,
        lambda: run(lambda: randomise(Plain()).double(), words()),
        r"Plain has no generate\(\).*output_ids=",
    ),
    "two prompts": (
        InputError,
        lambda: run(
            lambda: randomise(Plain()).double(), (words(), words()), output_ids=[[1], [2], [3]]
        ),
        r"2 inputs are \(batch, positions\) of integers",
    ),
    "earlier positions see later ones": (
        InputError,
        lambda: run(no_causal_model, words(), output_ids=[[1, 2], [3, 4], [5, 6]]),
        r"one pass over prompt and output does not see what generation saw: at step 0",
    ),
    "pads without a mask": (
        InputError,
        lambda: run(
            models.gpt2, inputs={"input_ids": torch.tensor([[PAD, PAD, 7, 8], [5, 6, 7, 8]])}
        ),
        r"does not see what generation saw.*attention_mask of a padded prompt",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_is_refused_with_a_sentence(row):
    kind, call, said = REFUSED[row]
    with pytest.raises(kind) as caught:
        call()
    flat = " ".join(str(caught.value).split())
    assert re.search(said, flat), flat
