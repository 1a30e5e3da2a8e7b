"""How large reports are, and how finely their maps are rounded: the table of docs/report.md.
`python -m benchmarks.report_size`"""

import json
import re
import tempfile
from pathlib import Path

import timm
import torch

import relprop
from examples.minilm import minilm, minilm_tokenizer
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

KEEP = ("blocks", "matrix")


def size(name, explanation, **options):
    with tempfile.TemporaryDirectory() as folder:
        text = explanation.to_html(Path(folder) / "report.html", **options).read_text()
    block = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])["explanations"][0][
        "samples"
    ][0]["blocks"][0]
    print(
        f"{name:<24}{len(text.encode()) / 1e6:6.2f} MB   1/",
        *(block[kind]["level"] for kind in ("attention", "gradient", "relevance")),
    )


scenes = make_scenes(1, seed=8)
size(
    "digit scenes",
    relprop.explain(digit_scene_model(), scenes.images, 2, keep=KEEP),
    pictures=scenes.images,
)

readme = (Path(__file__).parents[1] / "README.md").read_text()
ids = dict(minilm_tokenizer()([readme], truncation=True, max_length=197, return_tensors="pt"))
size(
    "MiniLM", relprop.explain(minilm(), ids, lambda output: output.pooler_output.norm(), keep=KEEP)
)

torch.manual_seed(0)
model = timm.create_model("vit_base_patch16_224", pretrained=False).eval()
images = torch.rand(1, 3, 224, 224)
vit = relprop.explain(model, images, keep=KEEP)
for megabytes in (5, 9):
    size(f"ViT-Base, megabytes={megabytes}", vit, pictures=images, megabytes=megabytes)
