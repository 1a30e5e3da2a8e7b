"""
A language model: what its answer rests on
==========================================

The answer, how sure the model was of each word and what it nearly said, and the sentences and words
of the prompt that each word rests on. The model is a small Llama that comes with the library: it
reads a few documents and looks up what it is asked, so that it is known which words decide.
"""

import relprop
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer

llm, tokenizer = lookup_model(), lookup_tokenizer()
documents = "Boris paints rusty bottles. It rained all day. Anna likes amber kites."
chat = [{"role": "user", "content": f"{documents} Anna likes what?"}]
prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
card = relprop.card(llm, prompt, processor=tokenizer, max_new_tokens=6)
print(card.said)

# %%
# The page itself: choose a word of the answer, and ask why not the next best one.

card

# %%
# The same numbers without a page: one explanation per generated token, all from one pass.

generation = relprop.explain_generation(llm, prompt, processor=tokenizer, max_new_tokens=6)
print(generation.scores.shape, "(batch, generated tokens, positions)")
which = generation.labels[0].index("amber")
print(generation.steps[which].summary())
assert bool((generation.scores[0, 0, generation.prompt :] == 0).all())
fig = generation.plot()
