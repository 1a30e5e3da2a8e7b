"""
Which map is right: take pixels away
====================================

The pixels that a map calls important are removed first; a good map makes the model lose its answer
soon. A random map is the floor.
"""

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.evaluation import ImagePerturbation

model, scenes = digit_scene_model(), make_scenes(40, seed=7)
classes, curves = scenes.digits[:, 0], {}
for method in ("transformer_attribution", "rollout", "random"):
    explanation = relprop.explain(model, scenes.images, classes.tolist(), method=method)
    curves[method] = ImagePerturbation()(
        model,
        scenes.images,
        explanation.heatmap(),
        classes,
        normalize=lambda images: images,
        others=scenes.digits[:, 1:].tolist(),
    )
fig = relprop.plot.curves(curves).figure
print(
    {method: round(curve.auc, 1) for method, curve in curves.items()}
)  # the area: smaller is better
