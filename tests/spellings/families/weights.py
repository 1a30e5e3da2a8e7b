"""A projection whose weights are stored in another way: transposed, in parts, factored."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from tests.spellings.bases import CAUSAL, LLAMA, PLAIN
from tests.spellings.spelling import spells


class Stored(nn.Module):
    """Keeps weight and bias; subclasses keep them otherwise."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)


@spells("project", PLAIN)
class Transposed(Stored):
    def __init__(self, weight, bias):
        super().__init__(weight.T.clone(), bias)

    def forward(self, x):
        return x @ self.weight + self.bias


@spells("project", PLAIN, CAUSAL)
class Conv1dOfGpt2(Transposed):
    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(x.size()[:-1] + (self.weight.shape[1],))


@spells("project", PLAIN)
class TransposedForLinear(Transposed):
    def forward(self, x):
        return F.linear(x, self.weight.T, self.bias)


@spells("project", PLAIN)
class TransposedForEinsum(Transposed):
    def forward(self, x):
        return torch.einsum("bti,io->bto", x, self.weight) + self.bias


@spells("project", PLAIN)
class Conv1x1(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.conv = nn.Conv1d(weight.shape[1], weight.shape[0], 1, dtype=weight.dtype)
        self.conv.load_state_dict({"weight": weight[..., None], "bias": bias})

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


@spells("project", PLAIN)
class Conv2d1x1(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.conv = nn.Conv2d(weight.shape[1], weight.shape[0], 1, dtype=weight.dtype)
        self.conv.load_state_dict({"weight": weight[..., None, None], "bias": bias})

    def forward(self, x):
        return self.conv(x.mT.unsqueeze(2)).squeeze(2).mT


@spells("project", PLAIN)
class WeightNormWrittenOut(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.g = nn.Parameter(weight.norm(dim=1, keepdim=True))
        self.v = nn.Parameter(3 * weight)
        self.bias = nn.Parameter(bias)

    def forward(self, x):
        return F.linear(x, self.g * self.v / self.v.norm(dim=1, keepdim=True), self.bias)


def _linear(weight, bias):
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


class Wrapped(nn.Module):
    """One inner layer."""

    def forward(self, x):
        return self.layer(x)


@spells("project", PLAIN)
class WeightNorm(Wrapped):
    def __init__(self, weight, bias):
        super().__init__()
        self.layer = parametrizations.weight_norm(_linear(weight, bias))


@spells("project", PLAIN)
class Pruned(Wrapped):
    def __init__(self, weight, bias):
        super().__init__()
        self.layer = prune.identity(_linear(weight, bias), "weight")


class _Doubled(nn.Module):
    def forward(self, half):
        return 2 * half

    def right_inverse(self, whole):
        return whole / 2


@spells("project", PLAIN)
class Parametrised(Wrapped):
    def __init__(self, weight, bias):
        super().__init__()
        self.layer = parametrize.register_parametrization(
            _linear(weight, bias), "weight", _Doubled()
        )


@spells("project", PLAIN)
class Sequence(Wrapped):
    def __init__(self, weight, bias):
        super().__init__()
        self.layer = nn.Sequential(nn.Identity(), _linear(weight, bias), nn.Dropout(0.5))


@spells("project", PLAIN)
class Buffers(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@spells("project", PLAIN)
class BuffersTransposed(Buffers):
    def forward(self, x):
        return torch.einsum("bti,oi->bto", x, self.weight) + self.bias


@spells("project", PLAIN)
class PlainTensors(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@spells("project", PLAIN)
class BiasInTheLastColumn(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([weight, bias[:, None]], 1))

    def forward(self, x):
        return F.linear(x, self.weight[:, :-1], self.weight[:, -1])


@spells("project", PLAIN)
class RowsInAList(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.rows, self.bias = nn.ParameterList(list(weight.clone())), nn.Parameter(bias)

    def forward(self, x):
        return F.linear(x, torch.stack(list(self.rows)), self.bias)


@spells("project", PLAIN)
class RowsOneByOne(RowsInAList):
    def forward(self, x):
        return torch.stack([x @ row for row in self.rows], -1) + self.bias


@spells("project", PLAIN)
class HalvesInADict(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        top, bottom = weight.clone().chunk(2)
        self.parts = nn.ParameterDict({"top": top, "bottom": bottom, "bias": bias})

    def forward(self, x):
        w = torch.cat([self.parts["top"], self.parts["bottom"]])
        return F.linear(x, w, self.parts["bias"])


@spells("project", PLAIN)
class HalvesOfTheOutput(HalvesInADict):
    def forward(self, x):
        halves = [F.linear(x, self.parts[name]) for name in ("top", "bottom")]
        return torch.cat(halves, -1) + self.parts["bias"]


@spells("project", PLAIN)
class LowRankUpdate(nn.Module):
    """A frozen weight and an update of rank two, added to it before the product, as merged LoRA."""

    def __init__(self, weight, bias):
        super().__init__()
        source = torch.Generator().manual_seed(0)
        self.a = nn.Parameter(torch.randn(2, weight.shape[1], generator=source).to(weight))
        self.b = nn.Parameter(torch.randn(len(weight), 2, generator=source).to(weight))
        self.weight = nn.Parameter((weight - self.b @ self.a).detach(), requires_grad=False)
        self.bias = nn.Parameter(bias)

    def forward(self, x):
        return F.linear(x, self.weight + self.b @ self.a, self.bias)


@spells("project", PLAIN)
class Factored(nn.Module):
    """The weight is the product of two, taken before the input is seen."""

    def __init__(self, weight, bias):
        super().__init__()
        q, r = torch.linalg.qr(weight)
        self.q, self.r, self.bias = nn.Parameter(q), nn.Parameter(r), nn.Parameter(bias)

    def forward(self, x):
        return F.linear(x, self.q @ self.r, self.bias)


@spells("project", PLAIN)
class FourAxes(nn.Module):
    """Inputs and outputs in heads: (heads, width, heads, width), as Flax writes dense layers."""

    def __init__(self, weight, bias):
        super().__init__()
        o, i = weight.shape
        self.kernel = nn.Parameter(weight.T.reshape(2, i // 2, 2, o // 2).clone())
        self.bias = nn.Parameter(bias.view(2, -1).clone())

    def forward(self, x):
        y = torch.einsum("btgi,gihe->bthe", x.unflatten(-1, (2, -1)), self.kernel)
        return (y + self.bias).flatten(2)


@spells("project", PLAIN)
class TransposedFourAxes(FourAxes):
    def forward(self, x):
        y = torch.tensordot(x.view(*x.shape[:2], 2, -1), self.kernel, dims=2) + self.bias
        return y.reshape(*x.shape[:2], -1)


@spells("project", PLAIN)
class BiasOfThreeAxes(Stored):
    def __init__(self, weight, bias):
        super().__init__(weight, bias.view(1, 1, -1))

    def forward(self, x):
        return x.matmul(self.weight.T) + self.bias


@spells("project", PLAIN)
class WeightOfThreeAxes(Stored):
    """One matrix for all samples, stored with an axis for them."""

    def __init__(self, weight, bias):
        super().__init__(weight.T[None].clone(), bias[None, None])

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight.expand(len(x), -1, -1))


@spells("project", PLAIN)
class FrozenAndDetached(Stored):
    def forward(self, x):
        return F.linear(x, self.weight.detach(), self.bias.detach())


@spells("project", PLAIN)
class UnderNoGrad(Stored):
    """The weights are prepared without a gradient, as quantised layers unpack theirs."""

    def forward(self, x):
        with torch.no_grad():
            w = (self.weight / 4).t().contiguous() * 4
        return x @ w + self.bias


@spells("project", LLAMA)
class TransposedWithoutBias(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight = nn.Parameter(weight.T.contiguous())

    def forward(self, x):
        return x @ self.weight


@spells("project", LLAMA)
class LinearWithoutBias(nn.Linear):
    def __init__(self, weight, bias):
        super().__init__(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        self.load_state_dict({"weight": weight})


@spells("project", PLAIN)
class LazyBlocks(nn.Module):
    """The weight in four blocks, put together by rows and columns."""

    def __init__(self, weight, bias):
        super().__init__()
        blocks = [b for rows in weight.chunk(2) for b in rows.chunk(2, 1)]
        self.blocks, self.bias = nn.ParameterList(b.clone() for b in blocks), nn.Parameter(bias)

    def forward(self, x):
        a, b, c, d = self.blocks
        return F.linear(x, torch.cat([torch.cat([a, b], 1), torch.cat([c, d], 1)]), self.bias)


@spells("project", PLAIN)
class BlocksMultiplied(LazyBlocks):
    """The same four blocks, each multiplied with its half of the input."""

    def forward(self, x):
        a, b, c, d = self.blocks
        left, right = x.chunk(2, -1)
        top, bottom = left @ a.T + right @ b.T, left @ c.T + right @ d.T
        return torch.cat([top, bottom], -1) + self.bias
