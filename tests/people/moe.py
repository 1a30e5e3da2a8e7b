"""Mixtures of experts: a loop over experts that takes their tokens by ``torch.where`` and adds by
index, one by boolean masks, one by one-hot dispatch; against every expert on every token."""

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
