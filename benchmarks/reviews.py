"""Do explanations of the shipped review model fall on the reasons?

    python -m benchmarks.reviews --reviews 200

Of each method the share of the positive part of the words' scores (a word scores as the sum of its
pieces) that lies on the reasons, which decide the label, and on the words that say the same of
another film, which do not; means over held-out reviews with bootstrap 95 % intervals. Behind them
what these words' share of all words is.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import relprop
from relprop.demo.review_model import review_model, review_tokenizer
from tools.reviews import make_review

METHODS = (
    "transformer_attribution gae rollout raw_attention attention_times_grad attcat "
    "attnlrp lrp gradient_x_input integrated_gradients random"
).split()
SEED = 30_000_001


def shares(model, tokenizer, reviews, method):
    """(reviews, 2): the shares on the reasons and on the other film's words (nan for a review
    without)."""
    samples = [r.sample("") for r in reviews]
    e = relprop.explain(
        model,
        [s.inputs for s in samples],
        [s.label for s in samples],
        method=method,
        processor=tokenizer,
        batch_size=50,
    )
    rows = []
    for i, review in enumerate(reviews):
        scores = torch.tensor([score for _, score in e.words(i)]).clamp(min=0)
        marks = [torch.tensor(review.marked(other=other)[1]) for other in (False, True)]
        rows.append(
            [
                float(scores[mark].sum() / scores.sum())
                if mark.any() and scores.sum() > 0
                else torch.nan
                for mark in marks
            ]
        )
    return torch.tensor(rows)


def interval(values, draws=2000):
    """A mean and its bootstrap 95 % interval, in per cent; nan left out."""
    values = values[~values.isnan()]
    picks = torch.randint(
        len(values), (draws, len(values)), generator=torch.Generator().manual_seed(0)
    )
    low, high = values[picks].mean(1).quantile(torch.tensor([0.025, 0.975])).tolist()
    return f"{100 * values.mean():.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reviews", type=int, default=200)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, tokenizer = review_model(), review_tokenizer()
    reviews = [make_review(i, seed=SEED) for i in range(options.reviews)]
    chance = torch.tensor(
        [
            [
                sum(r.marked(other=other)[1]) / len(r.marked()[1]) or torch.nan
                for other in (False, True)
            ]
            for r in reviews
        ]
    )
    print(
        f"share of the words: reasons {interval(chance[:, 0])}, other film "
        f"{interval(chance[:, 1])} of the reviews that speak of one"
    )
    print("| method | on the reasons | on the other film |\n|---|---|---|")
    for method in options.methods:
        found = shares(model, tokenizer, reviews, method)
        print(f"| `{method}` | {interval(found[:, 0])} | {interval(found[:, 1])} |", flush=True)


if __name__ == "__main__":
    main()
