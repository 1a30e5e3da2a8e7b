"""
Several methods side by side
============================

``relprop.compare`` runs methods from one forward pass and says how alike they rank the tokens.
Methods that are not defined for a model are listed with the reason, not left out.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=4)
first, second = scenes.digits[0].tolist()
methods = ["transformer_attribution", "gae", "rollout", "attcat", "raw_attention"]

# %%
# For one digit, then for the other. ``rollout`` and ``raw_attention`` look the same both times:
# they do not depend on the class.

comparison = relprop.compare(model, scenes.images, methods, target=first)
fig = comparison.plot(scenes.images[0])

# %%

other = relprop.compare(model, scenes.images, methods, target=second)
fig_other = other.plot(scenes.images[0])

# %%
# Spearman's rank correlation of the methods' scores:

names, correlations = comparison.rank_correlations()
print(comparison)

# %%
# Alike is not right. Which map is right is measured on data whose answer is known:
# :doc:`/evaluation`.
