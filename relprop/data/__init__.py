"""Data sets in the formats they come in, as samples: an image or a text, its label, and what is
known of the right explanation."""

from relprop.data.base import Sample, Source, Word
from relprop.data.eraser import EraserMovies, eraser_words
from relprop.data.folders import ImageFolder
from relprop.data.gtsegs import ImageNetSegmentation
from relprop.data.huggingface import HuggingFaceData
from relprop.data.images import Normalize, image_transform
from relprop.data.opening import open_data
from relprop.data.pieces import split_words, word_pieces
from relprop.data.squad import Squad
from relprop.data.tables import ImageTable, TextTable

__all__ = [
    "EraserMovies",
    "HuggingFaceData",
    "ImageFolder",
    "ImageNetSegmentation",
    "ImageTable",
    "Normalize",
    "Sample",
    "Source",
    "Squad",
    "TextTable",
    "Word",
    "eraser_words",
    "image_transform",
    "open_data",
    "split_words",
    "word_pieces",
]


def __dir__() -> list[str]:
    return __all__
