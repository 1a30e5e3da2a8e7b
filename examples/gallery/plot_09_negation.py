"""
Why this class and not that one
===============================

A text with both praise and blame, the class that the model gives it, and the runner-up. By a method
with signs, what speaks for the one speaks against the other: "not" turns "good" round.
"""

import relprop
from relprop.demo.review_model import review_model, review_tokenizer

model, tokenizer = review_model(), review_tokenizer()
text = "a wonderful film but the plot is not good and the acting is dull"
card = relprop.card(model, text, processor=tokenizer, method="attnlrp")
print(card.said)

# %%
# Choose the class, then "Why not":

card

# %%
# The same as a plain explanation, for both classes from one forward pass:

both = relprop.explain_many(model, text, [0, 1], method="attnlrp", processor=tokenizer)
fig = relprop.plot.compare(both)[0].figure
for name, explanation in zip(("negative", "positive"), both, strict=True):
    print(name, explanation.top(k=3))
