"""Mixtures of experts: a loop over experts that takes their tokens by ``torch.where`` and adds by
index, one by boolean masks, some by one-hot dispatch; against every expert on every token."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import Pair, drawn, filled, ids, pair

VOCABULARY, TOKENS, DIM, HEADS, DEPTH, HIDDEN, EXPERTS = 11, 6, 8, 2, 2, 10, 4


class BlockSparseTop2MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(DIM, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.w3 = nn.Linear(DIM, HIDDEN, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states):
        current_hidden_states = self.act_fn(self.w1(hidden_states)) * self.w3(hidden_states)
        return self.w2(current_hidden_states)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList([BlockSparseTop2MLP() for _ in range(EXPERTS)])


class MixtralSparseMoeBlock(Experts):
    top_k = 2

    def forward(self, hidden_states):
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        router_logits = self.gate(hidden_states)
        routing_weights = F.softmax(router_logits, dim=1)
        routing_weights, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        routing_weights /= routing_weights.sum(dim=-1, keepdim=True)
        final_hidden_states = torch.zeros(
            (batch_size * sequence_length, hidden_dim),
            dtype=hidden_states.dtype,
            device=hidden_states.device,
        )
        expert_mask = F.one_hot(selected_experts, num_classes=EXPERTS).permute(2, 1, 0)
        for expert_idx in range(EXPERTS):
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx])
            current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
            current_hidden_states = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final_hidden_states.index_add_(0, top_x, current_hidden_states)
        return final_hidden_states.reshape(batch_size, sequence_length, hidden_dim)


class ListedExperts(Experts):
    """Experts that are chosen by any token only; nothing is computed for the others."""

    top_k = 2

    def forward(self, x):
        orig_shape = x.shape
        x = x.view(-1, x.shape[-1])
        weights, chosen = self.gate(x).topk(self.top_k, dim=-1)
        weights = weights.softmax(dim=-1)
        results = torch.zeros_like(x)
        for e in chosen.unique().tolist():
            token, nth = (chosen == e).nonzero(as_tuple=True)
            results[token] += weights[token, nth, None] * self.experts[e](x[token])
        return results.view(*orig_shape)


class SwitchFeedForward(Experts):
    """One expert per token; results are written to where a mask is true."""

    def forward(self, x):
        route_prob = self.gate(x).softmax(dim=-1)
        route_prob_max, routes = torch.max(route_prob, dim=-1)
        final_output = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            mask = routes == i
            if mask.any():
                final_output[mask] = expert(x[mask])
        return final_output * route_prob_max.unsqueeze(-1)


class DispatchedExperts(Experts):
    """A place for every token at every expert, filled and emptied by einsum (GShard)."""

    top_k = 2

    def forward(self, x):
        gates = self.gate(x).softmax(dim=-1)
        top, index = gates.topk(self.top_k, dim=-1)
        chosen = F.one_hot(index, EXPERTS).to(x.dtype)
        combine = torch.einsum("bnk,bnke->bne", top / top.sum(-1, keepdim=True), chosen)
        place = torch.eye(x.shape[1], dtype=x.dtype)
        dispatch = torch.einsum("bnke,nc->bnec", chosen, place)
        inputs = torch.einsum("bnd,bnec->ebcd", x, dispatch)
        outputs = torch.stack([e(i) for e, i in zip(self.experts, inputs, strict=True)])
        return torch.einsum("ebcd,bne,nc->bnd", outputs, combine, place)


class Dispatching(Experts):
    """Tokens times a mask are the tokens of each expert's places; times what it was made of they
    are brought back."""

    def forward(self, x):
        combine = self.combine(x)
        inputs = torch.einsum("bnd,bnec->ebcd", x, combine.bool().to(x.dtype))
        outputs = torch.stack([e(i) for e, i in zip(self.experts, inputs, strict=True)])
        return torch.einsum("ebcd,bnec->bnd", outputs, combine)


class FullExperts(Dispatching):
    """One expert per token, with room for two tokens: a third goes nowhere (Switch Transformer)."""

    capacity = 2

    def combine(self, x):
        gates = self.gate(x).softmax(-1)
        mask = F.one_hot(gates.argmax(-1), EXPERTS)
        place = mask.cumsum(1) - 1
        mask = mask * (place < self.capacity)
        at = F.one_hot((place * mask).sum(-1), self.capacity).to(x.dtype)
        return torch.einsum("bne,bnc->bnec", gates * mask, at)


class ChosenAtOnce(Dispatching):
    """Two experts per token; all first choices come before the second ones (GShard)."""

    def combine(self, x):
        top, index = self.gate(x).softmax(-1).topk(2, -1)
        chosen = F.one_hot(index, EXPERTS)
        in_turn = chosen.transpose(1, 2).flatten(1, 2)
        place = ((in_turn.cumsum(1) - in_turn) * in_turn).sum(-1)
        place = place.unflatten(1, (2, -1)).transpose(1, 2)
        at = F.one_hot(place, x.shape[1]).to(x.dtype)
        shares = top / top.sum(-1, keepdim=True)
        return torch.einsum("bnk,bnke,bnkc->bnec", shares, chosen.to(x.dtype), at)


class ChosenInTurn(Dispatching):
    """Two experts per token, the second chosen when the first is hidden (DeepSpeed)."""

    def combine(self, x):
        logits = self.gate(x)
        gates = logits.softmax(-1)
        first = F.one_hot(gates.argmax(-1), EXPERTS)
        hidden = logits.masked_fill(first.bool(), -torch.inf)
        second = F.one_hot(hidden.argmax(-1), EXPERTS)
        places = first.cumsum(1) - 1, second.cumsum(1) - 1 + first.sum(1, keepdim=True)
        masks = [m.to(x.dtype) for m in (first, second)]
        shares = [torch.einsum("bne,bne->bn", gates, m) for m in masks]
        total = (shares[0] + shares[1]).clamp(min=1e-9)
        combine = 0
        for mask, place, share in zip(masks, places, shares, strict=True):
            at = F.one_hot((place * mask.long()).sum(-1), x.shape[1]).to(x.dtype)
            given = torch.einsum("bn,bne->bne", share / total, mask)
            combine = combine + torch.einsum("bne,bnc->bnec", given, at)
        return combine


class Dense(Experts):
    """Every expert on every token, added one after the other; the weights of those not chosen are
    0. They are a softmax over all experts, cut and divided by their sum."""

    def weights(self, scores):
        top, chosen = scores.softmax(-1).topk(2, -1)
        return torch.zeros_like(scores).scatter(-1, chosen, top / top.sum(-1, keepdim=True))

    def forward(self, x):
        return self.combined(self.weights(self.gate(x)), [expert(x) for expert in self.experts])

    def combined(self, weights, outputs):
        total = weights[..., :1] * outputs[0]
        for e in range(1, EXPERTS):
            total = total + weights[..., e : e + 1] * outputs[e]
        return total


class DenseOfChosen(Dense):
    """The softmax is over the chosen ones."""

    def weights(self, scores):
        top, chosen = scores.topk(2, -1)
        return torch.zeros_like(scores).scatter(-1, chosen, top.softmax(-1))


class DenseProduct(Dense):
    """The sum over experts is a product of matrices."""

    def combined(self, weights, outputs):
        return (weights[..., None, :] @ torch.stack(outputs, -2))[..., 0, :]


class DenseRoom(DenseProduct):
    """The share of the likeliest expert, if that has room."""

    def weights(self, scores):
        gates = scores.softmax(-1)
        mask = F.one_hot(gates.argmax(-1), EXPERTS)
        return gates * mask * (mask.cumsum(1) <= FullExperts.capacity)


class DenseInTurn(DenseProduct):
    """One share after the other is divided by their sum."""

    def weights(self, scores):
        gates = scores.softmax(-1)
        one, first = gates.max(-1)
        first = F.one_hot(first, EXPERTS).to(gates.dtype)
        other, second = (gates * (1 - first)).max(-1)
        second = F.one_hot(second, EXPERTS).to(gates.dtype)
        total = (one + other).clamp(min=1e-9)
        return (one / total)[..., None] * first + (other / total)[..., None] * second


class DensePick(Experts):
    """The one expert's result is picked from those of all."""

    def forward(self, x):
        weight, route = self.gate(x).softmax(-1).max(-1, keepdim=True)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        picked = outputs.gather(-2, route[..., None].expand(*route.shape, DIM))[..., 0, :]
        return picked * weight


def mixture(experts, dense):
    def transformer(make):
        def block():
            attention = plain.Attention(DIM, HEADS, causal=True)
            return plain.Block(attention, make(), lambda: nn.RMSNorm(DIM, 1e-5))

        blocks = [block() for _ in range(DEPTH)]
        return plain.Language(VOCABULARY, TOKENS, DIM, blocks, lambda: nn.RMSNorm(DIM, 1e-5))

    model = drawn(transformer(experts))
    twin = transformer(dense)
    filled(twin, dict(model.named_parameters()))
    leaves = (model.embed.weight, twin.embed.weight)
    return Pair(model, twin, ids(TOKENS, VOCABULARY), TOKENS, target=(-1, 3), leaves=leaves)


@pair
def mixtral():
    return mixture(MixtralSparseMoeBlock, Dense)


@pair
def moe_listed():
    return mixture(ListedExperts, DenseOfChosen)


@pair
def moe_switch():
    return mixture(SwitchFeedForward, DensePick)


@pair
def moe_dispatched():
    return mixture(DispatchedExperts, DenseProduct)


@pair
def moe_without_room():
    return mixture(FullExperts, DenseRoom)


@pair
def moe_chosen_at_once():
    return mixture(ChosenAtOnce, DenseProduct)


@pair
def moe_chosen_in_turn():
    return mixture(ChosenInTurn, DenseInTurn)
