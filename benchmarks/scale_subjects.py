"""What ``scale.py`` measures: models of one size and any number of tokens, with seeded random
weights, and calls that explain them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

HEADS, FEATURES, INNER, WORDS, PATCH = 4, 64, 256, 128, 16
TITLES = {"llama": "Llama-shaped", "bert": "BERT-shaped", "vit": "ViT"}
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
LAYERS = 4
GRADIENT, CAPTUM = "forward + input gradient", "gradient_x_input (captum)"
METHODS = ("gradient_x_input", "rollout", "gae", "transformer_attribution", "lrp", "attnlrp")
UNHEARD = " (verify=False)"  # of a row that is not compared with the model's own forward pass
ALONE = METHODS[0] + UNHEARD
ROWS = (GRADIENT, CAPTUM, ALONE, *METHODS)
DEPTHS = (*((n, TOKENS[0]) for n in (LAYERS, 6, 12, 24, 48)), (12, 2048))  # layers, tokens
SEGMENTS = " (memory=0)"  # of a row whose graph is cut into segments
DEPTH_METHODS = tuple(
    m + how for m in ("transformer_attribution", "attnlrp") for how in ("", SEGMENTS)
)


@dataclass(frozen=True)
class Case:
    """A row of a model at a number of tokens (of a ViT: the nearest that a square image has)."""

    model: str
    method: str
    tokens: int
    layers: int = LAYERS

    def as_dict(self) -> dict[str, Any]:
        """Its fields, for JSON."""
        return asdict(self)

    @property
    def growing(self) -> bool:
        """Whether it is of the series over tokens."""
        return self.layers == LAYERS and self.method in ROWS


def all_cases() -> list[Case]:
    """Everything that is measured, short inputs first."""
    over_tokens = [Case(m, row, n) for n in TOKENS for m in TITLES for row in ROWS]
    over_layers = [Case("llama", m, tokens, n) for n, tokens in DEPTHS for m in DEPTH_METHODS]
    both = dict.fromkeys(over_tokens + over_layers)
    return sorted(both, key=lambda case: case.tokens)


@dataclass(frozen=True)
class Subject:
    """A model and one input. ``logits``: the row that has the explained number at ``label``, from
    ``leaf``, the embeddings or pixels; ``target``: the same number as ``explain`` is told it."""

    module: nn.Module
    inputs: Tensor | Mapping[str, Tensor]
    leaf: Tensor
    logits: Callable[[Tensor], Tensor]
    target: int | tuple[int, int]
    label: int
    length: int

    def forward(self) -> object:
        """One plain forward pass."""
        with torch.no_grad():
            if isinstance(self.inputs, Tensor):
                return self.module(self.inputs)
            return self.module(**self.inputs)


def build(model: str, tokens: int, layers: int) -> Subject:
    """A model with random weights, and its input."""
    torch.manual_seed(0)
    made: Subject = {"llama": _llama, "bert": _bert, "vit": _vit}[model](tokens, layers)
    made.module.eval().requires_grad_(False)
    return made


def _sizes(tokens: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": WORDS,
        "hidden_size": FEATURES,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "max_position_embeddings": tokens,
    }


def _llama(tokens: int, layers: int) -> Subject:
    """The logit of one word at the last position; ids alone."""
    from transformers import LlamaConfig, LlamaForCausalLM

    module = LlamaForCausalLM(LlamaConfig(**_sizes(tokens, layers), use_cache=False))
    ids = torch.randint(3, WORDS, (1, tokens))
    leaf = module.model.embed_tokens(ids).detach()

    def logits(embedded: Tensor) -> Tensor:
        found: Tensor = module(inputs_embeds=embedded).logits[:, -1]
        return found

    return Subject(module, ids, leaf, logits, (tokens - 1, 3), 3, tokens)


def _bert(tokens: int, layers: int) -> Subject:
    """The logit of one of two classes; ids and a mask of ones, as a tokenizer gives them."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {**_sizes(tokens, layers), "num_labels": 2}
    module = BertForSequenceClassification(BertConfig(**sizes))
    ids = torch.randint(3, WORDS, (1, tokens))
    mask = torch.ones_like(ids)
    leaf = module.bert.embeddings.word_embeddings(ids).detach()

    def logits(embedded: Tensor) -> Tensor:
        found: Tensor = module(inputs_embeds=embedded, attention_mask=mask).logits
        return found

    inputs = {"input_ids": ids, "attention_mask": mask}
    return Subject(module, inputs, leaf, logits, 1, 1, tokens)


def _vit(tokens: int, layers: int) -> Subject:
    """The logit of one of ten classes; a square image of as many patches as come nearest."""
    from timm.models.vision_transformer import VisionTransformer

    side = round((tokens - 1) ** 0.5)
    module = VisionTransformer(
        img_size=side * PATCH,
        patch_size=PATCH,
        embed_dim=FEATURES,
        depth=layers,
        num_heads=HEADS,
        mlp_ratio=INNER / FEATURES,
        num_classes=10,
    )
    pixels = torch.rand(1, 3, side * PATCH, side * PATCH)
    return Subject(module, pixels, pixels, module, 3, 3, side**2 + 1)


def imported() -> None:
    """Import all that the calls need: classes of transformers are looked up when they are named."""
    for name in ("relprop.methods", "torch.export._trace", "timm.models.vision_transformer"):
        importlib.import_module(name)
    for name in ("bert", "llama"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    if importlib.util.find_spec("captum"):
        importlib.import_module("captum.attr")


def call_of(method: str, subject: Subject) -> Callable[[], object]:
    """What is measured of a subject."""
    if method == GRADIENT:
        return lambda: _gradient(subject)
    if method == CAPTUM:
        return _by_captum(subject)
    import relprop

    name = method.removesuffix(SEGMENTS).removesuffix(UNHEARD)
    memory, verify = 0 if method.endswith(SEGMENTS) else None, not method.endswith(UNHEARD)
    asked = subject.module, subject.inputs, subject.target
    return lambda: relprop.explain(*asked, method=name, memory=memory, verify=verify)


def _gradient(subject: Subject) -> Tensor:
    """What any method that uses gradients pays at least."""
    leaf = subject.leaf.clone().requires_grad_()
    (found,) = torch.autograd.grad(subject.logits(leaf)[0, subject.label], leaf)
    return found


def _by_captum(subject: Subject) -> Callable[[], object]:
    from captum.attr import InputXGradient

    peer = InputXGradient(subject.logits)
    return lambda: peer.attribute(subject.leaf.clone().requires_grad_(), target=subject.label)
