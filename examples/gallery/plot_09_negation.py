"""
A word that turns another round
===============================

A text with both praise and blame, explained for both answers: what speaks for one speaks against
the other.
"""

import relprop
from relprop.demo.review_model import review_model, review_tokenizer

model, tokenizer = review_model(), review_tokenizer()
text = "a wonderful film but the plot is not good and the acting is dull"
answers = ("negative", "positive")
both = relprop.explain_many(model, text, [0, 1], method="attnlrp", processor=tokenizer)
fig = relprop.plot.text(both[0], title="negative").figure

# %%

fig_positive = relprop.plot.text(both[1], title="positive").figure
for name, explanation in zip(answers, both, strict=True):
    print(name, explanation.top(k=3))
