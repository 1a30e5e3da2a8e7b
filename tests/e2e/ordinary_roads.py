"""The roads of `test_ordinary_inputs.py`: small models, built once, and the ways by which something
ordinary reaches them. A road takes what is given and gives tensors and values that are compared."""

import contextlib
import functools
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path
from unittest import mock

import timm
import torch
import transformers as hf

import relprop
from relprop.cli import main
from relprop.errors import InputError, RelpropWarning, warn
from tests.adapters.test_sound import WAVE
from tests.common.models import Recipe, Transformer, randomise
from tests.e2e.test_adapted_models import randomised
from tests.runs import sources

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 16}
VISION = SMALL | {"image_size": 32, "patch_size": 8}
NAMED = {"id2label": {0: "cat", 1: "dog", 2: "дом"}, "label2id": {"cat": 0, "dog": 1, "дом": 2}}
WORDS = {"vocab_size": 24, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 3}
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
TIMM |= {"num_classes": 3, "pretrained_cfg_overlay": {"crop_pct": 1.0}}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 31, "n_positions": 32}
CLIP = {"text_config": SMALL | WORDS, "vision_config": VISION, "projection_dim": 8}
HEARD = WAVE | {"feat_extract_norm": "layer", "num_labels": 3}
MODELS = {
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**VISION, **NAMED)),
    "timm": lambda: timm.create_model("vit_tiny_patch16_224", **TIMM),
    "bert": sources.bert,
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "clip": lambda: hf.CLIPModel(hf.CLIPConfig(**CLIP)),
    "wave": lambda: hf.Wav2Vec2ForSequenceClassification(hf.Wav2Vec2Config(**HEARD)),
}
SQUARE = {"size": {"height": 32, "width": 32}}
TOKENIZER, SEES = sources.tokenizer(), hf.ViTImageProcessor(**SQUARE)
BOTH = hf.CLIPProcessor(hf.CLIPImageProcessor(**SQUARE, do_center_crop=False), TOKENIZER)
HEARS = hf.Wav2Vec2FeatureExtractor(return_attention_mask=True)
AS_IT_IS = hf.Wav2Vec2FeatureExtractor(do_normalize=False)
READS = {"vit": SEES, "bert": TOKENIZER, "clip": BOTH, "wave": HEARS, "timm": None}
PIXELS = torch.linspace(-9, 9, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32).sin()
SERIES = torch.linspace(-1, 1, 60).reshape(2, 5, 6).sin()
NEXT = {"input_ids": torch.arange(3, 13).reshape(2, 5)}


@functools.cache
def model(name):
    return randomised(MODELS[name]())


@functools.cache
def own(ids=False):
    """A model of plain ``torch.nn``: of (batch, 5, 6) numbers, or of (batch, 5) ids."""
    return randomise(Transformer(Recipe(ids=ids))).float().eval()


class Changed(torch.nn.Module):
    """The same with its output changed."""

    def __init__(self, change):
        super().__init__()
        self.inner, self.change = own(), change

    def forward(self, x):
        return self.change(self.inner(x))


@functools.cache
def pipe(task, name, part):
    return hf.pipeline(f"{task}-classification", model=model(name), **{part: READS[name]})


@functools.cache
def folder():
    """Where files are; gone with the process."""
    folder.kept = tempfile.TemporaryDirectory()
    return Path(folder.kept.name)


@functools.cache
def saved(name):
    for part in (model(name), READS[name]):
        part.save_pretrained(folder() / name)
    return folder() / name


def written(name, content):
    """The path of a file of this content, in a folder of its own."""
    path = folder() / hashlib.sha1(name.encode() + content).hexdigest() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def file(picture, form="PNG", **options):
    """(name, content): the form in which roads of files take what is given."""
    found = io.BytesIO()
    picture.save(found, form, **options)
    return f"a.{form.lower()}", found.getvalue()


def explained(model, given, target=1, **options):
    e = relprop.explain(model, given, target, method="gradient_x_input", **options)
    scores = [e[name].scores for name in e.streams] if len(e.streams) > 1 else [e.scores]
    return [*scores, e.output, e.target]


def command(model, *given):
    how = ["--target", "1", "--json", "--method", "gradient_x_input"]
    line = ["relprop", "explain", "--model", saved(model), *how, *given]
    out, err = io.StringIO(), io.StringIO()
    try:
        with (
            mock.patch.object(sys, "argv", [*map(str, line)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as ended:
        if ended.code:
            raise InputError(err.getvalue()) from None
    if "warning: " in err.getvalue():
        warn(RelpropWarning(err.getvalue()))
    inputs = json.loads(out.getvalue())["samples"][0]["inputs"]
    return [torch.tensor(one["scores"]) for one in inputs.values()]


def in_a_table(given):
    path = written(*given).with_name("table.csv")
    path.write_text(f"image,label\n{given[0]},1\n")
    return [relprop.data.open_data(path, image="image", size=32)[0].inputs]


def as_labels(given):
    name, content, *options = given
    source = relprop.data.open_data(written(name, content), **dict(*options))
    return [[(s.inputs, s.label) for s in source], source.labels]


def of_files(path):
    """The pictures of a file, by a road for paths."""
    return lambda given: path(written(*given))


def read_by(name):
    return lambda given: explained(model(name), given, processor=READS[name])


def piped(*parts):
    return lambda given: explained(pipe(*parts), given)


PICTURES = "image", "vit", "image_processor"
ROADS = {
    "processor": read_by("vit"),
    "timm": read_by("timm"),
    "pipeline": piped(*PICTURES),
    "path": of_files(read_by("vit")),
    "saved model": of_files(lambda path: explained(saved("vit"), str(path))),
    "path in a pipeline": of_files(lambda path: piped(*PICTURES)(str(path))),
    "folder": of_files(lambda p: [relprop.data.ImageFolder(p.parent, size=32)[0].inputs]),
    "table of files": in_a_table,
    "command, a picture": of_files(lambda path: command("vit", path)),
    "command, a text": lambda given: command("bert", *given),
    "pictures and texts": lambda given: explained(
        model("clip"), given, relprop.targets.similarity(), processor=BOTH
    ),
    "tensors": lambda given: explained(model("vit"), given),
    "my model": lambda given: explained(own(), given),
    "my ids": lambda given: explained(own(True), given),
    "ids": lambda given: explained(model("bert"), given),
    "prompt": lambda given: explained(model("gpt2"), given, None),
    "tokenizer": read_by("bert"),
    "text pipeline": piped("text", "bert", "tokenizer"),
    "sound": read_by("wave"),
    "sound as it is": lambda given: explained(model("wave"), given, processor=AS_IT_IS),
    "sound pipeline": piped("audio", "wave", "feature_extractor"),
    "output": lambda change: explained(Changed(change), SERIES),
    "target": lambda target: explained(model("vit"), PIXELS, target),
    "next token": lambda target: explained(model("gpt2"), NEXT, target),
    "labels": as_labels,
}
