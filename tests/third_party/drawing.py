"""Weights and inputs drawn by numpy's Generator, so that they are the same numbers on every
processor; torch's own draws are not."""

import math
import tempfile
from pathlib import Path

import numpy as np
import torch


def redraw(model, seed=0):
    """Every floating parameter anew, in the model's order: about 1 where they were all 1 (norms),
    scaled by the number of inputs where they multiply a vector, small noise else."""
    generator = np.random.default_rng(seed)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.from_numpy(np.asarray(generator.standard_normal(parameter.shape)))
            with torch.no_grad():
                parameter.copy_(_scaled(drawn, parameter))
            parameter.requires_grad_()
    return model


def _scaled(drawn, parameter):
    if bool((parameter == 1).all()):
        return 1 + 0.1 * drawn
    if parameter.dim() < 2:
        return 0.1 * drawn
    return drawn / math.sqrt(parameter[0].numel())


def normal(*shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def ids(vocabulary, *shape, seed=1):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, vocabulary, shape))


class Seeded(torch.nn.Module):
    """A model that draws by chance in eval mode, from one seed in each of its forward passes."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        torch.manual_seed(0)
        return self.model(x)


class Sentences(torch.nn.Module):
    """A sentence encoder of sentence-transformers, whose own forward takes one dict; with ids alone
    unless ``whole``. It is read from a folder, since its modules are made from folders only."""

    def __init__(self, config, whole=False):
        super().__init__()
        from sentence_transformers import SentenceTransformer
        from transformers import BertModel, BertTokenizer

        with tempfile.TemporaryDirectory() as folder:
            words = [f"w{i}" for i in range(config.vocab_size - 5)]
            vocabulary = Path(folder, "vocab.txt")
            vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
            BertTokenizer(str(vocabulary)).save_pretrained(folder)
            BertModel(config).save_pretrained(folder)
            self.encoder, self.whole = SentenceTransformer(folder, device="cpu"), whole

    def forward(self, features):
        if self.whole:
            return self.encoder(features)
        made = self.encoder({"input_ids": features, "attention_mask": torch.ones_like(features)})
        return made["sentence_embedding"]
