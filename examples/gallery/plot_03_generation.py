"""
A language model: why each generated token
==========================================

A causal model generates, and every generated token is explained over the prompt and the output
before it, all from one pass. The model here is a GPT-2 built from a config, with random weights, so
its output means nothing: what is shown is the shape of the answer. With a model of yours nothing
changes but the first lines.
"""

import torch
import transformers

import relprop
from relprop.views.plot import figure

torch.manual_seed(0)
config = transformers.GPT2Config(
    vocab_size=60,
    n_embd=32,
    n_layer=3,
    n_head=4,
    n_positions=64,
    bos_token_id=0,
    eos_token_id=1,
)
llm = transformers.GPT2LMHeadModel(config).eval()
ids = torch.tensor([[7, 23, 11, 42, 5]])
prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

generation = relprop.explain_generation(
    llm,
    prompt,
    max_new_tokens=8,
    generate={"do_sample": True},
    seed=2,
)
print("generated:", *generation.labels[0])
print(generation.scores.shape, "(batch, generated tokens, positions)")

# %%
# One row per generated token. A token is explained by what stood before it, so the upper right is
# empty, exactly.

scores = generation.scores[0]
assert bool((scores[0, 5:] == 0).all())

fig, (axes,) = figure(1, 6, 4)
shares = scores / scores.amax(1, keepdim=True)
drawn = axes.imshow(shares.numpy(), cmap="inferno", aspect="auto")
axes.set_xticks(range(scores.shape[1]), generation.tokens[0])
axes.set_yticks(range(scores.shape[0]), generation.labels[0])
axes.set_xlabel("position: prompt, then output")
axes.set_ylabel("generated token")
fig.colorbar(drawn, ax=axes, label="score / the row's largest")

# %%
# Each step is an ordinary explanation, and equals the one of the prompt cut before that token.

step = generation.steps[2]
whole = torch.cat([ids, generation.ids[:, :2]], 1)
alone = relprop.explain(llm, {"input_ids": whole}, int(generation.ids[0, 2]))
difference = (step.scores[:, : whole.shape[1]] - alone.scores).abs().max()
assert difference < 1e-3 * alone.scores.max()
print("target of step 2:", step.target[0])
