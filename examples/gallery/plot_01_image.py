"""
An image: which pixels, for which class
=======================================

A scene with two handwritten digits, and a Vision Transformer that names both. Its map for one digit
must lie on that digit, and not on the other. The model (timm's ``VisionTransformer``, 0.45 M
parameters) is shipped with relprop; scenes are drawn from digits it has never seen.
"""

import torch

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.views.plot import figure, show_heatmap, show_image

model, scenes = digit_scene_model(), make_scenes(3, seed=1)
first, second = scenes.digits[0].tolist()
print("digits:", scenes.digits.tolist())

# %%
# One call explains a batch. ``target`` is a class, one per sample, or several from one forward
# pass, as here: the first digit of every scene, then the second.

firsts, seconds = scenes.digits.T.tolist()
maps = relprop.explain_many(model, scenes.images, [firsts, seconds])

fig, axes = figure(3)
show_image(axes[0], scenes.images[0], "input")
for panel, explanation, digit in zip(axes[1:], maps, (first, second), strict=True):
    show_heatmap(panel, explanation.heatmap()[0], f"why {digit}?", scenes.images[0])

# %%
# What share of each map lies on the digit that was asked about, and on the other one:

for which, explanation in enumerate(maps):
    heat = explanation.heatmap()
    shares = [(heat * scenes.mask(w)).sum((1, 2)) / heat.sum((1, 2)) for w in (which, 1 - which)]
    print(f"digit {which + 1}: on it {shares[0].mean():.0%}, on the other {shares[1].mean():.0%}")

# %%
# A map is numbers per token before it is a picture, and its books balance: what started at the
# class is what arrived, was absorbed, or was lost for a
# reason that has a name.

print(maps[0].scores.shape, "one score per token: the class token and 8×8 patches")
print(maps[0].ledger)
assert maps[0].ledger.balanced()
started = maps[0].ledger.totals()["started"]
assert torch.allclose(started, torch.ones_like(started))
