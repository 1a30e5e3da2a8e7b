"""From a question to an answer: what must be kept for it, one forward pass, gradients and
relevance, what a method may ask of them, the roll-up, the explanation. The methods stand on it and
the public API stands on both."""
