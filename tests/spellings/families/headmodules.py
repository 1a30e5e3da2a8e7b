"""Projections of queries, keys and values with a weight per head, by a module per head, or from one
weight for all three."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, IDS, LLAMA, PLAIN
from tests.spellings.families.attentions import attend_plainly
from tests.spellings.model import WIDTH, Attention
from tests.spellings.spelling import spells

# Heads with weights of their own.


class _PerHead(nn.Module):
    """Each projection once per head: ``weight`` (heads, width of a head, width)."""

    def __init__(self, base, parts, weights):
        super().__init__()
        self.parts, self.heads = parts, base.heads
        self.weights, self.biases = nn.ParameterDict(), nn.ParameterDict()
        for name in ("query", "key", "value"):
            weight, bias = weights[name]
            self.weights[name] = weight.view(base.heads, -1, WIDTH).clone()
            self.biases[name] = bias.view(base.heads, -1).clone()
        self.out = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.out.load_state_dict(dict(zip(("weight", "bias"), weights["out"], strict=True)))

    def forward(self, x, allowed):
        q, k, v = (self.projected(x, n) for n in ("query", "key", "value"))
        return self.out(self.parts.join(attend_plainly(q, k, v)))


@spells("attention", PLAIN)
class WeightsPerHeadByEinsum(_PerHead):
    def projected(self, x, name):
        y = torch.einsum("bnd,hed->bhne", x, self.weights[name])
        return y + self.biases[name][:, None]


@spells("attention", PLAIN)
class WeightsPerHeadByEinsumHeadsLast(_PerHead):
    def projected(self, x, name):
        y = torch.einsum("btd,hed->bthe", x, self.weights[name]) + self.biases[name]
        return y.transpose(1, 2)


@spells("attention", PLAIN)
class WeightsPerHeadByMatmul(_PerHead):
    def projected(self, x, name):
        return x[:, None] @ self.weights[name].mT + self.biases[name][:, None]


@spells("attention", PLAIN)
class WeightsPerHeadByBmm(_PerHead):
    def projected(self, x, name):
        rows = x.flatten(0, 1).expand(self.heads, -1, -1)
        y = torch.baddbmm(self.biases[name][:, None], rows, self.weights[name].mT)
        return y.unflatten(1, x.shape[:2]).transpose(0, 1)


@spells("attention", PLAIN)
class WeightsPerHeadByTensordot(_PerHead):
    def projected(self, x, name):
        y = torch.tensordot(x, self.weights[name], ([2], [2])) + self.biases[name]
        return y.permute(0, 2, 1, 3)


@spells("attention", PLAIN)
class WeightsPerHeadByVmap(_PerHead):
    def projected(self, x, name):
        return torch.vmap(lambda w, b: F.linear(x, w, b), out_dims=1)(
            self.weights[name], self.biases[name]
        )


@spells("attention", PLAIN)
class WeightsPerHeadInALoop(_PerHead):
    def projected(self, x, name):
        both = zip(self.weights[name], self.biases[name], strict=True)
        return torch.stack([F.linear(x, w, b) for w, b in both], 1)


@spells("attention", PLAIN)
class WeightsPerHeadByConvolution(_PerHead):
    def projected(self, x, name):
        kernel = self.weights[name].flatten(0, 1)[..., None]
        y = F.conv1d(x.mT, kernel, self.biases[name].flatten())
        return y.unflatten(1, (self.heads, -1)).mT


class _Head(nn.Module):
    """One head: three projections and a map."""

    def __init__(self, weights, rows):
        super().__init__()
        for name in ("query", "key", "value"):
            weight, bias = (t[rows].clone() for t in weights[name])
            layer = nn.Linear(WIDTH, len(weight), dtype=weight.dtype)
            layer.load_state_dict({"weight": weight, "bias": bias})
            setattr(self, name, layer)

    def forward(self, x, allowed=None):
        return attend_plainly(self.query(x), self.key(x), self.value(x), allowed)


class _HeadModules(nn.Module):
    """Heads as modules, and a last projection of what they say."""

    def __init__(self, base, parts, weights):
        super().__init__()
        size = WIDTH // base.heads
        rows = [slice(i * size, (i + 1) * size) for i in range(base.heads)]
        self.heads = nn.ModuleList(_Head(weights, r) for r in rows)
        self.out = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.out.load_state_dict(dict(zip(("weight", "bias"), weights["out"], strict=True)))


@spells("attention", PLAIN, CAUSAL, IDS)
class HeadModulesJoined(_HeadModules):
    def forward(self, x, allowed):
        return self.out(torch.cat([head(x, allowed) for head in self.heads], -1))


@spells("attention", PLAIN)
class HeadModulesStacked(_HeadModules):
    def forward(self, x, allowed):
        return self.out(torch.stack([head(x) for head in self.heads], 2).flatten(2))


@spells("attention", PLAIN)
class HeadModulesInADict(_HeadModules):
    def forward(self, x, allowed):
        found = {i: head(x) for i, head in enumerate(self.heads)}
        return self.out(torch.concat(list(found.values()), dim=-1))


@spells("attention", PLAIN, inference=True)
class HeadModulesIntoABuffer(_HeadModules):
    def forward(self, x, allowed):
        out = torch.zeros_like(x)
        for head, place in zip(self.heads, out.chunk(len(self.heads), -1), strict=True):
            place.copy_(head(x))
        return self.out(out)


@spells("attention", PLAIN)
class HeadModulesIntoSlices(_HeadModules):
    def forward(self, x, allowed):
        out, size = torch.empty_like(x), WIDTH // len(self.heads)
        for i, head in enumerate(self.heads):
            out[..., i * size : (i + 1) * size] = head(x)
        return self.out(out)


@spells("attention", PLAIN)
class HeadModulesWithSharesOfTheLastProjection(_HeadModules):
    """Every head is projected by its columns of the last weight, and the shares are added."""

    def forward(self, x, allowed):
        columns = self.out.weight.chunk(len(self.heads), 1)
        shares = [F.linear(h(x), w) for h, w in zip(self.heads, columns, strict=True)]
        return sum(shares) + self.out.bias


@spells("attention", PLAIN)
class HeadsSummedByEinsum(Attention):
    """The last projection with a weight per head, heads and features summed at once."""

    def forward(self, x, allowed):
        o = attend_plainly(*self.parts.queries_keys_values(self, x))
        weight = self.out.weight.view(WIDTH, self.heads, -1)
        return torch.einsum("bhne,dhe->bnd", o, weight) + self.out.bias


@spells("attention", PLAIN)
class HeadsSummedByMatmul(Attention):
    def forward(self, x, allowed):
        o = attend_plainly(*self.parts.queries_keys_values(self, x))
        weight = self.out.weight.view(WIDTH, self.heads, -1).permute(1, 2, 0)
        return (o @ weight).sum(1) + self.out.bias


@spells("attention", PLAIN)
class HeadsSummedByTensordot(Attention):
    def forward(self, x, allowed):
        o = attend_plainly(*self.parts.queries_keys_values(self, x)).transpose(1, 2)
        weight = self.out.weight.view(WIDTH, self.heads, -1)
        return torch.tensordot(o, weight, ([2, 3], [1, 2])) + self.out.bias


# One weight for queries, keys and values.


class _Merged(nn.Module):
    """Queries, keys and values from one projection."""

    def __init__(self, base, parts, weights):
        super().__init__()
        self.parts, self.heads = parts, base.heads
        named = [weights[n] for n in ("query", "key", "value")]
        self.weight = nn.Parameter(torch.cat([w for w, _ in named]))
        self.bias = None if named[0][1] is None else nn.Parameter(torch.cat([b for _, b in named]))
        weight, bias = weights["out"]
        self.out = nn.Linear(WIDTH, WIDTH, bias is not None, dtype=weight.dtype)
        self.out.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))

    def forward(self, x, allowed):
        q, k, v = self.three(x)
        return self.out(self.parts.join(attend_plainly(q, k, v, allowed)))

    def all(self, x):
        return F.linear(x, self.weight, self.bias)

    def split(self, y):
        return y.view(*y.shape[:2], self.heads, -1).transpose(1, 2)


@spells("attention", PLAIN, CAUSAL, IDS)
class MergedAndPermuted(_Merged):
    """As timm has it."""

    def three(self, x):
        y = self.all(x).reshape(*x.shape[:2], 3, self.heads, -1)
        return y.permute(2, 0, 3, 1, 4).unbind(0)


@spells("attention", PLAIN, CAUSAL)
class MergedAndSplit(_Merged):
    """As GPT-2 has it."""

    def three(self, x):
        return map(self.split, self.all(x).split(WIDTH, dim=2))


@spells("attention", PLAIN)
class MergedAndChunked(_Merged):
    def three(self, x):
        return map(self.split, self.all(x).chunk(3, dim=-1))


@spells("attention", PLAIN)
class MergedAndSliced(_Merged):
    def three(self, x):
        y = self.all(x)
        return [self.split(y[..., i * WIDTH : (i + 1) * WIDTH]) for i in range(3)]


@spells("attention", PLAIN)
class MergedAndIndexed(_Merged):
    def three(self, x):
        y = self.all(x).unflatten(-1, (3, self.heads, -1))
        return [y[:, :, i].transpose(1, 2) for i in range(3)]


@spells("attention", PLAIN)
class MergedAndNarrowed(_Merged):
    def three(self, x):
        y = self.all(x)
        return [self.split(y.narrow(-1, i * WIDTH, WIDTH).contiguous()) for i in range(3)]


@spells("attention", PLAIN)
class MergedByMatmul(_Merged):
    def three(self, x):
        y = (x @ self.weight.T + self.bias).view(*x.shape[:2], 3, self.heads, -1)
        return y.permute(2, 0, 3, 1, 4)


@spells("attention", PLAIN)
class MergedByConvolution(_Merged):
    def three(self, x):
        y = F.conv1d(x.mT, self.weight[..., None], self.bias)
        return y.unflatten(1, (3, self.heads, -1)).mT.unbind(1)


@spells("attention", PLAIN)
class MergedByEinsum(_Merged):
    def three(self, x):
        weight = self.weight.view(3, self.heads, -1, WIDTH)
        y = torch.einsum("bnd,shed->sbhne", x, weight)
        return (y + self.bias.view(3, 1, self.heads, 1, -1)).unbind()


@spells("attention", PLAIN)
class MergedFeaturesFirst(_Merged):
    def three(self, x):
        y = self.weight @ x.mT + self.bias[:, None]
        return y.view(len(x), 3, self.heads, -1, x.shape[1]).mT.unbind(1)


@spells("attention", PLAIN)
class WeightsSliced(_Merged):
    def three(self, x):
        rows = [slice(i * WIDTH, (i + 1) * WIDTH) for i in range(3)]
        return [self.split(F.linear(x, self.weight[r], self.bias[r])) for r in rows]


@spells("attention", PLAIN)
class WeightsChunked(_Merged):
    def three(self, x):
        both = zip(self.weight.chunk(3), self.bias.chunk(3), strict=True)
        return [self.split(F.linear(x, w, b)) for w, b in both]


@spells("attention", PLAIN)
class WeightsViewed(_Merged):
    def three(self, x):
        both = zip(self.weight.view(3, WIDTH, -1), self.bias.view(3, -1), strict=True)
        return [self.split(x @ w.T + b) for w, b in both]


@spells("attention", PLAIN)
class MergedHeadByHead(_Merged):
    """The rows of one head's queries, keys and values lie together, as in GPT-NeoX and BLOOM."""

    def __init__(self, base, parts, weights):
        super().__init__(base, parts, weights)
        for p in (self.weight, self.bias):
            p.data = p.data.unflatten(0, (3, self.heads, -1)).transpose(0, 1).flatten(0, 2).clone()

    def three(self, x):
        y = self.all(x).view(*x.shape[:2], self.heads, -1)
        return y.permute(0, 2, 1, 3).chunk(3, -1)


@spells("attention", PLAIN)
class KeysAndValuesMerged(_Merged):
    def three(self, x):
        q = F.linear(x, self.weight[:WIDTH], self.bias[:WIDTH])
        y = F.linear(x, self.weight[WIDTH:], self.bias[WIDTH:])
        k, v = y.reshape(len(x), -1, 2, self.heads, WIDTH // self.heads).permute(2, 0, 3, 1, 4)
        return self.split(q), k, v


@spells("attention", LLAMA)
class MergedWithRotation(_Merged):
    def __init__(self, base, parts, weights):
        super().__init__(base, parts, weights)
        self.register_buffer("angles", Attention(base, parts, weights).angles)

    def three(self, x):
        q, k, v = map(self.split, self.all(x).chunk(3, -1))
        return self.parts.rotate(q, self.angles), self.parts.rotate(k, self.angles), v
