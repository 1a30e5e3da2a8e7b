"""Decision Transformer: returns, states and actions interleaved by moves, against plain blocks over
an order that is looked up."""

import torch
from torch import nn

import relprop
from tests.people import plain
from tests.people.gpt import MinBlock
from tests.people.pairs import BATCH, Pair, drawn, filled, normal, pair, renamed

STATES, ACTIONS, STEPS, DIM, HEADS, LAYERS, LONGEST = 3, 2, 3, 8, 2, 2, 10


class DecisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden_size = DIM
        self.h = nn.ModuleList([MinBlock(DIM, HEADS, 3 * STEPS) for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(DIM)
        self.embed_timestep = nn.Embedding(LONGEST, DIM)
        self.embed_return = torch.nn.Linear(1, DIM)
        self.embed_state = torch.nn.Linear(STATES, DIM)
        self.embed_action = torch.nn.Linear(ACTIONS, DIM)
        self.embed_ln = nn.LayerNorm(DIM)
        self.predict_state = torch.nn.Linear(DIM, STATES)
        self.predict_action = nn.Sequential(nn.Linear(DIM, ACTIONS), nn.Tanh())
        self.predict_return = torch.nn.Linear(DIM, 1)

    def forward(self, states, actions, returns_to_go, timesteps):
        batch_size, seq_length = states.shape[0], states.shape[1]
        state_embeddings = self.embed_state(states)
        action_embeddings = self.embed_action(actions)
        returns_embeddings = self.embed_return(returns_to_go)
        time_embeddings = self.embed_timestep(timesteps)
        state_embeddings = state_embeddings + time_embeddings
        action_embeddings = action_embeddings + time_embeddings
        returns_embeddings = returns_embeddings + time_embeddings
        # (R_1, s_1, a_1, R_2, s_2, a_2, ...)
        stacked_inputs = torch.stack(
            (returns_embeddings, state_embeddings, action_embeddings), dim=1
        )
        stacked_inputs = stacked_inputs.permute(0, 2, 1, 3)
        stacked_inputs = stacked_inputs.reshape(batch_size, 3 * seq_length, self.hidden_size)
        x = self.embed_ln(stacked_inputs)
        for block in self.h:
            x = block(x)
        x = self.ln_f(x)
        x = x.reshape(batch_size, seq_length, 3, self.hidden_size).permute(0, 2, 1, 3)
        return_preds = self.predict_return(x[:, 2])
        state_preds = self.predict_state(x[:, 2])
        action_preds = self.predict_action(x[:, 1])
        return state_preds, action_preds, return_preds


class Twin(nn.Module):
    """Plain blocks over an order that is looked up."""

    def __init__(self):
        super().__init__()
        self.embed_timestep = nn.Embedding(LONGEST, DIM)
        self.embed_return, self.embed_state, self.embed_action = (
            nn.Linear(size, DIM) for size in (1, STATES, ACTIONS)
        )

        def block():
            attention = plain.Attention(DIM, HEADS, causal=True)
            mlp = plain.Mlp(DIM, 4 * DIM, nn.GELU(approximate="tanh"))
            return plain.Block(attention, mlp, lambda: nn.LayerNorm(DIM))

        self.blocks = nn.Sequential(*(block() for _ in range(LAYERS)))
        self.embed_ln, self.norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.predict_action = nn.Linear(DIM, ACTIONS)

    def forward(self, states, actions, returns_to_go, timesteps):
        times = self.embed_timestep(timesteps)
        parts = [self.embed_return(returns_to_go) + times, self.embed_state(states) + times]
        apart = torch.cat([*parts, self.embed_action(actions) + times], 1)
        order = torch.arange(3 * STEPS).view(3, STEPS).T.flatten()
        x = self.norm(self.blocks(self.embed_ln(apart[:, order])))
        return self.predict_action(x[:, 1::3]).tanh()


@pair
def decision_transformer():
    """The last action: its own place, which comes behind the state's, is not seen."""
    model = drawn(DecisionTransformer(), 0.3)
    weights = renamed(
        model,
        ("h.", "blocks."),
        ("embed_ln", "first_norm"),
        ("ln_f", "norm"),
        ("ln_", "norm"),
        ("first_norm", "embed_ln"),
        ("attn.c_attn", "attention.fused"),
        ("attn.c_proj", "attention.out"),
        ("mlp.c_fc", "mlp.up"),
        ("mlp.c_proj", "mlp.down"),
        ("action.0", "action"),
    )
    weights = {n: w for n, w in weights.items() if "state." not in n.replace("embed_state", "")}
    weights = {n: w for n, w in weights.items() if "predict_return" not in n}
    twin = filled(Twin(), plain.thirds(weights, "fused", ("q", "k", "v")))
    inputs = {
        "states": normal(BATCH, STEPS, STATES),
        "actions": normal(BATCH, STEPS, ACTIONS),
        "returns_to_go": normal(BATCH, STEPS, 1),
        "timesteps": torch.randint(0, LONGEST - STEPS, (BATCH, 1)) + torch.arange(STEPS),
    }
    return Pair(
        model,
        twin,
        inputs,
        (STEPS, STEPS, STEPS, STEPS),
        target=relprop.targets.output(1)[STEPS - 1, 1],
        twin_target=(STEPS - 1, 1),
        out=lambda out: out[1],
        twin_out=lambda out: out,
    )
