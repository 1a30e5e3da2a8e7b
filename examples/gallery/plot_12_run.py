"""
A whole folder: which maps can be trusted
=========================================

``relprop explain --data folder`` explains every picture of a folder and writes a page: a row per
file, with what speaks for and against its map, and the map itself once a row is opened.
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

folder = Path(tempfile.mkdtemp())
scenes = make_scenes(24, seed=8)
(folder / "scenes").mkdir()
for number, (image, digits) in enumerate(zip(scenes.images, scenes.digits.tolist(), strict=True)):
    file = folder / "scenes" / f"{number:02} a {digits[0]} and a {digits[1]}.png"
    Image.fromarray((255 * image[0]).round().byte().numpy()).save(file)

command = ["explain", "--data", "scenes", "--model", "demo:digits", "--out", "run"]
subprocess.run([sys.executable, "-m", "relprop", *command], cwd=folder, check=True)

# %%
# The page itself: sort it by any column, open a row.


class Framed:
    """A page inside this one."""

    def _repr_html_(self):
        page = html.escape((folder / "run/index.html").read_text(encoding="utf-8"))
        return f'<iframe title="The run" srcdoc="{page}" width="100%" height="760"></iframe>'


Framed()

# %%
# Beside it lies a model card for a repository:

print((folder / "run/model-card.md").read_text(encoding="utf-8"))

# %%
# One of its samples, as the page shows it:

fig = relprop.explain(digit_scene_model(), scenes.images[:1]).plot(scenes.images[0])
