"""Train the small BERT that reads film reviews, and its tokenizer, on one core in some minutes; write both and the numbers.

    python examples/train_reviews.py --out relprop/demo

What it prints is of held-out reviews: of another seed, and of combinations of negation, frame and sentiment word that training never shows
(``relprop/demo/reviews.py``). Reviews grow during training: first one claim alone, then a few sentences, then whole reviews.
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

from relprop.demo.review_model import NUMBERS, PIECES, TOKENIZER, WEIGHTS, review_model, review_tokenizer
from relprop.demo.reviews import Review, make_review, make_reviews

HELD_OUT_SEED, BATCH, POOL = 10_000_019, 64, 64 * 32


def train_tokenizer(path: Path) -> None:
    """A WordPiece vocabulary of the reviews' most useful pieces."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=PIECES, special_tokens=special, show_progress=False)
    made.train_from_iterator([s.inputs for s in make_reviews(4000, seed=0, held_out=False)], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    made.save(str(path))


def shortened(review: Review, sentences: int) -> Review:
    """So many of its sentences, one with a claim about the film among them."""
    first = next(i for i, s in enumerate(review.sentences) if not isinstance(s, str) and Review((s,)).claims)
    keep = sorted([first, *[i for i in range(len(review.sentences)) if i != first][: sentences - 1]])
    return Review(tuple(review.sentences[i] for i in keep))


def batches(tokenizer, seed: int, start: int, sentences: int | None):
    """Batches of training reviews, each of texts of about one length, drawn POOL at a time."""
    index = start
    while True:
        reviews = [make_review(i, seed=seed, held_out=False) for i in range(index, index + POOL)]
        index += POOL
        samples = [(shortened(r, sentences) if sentences else r).sample("") for r in reviews]
        ids = tokenizer([s.inputs for s in samples])["input_ids"]
        order = sorted(range(POOL), key=lambda i: len(ids[i]))
        parts = [order[i:i + BATCH] for i in range(0, POOL, BATCH)]
        random.Random(index).shuffle(parts)
        for part in parts:
            yield tokenizer.pad({"input_ids": [ids[i] for i in part]}, return_tensors="pt"), torch.tensor([samples[i].label for i in part])


def accuracy(model, tokenizer, reviews: list[Review]) -> float:
    """Share of reviews whose larger logit is the label's."""
    samples = [r.sample("") for r in reviews]
    right = 0
    with torch.no_grad():
        for i in range(0, len(samples), 100):
            part = samples[i:i + 100]
            logits = model(**tokenizer([s.inputs for s in part], padding=True, return_tensors="pt")).logits
            right += int((logits.argmax(1) == torch.tensor([s.label for s in part])).sum())
    return right / len(samples)


def measured(model, tokenizer, n: int) -> dict[str, float]:
    """Accuracy on held-out reviews and on minimal pairs made of them, each in per cent."""
    reviews = [make_review(i, seed=HELD_OUT_SEED) for i in range(n)]
    kinds = {
        "held_out": reviews,
        "negation_turned": [r.turned() for r in reviews if len(r.claims) == 1],
        "other_film_swapped": [r.with_other_swapped() for r in reviews if r.others],
        "training_combinations": [make_review(i, seed=HELD_OUT_SEED, held_out=False) for i in range(n)],
    }
    return {name: round(100 * accuracy(model, tokenizer, kind), 2) for name, kind in kinds.items()}


def train(phases: list[tuple[int | None, int]], peak_rate: float, seed: int, out: Path, threads: int) -> None:
    """AdamW, cross-entropy, one-cycle rate; ``phases`` are (sentences per review, steps)."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    train_tokenizer(out / TOKENIZER.name)
    tokenizer = review_tokenizer(out / TOKENIZER.name)
    model = review_model(pretrained=False).train()
    steps = sum(n for _, n in phases)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps, pct_start=0.1)
    start, step, running = time.time(), 0, 0.0
    for phase, (sentences, n) in enumerate(phases):
        source = batches(tokenizer, seed, phase * 10_000_000, sentences)
        for _ in range(n):
            inputs, labels = next(source)
            loss = F.cross_entropy(model(**inputs).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step, running = step + 1, running + loss.item()
            if step % 100 == 0:
                print(f"step {step:5d}  {sentences or 'all'} sentences  loss {running / 100:.4f}  {time.time() - start:.0f} s", flush=True)
                running = 0.0
    model.eval()
    numbers = {"steps": steps, "batch": BATCH, "seed": seed, "seconds": round(time.time() - start), "reviews": 2000, "per_cent_right": measured(model, tokenizer, 2000)}
    print(json.dumps(numbers))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, out / WEIGHTS.name)
    (out / NUMBERS.name).write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs=3, default=(1000, 1000, 1500), help="with 1 sentence, with 3, with all")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("relprop/demo"))
    options = parser.parse_args()
    train(list(zip((1, 3, None), options.steps, strict=True)), options.rate, options.seed, options.out, options.threads)
