"""
Which head looked where
=======================

What each head of a block attended to, and what of it spoke for the class: attention alone says
the first, attention times its gradient and relevance the second.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=12)
digit = int(scenes.digits[0, 0])
explanation = relprop.explain(model, scenes.images, target=digit, keep="blocks")
fig = relprop.plot.heads(explanation, block=3, kind="attention")[0].figure

# %%
# The relevance of the same heads, for this one class:

fig_relevance = relprop.plot.heads(explanation, block=3, kind="relevance")[0].figure
print(explanation.summary())
