"""The numbers computed with the authors' code (``tests/goldens/README.md``), and the small models
they were computed on."""

import functools
import json
import pathlib

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).parent.parent / "goldens"


class Goldens:
    """One archive: ``goldens["x0.attn"]`` is a float64 (or integer) tensor."""

    def __init__(self, name):
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
            self.arrays = {key: archive[key] for key in archive.files}
        self.meta = json.loads(str(self.arrays.pop("meta", "{}")))

    def __getitem__(self, key):
        return torch.from_numpy(self.arrays[key])

    def weights(self):
        return {key.removeprefix("w."): self[key] for key in self.arrays if key.startswith("w.")}


@functools.cache
def vit():
    """Goldens and model of the small vision transformer, float64."""
    from timm.models import VisionTransformer

    goldens = Goldens("vit_small_f64")
    options = {
        name: goldens.meta[name]
        for name in ("patch_size", "embed_dim", "depth", "num_heads", "num_classes")
    }
    model = VisionTransformer(img_size=goldens.meta["img_size"], **options)
    model.load_state_dict(goldens.weights())
    return goldens, model.double().eval()


@functools.cache
def bert():
    """Goldens and model of the small BERT, float64."""
    from transformers import BertConfig, BertForSequenceClassification

    goldens = Goldens("bert_small_f64")
    fields = {
        k: v
        for k, v in goldens.meta.items()
        if k not in ("targets", "dtype", "transformers", "seed", "num_labels")
    }
    model = BertForSequenceClassification(
        BertConfig(**fields, num_labels=goldens.meta["num_labels"])
    )
    model.load_state_dict(goldens.weights())
    return goldens, model.double().eval()


def off(found, golden):
    """The largest difference, as a share of the golden's largest magnitude."""
    assert found.shape == golden.shape, (
        f"{list(found.shape)} is compared with a golden of {list(golden.shape)}"
    )
    return float((found.double() - golden.double()).abs().max() / golden.double().abs().max())
