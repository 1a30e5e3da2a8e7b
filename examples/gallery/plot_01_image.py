"""
An image: which pixels, for which class
=======================================

A scene with two handwritten digits, and a Vision Transformer that names both. Its map for one digit
must lie on that digit, and not on the other. The model (timm's ``VisionTransformer``, 0.45 M
parameters) is shipped with relprop; scenes are drawn from digits it has never seen.
"""

from types import SimpleNamespace

import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=8)
model.config = SimpleNamespace(problem_type="multi_label_classification")  # as it was trained
print("digits:", scenes.digits.tolist())

# %%
# One page about one picture and one class: where the map lies, and what the model says when that
# part is covered.

card = relprop.card(model, scenes.images, target=2)
print(card.said)
card

# %%
# The map of the other digit, and what share of each map lies on the digit that was asked about. One
# call explains several targets of a whole batch.

maps = relprop.explain_many(model, scenes.images, scenes.digits[0].tolist())
fig = relprop.plot.compare(maps, scenes.images[0])[0].figure
for which, explanation in enumerate(maps):
    heat = explanation.heatmap()
    shares = [(heat * scenes.mask(w)).sum((1, 2)) / heat.sum((1, 2)) for w in (which, 1 - which)]
    print(f"digit {which + 1}: on it {shares[0].mean():.0%}, on the other {shares[1].mean():.0%}")

# %%
# A map is numbers per token before it is a picture, and its books balance: what started at the
# class is what arrived, was absorbed, or was lost for a reason that has a name.

print(maps[0].scores.shape, "one score per token: the class token and 8×8 patches")
assert maps[0].ledger.balanced()
started = maps[0].ledger.totals()["started"]
assert torch.allclose(started, torch.ones_like(started))
