"""Leaving parts of a text out: the differences that the user's own model gives on shorter texts."""

import itertools

import pytest
import torch
import transformers

import relprop
from relprop.errors import OptionError
from tests.common.rows import only

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
IDS = torch.tensor([[7, 11, 3, 9, 21, 30, 5], [4, 8, 15, 16, 23, 31, 2]])


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config).eval().double().requires_grad_(False)


def bert():
    torch.manual_seed(0)
    return (
        transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))
        .eval()
        .double()
        .requires_grad_(False)
    )


def t5():
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40, d_model=16, d_ff=32, num_layers=1, num_heads=2, d_kv=8
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model.eval().double().requires_grad_(False)


class Bag(torch.nn.Module):
    """Neither causal nor with a mask, in plain torch: positions count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.place = torch.nn.Embedding(40, 8), torch.nn.Embedding(16, 8)
        self.mix = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head((x + self.mix(x, x, x, need_weights=False)[0]).mean(1))


def cut(row, gone):
    return row[[k for k in range(len(row)) if k not in gone]][None]


@pytest.mark.parametrize("groups", [None, [[1, 2], [4]]])
def test_a_next_token_without_earlier_ones(groups):
    model = llama()
    e = relprop.explain(model, IDS, [3, 9], method="leave_one_out", groups=groups)
    for sample, token in enumerate((3, 9)):
        whole = model(IDS[sample : sample + 1]).logits[0, -1, token]
        for group in groups or [[k] for k in range(IDS.shape[1])]:
            without = model(cut(IDS[sample], group)).logits[0, -1, token]
            assert float(e.scores[sample, group].sum()) == pytest.approx(
                float(whole - without), abs=1e-9
            )
            assert torch.allclose(e.scores[sample, group], e.scores[sample, group].mean())
        assert groups is None or bool((e.scores[sample, [0, 3, 5, 6]] == 0).all())


@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
def test_each_sample_has_its_own_groups_and_padding_is_left_alone():
    model, mask = bert(), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    groups = [[[0, 1, 2], [6]], [[3], [5, 6]]]
    inputs = {"input_ids": IDS, "attention_mask": mask}
    e = relprop.explain(model, inputs, 1, method="leave_one_out", groups=groups)
    for sample, lists in enumerate(groups):
        row = {"input_ids": IDS[sample : sample + 1], "attention_mask": mask[sample : sample + 1]}
        whole = model(**row).logits[0, 1]
        for group in lists:
            left = model(**{n: cut(t[0], group) for n, t in row.items()}).logits[0, 1]
            assert float(e.scores[sample, group].sum()) == pytest.approx(
                float(whole - left), abs=1e-9
            )
    parts = relprop.explain(model, inputs, 1, method="leave_one_out", groups=groups, batch_size=1)
    assert torch.allclose(parts.scores, e.scores, atol=1e-12)


def test_a_plain_model_without_a_mask_reads_texts_that_are_really_shorter():
    model, groups = Bag().eval().double().requires_grad_(False), [[0], [2, 3, 4], [6]]
    e = relprop.explain(model, IDS, 2, method="leave_one_out", groups=groups)
    for sample in (0, 1):
        for group in groups:
            change = model(IDS[sample : sample + 1]) - model(cut(IDS[sample], group))
            assert float(e.scores[sample, group].sum()) == pytest.approx(
                float(change[0, 2]), abs=1e-9
            )


def test_a_span_is_read_where_it_has_moved_to_and_callables_are():
    model, gone = llama(), [1, 2]
    targets = (
        relprop.targets.span(4, 5),
        lambda out: out.logits[0, 3:5].log_softmax(-1)[[0, 1], IDS[0, 4:6]].mean(),
    )
    logits = model(cut(IDS[0], gone)).logits[0].log_softmax(-1)
    whole = model(IDS[:1]).logits[0].log_softmax(-1)
    change = (whole[3, 21] + whole[4, 30] - logits[1, 21] - logits[2, 30]) / 2
    for target in targets:
        e = relprop.explain(model, IDS[:1], target, method="leave_one_out", groups=[gone])
        assert float(e.scores.sum()) == pytest.approx(float(change), abs=1e-9)
    # a token in front of which all was deleted is read at the position before that
    e = relprop.explain(
        model, IDS[:1], relprop.targets.span(4, 4), method="leave_one_out", groups=[[2, 3]]
    )
    left = model(IDS[:1, :2]).logits[0, -1].log_softmax(-1)[21]
    assert float(e.scores.sum()) == pytest.approx(float(whole[3, 21] - left), abs=1e-9)


CLASSIFIERS = {
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40},
    "Qwen2": {**SIZES, "num_key_value_heads": 1},
    "OPT": {**SIZES, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "Gemma": {**SIZES, "num_key_value_heads": 1, "head_dim": 8},
    "Mistral": {**SIZES, "num_key_value_heads": 1},
}


@pytest.mark.parametrize(
    ("name", "masked"),
    only([("GPT2", False), ("Gemma", True)], itertools.product(CLASSIFIERS, (False, True))),
)
def test_classifiers_that_read_the_last_token_read_it_in_the_shorter_text(name, masked):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **CLASSIFIERS[name], pad_token_id=0, num_labels=3
    )
    kind = getattr(transformers, f"{name}ForSequenceClassification")
    model = kind(config).eval().double().requires_grad_(False)
    given = {"input_ids": IDS} | ({"attention_mask": torch.ones_like(IDS)} if masked else {})
    e = relprop.explain(model, given, 1, method="leave_one_out")
    for sample in (0, 1):
        whole = model(IDS[sample : sample + 1]).logits[0, 1]
        left = [model(cut(IDS[sample], [k])).logits[0, 1] for k in range(7)]
        assert torch.allclose(e.scores[sample], whole - torch.stack(left), atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
def test_as_many_classes_as_tokens_are_no_positions(masked):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=7)
    model = transformers.BertForSequenceClassification(config).eval().double()
    given = {"input_ids": IDS} | ({"attention_mask": torch.ones_like(IDS)} if masked else {})
    e = relprop.explain(model, given, 4, method="leave_one_out")
    left = torch.stack([model(cut(IDS[0], [k])).logits[0, 4] for k in range(7)])
    assert torch.allclose(e.scores[0], model(IDS).logits[0, 4] - left, atol=1e-9)


def test_one_token_is_left_where_another_text_is_explained():
    model = t5()
    given = {"input_ids": IDS[:1], "decoder_input_ids": IDS[1:, :1]}
    e = relprop.explain(model, given, 5, method="leave_one_out")
    left = {**given, "input_ids": cut(IDS[0], [2])}
    change = (model(**given).logits - model(**left).logits)[0, -1, 5].item()
    assert float(e["input_ids"].scores[0, 2]) == pytest.approx(float(change), abs=1e-9)
    assert not e["decoder_input_ids"].scores.any()
    with pytest.raises(OptionError, match="the text is one token"):
        relprop.explain(bert(), IDS[:1, :1], 1, method="leave_one_out")


@pytest.mark.parametrize("name", only(["Bert"], ["GPT2", "Bert"]))
def test_two_tokens_of_a_model_of_two_positions(name):
    torch.manual_seed(0)
    config = (
        SIZES | {"max_position_embeddings": 2}
        if name == "Bert"
        else CLASSIFIERS["GPT2"] | {"n_positions": 2}
    )
    config = getattr(transformers, f"{name}Config")(**config, num_labels=3, pad_token_id=0)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval().double()
    e = relprop.explain(model, IDS[:1, :2], 1, method="leave_one_out")
    left = [model(cut(IDS[0, :2], [k])).logits[0, 1] for k in range(2)]
    change = model(IDS[:1, :2]).logits[0, 1] - torch.stack(left)
    assert torch.allclose(e.scores[0], change, atol=1e-9)


HEADS = {
    "the last row": lambda h: h[:, -1],
    "the mean": lambda h: h.mean(1),
    "the maximum": lambda h: h.amax(1),
}


@pytest.mark.parametrize("head", only(["the mean"], HEADS))
def test_heads_of_ones_own_read_the_shorter_text(head):
    class Headed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.head = llama().model, torch.nn.Linear(16, 3).double()

        def forward(self, input_ids, attention_mask=None):
            hidden = self.model(input_ids, attention_mask=attention_mask).last_hidden_state
            return self.head(HEADS[head](hidden))

    model = Headed().eval()
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    e = relprop.explain(model, given, 1, method="leave_one_out")
    whole = model(IDS)[:, 1]
    left = torch.stack([model(cut(IDS[0], [k]))[0, 1] for k in range(7)])
    assert torch.allclose(e.scores[0], whole[0] - left, atol=1e-9)


class Siamese(Bag):
    """Two texts, and a mask of the first."""

    def forward(self, ids, others, shown):
        def read(ids, shown=1.0):
            x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
            x = x + self.mix(x, x, x, need_weights=False)[0]
            return (x * shown).mean(1)

        return self.head(read(ids, shown[..., None]) * read(others))


@pytest.mark.parametrize("count", [2, 7])
def test_a_second_text_of_the_same_length_stays_whole(count):
    model = Siamese().eval().double().requires_grad_(False)
    ids, shown = IDS[:, :count], torch.rand(2, count, dtype=torch.float64)
    e = relprop.explain(model, (ids, ids.flip(0), shown), 1, method="leave_one_out")
    for sample in (0, 1):
        given = [t[sample : sample + 1] for t in (ids, ids.flip(0), shown)]
        for gone in range(count):
            left = model(cut(ids[sample], [gone]), given[1], cut(shown[sample], [gone]))
            change = model(*given) - left
            assert float(e["input_0"].scores[sample, gone]) == pytest.approx(
                float(change[0, 1]), abs=1e-9
            )


def test_two_texts_with_masks_of_their_own():
    class Pair(Bag):
        def forward(self, ids, others, shown, seen):
            x, y = (self.embed(i) * m[..., None] for i, m in ((ids, shown), (others, seen)))
            return self.head(x.mean(1) * (y + self.mix(y, y, y, need_weights=False)[0]).sum(1))

    model = Pair().eval().double().requires_grad_(False)
    shown, seen = torch.rand(2, 1, 7, dtype=torch.float64)
    given = (IDS[:1], IDS[1:], shown, seen)
    e = relprop.explain(model, given, 1, method="leave_one_out")
    for gone in range(7):
        left = model(IDS[:1], cut(IDS[1], [gone]), shown, cut(seen[0], [gone]))
        change = float((model(*given) - left)[0, 1])
        assert float(e["input_1"].scores[0, gone]) == pytest.approx(change, abs=1e-9)


@pytest.mark.parametrize("count", [2, 3])
def test_columns_of_a_table_are_no_text(count):
    class Table(Bag):
        def __init__(self):
            super().__init__()
            self.columns = torch.nn.Parameter(torch.randn(count, 8))

        def forward(self, ids):
            x = self.embed(ids) + self.columns
            return self.head((x + self.mix(x, x, x, need_weights=False)[0]).mean(1))

    with pytest.raises(OptionError, match=rf"made for {count} positions|fails without some"):
        relprop.explain(
            Table().eval(), IDS[:, :count], 1, method="leave_one_out", groups=[[*range(1, count)]]
        )


def test_positions_that_are_given_count_on_without_a_gap():
    model = llama()
    places = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
    inputs = {"input_ids": IDS[:1], "position_ids": places}
    e = relprop.explain(model, inputs, 3, method="leave_one_out", groups=[[2, 3]])
    left = model(cut(IDS[0], [2, 3]), position_ids=places[:, :5]).logits[0, -1, 3]
    change = model(**inputs).logits[0, -1, 3] - left
    assert float(e.scores.sum()) == pytest.approx(float(change), abs=1e-9)


def test_of_an_encoder_and_a_decoder_either_text_can_be_shortened():
    model = t5()
    inputs = {"input_ids": IDS[:1], "decoder_input_ids": IDS[1:]}
    groups = {"input_ids": [[1, 2]], "decoder_input_ids": [[3]]}
    e = relprop.explain(model, inputs, 5, method="leave_one_out", groups=groups)
    whole = model(**inputs).logits[0, -1, 5]
    for name, lists in groups.items():
        left = {**inputs, name: cut(inputs[name][0], lists[0])}
        change = whole - model(**left).logits[0, -1, 5]
        assert float(e[name].scores.sum()) == pytest.approx(float(change), abs=1e-9)


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ([[0], [0, 1]], "none of them in two"),
        ([[99]], "positions from 0 to 6"),
        ([[0], []], "lists of positions"),
        ([list(range(7))], "nothing is left"),
        ("words", "lists of positions"),
        ([[[0]]], "for each of 2 samples"),
        ({"pixels": [[0]]}, "the texts are input_0"),
    ],
)
def test_what_is_no_group_is_refused(groups, match):
    with pytest.raises(OptionError, match=match):
        relprop.explain(Bag().eval(), IDS, 2, method="leave_one_out", groups=groups)


def test_pictures_are_refused_and_a_model_that_fails_is_named():
    picture = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    with pytest.raises(OptionError, match="deletes tokens of a text"):
        relprop.explain(picture, torch.rand(1, 3, 2, 2), 0, method="leave_one_out")

    class Fixed(Bag):
        def forward(self, ids):
            if ids.shape[1] != 7:
                raise ValueError("seven tokens, please")
            return super().forward(ids)

    with pytest.raises(OptionError, match="fails without some positions of 'input_0'"):
        relprop.explain(Fixed().eval(), IDS, 0, method="leave_one_out")
