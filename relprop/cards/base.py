"""What every card has: a sentence, a picture, what speaks for and against it, and one line that
says how it was made; as one HTML file, in a notebook and as a PNG."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import Tensor

from relprop.cards.trials import Checks
from relprop.error_boundary import guarded
from relprop.views.colours import ramps
from relprop.views.escape import markup
from relprop.views.page import data_uri
from relprop.writing import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Nothing may be loaded, and nothing sent.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'"
)
NOTEBOOK = 640  # pixels of height in a notebook


@guarded
@dataclass(frozen=True, eq=False, repr=False)
class Card(ABC):
    """One explanation as a page, a notebook's view and a picture.

    ``title``: the question that it answers. ``said``: the answer, in a sentence. ``checks``: the
    same map of a model with shuffled weights, and what covering parts of the input does, as far as
    these were measured. ``made``: version, weights, method, date and call in one line.
    """

    script: ClassVar[str]  # the file beside ``card.js``
    title: str
    said: str
    checks: Checks
    made: str

    @abstractmethod
    def _body(self) -> str:
        """What stands between the sentence and the checks, as HTML."""

    @abstractmethod
    def _figure(self) -> Figure:
        """The same as a matplotlib figure."""

    def _data(self) -> Mapping[str, Any]:
        """What the page's script reads, beside the colours."""
        return {}

    def _checks(self) -> str:
        """How far to trust it, as HTML."""
        return self.checks.html()

    def _html(self) -> str:
        data = {**self._data(), "colours": ramps()["light"]}
        written = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
            f"<title>{markup(self.title, 200)}</title><style>{_file('card.css')}</style></head>"
            f"<body><main><h1>{markup(self.title, 400)}</h1>"
            f'<p class="said">{markup(self.said, 2000)}</p>{self._body()}'
            f'{self._checks()}<footer><p id="made"><code>{markup(self.made, 2000)}</code></p>'
            '<button type="button" data-copy="made">Copy this line</button></footer></main>'
            f'<script type="application/json" id="data">{written}</script>'
            f"<script>{_file('card.js')}\n{_file(self.script)}</script></body></html>\n"
        )

    def to_html(self, path: str | Path) -> Path:
        """Write one HTML file that needs no network. Raises ``InputError`` where no file can be
        written."""
        page = self._html()
        with written(path, "the card") as beside:
            beside.write_text(page, encoding="utf-8", errors="replace")
        return Path(path)

    def to_png(self, path: str | Path) -> Path:
        """Write one picture. Needs matplotlib (``relprop[plot]``). Raises ``InputError`` where no
        file can be written."""
        figure = self._figure()
        with written(path, "the card") as beside:
            figure.savefig(beside, dpi=110, format="png", bbox_inches="tight")
        return Path(path)

    def _repr_html_(self) -> str:
        page = escape(self._html(), quote=True)
        return (
            f'<iframe title="{markup(self.title, 200)}" srcdoc="{page}" height="{NOTEBOOK}" '
            'style="width:100%;border:0" sandbox="allow-scripts"></iframe>'
        )

    def _repr_png_(self) -> bytes:
        shown: bytes = self._figure()._repr_png_()  # type: ignore[attr-defined]
        return shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title!r}: {self.said!r})"


def _file(name: str) -> str:
    return resources.files("relprop.cards").joinpath(name).read_text(encoding="utf-8")


def map_uri(shares: np.ndarray) -> str:
    """A map for the page's scripts, of shares of the strongest in [−1, 1], (H, W): 128 is nothing,
    255 the strongest for the answer, 1 against it."""
    return data_uri(np.round(128 + 127 * shares.clip(-1, 1)).astype(np.uint8))


def picture_bytes(image: Tensor) -> np.ndarray:
    """A picture (channels, H, W) as bytes (H, W, 3): one that is not in [0, 1] is stretched, of 2
    channels or many their mean is taken."""
    shown = image.detach().float().cpu()
    shown = shown if len(shown) in (1, 3) else shown.mean(0, keepdim=True)
    low, high = shown.aminmax()
    if low < 0 or high > 1:
        shown = (shown - low) / (high - low).clamp(min=1e-12)
    found: np.ndarray = (255 * shown).round().byte().expand(3, -1, -1).movedim(0, -1).numpy()
    return found


def stack(uri: str, size: Sequence[int], over: str = "") -> str:
    """A picture (none: ``""``) of a size (H, W), and HTML that lies over it."""
    image = uri and f'<img alt="the picture" src="{uri}">'
    return f'<div class="stack" style="aspect-ratio:{size[1]}/{size[0]}">{image}{over}</div>'
