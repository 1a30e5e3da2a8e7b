"""The sweep's denominator is the libraries': every module of timm and every class of the tasks'
mappings is swept, or left out with a reason."""

import json
from pathlib import Path

import pytest
import timm
from transformers.models.auto import modeling_auto

from relprop.errors import OptionError
from tools.sweep import subjects
from tools.sweep.command import excluded
from tools.sweep.subject import Subject
from tools.sweep.timm_models import size_hint

EXCLUSIONS = json.loads((Path(__file__).parent / "exclusions.json").read_text())
MAPPINGS = (
    "SEQUENCE_CLASSIFICATION TOKEN_CLASSIFICATION QUESTION_ANSWERING MASKED_LM CAUSAL_LM "
    "SEQ_TO_SEQ_CAUSAL_LM IMAGE_CLASSIFICATION IMAGE_SEGMENTATION "
    "SEMANTIC_SEGMENTATION INSTANCE_SEGMENTATION UNIVERSAL_SEGMENTATION OBJECT_DETECTION "
    "AUDIO_CLASSIFICATION CTC SPEECH_SEQ_2_SEQ ZERO_SHOT_IMAGE_CLASSIFICATION "
    "VISUAL_QUESTION_ANSWERING TIME_SERIES_PREDICTION TIME_SERIES_CLASSIFICATION "
    "TIME_SERIES_REGRESSION"
).split()


def test_every_timm_module_has_a_subject():
    modules = {
        timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
        for name in timm.list_models()
    }
    assert {s.family for s in subjects("timm")} == modules
    assert all(timm.is_model(s.entry) for s in subjects("timm"))


def test_every_class_of_the_mappings_is_a_subject():
    classes = set()
    for key in MAPPINGS:
        for names in getattr(modeling_auto, f"MODEL_FOR_{key}_MAPPING_NAMES").values():
            classes.update([names] if isinstance(names, str) else names)
    assert classes <= {s.entry for s in subjects("hf")}


@pytest.mark.parametrize("source", ["timm", "hf"])
def test_names_are_unique(source):
    names = [s.name for s in subjects(source)]
    assert len(names) == len(set(names))


def test_exclusions_name_subjects_and_reasons():
    known = {s.name for source in ("timm", "hf") for s in subjects(source)}
    known |= {f"{s.source}/{s.family}" for source in ("timm", "hf") for s in subjects(source)}
    assert set(EXCLUSIONS) <= known
    assert all(len(reason.split()) > 4 for reason in EXCLUSIONS.values())


def test_an_exclusion_names_a_subject_or_its_family():
    subject = Subject("hf", "bert", "BertForMaskedLM")
    assert (
        excluded(subject, {"hf/bert": "reason"})
        == excluded(subject, {"hf/bert/BertForMaskedLM": "reason"})
        == "reason"
    )
    assert excluded(subject, {"hf/ber": "reason"}) == ""


def test_patterns_choose_by_part_or_by_star():
    assert {s.family for s in subjects("hf", "hf/bert/")} == {"bert"}
    assert [s.name for s in subjects("hf", "*/gpt2/GPT2LM*")] == ["hf/gpt2/GPT2LMHeadModel"]
    with pytest.raises(OptionError, match="there are timm, hf"):
        subjects("keras")


def test_small_names_come_first():
    names = [
        "vit_large_patch16_224",
        "vit_base_patch16_224",
        "vit_tiny_patch16_384",
        "vit_tiny_patch16_224",
        "test_vit",
    ]
    assert sorted(names, key=size_hint) == [
        "test_vit",
        "vit_tiny_patch16_224",
        "vit_tiny_patch16_384",
        "vit_base_patch16_224",
        "vit_large_patch16_224",
    ]
