"""
A language model: why each generated token
==========================================

A causal model generates, and every generated token is explained over the prompt and the output
before it, all from one pass. The model is a small Llama that comes with the library: it reads a few
documents and looks up what it is asked, so that it is known which words its answer rests on.
"""

import textwrap

import torch

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer

llm, tokenizer = lookup_model(), lookup_tokenizer()
documents = "Boris paints rusty bottles. It rained all day. Anna likes amber kites."
chat = [{"role": "user", "content": f"{documents} Anna likes what?"}]
prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
generation = relprop.explain_generation(llm, prompt, processor=tokenizer, max_new_tokens=6)
print("generated:", *generation.labels[0])
print(generation.scores.shape, "(batch, generated tokens, positions)")

# %%
# One row per generated token. A token is explained by what stood before it, so the upper right is
# empty, exactly.

fig = generation.plot()
assert bool((generation.scores[0, 0, generation.prompt :] == 0).all())

# %%
# Each step is an ordinary explanation, and equals that of the text cut before its token.

which = generation.labels[0].index("amber")
step = generation.steps[which]
print(*textwrap.wrap(step.summary(), 80), sep="\n")
ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
whole = torch.cat([ids, generation.ids[:, :which]], 1)
alone = relprop.explain(llm, {"input_ids": whole}, int(generation.ids[0, which]))
difference = (step.scores[:, : whole.shape[1]] - alone.scores).abs().max()
assert difference < 1e-3 * alone.scores.max()

# %%
# The whole answer: which sentence of the prompt it rests on.

parts = generation.segments("sentences")
print(*textwrap.wrap(parts.summary(), 80), sep="\n")
assert parts.top(1)[0][0] == "Anna likes amber kites."
