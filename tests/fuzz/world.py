"""What the bad calls of ``calls.txt`` are made with: small models, results of all kinds, files, and
what must not change."""

import copy
import locale
import logging
import math
import os
import random
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import PIL.Image
import torch
import transformers

import relprop
from relprop import adapters, data, errors, evaluation, methods, plot, runs, targets
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.evaluation import digit_scenes
from tests.common.models import build, sample
from tests.runs.sources import Pictures
from tests.runs.works import Numbers
from tests.views.conftest import small_bert, small_tokenizer

ENTRIES = (
    *("explain", "explain_many", "trace", "compare", "check", "rounding_stability", "instrument"),
    *("load_explainer", "explain_generation", "activation_maximization", "open_model"),
    *("load", "report"),
)


class Plain(torch.nn.Module):
    """No attention."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 4, dtype=torch.float64)

    def forward(self, x):
        return self.head(x).mean(1)


class Raising(Plain):
    """A model that fails by itself."""

    def forward(self, x):
        raise KeyError("no such thing")


class Interrupted(Plain):
    """A model whose ``forward`` ends the process, or tries to."""

    def forward(self, x):
        raise StopIteration("a stop of its own")


def spoiled():
    """A model with one weight that is no number."""
    model = build()
    model.blocks[1].mlp[0].weight.data[0, 0] = math.nan
    return model


def small_gpt():
    """A decoder with random weights."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 20}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=19)
    return transformers.GPT2LMHeadModel(config).eval()


def of_sites(make, sites=slice(None)):
    """A method that makes a matrix for some attention sites."""
    return lambda at: {v.site.contraction: make(v.attention) for v in at.sites[sites]}


OWN = {
    "returns_nothing": lambda at: None,
    "returns_empty": lambda at: {},
    "returns_text": lambda at: "scores",
    "returns_other_names": lambda at: {"an input": torch.zeros(3, 5)},
    "returns_short_scores": lambda at: {"input_0": methods.TokenMap(torch.zeros(3, 2))},
    "returns_other_shape": of_sites(lambda a: a[..., :2, :2]),
    "returns_fused_heads": of_sites(lambda a: a.mean(1)),
    "returns_nan": of_sites(lambda a: a * math.nan),
    "returns_one_site": of_sites(lambda a: a, slice(1)),
    "returns_a_slice": of_sites(lambda a: a[:1]),
    "returns_numbers": of_sites(lambda a: 3),
    "raises": lambda at: 1 / 0,
}
OWN_AT_INPUT = {
    "input_nothing": lambda at: None,
    "input_one": lambda at: {},
    "input_other_shape": lambda at: {n: v[:, :1] for n, v in at.values.items()},
}


def world(folder):
    """The names that the calls use; every file below ``folder``."""
    torch.manual_seed(0)
    model, x = build(), sample()
    words, ids = build(ids=True), sample(ids=True)
    bert, tokenizer = small_bert(), small_tokenizer()
    scenes, gpt = make_scenes(2, seed=5), small_gpt()
    result = relprop.explain(model, x, 1)
    saved = result.save(folder / "saved.safetensors")
    (folder / "garbage").write_bytes(b"\x08\0\0\0\0\0\0\0garbage!!!")
    (folder / "folder").mkdir()
    (folder / "folder" / "a file").write_text("of no format")
    (folder / "table.csv").write_text("text,label\nthe film,good\nawful,bad\n")
    (folder / "pictures" / "cat").mkdir(parents=True)
    PIL.Image.new("RGB", (9, 9)).save(folder / "pictures" / "cat" / "1.png")
    for name, function in OWN.items():
        methods.register(name, function)
    for name, function in OWN_AT_INPUT.items():
        methods.register(name, function, level="input")
    closed = relprop.instrument(model, x, 1)
    closed.__exit__(None, None, None)
    return SimpleNamespace(
        **{name: getattr(relprop, name) for name in ENTRIES},
        **{"relprop": relprop, "math": math, "torch": torch, "plot": plot, "errors": errors},
        **{"targets": targets, "methods": methods, "adapters": adapters, "data": data},
        **{"runs": runs, "evaluation": evaluation},
        **{"model": model, "x": x, "words": words, "ids": ids, "bert": bert},
        **{"tokenizer": tokenizer, "plain": Plain(), "spoiled": spoiled(), "raising": Raising()},
        **{"interrupted": Interrupted(), "gpt": gpt, "prompt": torch.tensor([[1, 2, 3]])},
        encoded=tokenizer("the film was not boring", return_tensors="pt"),
        compared=relprop.compare(model, x, ["rollout", "raw_attention"]),
        probe=relprop.instrument(model, x, 1),
        closed=closed,
        explainer=relprop.compile(build(depth=1), x, 1, verify=False),
        result=result,
        texts=relprop.explain(bert, ["the film was not boring", "awful"], processor=tokenizer),
        seen=relprop.explain(digit_scene_model(), scenes.images, 1),
        kept=relprop.explain(model, x, 1, keep=("blocks", "matrix")),
        rolled=relprop.explain(model, x, method="rollout"),
        source=Pictures(4),
        work=Numbers(8),
        task=digit_scenes(4),
        pictures=folder / "pictures",
        saved=saved,
        table=folder / "table.csv",
        garbage=folder / "garbage",
        folder=folder / "folder",
        out=folder / "out",
    )


def state(names):
    """What no refused call may change: the process and the models."""
    models = {n: m for n, m in vars(names).items() if isinstance(m, torch.nn.Module)}
    return {
        "torch's random numbers": torch.get_rng_state().tolist(),
        "python's random numbers": hash(random.getstate()),
        "numpy's random numbers": str(np.random.get_state()),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "streams": (id(sys.stdout), id(sys.stderr), id(warnings.showwarning)),
        "filters": copy.copy(warnings.filters),
        "logging": (logging.root.level, logging.getLogger("torch").level),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "locale": locale.setlocale(locale.LC_ALL),
        "methods": list(methods.METHODS),
        **{f"model {name}": state_of(model) for name, model in models.items()},
    }


def state_of(model):
    """Modules, modes, hooks, attributes, versions of tensors, gradients."""
    modules = [
        (n, id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m)))
        for n, m in model.named_modules()
    ]
    tensors = (*model.named_parameters(), *model.named_buffers())
    return modules, [
        (n, id(t), t._version, t.requires_grad, t.grad is None, str(t.sum())) for n, t in tensors
    ]


def rows(text):
    """(call, what is said) of every line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.partition("  # ")[::2]) for line in lines]
