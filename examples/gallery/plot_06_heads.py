"""
Which heads the answer comes through
====================================

How much of a map goes through each attention head of each layer, and what the model says when the
strongest heads are taken away, beside as many drawn by chance.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=12)
view = relprop.head_view(model, scenes.images, target=int(scenes.digits[0, 0]))
fig = view.plot()

# %%
# ``view.to_html("heads.html")`` is a page that enlarges each head's map. The same in words:

print(view.said)
print(view.ablation.sentence)
print([[round(share, 3) for share in layer.tolist()] for layer in view.shares])
