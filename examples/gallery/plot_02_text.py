"""
A text: which words, for which answer
=====================================

A BERT that reads film reviews, and its tokenizer (all shipped; a grammar made the reviews,
so that it is known which words decide). The grammar's reasons are printed beside the scores.
"""

import textwrap

import relprop
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.demo.reviews import Reviews

model, tokenizer = review_model(), review_tokenizer()
samples = Reviews(4)
shortest = min(range(4), key=lambda i: len(samples[i].inputs))
sample = samples[shortest]
print(*textwrap.wrap(sample.inputs, 80), sep="\n")
print("→", model.config.id2label[sample.label])

# %%
# The whole batch at once, padded; padding and special tokens are not content, and words are pieces
# put together again.

explanation = relprop.explain(model, [s.inputs for s in samples], processor=tokenizer)
print("predicted:", explanation.target)


def strongest(words):
    """The six words with the largest scores, whichever way."""
    ordered = sorted(words, key=lambda pair: -abs(pair[1]))
    return "  ".join(f"{word} {score:.2g}" for word, score in ordered[:6])


marked = zip(sample.words, sample.rationale, strict=True)
reasons = [sample.inputs[w.start : w.end] for w, reason in marked if reason]
print("reasons of the grammar:", *reasons)
print("highest scores:", strongest(explanation.words(shortest)))

# %%
# The words of the review, the stronger the more they count:

alone = relprop.explain(model, [sample.inputs], processor=tokenizer)
fig = alone.plot()

# %%
# These scores are never negative: they say where the answer was read, not which way each word
# pulled. A signed method at the input says which way. Here AttnLRP,
# whose scores add up to the logit less what biases and constants absorb
# (:doc:`/methods-relevance`); orange is for the answer, blue against it.

signed = relprop.explain(
    model,
    [sample.inputs],
    sample.label,
    processor=tokenizer,
    method="attnlrp",
)
fig_signed = signed.plot()
print(strongest(signed.words(0)))
print(signed.ledger)
