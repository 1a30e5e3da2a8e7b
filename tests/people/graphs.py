"""Attention over graphs: Graphormer, whose bias of distances and edges is written into slices, and
GAT with a module per head; against a padded bias and heads side by side."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.people import plain
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

NODES, DIM, HEADS, DEPTH, CLASSES = 5, 8, 2, 2, 3
ATOMS, DEGREES, DISTANCES, EDGES, HOPS = 9, 5, 4, 4, 2


class GraphNodeFeature(nn.Module):
    def __init__(self):
        super().__init__()
        self.atom_encoder = nn.Embedding(ATOMS + 1, DIM, padding_idx=0)
        self.degree_encoder = nn.Embedding(DEGREES, DIM, padding_idx=0)
        self.graph_token = nn.Embedding(1, DIM)

    def forward(self, x, degree):
        n_graph, _n_node = x.size()[:2]
        node_feature = self.atom_encoder(x).sum(dim=-2)
        node_feature = node_feature + self.degree_encoder(degree)
        graph_token_feature = self.graph_token.weight.unsqueeze(0).repeat(n_graph, 1, 1)
        return torch.cat([graph_token_feature, node_feature], dim=1)


class GraphAttnBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads = HEADS
        self.edge_encoder = nn.Embedding(EDGES + 1, HEADS, padding_idx=0)
        self.edge_dis_encoder = nn.Embedding(HOPS * HEADS * HEADS, 1)
        self.spatial_pos_encoder = nn.Embedding(DISTANCES, HEADS, padding_idx=0)
        self.graph_token_virtual_distance = nn.Embedding(1, HEADS)

    def forward(self, spatial_pos, edge_input):
        n_graph, n_node = spatial_pos.size()[:2]
        weight = self.spatial_pos_encoder.weight
        graph_attn_bias = weight.new_zeros(n_graph, self.num_heads, n_node + 1, n_node + 1)
        spatial_pos_bias = self.spatial_pos_encoder(spatial_pos).permute(0, 3, 1, 2)
        graph_attn_bias[:, :, 1:, 1:] = graph_attn_bias[:, :, 1:, 1:] + spatial_pos_bias
        t = self.graph_token_virtual_distance.weight.view(1, self.num_heads, 1)
        graph_attn_bias[:, :, 1:, 0] = graph_attn_bias[:, :, 1:, 0] + t
        graph_attn_bias[:, :, 0, :] = graph_attn_bias[:, :, 0, :] + t
        spatial_pos_ = spatial_pos.clone()
        spatial_pos_[spatial_pos_ == 0] = 1
        spatial_pos_ = torch.where(spatial_pos_ > 1, spatial_pos_ - 1, spatial_pos_)
        edge_input = self.edge_encoder(edge_input)  # [n_graph, n_node, n_node, max_dist, n_head]
        max_dist = edge_input.shape[-2]
        edge_input_flat = edge_input.permute(3, 0, 1, 2, 4).reshape(max_dist, -1, self.num_heads)
        edge_input_flat = torch.bmm(
            edge_input_flat,
            self.edge_dis_encoder.weight.reshape(-1, self.num_heads, self.num_heads)[:max_dist],
        )
        edge_input = edge_input_flat.reshape(max_dist, n_graph, n_node, n_node, self.num_heads)
        edge_input = edge_input.permute(1, 2, 3, 0, 4)
        edge_input = edge_input.sum(-2) / spatial_pos_.to(edge_input.dtype).unsqueeze(-1)
        graph_attn_bias[:, :, 1:, 1:] += edge_input.permute(0, 3, 1, 2)
        return graph_attn_bias


class GraphAttention(nn.Module):
    """fairseq's: tokens first, heads folded into the batch."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(DIM, DIM) for _ in range(3))
        self.out_proj = nn.Linear(DIM, DIM)
        self.head_dim = DIM // HEADS

    def forward(self, query, attn_bias, key_padding_mask):
        tgt_len, bsz, _ = query.size()
        q, k, v = (m(query) for m in (self.q_proj, self.k_proj, self.v_proj))
        q = q * self.head_dim**-0.5
        q, k, v = (
            t.contiguous().view(-1, bsz * HEADS, self.head_dim).transpose(0, 1) for t in (q, k, v)
        )
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        attn_weights += attn_bias.reshape(bsz * HEADS, tgt_len, tgt_len)
        attn_weights = attn_weights.view(bsz, HEADS, tgt_len, tgt_len)
        attn_weights = attn_weights.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        attn_weights = attn_weights.view(bsz * HEADS, tgt_len, tgt_len)
        attn = torch.bmm(F.softmax(attn_weights, dim=-1), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, DIM)
        return self.out_proj(attn)


class GraphormerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn = GraphAttention()
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 12), nn.Linear(12, DIM)

    def forward(self, x, attn_bias, padding_mask):
        x = self.self_attn_layer_norm(x + self.self_attn(x, attn_bias, padding_mask))
        return self.final_layer_norm(x + self.fc2(F.gelu(self.fc1(x))))


class Graphormer(nn.Module):
    def __init__(self):
        super().__init__()
        self.graph_node_feature, self.graph_attn_bias = GraphNodeFeature(), GraphAttnBias()
        self.layers = nn.ModuleList([GraphormerLayer() for _ in range(DEPTH)])
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x, degree, spatial_pos, edge_input):
        padding_mask = x[:, :, 0].eq(0)
        padding_mask_cls = torch.zeros_like(padding_mask[:, :1])
        padding_mask = torch.cat((padding_mask_cls, padding_mask), dim=1)
        attn_bias = self.graph_attn_bias(spatial_pos, edge_input)
        x = self.graph_node_feature(x, degree).transpose(0, 1)
        for layer in self.layers:
            x = layer(x, attn_bias, padding_mask)
        return self.head(x.transpose(0, 1)[:, 0, :])


class GraphormerTwin(Graphormer):
    """Plain blocks; the bias is a sum of padded parts."""

    def __init__(self):
        super().__init__()

        def block():
            mlp = plain.Mlp(DIM, 12)
            return plain.PostBlock(plain.Attention(DIM, HEADS), mlp, lambda: nn.LayerNorm(DIM))

        self.layers = nn.ModuleList([block() for _ in range(DEPTH)])

    def bias(self, spatial_pos, edge_input):
        tables = self.graph_attn_bias
        hops = tables.edge_dis_encoder.weight.view(HOPS, HEADS, HEADS)
        edges = torch.einsum("bijdh,dhg->bijg", tables.edge_encoder(edge_input), hops)
        between = tables.spatial_pos_encoder(spatial_pos)
        between = between + edges / (spatial_pos - 1).clamp(min=1)[..., None]
        first = torch.zeros(NODES + 1, NODES + 1, 1, dtype=between.dtype)
        first[0], first[:, 0] = 1, 1
        virtual = first * tables.graph_token_virtual_distance.weight[0]
        return (F.pad(between, (0, 0, 1, 0, 1, 0)) + virtual).permute(0, 3, 1, 2)

    def forward(self, x, degree, spatial_pos, edge_input):
        seen = F.pad(x[:, :, 0] != 0, (1, 0), value=True)[:, None, None]
        mask = self.bias(spatial_pos, edge_input).masked_fill(~seen, float("-inf"))
        x = self.graph_node_feature(x, degree)
        for layer in self.layers:
            x = layer(x, mask=mask)
        return self.head(x[:, 0])


@pair
def graphormer():
    model = drawn(Graphormer())
    weights = renamed(
        model,
        ("self_attn_layer_norm", "norm1"),
        ("final_layer_norm", "norm2"),
        ("self_attn.out_proj", "attention.out"),
        ("self_attn.q_proj", "attention.q"),
        ("self_attn.k_proj", "attention.k"),
        ("self_attn.v_proj", "attention.v"),
        ("fc1", "mlp.up"),
        ("fc2", "mlp.down"),
    )
    twin = filled(GraphormerTwin(), weights)
    present = torch.arange(NODES) < torch.tensor([5, 4, 3])[:, None]
    both = (present[:, :, None] & present[:, None]).long()
    inputs = {
        "x": torch.randint(1, ATOMS + 1, (BATCH, NODES, 2)) * present[..., None],
        "degree": torch.randint(1, DEGREES, (BATCH, NODES)) * present,
        "spatial_pos": torch.randint(1, DISTANCES, (BATCH, NODES, NODES)) * both,
        "edge_input": torch.randint(1, EDGES + 1, (BATCH, NODES, NODES, HOPS)) * both[..., None],
    }
    tables = (model.graph_node_feature.atom_encoder, twin.graph_node_feature.atom_encoder)
    return Pair(
        model,
        twin,
        inputs,
        NODES + 1,
        leaves=(tables[0].weight, tables[1].weight),
        padding=F.pad(~present, (1, 0)),
        padding_at_input=(~present).repeat_interleave(2, 1),
    )


class GraphAttentionLayer(nn.Module):
    """Simple GAT layer, similar to https://arxiv.org/abs/1710.10903"""

    def __init__(self, in_features, out_features, concat=True):
        super().__init__()
        self.out_features, self.concat = out_features, concat
        self.W = nn.Parameter(torch.empty(size=(in_features, out_features)))
        self.a = nn.Parameter(torch.empty(size=(2 * out_features, 1)))
        self.leakyrelu = nn.LeakyReLU(0.2)

    def forward(self, h, adj):
        Wh = torch.matmul(h, self.W)
        e = self._prepare_attentional_mechanism_input(Wh)
        zero_vec = -9e15 * torch.ones_like(e)
        attention = torch.where(adj > 0, e, zero_vec)
        attention = F.softmax(attention, dim=-1)
        attention = F.dropout(attention, 0.1, training=self.training)
        h_prime = torch.matmul(attention, Wh)
        return F.elu(h_prime) if self.concat else h_prime

    def _prepare_attentional_mechanism_input(self, Wh):
        Wh1 = torch.matmul(Wh, self.a[: self.out_features, :])
        Wh2 = torch.matmul(Wh, self.a[self.out_features :, :])
        e = Wh1 + Wh2.transpose(-1, -2)
        return self.leakyrelu(e)


class GAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, nheads):
        super().__init__()
        self.attentions = [GraphAttentionLayer(nfeat, nhid) for _ in range(nheads)]
        for i, attention in enumerate(self.attentions):
            self.add_module(f"attention_{i}", attention)
        self.out_att = GraphAttentionLayer(nhid * nheads, nclass, concat=False)

    def forward(self, x, adj):
        x = torch.cat([att(x, adj) for att in self.attentions], dim=-1)
        x = F.elu(self.out_att(x, adj))
        return F.log_softmax(x.mean(dim=1), dim=-1)


class GATTwinLayer(nn.Module):
    """All heads at once."""

    def __init__(self, inputs, size, heads):
        super().__init__()
        self.project, self.heads = nn.Linear(inputs, size * heads, bias=False), heads
        self.asks, self.told = (nn.Parameter(torch.zeros(heads, size, 1)) for _ in range(2))

    def forward(self, x, adj):
        v = plain.heads_apart(self.project(x), self.heads)
        scores = F.leaky_relu(v @ self.asks + (v @ self.told).transpose(-1, -2), 0.2)
        scores = scores.masked_fill(adj[:, None] == 0, float("-inf"))
        return F.elu(plain.heads_together(scores.softmax(-1) @ v))


class GATTwin(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.first = GATTwinLayer(features, DIM // HEADS, HEADS)
        self.second = GATTwinLayer(DIM, CLASSES, 1)

    def forward(self, x, adj):
        return self.second(self.first(x, adj), adj).mean(1).log_softmax(-1)


def gat_weights(name, layers):
    size = layers[0].out_features
    return {
        f"{name}.project.weight": torch.cat([layer.W for layer in layers], 1).T,
        f"{name}.asks": torch.stack([layer.a[:size] for layer in layers]),
        f"{name}.told": torch.stack([layer.a[size:] for layer in layers]),
    }


@pair
def gat():
    """No skip connections, no output projections; every node has an edge to itself."""
    features = 4
    model = drawn(GAT(features, DIM // HEADS, CLASSES, HEADS))
    weights = {**gat_weights("first", model.attentions), **gat_weights("second", [model.out_att])}
    twin = filled(GATTwin(features), weights)
    adj = (torch.rand(BATCH, NODES, NODES) < 0.4) | torch.eye(NODES, dtype=torch.bool)
    refused = {"attention_norm": "no linear map takes the heads' results"}
    # At these weights the second layer's map of the node that is read is 0 beside itself.
    silent = ("raw_attention", "attention_times_grad", "attcat")
    inputs = (normal(BATCH, NODES, features), adj.long())
    return Pair(model, twin, inputs, NODES, refused=refused, silent=silent)
