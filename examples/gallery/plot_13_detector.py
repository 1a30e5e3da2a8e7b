"""
A detector: which pixels, for which box
=======================================

A detector says for every place what is there and where its box ends; each of these numbers can be
explained. This one is the shipped Vision Transformer, which has never seen a box, with one linear
layer on its patches, fitted here by least squares.
"""

import torch
from matplotlib.patches import Rectangle

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import DIGIT, make_scenes

NOTHING, SIDE = 10, 8
at = torch.arange(SIDE) * 4.0 + 2
middles = torch.cartesian_prod(at, at).flip(1).repeat(1, 2)  # of each patch: x, y, x, y


class Detector(torch.nn.Module):
    """Of every patch: which digit is there (or nothing), and its box (x, y, x, y) in pixels."""

    def __init__(self):
        super().__init__()
        self.body, self.head = digit_scene_model(), torch.nn.Linear(96, 15)

    def patches(self, images):
        return self.body.forward_features(images)[:, 1:]

    def forward(self, images):
        logits, box = self.head(self.patches(images)).split([11, 4], -1)
        return {"logits": logits, "boxes": middles + box}


def answers(scenes):
    """What is right for every patch: the digit that its middle lies on, and the digit's box."""
    digits = torch.full((len(scenes.images), SIDE**2), NOTHING)
    boxes = torch.zeros(*digits.shape, 4)
    for which in range(2):
        corner = scenes.corners[:, which].flip(1)
        box = torch.cat([corner, corner + DIGIT], 1)[:, None].float()
        inside = (middles[:, :2] > box[..., :2]).all(-1) & (middles[:, 2:] < box[..., 2:]).all(-1)
        digits = torch.where(inside, scenes.digits[:, which, None], digits)
        boxes = torch.where(inside[..., None], box, boxes)
    return digits, boxes


detector, scenes = Detector().eval(), make_scenes(1000, seed=1, held_out=False)
digits, boxes = (found.flatten(0, 1) for found in answers(scenes))
with torch.no_grad():
    seen = detector.patches(scenes.images).flatten(0, 1)
    seen = torch.cat([seen, torch.ones(len(seen), 1)], 1)
    for rows, chosen, wanted in (
        (slice(0, 11), slice(None), torch.nn.functional.one_hot(digits, 11).float()),
        (slice(11, 15), digits != NOTHING, boxes - middles.repeat(len(scenes.images), 1)),
    ):
        a, b = seen[chosen], wanted[chosen]
        fitted = torch.linalg.solve(a.T @ a + 1e-3 * len(seen) * torch.eye(97), a.T @ b)
        detector.head.weight[rows], detector.head.bias[rows] = fitted[:-1].T, fitted[-1]

# %%
# On scenes of digits it has never seen: the surest patch's digit and box.

held_out = make_scenes(200, seed=2)
digits, boxes = answers(held_out)
with torch.no_grad():
    found = detector(held_out.images)
sure = found["logits"][..., :NOTHING].amax(-1)
scene, patch = torch.arange(200), sure.argmax(1)
named = found["logits"][scene, patch, :NOTHING].argmax(1)
off = (found["boxes"] - boxes)[scene, patch].abs().mean()
print(f"right digit: {(named == digits[scene, patch]).float().mean():.0%}", end=", ")
print(f"edges of the box off by {off:.1f} pixels")

# %%
# Why this box's digit, and why its left edge there? ``targets.output`` names any number that the
# model returns.

which, place, digit = 3, int(patch[3]), int(named[3])
image = held_out.images[which]
logit, edge = relprop.targets.output("logits"), relprop.targets.output("boxes")
why = {f"why a {digit}?": logit[place, digit], "why this left edge?": edge[place, 0]}
fig, axes = relprop.plot.figure(2)
for panel, (title, target) in zip(axes, why.items(), strict=True):
    explanation = relprop.explain(detector, image[None], target)
    relprop.plot.heatmap(explanation, image, ax=panel, title=title, colorbar=False)
    x0, y0, x1, y1 = found["boxes"][which, place].tolist()
    panel.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor="#2bb3a3", lw=2))
    print(explanation.summary())
