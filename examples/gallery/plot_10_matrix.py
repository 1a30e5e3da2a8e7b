"""
Which word looked at which
==========================

The matrix C of Chefer et al., Eq. 14: each row says what a token took from the others over all
layers. The scores are the row that the model's head reads.
"""

import relprop
from relprop.demo.review_model import review_model, review_tokenizer

model, tokenizer = review_model(), review_tokenizer()
text = "the cast is brilliant and the story is moving"
explanation = relprop.explain(model, text, 1, processor=tokenizer, keep="matrix")
fig = relprop.plot.matrix(explanation).figure

# %%
# The row of the first token, which this model's head reads, is the explanation:

print(explanation.summary())
