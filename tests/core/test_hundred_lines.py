"""``examples/hundred_lines.py`` beside ``relprop.explain`` on plain models: the same scores."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import timm
import torch
import transformers as hf

import relprop
from tests.common.models import closeness, randomise

PAGE = Path(__file__).parents[2] / "examples/hundred_lines.py"
pytestmark = pytest.mark.filterwarnings("ignore::relprop.RelpropWarning")
SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64}


def page():
    spec = importlib.util.spec_from_file_location("hundred_lines", PAGE)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def vit(name="vit_tiny_patch16_224", **options):
    shape = {"img_size": 64, "depth": 3, "embed_dim": 32, "num_heads": 4, "num_classes": 5}
    return timm.create_model(name, **shape | options)


def of_transformers(name, **options):
    config = getattr(hf, f"{name}Config")(**SMALL, num_labels=5, **options)
    kind = (
        "SequenceClassification" if "Bert" in name or "Roberta" in name else "ImageClassification"
    )
    return getattr(hf, f"{name}For{kind}")(config)


PICTURE = {"image_size": 64, "patch_size": 16}
#: A model, and the tokens that its head reads.
MODELS = {
    "timm ViT": (vit, [0]),
    "timm ViT, mean head, LayerScale": (
        lambda: vit(global_pool="avg", class_token=False, init_values=0.5, fc_norm=True),
        range(16),
    ),
    "timm ViT, qk-norm": (lambda: vit(qk_norm=True), [0]),
    "DeiT distilled": (lambda: vit("deit_tiny_distilled_patch16_224"), [0, 1]),
    "Hugging Face ViT": (lambda: of_transformers("ViT", **PICTURE), [0]),
    "Hugging Face DeiT": (lambda: of_transformers("DeiT", **PICTURE), [0]),
    "BERT": (lambda: of_transformers("Bert", vocab_size=50), [0]),
    "RoBERTa": (lambda: of_transformers("Roberta", vocab_size=50), [0]),
}


@pytest.mark.parametrize("batch", [3, 1])
@pytest.mark.parametrize("name", MODELS)
def test_its_scores_are_those_of_explain(name, batch):
    make, reads = MODELS[name]
    torch.manual_seed(0)
    model = randomise(make().double().eval())
    texts = "BERT" in name or "RoBERTa" in name
    x = torch.randint(3, 50, (batch, 7)) if texts else torch.randn(batch, 3, 64, 64).double()
    mine = page().explain(model, (x,), 2, reads)
    theirs = relprop.explain(model, x, 2)
    assert closeness(mine, theirs.scores) <= 1e-12
    assert bool((theirs.scores.abs().amax(1) > 1e-5).all())


def test_padded_texts_are_those_alone():
    torch.manual_seed(0)
    model, ids = randomise(MODELS["BERT"][0]().double().eval()), torch.randint(3, 50, (2, 7))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    mine = page().explain(model, (ids, mask), 2)
    theirs = relprop.explain(model, {"input_ids": ids, "attention_mask": mask}, 2)
    assert closeness(mine, theirs.scores) <= 1e-12 and not mine[1, 5:].any()
    assert closeness(mine[1:, :5], page().explain(model, (ids[1:, :5],), 2)) <= 1e-12


def test_what_it_does_not_know_is_refused():
    class Summing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = vit()

        def forward(self, x):
            return self.inner(x).cumsum(1)

    with pytest.raises(NotImplementedError, match=r"no rule for aten\.cumsum"):
        page().explain(Summing(), (torch.randn(1, 3, 64, 64),), 2)


def test_it_is_a_hundred_lines_and_every_place_it_names_is_there():
    text = PAGE.read_text()
    tree = ast.parse(text.split('if __name__ == "__main__"')[0])
    code = {n for node in ast.walk(tree) if hasattr(node, "lineno") for n in [node.lineno]}
    strings = {
        n
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for n in range(node.lineno, node.end_lineno + 1)
    }
    assert len(code - strings) <= 120
    places = re.findall(r"(?:relprop|docs|tests)/[\w/.-]+\w", text)
    assert len(places) >= 9 and all((PAGE.parents[1] / place).exists() for place in places)
