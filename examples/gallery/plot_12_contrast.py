"""
Why this and not that
=====================

A target may be any number that the model's output gives: one class less another asks what tells
them apart.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=21)
first, second = scenes.digits[0].tolist()
targets = [first, lambda logits: logits[0, first] - logits[0, second]]
alone, against = relprop.explain_many(model, scenes.images, targets, method="attnlrp")
fig = relprop.plot.heatmap(alone, scenes.images[0], title=f"why {first}?").figure

# %%
# Now the other digit speaks against it, in blue:

title = f"why {first} and not {second}?"
fig_contrast = relprop.plot.heatmap(against, scenes.images[0], title=title).figure
print(against.summary())
