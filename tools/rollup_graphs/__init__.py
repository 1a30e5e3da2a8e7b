"""The roll-up against its definition, on residual graphs drawn by chance.

A draw is a *recipe*: operations on tensors of tokens, in order (``recipes.py``; layers are put
together of them in ``layers.py``). Of it are made a module, which relprop explains
(``modules.py``), and by hand, from the recipe and the module's own attention maps, the row of every
input (``by_hand.py``). What is by hand imports nothing of relprop and never sees a graph.
"""
