"""
The report: one file for whoever has to decide
==============================================

``relprop.report`` writes a page that needs no network and nothing installed: what was asked and
answered in words, what speaks against resting on it, the map to point at, every head, and the
books. Two methods of one question stand side by side.
"""

import html
import tempfile
from pathlib import Path

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes

model, scenes = digit_scene_model(), make_scenes(1, seed=8)
keep = ("blocks", "matrix")
found = [
    relprop.explain(model, scenes.images, 2, method=method, keep=keep)
    for method in ("transformer_attribution", "rollout")
]
folder = Path(tempfile.mkdtemp())
path = relprop.report(found, folder / "report.html", model=model, pictures=scenes.images)
print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")

# %%
# This is the file itself, framed:


class Framed:
    """A page inside this one."""

    def _repr_html_(self):
        page = html.escape(path.read_text(encoding="utf-8"))
        return f'<iframe title="The report" srcdoc="{page}" width="100%" height="760"></iframe>'


Framed()

# %%
# The same map as a picture:

fig = found[0].plot(scenes.images[0])

# sphinx_gallery_thumbnail_path = 'pictures/report-light.png'
