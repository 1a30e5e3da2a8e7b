"""The shipped example: digit scenes, a small trained Vision Transformer, and the picture ``relprop
demo`` draws."""
