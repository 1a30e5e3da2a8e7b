"""
A picture and a question: why each word of the answer
=====================================================

A vision–language model reads a picture and a question, and writes an answer. Each of its tokens is
explained over the picture and the words before it, on one scale. The model is a small LLaVA that
comes with the library and says in which quarter of a picture the disc of a colour is.
"""

import relprop
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import make_quadrants

model, processor = quadrant_model(), quadrant_processor()
drawn = make_quadrants(1, seed=4)
inputs = {"images": drawn.pictures(), "text": "<image> " + drawn.questions[0]}
card = relprop.card(model, inputs, processor=processor, max_new_tokens=2)
print(drawn.questions[0], card.answers[0].text)
card

# %%
# Which quarter the answer names is known; so much of the heat of its first word lies there.

assert card.answers[0].text == drawn.answers[0]
generation = relprop.explain_generation(model, inputs, processor=processor, max_new_tokens=2)
heat = generation.steps[0]["pixel_values"].heatmap()[0]
share = float((heat * drawn.quarters[0]).sum() / heat.sum())
print(f"{share:.0%} of the heat of {generation.labels[0][0]!r} lies in the quarter")
fig = generation.steps[0]["pixel_values"].plot()
