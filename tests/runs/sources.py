"""Small data sets and models for the tests of runs."""

import torch

from relprop.data import Sample
from relprop.demo.scenes import make_scenes


class Pictures:
    """Digit scenes as a data set; every third of another size if ``mixed``."""

    kind, name = "image", "pictures"

    def __init__(self, samples=12, *, labels=None, mixed=False, dtype=torch.float32, unlabelled=()):
        scenes = make_scenes(samples, seed=3)
        self.scenes, self.labels, self.mixed, self.dtype, self.unlabelled = (
            scenes,
            labels,
            mixed,
            dtype,
            set(unlabelled),
        )

    def identity(self):
        return {"pictures": len(self), "mixed": self.mixed}

    def __len__(self):
        return len(self.scenes.images)

    def __getitem__(self, index):
        image = self.scenes.images[index].to(self.dtype)
        if self.mixed and index % 3 == 2:
            image = image[:, :, :24]
        return Sample(
            f"p{index:03d}",
            image,
            None if index in self.unlabelled else int(self.scenes.digits[index, 0]),
        )


WORDS = (
    "the film was a fine and quiet one but its end is dull bad good very long short great".split()
)


class Texts:
    """Sentences of 2 to 11 words (every fourth a much longer one), or pairs of them."""

    kind, name, labels = "text", "texts", None

    def __init__(self, samples=12, *, pairs=False):
        self.samples, self.pairs = samples, pairs

    def identity(self):
        return {"texts": self.samples, "pairs": self.pairs}

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        drawn = torch.randint(
            len(WORDS),
            (40 if index % 4 == 3 else index % 10 + 2,),
            generator=torch.Generator().manual_seed(index),
        ).tolist()
        text = " ".join(WORDS[i] for i in drawn)
        return Sample(
            f"t{index}",
            (text, " ".join(WORDS[i] for i in drawn[:3])) if self.pairs else text,
            index % 2,
        )


def tokenizer(*, pad=True):
    """One token per word, [CLS] and [SEP] around; at most 36 tokens."""
    import tokenizers
    import transformers

    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {w: i for i, w in enumerate(special + WORDS)}, unk_token="[UNK]"
        )
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"} | (
        {"pad_token": "[PAD]"} if pad else {}
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=36, **names
    )


def bert(positions=64):
    """A small BERT with random weights for two classes."""
    import transformers

    torch.manual_seed(1)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 4 + len(WORDS),
    }
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            **sizes, max_position_embeddings=positions, num_labels=2, pad_token_id=3
        )
    ).eval()


class Patches(torch.nn.Module):
    """A transformer of a few lines on digit scenes: 16 patches, one layer, a class token, 10
    classes."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Conv2d(1, 8, 8, 8)
        self.cls = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.layer = torch.nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, norm_first=True, activation="gelu"
        )
        self.head = torch.nn.Linear(8, 10)

    def forward(self, images):
        patches = self.embed(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(patches), -1, -1), patches], 1)
        return self.head(self.layer(tokens)[:, 0])


def patches(dtype=torch.float32):
    """``Patches`` with the same random weights every time."""
    torch.manual_seed(0)
    return Patches().to(dtype).eval()
