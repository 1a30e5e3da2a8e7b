"""Layers run piece by piece: tokens in loops and lists, samples one by one, blocks by recursion."""

import functools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.spellings.bases import CAUSAL, IDS, LLAMA, PLAIN
from tests.spellings.model import Block
from tests.spellings.model import mlp as plain
from tests.spellings.spelling import OTHER_MAP, spell, spells

ORDER = torch.tensor([3, 1, 4, 0, 2])

spell(
    "mlp",
    PLAIN,
    IDS,
    token_by_token=lambda at, x: torch.stack([plain(at, t) for t in x.unbind(1)], 1),
    flattened=lambda at, x: plain(at, x.reshape(-1, x.shape[-1])).view_as(x),
)
spell(
    "mlp", LLAMA, token_by_token=lambda at, x: torch.stack([plain(at, t) for t in x.unbind(1)], 1)
)

spell(
    "mlp",
    PLAIN,
    tokens_by_index=lambda at, x: torch.stack(
        [plain(at, x[:, i]) for i in range(x.shape[1])], dim=1
    ),
    tokens_joined=lambda at, x: torch.cat([plain(at, t) for t in x.split(1, 1)], 1),
    tokens_by_iteration=lambda at, x: torch.stack([plain(at, t) for t in x.transpose(0, 1)], 1),
    tokens_from_behind=lambda at, x: torch.stack(
        [plain(at, x[:, i]) for i in reversed(range(x.shape[1]))][::-1], 1
    ),
    tokens_in_chunks=lambda at, x: torch.cat([plain(at, c) for c in x.split(2, 1)], 1),
    tokens_in_equal_chunks=lambda at, x: torch.cat([plain(at, c) for c in x.chunk(3, 1)], dim=1),
    tokens_recursively=lambda at, x: _recursively(at, x),
    tokens_in_a_dict=lambda at, x: torch.stack(
        list({i: plain(at, t) for i, t in enumerate(x.unbind(1))}.values()), 1
    ),
    tokens_into_a_buffer=lambda at, x: _into_a_buffer(at, x),
    tokens_even_and_odd=lambda at, x: torch.cat([plain(at, x[:, ::2]), plain(at, x[:, 1::2])], 1)[
        :, [0, 3, 1, 4, 2]
    ],
    tokens_first=lambda at, x: plain(at, x.transpose(0, 1)).transpose(0, 1),
    tokens_reversed=lambda at, x: plain(at, x.flip(1)).flip(1),
    tokens_by_vmap=lambda at, x: torch.vmap(lambda t: plain(at, t), 1, 1)(x),
    samples_by_vmap=lambda at, x: torch.vmap(lambda s: plain(at, s))(x),
    samples_one_by_one=lambda at, x: torch.stack([plain(at, s) for s in x]),
    samples_and_tokens_one_by_one=lambda at, x: torch.stack(
        [torch.stack([plain(at, t) for t in s]) for s in x]
    ),
    a_batch_of_tokens=lambda at, x: plain(at, x.flatten(0, 1)[:, None]).squeeze(1).view_as(x),
    one_axis_more=lambda at, x: plain(at, x[:, None])[:, 0],
    class_token_apart=lambda at, x: torch.cat([plain(at, x[:, :1]), plain(at, x[:, 1:])], 1),
    hidden_features_in_halves=lambda at, x: _in_halves(at, x),
    hidden_features_in_halves_joined=lambda at, x: at.down(
        torch.cat([at.parts.activation(h) for h in at.up(x).chunk(2, -1)], -1)
    ),
    convolutions=lambda at, x: (
        F.conv1d(
            F.gelu(F.conv1d(x.mT, at.up.weight[..., None], at.up.bias)),
            at.down.weight[..., None],
            at.down.bias,
        ).mT
    ),
    features_first=lambda at, x: (
        (
            at.down.weight @ F.gelu(at.up.weight @ x.mT + at.up.bias[:, None])
            + at.down.bias[:, None]
        ).mT
    ),
    einsums=lambda at, x: (
        torch.einsum(
            "bnh,dh->bnd",
            F.gelu(torch.einsum("bnd,hd->bnh", x, at.up.weight) + at.up.bias),
            at.down.weight,
        )
        + at.down.bias
    ),
    checkpointed=lambda at, x: checkpoint(plain, at, x, use_reentrant=False),
    under_no_autocast=lambda at, x: _without_autocast(at, x),
)


def _recursively(at, x):
    if x.shape[1] == 1:
        return plain(at, x)
    return torch.cat([_recursively(at, half) for half in x.tensor_split(2, 1)], 1)


def _into_a_buffer(at, x):
    out = torch.zeros_like(x)
    for i in range(x.shape[1]):
        out[:, i] = plain(at, x[:, i])
    return out


def _in_halves(at, x):
    """As tensor-parallel layers: each half of the hidden features by itself, outputs added."""
    ups = zip(at.up.weight.chunk(2), at.up.bias.chunk(2), strict=True)
    inner = [F.gelu(F.linear(x, w, b)) for w, b in ups]
    downs = zip(inner, at.down.weight.chunk(2, 1), strict=True)
    return sum(F.linear(h, w) for h, w in downs) + at.down.bias


def _without_autocast(at, x):
    with torch.autocast("cpu", enabled=False):
        return plain(at, x)


@spells("mlp", PLAIN)
class Sequence(nn.Module):
    """Two linear layers and an activation as modules in a row."""

    def __init__(self, parts, weights):
        super().__init__()
        up, down = (
            nn.Linear(w.shape[1], w.shape[0], dtype=w.dtype)
            for w in (weights["up"][0], weights["down"][0])
        )
        self.layers = nn.Sequential(up, nn.GELU(), nn.Dropout(0.5), down, nn.Dropout(0.5))
        for layer, name in ((up, "up"), (down, "down")):
            layer.load_state_dict(dict(zip(("weight", "bias"), weights[name], strict=True)))

    def forward(self, x):
        return self.layers(x)


# All blocks.


def _each(layers, x, allowed):
    return functools.reduce(lambda y, layer: layer(y, allowed), layers, x)


spell("blocks", PLAIN, CAUSAL, reduced=_each, indexed=lambda ls, x, m: ls[1](ls[0](x, m), m))

spell(
    "blocks",
    PLAIN,
    nested=lambda ls, x, m: (lambda f, g: g(f(x, m), m))(*ls),
    recursively=lambda ls, x, m: _deeper(list(ls), x, m),
    sequence=lambda ls, x, m: nn.Sequential(*(_Alone(layer) for layer in ls))(x),
    list_of_states=lambda ls, x, m: _states(ls, x, m)[-1],
    stack_of_states=lambda ls, x, m: torch.stack(_states(ls, x, m))[-1],
    stack_of_states_last=lambda ls, x, m: torch.stack(_states(ls, x, m), -1)[..., -1],
    samples_stacked=lambda ls, x, m: torch.stack([_each(ls, s[None], m)[0] for s in x]),
    samples_joined=lambda ls, x, m: torch.cat([_each(ls, s, m) for s in x.split(1)]),
    samples_joined_by_index=lambda ls, x, m: torch.cat(
        [_each(ls, x[i : i + 1], m) for i in range(len(x))]
    ),
    samples_in_chunks=lambda ls, x, m: torch.cat([_each(ls, c, m) for c in x.chunk(2)]),
    samples_reversed=lambda ls, x, m: _each(ls, x.flip(0), m).flip(0),
    samples_by_vmap=lambda ls, x, m: torch.vmap(lambda s: _each(ls, s[None], m)[0])(x),
    samples_into_a_buffer=lambda ls, x, m: _samples_into(ls, x, m),
    checkpointed=lambda ls, x, m: checkpoint(_each, ls, x, m, use_reentrant=False),
    functional=lambda ls, x, m: functools.reduce(_functional, ls, x),
    weights_stacked=lambda ls, x, m: _from_stacked_weights(ls, x),
    a_generator=lambda ls, x, m: list(_generated(ls, x, m))[-1],
    a_while_loop=lambda ls, x, m: _while(ls, x, m),
    in_double=lambda ls, x, m: _each(ls, x.double(), m).to(x.dtype),
    with_gradients=lambda ls, x, m: _with_gradients(ls, x, m),
)


# Python branches on values: value zeroing has others, and refuses.
spell(
    "blocks",
    PLAIN,
    either=True,
    a_branch_on_values=lambda ls, x, m: _each(ls, x, m) if bool((x.abs() < 1e6).all()) else x * 0,
    a_check_for_nan=lambda ls, x, m: _checked(ls, x, m),
)


# The blocks see every sample twice.
spell(
    "blocks",
    PLAIN,
    either=True,
    apart=OTHER_MAP,
    samples_twice=lambda ls, x, m: _each(ls, torch.cat([x, x]), m)[: len(x)],
)


def _deeper(layers, x, allowed):
    return _deeper(layers[1:], layers[0](x, allowed), allowed) if layers else x


class _Alone(nn.Module):
    """A block without a mask."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, None)


def _states(layers, x, allowed):
    states = [x]
    for layer in layers:
        states.append(layer(states[-1], allowed))
    return states


def _samples_into(layers, x, allowed):
    out = torch.zeros_like(x)
    for i in range(len(x)):
        out[i] = _each(layers, x[i : i + 1], allowed)[0]
    return out


def _checked(layers, x, allowed):
    if torch.isnan(x).any():
        raise ValueError("not a number")
    return _each(layers, x, allowed)


def _functional(x, layer):
    return torch.func.functional_call(layer, dict(layer.named_parameters()), (x, None))


def _from_stacked_weights(layers, x):
    """The weights of all layers in one tensor per name, and one layer's code for all of them."""
    names = [name for name, _ in layers[0].named_parameters()]
    stacked = {n: torch.stack([layer.get_parameter(n) for layer in layers]) for n in names}
    for i in range(len(layers)):
        weights = {n: t[i] for n, t in stacked.items()}
        x = torch.func.functional_call(layers[0], weights, (x, None))
    return x


def _generated(layers, x, allowed):
    for layer in layers:
        x = layer(x, allowed)
        yield x


def _while(layers, x, allowed):
    depth = torch.tensor(0)
    while depth < len(layers):
        x = layers[int(depth)](x, allowed)
        depth = depth + 1
    return x


def _with_gradients(layers, x, allowed):
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        return _each(layers, x, allowed)


@spells("block", PLAIN)
class NormsInsideTheLayers(Block):
    """Attention and MLP own their norms, as in x-transformers and lucidrains' models."""

    def __init__(self, base, parts, weights):
        super().__init__(base, parts, weights)
        self.layers = nn.ModuleList(
            [_Normed(self.norm1, self.attention), _Normed(self.norm2, self.mlp)]
        )

    def forward(self, x, allowed):
        attention, mlp = self.layers
        x = attention(x, allowed) + x
        return mlp(x) + x


class _Normed(nn.Module):
    def __init__(self, norm, layer):
        super().__init__()
        self.norm, self.layer = norm, layer

    def forward(self, x, *rest):
        return self.layer(self.norm(x), *rest)


@spells("block", PLAIN)
class TokensOfTheWholeBlock(Block):
    """After attention every token goes its own way through what is left of the block."""

    def forward(self, x, allowed):
        y = self.attention(self.norm1(x), allowed)
        out = []
        for t, change in zip(x.unbind(1), y.unbind(1), strict=True):
            t = t + change
            out.append(t + self.mlp(self.norm2(t)))
        return torch.stack(out, 1)


@spells("block", PLAIN)
class AttentionTokenByToken(Block):
    """Each token attends by itself to the keys and values of all."""

    def forward(self, x, allowed):
        at, z = self.attention, self.norm1(x)
        q, k, v = self.parts.queries_keys_values(at, z)
        out = []
        for i in range(x.shape[1]):
            o = self.parts.attend(self.parts, q[:, :, i : i + 1], k, v, None)
            y = x[:, i] + at.out(self.parts.join(o))[:, 0]
            out.append(y + self.mlp(self.norm2(y)))
        return torch.stack(out, 1)
