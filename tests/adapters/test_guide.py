"""docs/write-an-adapter.md runs as it stands, and what it says about registering is so."""

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from torch import nn

import relprop
from relprop.adapters import ADAPTERS, Adapter, adapter_for, register, remove
from tests.adapters.tokenizers_in_code import wordpiece
from tests.common.models import Recipe, Transformer, build, sample

GUIDE = (Path(__file__).parents[2] / "docs/write-an-adapter.md").read_text()


def test_the_guides_adapter_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE, re.S)
    example = next(b for b in blocks if "class Music" in b)
    body = (
        example[example.index("@relprop.adapters.register") : example.index("melodies =")]
        .strip()
        .splitlines()
    )
    assert len([line for line in body if line.strip()]) <= 12, (
        "ten lines, a decorator and a class line"
    )
    torch.manual_seed(0)
    before = list(ADAPTERS)
    exec(compile(example, "write-an-adapter.md", "exec"), {"__name__": "guide"})
    assert (
        capsys.readouterr().out
        == "(1, 1) ['D', 'F', 'A', 'pad', 'pad', 'pad'] [True, True, True, False, False, False]\n"
        "adapter Music: fits, prepares, inputs, labels, content, clock, classes, next token\n"
    )
    assert before == ADAPTERS


@pytest.mark.slow
def test_the_guides_tour_runs():
    tour = next(
        b for b in re.findall(r"```python\n(.*?)```", GUIDE, re.S) if "original_heatmap(0)" in b
    )
    torch.manual_seed(0)
    tokenizer, small = (
        wordpiece(),
        {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
        },
    )
    vision, waves = (
        {"image_size": 224, "patch_size": 32},
        {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4},
    )
    text = {
        **small,
        "vocab_size": 60,
        "max_position_embeddings": 40,
        "eos_token_id": 3,
        "bos_token_id": 2,
        "pad_token_id": 0,
    }
    cut = transformers.CLIPImageProcessor()
    scope = {
        "relprop": relprop,
        "tokenizer": tokenizer,
        "image_processor": transformers.ViTImageProcessor(),
        "feature_extractor": transformers.Wav2Vec2FeatureExtractor(),
        "bert": transformers.BertForSequenceClassification(
            transformers.BertConfig(**small, vocab_size=60)
        ),
        "vit": transformers.ViTForImageClassification(transformers.ViTConfig(**small, **vision)),
        "wav2vec2": transformers.Wav2Vec2ForSequenceClassification(
            transformers.Wav2Vec2Config(**small, **waves, classifier_proj_size=8)
        ),
        "timm_model": timm.create_model(
            "vit_tiny_patch16_224", depth=1, embed_dim=16, num_heads=2, img_size=64
        ),
        "clip": transformers.CLIPModel(
            transformers.CLIPConfig(
                text_config=text, vision_config={**small, **vision}, projection_dim=8
            )
        ),
        "processor": transformers.CLIPProcessor(cut, tokenizer),
        "target": lambda output: output.logits_per_image[0, 0],
        "picture": Image.fromarray(np.zeros((50, 80, 3), np.uint8)),
        "another": np.zeros((64, 64, 3), np.uint8),
        "waveform": np.ones(8000, np.float32),
    }
    results = []
    for line in tour.splitlines():
        code = line.partition("#")[0]
        if code.startswith("e ="):
            exec(code, scope)
        elif code.strip():
            results.append(eval(code, scope))
    words, heat, original, seconds, (picture, caption) = results
    assert [w for w, _ in words] == ["an", "unhappy", "cat"] and [w for w, _ in caption] == [
        "a",
        "cat",
    ]
    assert (
        heat.shape == (2, 224, 224)
        and original.shape == picture.shape == (50, 80)
        and seconds.shape == (24, 2)
    )


def test_the_guides_table_is_complete():
    methods = {name for name in vars(Adapter) if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)\(", GUIDE[GUIDE.index("| method | says |") :]))
    assert methods == named


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend, self.head = (
            nn.Linear(3, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, x, mask=None):
        x = self.embed(x)
        return self.head((x + self.attend(x, x, x)[0]).mean(1))


@pytest.fixture
def registered():
    kinds = []
    yield lambda kind: kinds.append(register(kind)) or kind
    for kind in kinds:
        remove(kind)


def test_the_last_one_registered_is_asked_first(registered):
    class First(Adapter):
        @classmethod
        def fits(cls, model):
            return isinstance(model, Model)

    class Second(First):
        pass

    registered(First)
    registered(Second)
    assert type(adapter_for(Model())) is Second
    registered(First)
    assert type(adapter_for(Model())) is First and ADAPTERS.count(First) == 1
    remove(First)
    assert type(adapter_for(Model())) is Second and type(adapter_for(nn.Linear(1, 1))) is Adapter


@pytest.mark.parametrize("rows", [[["a"]] * 2, [["a"] * 6]], ids=["positions", "samples"])
def test_an_adapter_with_too_few_labels_is_named(registered, rows):
    class Few(Adapter):
        @classmethod
        def fits(cls, model):
            return isinstance(model, Transformer)

        def tokens(self, model, given):
            return rows

    registered(Few)
    model, x = build(Recipe(pool="mean")), sample(Recipe(pool="mean"), 2)
    with pytest.raises(relprop.errors.InputError, match=r"Few\.tokens\(\) has labels for \[.*need"):
        relprop.explain(model, x, 1)


def test_what_is_no_adapter_is_refused():
    for wrong in (nn.Linear, Adapter(), "music"):
        with pytest.raises(relprop.errors.OptionError, match="a subclass of relprop"):
            register(wrong)


def test_a_users_words_clock_and_content_arrive_at_the_tokens(registered):
    class Series(Adapter):
        @classmethod
        def fits(cls, model):
            return isinstance(model, Strided)

        def words(self, model, given):
            return [[("start", [0, 1]), ("end", [6, 7])]] * given.batch

        def clock(self, model, given):
            return 2, 0.5

        def content(self, model, given):
            return given.tensor[:, :1].abs() > 0

    class Strided(Model):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv1d(3, 8, 2, 2)

        def forward(self, x):
            x = self.embed(x).transpose(1, 2)
            return self.head((x + self.attend(x, x, x)[0]).mean(1))

    registered(Series)
    x = torch.randn(2, 3, 8)
    x[1, :, 4:] = 0
    e = relprop.explain(Strided().eval(), x, 1)
    assert e.streams["input_0"].words == [[("start", [0]), ("end", [3])]] * 2
    assert e.words(0) == [("start", float(e.scores[0, 0])), ("end", float(e.scores[0, 3]))]
    assert e.seconds().tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert e.content.tolist() == [[True] * 4, [True, True, False, False]]


def test_labels_that_two_classes_share_are_refused(registered):
    class Twins(Adapter):
        @classmethod
        def fits(cls, model):
            return isinstance(model, Model)

        def labels(self, model):
            return "crane", "crane", "owl"

    registered(Twins)
    x = torch.randn(1, 4, 3)
    assert relprop.explain(Model().eval(), x, "owl").target == (2,)
    with pytest.raises(
        relprop.errors.TargetError, match="'crane' is that of 2 classes, 0, 1: give the index"
    ):
        relprop.explain(Model().eval(), x, "crane")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_labels_of_another_number_of_classes_are_said_and_not_shown(registered, count, recwarn):
    class Numbered(Adapter):
        name = "class"

        @classmethod
        def fits(cls, model):
            return isinstance(model, Model)

        def labels(self, model):
            return tuple(f"{self.name}{i}" for i in range(count))

    registered(Numbered)
    e = relprop.explain(Model().eval(), torch.randn(1, 4, 3), 1)
    said = [str(w.message) for w in recwarn if w.category is relprop.errors.UnnamedClassWarning]
    assert e.labels == (("class1",) if count == 3 else None)
    assert len(said) == (count in (1, 5))
    assert all(f"3 classes and the model {count} labels" in s for s in said)
    Numbered.name = "LABEL_"  # transformers' own, of as many classes as a config has by itself
    relprop.explain(Model().eval(), torch.randn(1, 4, 3), 1)
    assert len(recwarn) == len(said)


def test_a_function_that_fails_is_named_and_ready_inputs_pass():
    model, x = Model().eval(), torch.randn(2, 4, 3)
    assert torch.equal(
        relprop.explain(model, x, 1, processor=len).scores, relprop.explain(model, x, 1).scores
    )
    with pytest.raises(
        relprop.errors.InputError, match="processor builtin_function_or_method does not read int"
    ):
        relprop.explain(model, 3, 1, processor=len)
    made = relprop.explain(
        model, ["a", "b"], 1, processor=lambda text: torch.full((4, 3), float(ord(text)))
    )
    assert made.scores.shape == (2, 4) and made.streams["input_0"].originals is None
