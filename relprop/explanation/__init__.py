"""Explanation: the result. One score per input token, and everything a person does with them next:
look, save, compare."""

from relprop.explanation.citations import Citations
from relprop.explanation.explanation import Explanation
from relprop.explanation.generation import Generation
from relprop.explanation.joining import join
from relprop.explanation.tokens import Block, Prediction, TokenNames, TokenPlaces, TokenScores

__all__ = [
    "Block",
    "Citations",
    "Explanation",
    "Generation",
    "Prediction",
    "TokenNames",
    "TokenPlaces",
    "TokenScores",
    "join",
]
