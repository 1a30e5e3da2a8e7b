"""Every method on one digit scene, for both of its digits, and on one sentence: the pictures of
docs/methods.md.

    python examples/methods_gallery.py --out docs/pictures        # about 2 minutes on two cores

The scene's model is the shipped one. The sentence's is a BERT of two layers, trained here for half
a minute on sentences whose grammar says what is right: an adjective decides, and a "not" before it
turns it round; everything else says nothing.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from random import Random

import tokenizers
import torch
import transformers
from torch.nn import functional as F

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.views.plot import figure, show_image

GOOD, BAD = (
    "wonderful moving funny clever brilliant".split(),
    "boring awful stupid weak dreadful".split(),
)
NOUNS, ADVERBS, DAYS = (
    "film plot cast story music".split(),
    "really quite rather".split(),
    "monday tuesday friday sunday".split(),
)
PLAIN = "the was not and we saw it on a".split()
COLUMNS = 8


def sentence(random: Random) -> tuple[str, int]:
    """A sentence, and whether it praises."""
    good, negated = random.random() < 0.5, random.random() < 0.4
    words = [
        "the",
        random.choice(NOUNS),
        "was",
        *(["not"] if negated else []),
        *([random.choice(ADVERBS)] if random.random() < 0.5 else []),
    ]
    words.append(random.choice(GOOD if good else BAD))
    tail = (
        ["and", "we", "saw", "it", "on", "a", random.choice(DAYS)] if random.random() < 0.7 else []
    )
    return " ".join([*words, *tail]), int(good != negated)


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token per word of the grammar."""
    known = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *PLAIN, *NOUNS, *ADVERBS, *DAYS, *GOOD, *BAD]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def trained(
    tokenizer: transformers.PreTrainedTokenizerFast, steps: int = 400
) -> transformers.BertForSequenceClassification:
    """The sentence's model."""
    torch.manual_seed(0)
    random = Random(0)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=32,
            id2label={0: "negative", 1: "positive"},
            label2id={"negative": 0, "positive": 1},
        )
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        texts, labels = zip(*(sentence(random) for _ in range(64)), strict=True)
        loss = F.cross_entropy(
            model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits,
            torch.tensor(labels),
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    texts, labels = zip(*(sentence(Random(10_000 + i)) for i in range(500)), strict=True)
    with torch.no_grad():
        right = model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits.argmax(
            1
        ) == torch.tensor(labels)
    print(f"sentences: {right.float().mean():.1%} of 500 right")
    return model


def draw_scene(out: Path) -> None:
    """A row of heat maps for each digit."""
    model, scenes = digit_scene_model(), make_scenes(1, seed=20_000_003)
    digits = scenes.digits[0].tolist()
    rows = [
        relprop.compare(model, scenes.images, relprop.methods.METHODS, target=d) for d in digits
    ]
    names = list(rows[0].explanations)
    lines = -(-len(names) // COLUMNS)
    whole, first = figure(COLUMNS, 1.9, 2.1 * lines * len(digits))
    for axes in first:
        axes.remove()
    panels = whole.subplots(lines * len(digits), COLUMNS, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for i, name in enumerate(names):
        for k, (digit, comparison) in enumerate(zip(digits, rows, strict=True)):
            axes = panels[2 * (i // COLUMNS) + k][i % COLUMNS]
            one, title = comparison[name], f"{name}\nwhy {digit}?"
            relprop.plot.heatmap(one, scenes.images[0], ax=axes, title=title, colorbar=False)
            axes.title.set_fontsize(8)
    if len(names) % COLUMNS:
        show_image(panels[-1][-1], scenes.images[0], "the scene")
    whole.savefig(out / "methods-scene.png", dpi=80)
    print(
        "\n".join(
            f"not defined on the scene: {name}: {why}" for name, why in rows[0].refused.items()
        )
    )


def draw_sentence(out: Path) -> None:
    """A row of shaded words for each method."""
    tokenizer = word_tokenizer()
    model = trained(tokenizer)
    text = ["the film was not really boring and we saw it on a friday"]
    comparison = relprop.compare(
        model, text, relprop.methods.METHODS, target="positive", processor=tokenizer
    )
    print(comparison)
    comparison.plot().savefig(out / "methods-sentence.png", dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    draw_scene(out)
    draw_sentence(out)


if __name__ == "__main__":
    main()
