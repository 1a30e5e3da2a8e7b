"""A module of one's own around a library's model, or of nothing but PyTorch, with a tokenizer or an
image processor of transformers: words, special tokens, padding and pictures are known as of the
library's own model, and each refusal's advice works."""

import re
import textwrap
import warnings

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from torch import nn

import relprop
from relprop.errors import InputError, OptionError, PaddingWarning, TargetError
from tests.common.models import closeness, randomise
from tests.common.rows import diagonal, marked
from tests.e2e.ordinary_roads import TOKENIZER

TEXTS = ["the film was", "fine"]
MADE = TOKENIZER(TEXTS, padding=True, return_tensors="pt")
IDS, MASK = MADE["input_ids"], MADE["attention_mask"]
SPECIAL = torch.tensor([TOKENIZER.cls_token_id, TOKENIZER.sep_token_id])
READY = {"input_ids": IDS, "attention_mask": MASK}
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


class Tuned(nn.Module):
    """A body of transformers and a head of its own."""

    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(
            **SIZES,
            vocab_size=len(TOKENIZER),
            max_position_embeddings=24,
            bos_token_id=TOKENIZER.cls_token_id,
            eos_token_id=TOKENIZER.sep_token_id,
        )
        self.body, self.head = transformers.BertModel(config), nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.head(hidden[:, 0])


class ByKeywords(Tuned):
    def forward(self, **given):
        return super().forward(given["input_ids"], given["attention_mask"])


class ByDict(Tuned):
    def forward(self, batch):
        return super().forward(batch["input_ids"], batch["attention_mask"])


class ByOtherNames(Tuned):
    def forward(self, ids, mask):
        return super().forward(ids, mask)


class Plain(nn.Module):
    """Nothing but PyTorch."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(len(TOKENIZER), 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, input_ids, attention_mask):
        x = self.layer(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head(x[:, 0])


def model(kind):
    return randomise(kind()).eval()


@pytest.mark.parametrize(
    ("kind", "given"), diagonal((Tuned, ByKeywords, Plain), (TEXTS, READY, MADE))
)
def test_words_special_tokens_and_padding_are_the_tokenizers(kind, given):
    e = relprop.explain(model(kind), given, 1, processor=TOKENIZER)
    plain = relprop.explain(model(kind), READY, 1)
    assert torch.equal(e.scores, plain.scores) and e.scores.any()
    assert torch.equal(e.content, ~torch.isin(IDS, SPECIAL) & (MASK == 1))
    assert [word for word, _ in e.words(0)] == ["the", "film", "was"]
    assert e.tokens[1] == TOKENIZER.convert_ids_to_tokens(IDS[1])


def test_without_a_tokenizer_the_body_says_which_ids_are_special():
    given = relprop.explain(model(Tuned), READY, 1)
    assert torch.equal(given.content, ~torch.isin(IDS, SPECIAL) & (MASK == 1))
    assert relprop.explain(model(Plain), READY, 1).content.all()  # nothing is known of these


class WithoutMask(Plain):
    def forward(self, input_ids):
        return self.head(self.layer(self.embed(input_ids))[:, 0])


class WithItsOwnMask(Plain):
    def forward(self, input_ids):
        return super().forward(input_ids, input_ids != TOKENIZER.pad_token_id)


@pytest.mark.parametrize(
    "texts", marked([TEXTS, TEXTS[::-1], {"text": TEXTS}], (str(TEXTS[::-1]), str({"text": TEXTS})))
)
def test_padding_that_a_model_is_not_told_of_is_said_where_it_reads_it(texts):
    with pytest.warns(PaddingWarning, match="explain each sample's 'input_ids' alone"):
        relprop.explain(model(WithoutMask), texts, 1, processor=TOKENIZER)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PaddingWarning)
        relprop.explain(model(WithItsOwnMask), texts, 1, processor=TOKENIZER)
        relprop.explain(model(WithoutMask), TEXTS[:1] * 2, 1, processor=TOKENIZER)


class Sight(nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8)
        self.body, self.head = transformers.ViTModel(config), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(pixel_values=x).last_hidden_state[:, 0])


def of_timm():
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)


@pytest.mark.parametrize("kind", marked([Sight, of_timm], ("Sight",), lambda f: f.__name__))
def test_pictures_by_an_image_processor(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    e = relprop.explain(model(kind), [picture, picture], 1, processor=processor)
    ready = processor(picture, return_tensors="pt")["pixel_values"]
    assert closeness(e.scores[:1], relprop.explain(model(kind), ready, 1).scores) <= 1e-3  # float32
    assert e.grid == (4, 4) and e.original_heatmap(0).shape == (50, 70)


def refused(kind, inputs, **options):
    with pytest.raises(InputError) as error:
        relprop.explain(model(kind), inputs, 1, **options)
    said = str(error.value)
    return said, textwrap.dedent(said.split("  then  ", 1)[1].replace("\n        ", "\n"))


def pasted(kind, inputs, lines):
    """What the last of these lines gives; ``model`` and ``inputs`` are there."""
    *first, last = lines.strip().split("\n")
    known = {"torch": torch, "relprop": relprop, "model": model(kind), "inputs": inputs}
    known["processor"] = TOKENIZER
    exec("\n".join(first), known)
    return eval(last, known)


@pytest.mark.parametrize("inputs", [READY, (READY,)], ids=["keywords", "a dict"])
def test_a_model_that_takes_a_dict_and_the_lines_that_help(inputs):
    _, lines = refused(ByDict, inputs)
    e = pasted(ByDict, inputs, lines.split("\n", 1)[1])
    assert torch.equal(e.scores, relprop.explain(model(Tuned), READY).scores)


def test_other_names_than_the_tokenizers():
    _, lines = refused(ByOtherNames, TEXTS, processor=TOKENIZER)
    e = pasted(ByOtherNames, TEXTS, lines)
    right = relprop.explain(model(Tuned), TEXTS, processor=TOKENIZER)
    assert torch.equal(e.scores, right.scores) and e.words(0) == right.words(0)


def test_a_list_of_tensors_and_the_lines_that_help():
    class Several(Sight):
        def forward(self, pictures):
            return super().forward(torch.stack(pictures))

    pictures = [torch.randn(3, 32, 32) for _ in range(2)]
    for given in ((pictures,), pictures):
        _, lines = refused(Several, given)
        e = pasted(Several, given, lines.split("\n", 1)[1])
        assert e.scores.shape == (2, 17)


def test_one_tensor_by_another_name_or_in_a_dict():
    class ByBatch(WithoutMask):
        def forward(self, batch):
            return super().forward(batch["input_ids"] if isinstance(batch, dict) else batch)

    right = relprop.explain(model(WithoutMask), {"input_ids": IDS})
    _, lines = refused(ByBatch, {"input_ids": IDS})
    first, _, rest = lines.split("\n", 2)
    renamed = pasted(ByBatch, {"input_ids": IDS}, f"{first}\nrelprop.explain(model, inputs)")
    in_a_dict = pasted(ByBatch, {"input_ids": IDS}, rest)
    assert torch.equal(renamed.scores, right.scores)
    assert torch.equal(in_a_dict.scores, right.scores)


def test_a_text_that_is_too_long():
    text = "the film was " * 20
    said, lines = refused(Tuned, text, processor=TOKENIZER)
    assert "the model reads 24" in said and "token_type" not in said
    advised = re.search("processor=tokenizer, .*", lines)[0]
    own = {"model": model(Tuned), "text": text, "tokenizer": TOKENIZER, "relprop": relprop}
    assert eval(f"relprop.explain(model, text, 1, {advised})", own).scores.shape == (1, 24)
    assert eval(f"relprop.explain(model, [text, 'a film'], 1, {advised})", own).scores.shape == (
        2,
        24,
    )


def test_what_a_tokenizer_is_told_stands_in_the_call():
    cut = {"truncation": True, "max_length": 6}
    named = relprop.explain(model(Tuned), {"text": TEXTS, **cut}, 1, processor=TOKENIZER)
    said = relprop.explain_many(
        model(Tuned), TEXTS, [1], processor=TOKENIZER, gamma=0.5, method="lrp_gamma", **cut
    )[0]
    assert said.scores.shape == named.scores.shape and said.tokens == named.tokens
    with pytest.raises(OptionError, match="ready tensors"):
        relprop.explain(model(Tuned), READY, **cut)
    with pytest.raises(OptionError, match="must be named"):
        relprop.explain(model(Tuned), TEXTS, processor=TOKENIZER, do_rescale=False, **cut)
    with pytest.raises(InputError, match="processor"):
        relprop.explain(model(Tuned), TEXTS, **cut)


def test_ids_beyond_the_table():
    given = READY | {"input_ids": torch.full_like(IDS, 10**4)}
    said, _ = refused(Tuned, given)
    assert "10000 to 10000 are looked up in 'body.embeddings.word_embeddings.weight'" in said


OUTPUTS = {
    "one number": (lambda m, x: x[:, 1], lambda o: o[0]),
    "one number, its sum": (lambda m, x: x[:, 1], lambda o: o.sum()),
    "one number, no target": (lambda m, x: x[:, 1], None),
    "a number beside": (lambda m, x: (x, torch.tensor(3.0)), lambda o: o[0][0, 1]),
    "a scale beside": (lambda m, x: (x, m.head.bias[0].exp()), lambda o: o[0][0, 1]),
    "a scale in a dict": (lambda m, x: {"y": x, "by": m.head.bias[0]}, lambda o: o["y"][0, 1]),
    "ones for each sample": (lambda m, x: (x, torch.ones(len(x))), lambda o: o[0][0, 1] * o[1][0]),
    "a row of ones": (lambda m, x: (x, torch.ones(len(x), 3)), lambda o: o[0][0, 1] * o[1][0, 2]),
    "ones for all": (lambda m, x: (x, torch.ones(3)), lambda o: o[0][0, 1] * o[1][2]),
    "a table beside": (lambda m, x: (x, m.head.weight), lambda o: o[0][0, 1]),
}


@pytest.mark.parametrize(
    "name", marked(OUTPUTS, ("one number", "a scale in a dict", "a row of ones", "a table beside"))
)
def test_outputs_without_classes_and_constants_beside_them(name):
    gives, target = OUTPUTS[name]

    class Giving(Tuned):
        def forward(self, input_ids, attention_mask):
            return gives(self, super().forward(input_ids, attention_mask))

    found = relprop.explain(model(Giving), READY, target).scores
    assert closeness(found, relprop.explain(model(Tuned), READY, 1).scores) <= 1e-6
    if name == "one number":
        with pytest.raises(TargetError, match="target=None explains it"):
            relprop.explain(model(Giving), READY, 0)
