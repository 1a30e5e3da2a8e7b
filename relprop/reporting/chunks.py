"""Numbers inside the page: arrays as zlib streams in base64, each once, by number. The browser
inflates one when it is first looked at."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relprop.views.page import data_uri


@dataclass
class Chunks:
    """The arrays of a page. ``texts``: what is written for each."""

    texts: list[str] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, values: Any) -> int:
        """The number of an array (or tensor), little-endian; one that is there already is not
        written twice."""
        array = np.ascontiguousarray(
            values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        )
        data = array.astype(array.dtype.newbyteorder("<")).tobytes()
        key = hashlib.sha256(data).digest()
        if key not in self.known:
            self.known[key] = len(self.texts)
            self.texts.append(base64.b64encode(zlib.compress(data, 6)).decode())
        return self.known[key]

    def size(self) -> int:
        """Characters of all chunks, the tags around them included."""
        return sum(len(text) + 64 for text in self.texts)


def png(picture: Tensor, longest: int) -> str:
    """A picture (1 or 3, H, W) in [0, 1] as a ``data:`` URI, 8 bits per channel, its longer side at
    most ``longest`` pixels (means over pixels)."""
    scale = longest / max(picture.shape[1:])
    if scale < 1:
        size = [max(1, round(n * scale)) for n in picture.shape[1:]]
        picture = torch.nn.functional.interpolate(picture[None].float(), size, mode="area")[0]
    values = picture.detach().cpu().float().clamp(0, 1) * 255
    pixels = values.round().to(torch.uint8).movedim(0, -1).numpy()
    return data_uri(pixels if pixels.shape[-1] == 3 else pixels[..., 0])
