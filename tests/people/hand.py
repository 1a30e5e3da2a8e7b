"""Maps by hand: attention and its gradients from the model's own code by autograd, rolled up by
products of dense matrices (Eq. 13 and 14)."""

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tests.people.everything import PAIRS
from tests.people.pairs import called

BY_HAND = ("rollout", "raw_attention", "attention_times_grad", "gae")
READS = {  # which position of its tokens a model's head reads; "all": the mean of all
    "annotated_transformer": 0,
    "annotated_transformer_without_eps": 0,
    "bert": 0,
    "einsum_gpt2": -1,
    "einsum_gpt2_with_results": -1,
    "folding": 2,
    "gemma2": -1,
    "llama": -1,
    "mingpt": -1,
    "music_transformer": -1,
    "ported_gpt2": -1,
    "shaw": -1,
    "t5": "all",
    "vit_rearranged": 0,
    "vit_unfolded": "all",
    "x_alibi": "all",
    "x_plain": "all",
    "x_qk_norm": "all",
    "x_relu_squared": 0,
    "x_scale_norm": 0,
}
SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)


class Kept(TorchFunctionMode):
    """Keeps what every softmax of a model's own code returns, in order, each once."""

    def __init__(self):
        super().__init__()
        self.maps = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function in SOFTMAX and not any(found is each for each in self.maps):
            self.maps.append(found)
        return found


def softmaxes(model, inputs):
    """The output, and the attention maps of a model all of whose softmaxes are attention."""
    with Kept() as kept:
        output = called(model, inputs)
    return output, kept.maps


def per_head(pair, method):
    """The matrix of every attention map, (batch, tokens, tokens), in order."""
    output, maps = softmaxes(pair.model, pair.inputs)
    target = pair.target if isinstance(pair.target, tuple) else (pair.target,)
    gradients = torch.autograd.grad(pair.out(output)[(slice(None), *target)].sum(), maps)
    if method in ("rollout", "raw_attention"):
        return [a.detach().mean(1) for a in maps]
    return [(a * g).detach().clamp(min=0).mean(1) for a, g in zip(maps, gradients, strict=True)]


def by_hand(name, method):
    """The scores, (batch, tokens)."""
    return read(matrix(per_head(PAIRS[name](), method), method), READS[name])


def matrix(matrices, method):
    """What the sites' matrices come to."""
    if method == "raw_attention":
        return matrices[-1]
    if method == "attention_times_grad":
        return sum(matrices)
    eye = torch.eye(matrices[0].shape[-1], dtype=matrices[0].dtype)
    product = eye
    for m in matrices:
        product = (eye + m) @ product
    return product - eye


def read(matrix, position):
    return matrix.mean(1) if position == "all" else matrix[:, position]
