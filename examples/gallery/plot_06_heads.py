"""
Which attention heads the answer comes through
==============================================

How much of a map goes through each attention head of each layer, and what the model says when the
strongest heads are taken away, beside as many drawn by chance. The model looks up what Anna likes;
its next word is "amber".
"""

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer

llm, tokenizer = lookup_model(), lookup_tokenizer()
documents = "Boris paints rusty bottles. It rained all day. Anna likes amber kites."
chat = [{"role": "user", "content": f"{documents} Anna likes what?"}]
prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
view = relprop.head_view(llm, prompt + "Anna likes", processor=tokenizer)
print(view.said)
print(view.ablation.sentence)

# %%
# Choose a head, and see which words it reads:

view

# %%
# The numbers: each head's share, a row per layer; all of them sum to 1.

for layer in view.shares:
    print([round(share, 3) for share in layer.tolist()])
assert abs(sum(float(layer.sum()) for layer in view.shares) - 1) < 1e-9
