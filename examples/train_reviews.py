"""Train the small BERT that reads film reviews on one core in some minutes; write its weights, its
tokenizer and the numbers.

    python -m examples.train_reviews --out relprop/demo                      # with the shipped
    tokenizer python -m examples.train_reviews --out relprop/demo --new-vocabulary     # with one
    trained anew, as the shipped one was

What it prints is of held-out reviews: of another seed, and of combinations of negation, frame and
sentiment word that training never shows (``tools/reviews.py``). Besides the label the model
is taught which words are reasons, by a probe on its third layer that is thrown away afterwards: it
learns much faster so. Attention of the last layer then goes to the reasons themselves
(docs/trained-models.md).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from relprop.demo.review_model import (
    NUMBERS,
    PIECES,
    TOKENIZER,
    WEIGHTS,
    review_model,
    review_tokenizer,
)
from tools.reviews import Review, make_review, make_reviews

HELD_OUT_SEED, BATCH, POOL, REVIEWS = 10_000_019, 64, 64 * 32, 2000


def train_tokenizer(path: Path) -> None:
    """A WordPiece vocabulary of the reviews' most useful pieces. Where pieces are equally useful
    ``tokenizers`` chooses by chance: some differ from run to run."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=PIECES, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(
        [s.inputs for s in make_reviews(4000, seed=0, held_out=False)], trainer
    )
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(path))


def batches(tokenizer, seed: int):
    """Batches of training reviews, each of texts of about one length, drawn POOL at a time: inputs,
    labels, and for every token 0 if it is no reason, else 1 + label; -100 for special tokens."""
    index = 0
    while True:
        samples = [
            make_review(i, seed=seed, held_out=False).sample("") for i in range(index, index + POOL)
        ]
        index += POOL
        encoded = tokenizer([s.inputs for s in samples])
        reasons = [
            [-100 if w is None else (1 + s.label) * s.rationale[w] for w in encoding.word_ids]
            for s, encoding in zip(samples, encoded.encodings, strict=True)
        ]
        order = sorted(range(POOL), key=lambda i: len(reasons[i]))
        parts = [order[i : i + BATCH] for i in range(0, POOL, BATCH)]
        random.Random(index).shuffle(parts)
        for part in parts:
            inputs = tokenizer.pad(
                {"input_ids": [encoded["input_ids"][i] for i in part]}, return_tensors="pt"
            )
            length = inputs["input_ids"].shape[1]
            marks = torch.tensor([reasons[i] + [-100] * (length - len(reasons[i])) for i in part])
            yield inputs, torch.tensor([samples[i].label for i in part]), marks


def accuracy(model, tokenizer, reviews: list[Review]) -> float:
    """Share of reviews whose larger logit is the label's."""
    samples = [r.sample("") for r in reviews]
    right = 0
    with torch.no_grad():
        for i in range(0, len(samples), 100):
            part = samples[i : i + 100]
            logits = model(
                **tokenizer([s.inputs for s in part], padding=True, return_tensors="pt")
            ).logits
            right += int((logits.argmax(1) == torch.tensor([s.label for s in part])).sum())
    return right / len(samples)


def measured(model, tokenizer, n: int) -> dict[str, float]:
    """Accuracy on held-out reviews and on minimal pairs made of them, each in per cent."""
    reviews = [make_review(i, seed=HELD_OUT_SEED) for i in range(n)]
    kinds = {
        "held_out": reviews,
        "negation_turned": [r.turned() for r in reviews if len(r.claims) == 1],
        "other_film_swapped": [r.with_other_swapped() for r in reviews if r.others],
        "training_combinations": [
            make_review(i, seed=HELD_OUT_SEED, held_out=False) for i in range(n)
        ],
    }
    return {name: round(100 * accuracy(model, tokenizer, kind), 2) for name, kind in kinds.items()}


def train(
    steps: int, peak_rate: float, seed: int, out: Path, threads: int, new_vocabulary: bool = False
) -> None:
    """AdamW, one-cycle rate; cross-entropy of the label and of a probe behind the third layer that
    says of every token whether it is a reason, and for what."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if new_vocabulary:
        train_tokenizer(out / TOKENIZER.name)
    else:
        (out / TOKENIZER.name).write_bytes(TOKENIZER.read_bytes())
    tokenizer = review_tokenizer(out / TOKENIZER.name)
    model = review_model(pretrained=False).train()
    probe, weights = torch.nn.Linear(model.config.hidden_size, 3), torch.tensor([0.2, 1.0, 1.0])
    optimizer = torch.optim.AdamW(
        [*model.parameters(), *probe.parameters()], lr=peak_rate, weight_decay=0.05
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak_rate, total_steps=steps, pct_start=0.1
    )
    start, running = time.time(), torch.zeros(2)
    for step, (inputs, labels, marks) in zip(
        range(1, steps + 1), batches(tokenizer, seed), strict=False
    ):
        output = model(**inputs, output_hidden_states=True)
        losses = torch.stack(
            [
                F.cross_entropy(output.logits, labels),
                F.cross_entropy(
                    probe(output.hidden_states[3]).flatten(0, 1),
                    marks.flatten(),
                    weight=weights,
                    ignore_index=-100,
                ),
            ]
        )
        optimizer.zero_grad()
        losses.sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += losses.detach()
        if step % 100 == 0:
            print(
                (
                    f"step {step:5d}  loss {running[0] / 100:.4f}  of the probe "
                    f"{running[1] / 100:.4f}  {time.time() - start:.0f} s"
                ),
                flush=True,
            )
            running.zero_()
    model.eval()
    numbers = {
        "steps": steps,
        "batch": BATCH,
        "seed": seed,
        "seconds": round(time.time() - start),
        "reviews": REVIEWS,
        "per_cent_right": measured(model, tokenizer, REVIEWS),
    }
    print(json.dumps(numbers))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out / WEIGHTS.name)
    (out / NUMBERS.name).write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("relprop/demo"))
    parser.add_argument(
        "--new-vocabulary",
        action="store_true",
        help="train the tokenizer anew, too, instead of taking the shipped one",
    )
    options = parser.parse_args()
    train(
        options.steps,
        options.rate,
        options.seed,
        options.out,
        options.threads,
        options.new_vocabulary,
    )
