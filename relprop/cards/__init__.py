"""Cards: one answer, one picture, one model's heads or one run, as people look at them. Each is one
HTML file, a notebook's view and a PNG, made from the same data."""
