"""
Where relevance went
====================

Relevance that starts at the class is handed backwards, and every operation's books balance: what
arrives, what is absorbed by biases, what is lost to small denominators.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=13)
digit = int(scenes.digits[0, 0])
explanation = relprop.explain(model, scenes.images, target=digit, method="lrp")
fig = relprop.plot.ledger(explanation).figure

# %%
# The same as text, with the operations at which most of it stays:

print(explanation.ledger)
