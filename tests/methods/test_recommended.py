"""``method="recommended"``: which kind of question is seen in what is given."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import relprop
from relprop.demo.model import digit_scene_model
from relprop.errors import OptionError
from relprop.opening import usable_model
from relprop.runner.method import METHODS
from relprop.runner.question import Question
from relprop.runner.recommended import BY_KIND, chosen, kind_of_call
from relprop.targets import contrast, output, similarity, span, token
from tools.known_answers.recommend import KINDS

IMAGES = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
IDS = torch.ones(2, 5, dtype=torch.long)


class Takes(nn.Module):
    """Whose arguments have no name that is known."""

    def forward(self, *given, **named):
        raise NotImplementedError


class Reads(nn.Module):
    def forward(self, input_ids, pixel_values=None, input_features=None):
        raise NotImplementedError


class Generates(Reads):
    def can_generate(self):
        return True


FEATURES = torch.rand(1, 80, 30)
SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
LAST = IMAGES.movedim(1, -1)


@pytest.mark.parametrize(
    ("model", "inputs", "target", "kind"),
    [
        (Takes(), IMAGES, 3, "pictures"),
        (Takes(), LAST, 3, "pictures"),
        (Takes(), {"pixel_values": IMAGES}, lambda out: out[0, 1], "pictures"),
        (Takes(), {"pixel_values": IMAGES, "bool_masked_pos": IDS.bool()}, 1, "pictures"),
        (Takes(), {"input_ids": IDS, "attention_mask": IDS}, torch.tensor([1, 0]), "texts"),
        (Takes(), {"input_ids": IDS}, contrast(3, 8), "texts"),
        (Takes(), {"first_input_ids": IDS, "second_input_ids": IDS}, None, "texts"),
        (Takes(), (IDS, IDS), [1, 0], "texts"),
        (Takes(), IDS.int(), np.int64(1), "texts"),
        (Takes(), (None, None, None, IDS), 1, "texts"),
        (Takes(), IDS, np.array([0, 1]), "texts"),
        (Takes(), IDS, (1,), "texts"),
        (Takes(), IDS, output("logits")[1], "texts"),
        (Takes(), IDS, output("logits")[1, 2], ""),
        (Takes(), IDS, span(), "texts"),
        (Takes(), {"input_ids": IDS}, (2, 7), ""),
        (Takes(), {"input_ids": IDS}, token(7), ""),
        (Generates(), {"input_ids": IDS}, None, "answers"),
        (Generates(), {"input_ids": IDS}, (2, 7), "answers"),
        (nn.DataParallel(Generates()), IDS, None, "answers"),
        (torch.compile(Generates()), IDS, None, "answers"),
        (Generates(), {"pixel_values": IMAGES, "input_ids": IDS}, 1, "answers"),
        (Reads(), {"pixel_values": IMAGES, "input_ids": IDS}, similarity(), ""),
        (Reads(), (IDS, IMAGES), similarity(), ""),
        (Generates(), {"input_features": FEATURES, "decoder_input_ids": IDS}, (1, 2), "speech"),
        (Generates(), (IDS, None, FEATURES), (1, 2), "speech"),
        (Takes(), {"input_features": FEATURES}, 1, "speech"),
        (Takes(), {"input_values": torch.rand(2, 70), "attention_mask": IDS}, 1, "speech"),
        (Takes(), {"inputs_embeds": torch.rand(2, 5, 8)}, 1, ""),
        (Takes(), torch.rand(2, 7), 1, ""),
        (Takes(), torch.rand(3, 8, 8), 1, ""),
        (Takes(), torch.rand(2, 3, 4, 8, 8), 1, ""),
    ],
)
def test_the_kind_is_that_of_what_is_given(model, inputs, target, kind):
    assert kind_of_call(usable_model(model), inputs, target) == kind


def test_it_is_the_recommended_method_itself():
    model, (method, options) = digit_scene_model(), BY_KIND["pictures"]
    asked = relprop.explain(model, IMAGES, 3, method="recommended")
    named = relprop.explain(model, IMAGES, 3, method=method, **options)
    assert asked.method == method and torch.equal(asked.scores, named.scores)
    many = relprop.explain_many(model, IMAGES, [3, 5], method="recommended")
    assert [e.method for e in many] == [method, method]


def tiny(config, model):
    torch.manual_seed(0)
    return model(config).eval()


def test_transformers_own_models_are_told_apart():
    """Whose inner model, which generates nothing, is their attribute ``model``."""
    sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    llama = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    bert = BertConfig(**sizes, num_attention_heads=2)
    ids = {"input_ids": torch.tensor([[1, 5, 7]])}
    assert kind_of_call(tiny(llama, LlamaForCausalLM), ids, None) == "answers"
    assert kind_of_call(tiny(bert, BertForSequenceClassification), ids, None) == "texts"


def test_speech_is_explained_by_balanced_gradients_in_half_precision_too():
    """Where gradients would be rounded, what is said to do is done."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()}
    whisper = WhisperConfig(
        vocab_size=60, d_model=16, max_source_positions=20, num_mel_bins=8, pad_token_id=0, **sides
    )
    model = tiny(whisper, WhisperForConditionalGeneration)
    x = {
        "input_features": torch.rand(2, 8, 40, generator=torch.Generator().manual_seed(1)),
        "decoder_input_ids": torch.tensor([[1, 5, 7], [1, 9, 4]]),
    }
    asked = relprop.explain(model, x, (2, 7), method="recommended")
    named = relprop.explain(model, x, (2, 7), gradient="balanced")
    published = relprop.explain(model, x, (2, 7))
    assert torch.equal(asked["input_features"].scores, named["input_features"].scores)
    assert not torch.equal(asked["input_features"].scores, published["input_features"].scores)
    half = x | {"input_features": x["input_features"].bfloat16()}
    with pytest.raises(OptionError, match=r"gradient='balanced'(.|\n)*precision='float32'"):
        relprop.explain(model.bfloat16(), half, (2, 7), method="recommended")
    e = relprop.explain(model, half, (2, 7), method="recommended", precision="float32")
    assert bool(e["input_features"].scores.isfinite().all())


def test_options_go_to_it_and_one_that_it_does_not_know_is_refused():
    asked = Question("recommended", {"layers": [-1]})
    (own,) = chosen([asked], Takes(), torch.rand(2, 7), [1])
    assert own.options == {"layers": [-1]} and own.method in METHODS
    with pytest.raises(OptionError, match=r"'recommended' is 'lrp_gamma' here(.|\n)*no_such"):
        relprop.explain(digit_scene_model(), IMAGES, 3, method="recommended", no_such=1)
    several = chosen([asked, asked, Question("gae")], Takes(), torch.rand(2, 7), [1])
    assert [q.method for q in several] == [own.method, own.method, "gae"]
    asked = Question("recommended", {"use_gradient": False})
    (own,) = chosen([asked], Generates(), {"input_features": FEATURES, "input_ids": IDS}, [1])
    assert own.options == {"use_gradient": False} and not own.settings["use_gradient"]


def test_targets_of_different_kinds_are_asked_for_by_themselves():
    with pytest.raises(OptionError, match="cat and transformer_attribution are recommended"):
        chosen([Question("recommended")], Takes(), IDS, [1, token(7)])


def test_elsewhere_a_method_must_be_named():
    with pytest.raises(OptionError, match=r"explain\(..., method='recommended'\)"):
        relprop.compare(digit_scene_model(), IMAGES, ["recommended"])


def test_the_table_of_the_page_decides():
    page = (Path(relprop.__file__).parents[1] / "docs/which-method.md").read_text()
    lines = page.split("<!-- summary: generated -->")[1].split("<!-- /summary -->")[0].splitlines()
    takes = {cells[1].strip(): cells[2] for line in lines if len(cells := line.split("|")) > 3}
    for kind in KINDS:
        if kind.name in BY_KIND:
            method, options = BY_KIND[kind.name]
            written = ", ".join(f'{k}="{v}"' for k, v in ({"method": method} | options).items())
            assert takes[kind.title].strip() == f"`{written}`", kind.name
