"""
One number per pixel
====================

Methods at the input score pixels, with a sign: orange speaks for the digit, blue against it. They
need no attention, so they explain any model.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=14)
digit = int(scenes.digits[0, 0])
methods = ["attnlrp", "gradient_x_input", "input_gradient", "occlusion"]
comparison = relprop.compare(model, scenes.images, methods, target=digit)
fig = comparison.plot(scenes.images[0])

# %%
# Occlusion asks the model itself, window by window, and so is slow; the others are one backward
# pass.

print(comparison)
