"""docs/targets.md: every code block runs, in order, with models of the kinds it speaks of, and
gives what is written beside it."""

import ast
import contextlib
import re
from pathlib import Path

import pytest
import torch
import transformers as hf

from tests.targets import models
from tests.targets.models import MASK, bert, pictures, words

GUIDE = Path(__file__).parents[2] / "docs/targets.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
ANIMALS = models.labelled({0: "dog", 1: "cat", 2: "owl", 3: "eel"})


class TwoHeads(hf.BertForSequenceClassification):
    def forward(self, input_ids):
        logits = super().forward(input_ids).logits
        return logits.sin(), logits.cos()


def named(model):
    """A model of its own, whose four classes are animals."""
    model.config.id2label, model.config.label2id = ANIMALS["id2label"], ANIMALS["label2id"]
    return model


@pytest.fixture(scope="module")
def scope(tmp_path_factory):
    """The names the guide speaks of; what it writes goes to a folder of its own."""
    with contextlib.chdir(tmp_path_factory.mktemp("guide")):
        yield ran()


def ran():
    masked = words(2)
    masked[:, 4] = MASK
    config = hf.BertConfig(**models.SMALL, **ANIMALS)
    found = {
        "classifier": models.ready(hf.BertForSequenceClassification(config)),
        "two_heads": models.ready(TwoHeads(config)),
        "reader": bert(hf.BertForQuestionAnswering),
        "masked_lm": bert(hf.BertForMaskedLM),
        "causal_lm": models.llama(),
        "translator": models.t5(),
        "clip": models.clip(),
        "detector": named(models.yolos.__wrapped__()),
        "segmenter": named(models.segformer.__wrapped__()),
        "tokenizer": models.tokenizer(),
        "masked": {"input_ids": masked},
        "prompts": {"input_ids": words(2)},
        "source": {"input_ids": words(2)},
        "decoder": words(2, 3, 5),
        "texts": words(2),
        "images": pictures(2),
    }
    for block in BLOCKS:
        found["inputs"] = {"input_ids": words(2 if "reader" in block else 3)}
        exec(compile(block, GUIDE.name, "exec"), found)
    return found


def test_every_block_runs(scope):
    assert len(BLOCKS) > 8 and scope["explanation"].streams.keys() == {"input_ids", "pixel_values"}


def test_what_is_written_beside_is_what_comes_out(scope):
    """Lines that end in a tuple as a comment."""
    written = [
        (block, line)
        for block in BLOCKS
        for line in block.splitlines()
        if re.search(r"target\s+# \(", line)
    ]
    assert len(written) == 3
    for block, line in written:
        code, said = re.fullmatch(r"(.*?target)\s+# (\(.*\)).*", line).groups()
        found = dict(scope, inputs={"input_ids": words(2 if "reader" in block else 3)})
        exec(compile(block, GUIDE.name, "exec"), found)
        assert eval(code, found) == ast.literal_eval(said), line


def test_the_shapes_of_a_generation(scope):
    g = scope["g"]
    assert (
        g.scores.shape == (2, 4, 10)
        and len(g.tokens[0]) == 10
        and len(g.labels[0]) == 4
        and g.ids.shape == (2, 4)
    )
    assert torch.equal(scope["given"].ids, g.ids) and scope["sampled"].ids.shape[0] == 2
    assert scope["t"]["decoder_input_ids"].scores.shape[1] == scope["t"].ids.shape[1]
