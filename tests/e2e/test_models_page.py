"""docs/models.md: every code block runs, in order, and every sentence it says a refusal has is one
that the library says."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_
from transformers import BertForMaskedLM, BertForTokenClassification, pipeline

import relprop
from tests.e2e.test_adapted_models import lora
from tests.e2e.test_opening import (
    IMAGES,
    bert,
    classifier,
    foreign,
    llama,
    picture,
    saved,
    tokenizer,
    vision,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text()
__all__ = ["foreign", "saved"]  # fixtures


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
def test_every_code_block_runs(saved, foreign):
    reads = tokenizer()
    quantised = classifier()
    quantize_(quantised, Int8WeightOnlyConfig())
    scope = {
        "torch": torch,
        "relprop": relprop,
        "image": picture(),
        "folder": saved / "bert",
        "picture_folder": saved / "vit",
        "folder_with_code": foreign[0],
        "pipe": pipeline("text-classification", model=classifier(), tokenizer=reads),
        "pictures": pipeline("image-classification", model=vision(), image_processor=IMAGES),
        "choosing": pipeline("zero-shot-classification", model=classifier(), tokenizer=reads),
        "filling": pipeline("fill-mask", model=bert(BertForMaskedLM), tokenizer=reads),
        "tagging": pipeline(
            "token-classification",
            model=bert(BertForTokenClassification, num_labels=3),
            tokenizer=reads,
        ),
        "writing": pipeline("text-generation", model=llama(), tokenizer=tokenizer(special=False)),
        "adapted": lora(classifier(), task_type="SEQ_CLS", target_modules=["query", "value"]),
        "quantised": quantised,
    }
    seen = 0
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        for statement in ast.parse(block).body:
            exec(compile(ast.Module([statement], []), "models.md", "exec"), scope)
            found = scope.pop("explanation", None)
            if found is not None:
                assert (
                    isinstance(found, relprop.Explanation) and torch.isfinite(found.scores).all()
                ), ast.unparse(statement)
                scope["last"], seen = found, seen + 1
            if "explanation" not in scope and "last" in scope:
                scope["explanation"] = scope["last"]
    assert seen >= 18 and scope["report"].ok


def test_every_refusal_it_quotes_is_one_the_library_has():
    """The quoted words stand in the source; whatever is put in the places of the dots."""
    source = " ".join(
        " ".join(p.read_text() for p in sorted((ROOT / "relprop").rglob("*.py"))).split()
    )
    spoken = re.sub(r"\{[^{}]*\}", "...", source).replace('" "', "").replace('" f"', "")
    quotes = [
        q
        for line in PAGE.splitlines()
        if line.startswith("| ")
        for q in line.split("`")[1::2]
        if len(q.split()) > 2
    ]
    assert len(quotes) >= 18
    for quote in quotes:
        pieces = [p.strip(" ,:") for p in re.split(r"\(?\.\.\.\)?|'", quote)]
        assert all(p in spoken for p in pieces), quote
