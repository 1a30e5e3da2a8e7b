"""Hugging Face's models: every class of the auto mappings of the tasks that the project promises,
from a config made small.

The denominator is the library's own: each distinct class in those mappings is a subject. A class is
built from its ``config_class``.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from relprop.errors import OptionError
from tools.sweep.huggingface_inputs import call_for
from tools.sweep.reviewed import CHANGES, TARGETS
from tools.sweep.shrink import LABELS, shrink
from tools.sweep.subject import Built, CannotBuild, Subject
from tools.sweep.weights import enliven

TASKS = {
    "SEQUENCE_CLASSIFICATION": "sequence classification",
    "TOKEN_CLASSIFICATION": "token classification",
    "QUESTION_ANSWERING": "question answering",
    "DOCUMENT_QUESTION_ANSWERING": "document question answering",
    "TABLE_QUESTION_ANSWERING": "table question answering",
    "MASKED_LM": "masked language modelling",
    "CAUSAL_LM": "causal language modelling",
    "SEQ_TO_SEQ_CAUSAL_LM": "sequence to sequence",
    "IMAGE_CLASSIFICATION": "image classification",
    "IMAGE_SEGMENTATION": "image segmentation",
    "SEMANTIC_SEGMENTATION": "image segmentation",
    "INSTANCE_SEGMENTATION": "image segmentation",
    "UNIVERSAL_SEGMENTATION": "image segmentation",
    "OBJECT_DETECTION": "object detection",
    "AUDIO_CLASSIFICATION": "audio classification",
    "CTC": "speech recognition",
    "SPEECH_SEQ_2_SEQ": "speech recognition",
    "ZERO_SHOT_IMAGE_CLASSIFICATION": "zero-shot image classification",
    "VISUAL_QUESTION_ANSWERING": "visual question answering",
    "TIME_SERIES_PREDICTION": "time series",
    "TIME_SERIES_CLASSIFICATION": "time series",
    "TIME_SERIES_REGRESSION": "time series",
}
PROMISED = (  # model types, named in the project's promise
    "bert roberta distilbert albert electra deberta-v2 modernbert xlnet mpnet longformer big_bird "
    "gpt2 gpt_neox opt llama mistral qwen2 qwen3 gemma2 gemma3_text phi3 mixtral bloom falcon t5 "
    "bart marian pegasus vit deit swin dinov2 segformer clip siglip vilt blip lxmert visual_bert "
    "detr maskformer wav2vec2 whisper audio-spectrogram-transformer patchtst"
).split()
MOST_PARAMETERS = 40_000_000
EXTRA = {  # promised by name, in no mapping of those tasks
    "LxmertForQuestionAnswering": ("lxmert", "visual question answering"),
    "VisualBertForQuestionAnswering": ("visual_bert", "visual question answering"),
    "PatchTSTForPrediction": ("patchtst", "time series"),
}


def huggingface_subjects() -> tuple[Subject, ...]:
    """One subject per class in the tasks' mappings, with the tasks it serves."""
    mappings = _mappings()
    types: dict[str, list[str]] = {}
    found: dict[str, list[str]] = {}
    for key, task in TASKS.items():
        for model_type, classes in getattr(mappings, f"MODEL_FOR_{key}_MAPPING_NAMES").items():
            for name in classes if isinstance(classes, (list, tuple)) else [classes]:
                types.setdefault(name, []).append(model_type)
                found[name] = [*dict.fromkeys((*found.get(name, ()), task))]
    for name, (model_type, task) in EXTRA.items():
        types.setdefault(name, []).append(model_type)
        found.setdefault(name, [task])
    families = {name: _own_type(name, kinds) for name, kinds in types.items()}
    return tuple(
        Subject("hf", families[n], n, tuple(found[n]), named=families[n] in PROMISED)
        for n in sorted(found, key=lambda n: (families[n], n))
    )


def _own_type(name: str, types: list[str]) -> str:
    """Of the model types that use a class, the one it is called after (others borrow it)."""
    plain = {kind: kind.replace("-", "").replace("_", "").lower() for kind in types}
    return max(
        types, key=lambda kind: len(plain[kind]) if name.lower().startswith(plain[kind]) else 0
    )


def build_huggingface(subject: Subject, batch: int = 3) -> Built:
    """The subject's model with seeded random weights at the first size that builds and runs, with a
    call for it."""
    kind = _class(subject.entry)
    changes = {**CHANGES.get(subject.family, {}), **CHANGES.get(subject.entry, {})}
    settings = {k: v for k, v in changes.items() if not k.startswith("call:")}
    call = {k.removeprefix("call:"): v for k, v in changes.items() if k.startswith("call:")}
    refusals = []
    for how in (
        {"how": "cap"},
        {"how": "scale", "divisor": 16},
        {"how": "scale", "divisor": 4},
        {"how": "layers"},
    ):
        try:
            config = small_config(kind.config_class, settings, how, subject.tasks)
            _refuse_large(kind, config)
            torch.manual_seed(0)
            model = kind(config).eval()
            torch.manual_seed(1)
            inputs, another, pads = call_for(model, subject.tasks, batch, call)
            with torch.no_grad():
                enliven(model)
                model(**{k: v[:1] for k, v in inputs.items()})
        except (
            Exception
        ) as refused:  # configs and constructors refuse in many ways; the next size is tried
            refusals.append(f"{type(refused).__name__}: {_first_line(refused)}")
            continue
        return Built(
            model,
            inputs,
            another,
            pads,
            target=TARGETS.get(subject.entry),
            shrunk=" ".join(map(str, how.values())),
        )
    raise CannotBuild(refusals[0])


def _refuse_large(kind: Any, config: Any) -> None:
    """Count parameters before there is memory for them."""
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in kind(config).parameters())
    except Exception:  # a constructor that needs values is tried as it is
        return
    if count > MOST_PARAMETERS:
        raise CannotBuild(f"still {count / 1e6:.0f} million parameters")


def small_config(
    config_class: Any, changes: dict[str, Any], how: dict[str, Any], tasks: tuple[str, ...] = ()
) -> Any:
    """A small config of ``config_class`` with a few labels and no cache in the output."""
    whole = {k: v for k, v in changes.items() if not isinstance(v, dict)}
    config = config_class(
        **{
            k: v
            for k, v in whole.items()
            if k in {f.name for f in dataclasses.fields(config_class)} and k.startswith("use_")
        }
    )
    small = shrink(config, changes=changes, **how)
    if len(getattr(small, "id2label", None) or ()) == 2 and not any(
        "question answering" in t for t in tasks
    ):
        small.num_labels = LABELS
    if (
        "causal language modelling" in tasks
        and getattr(small, "is_decoder", None) is False
        and not getattr(small, "is_encoder_decoder", False)
    ):
        small.is_decoder = True  # encoders that can be decoders, too
    return small


def _class(name: str) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    kind: type[nn.Module] | None = getattr(transformers, name, None)
    if kind is None:
        raise CannotBuild(f"transformers has no class {name}")
    return kind


def _mappings() -> Any:
    try:
        from transformers.models.auto import modeling_auto
    except ImportError:
        raise OptionError(
            "sweeping Hugging Face models needs transformers: pip install transformers"
        ) from None
    return modeling_auto


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (" ".join(lines[:2]) if lines else "")[:300]
