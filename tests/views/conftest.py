"""A small BERT with a tokenizer of words and pieces, the digit scenes, and what relprop says of
both, made once."""

import functools
from dataclasses import replace

import pytest
import tokenizers
import torch
import transformers

import relprop
from relprop.demo.scenes import make_scenes
from tests.common.models import lent
from tests.common.sizes import digits

TEXTS = ["the film was not bor ##ing", "awful"]
KNOWN = "[PAD] [CLS] [SEP] [UNK] the film was not bor ##ing awful".split()
HOSTILE = [
    "<script>alert('x')</script>",
    '"><img src=x onerror="1">',
    "\u202eevil\u202c",
    "\x1b[31mred\x07\r\n\t",
    "$x^2$ \\frac{",
    "z" * 10_000,
    "\ud800",
    "&amp;",
    "",
    "a\u0301" + "\u0301" * 50,
]


def small_bert(**config):
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=len(KNOWN),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            **{"id2label": {0: "negative", 1: "positive"}} | config,
        )
    ).eval()


def shared_bert():
    """One for all tests that do not change it: it is captured once."""
    return lent(_bert())


@functools.cache
def _bert():
    return small_bert()


def small_tokenizer():
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(KNOWN)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def explain_texts(**options):
    texts = ["the film was not boring", "awful"]
    return relprop.explain(
        shared_bert(), texts, processor=small_tokenizer(), precision="float64", **options
    )


@pytest.fixture(scope="session")
def texts():
    torch.set_num_threads(1)
    return explain_texts(keep=("matrix", "blocks"))


@pytest.fixture(scope="session")
def signed():
    torch.set_num_threads(1)
    return explain_texts(method="attcat", keep="layers")


@pytest.fixture(scope="session")
def scenes():
    return make_scenes(2, seed=5)


@pytest.fixture(scope="session")
def pictures(scenes):
    torch.set_num_threads(1)
    return relprop.explain_many(
        digits(),
        scenes.images,
        scenes.digits.T.tolist(),
        keep=("matrix", "blocks"),
        precision="float64",
    )


@pytest.fixture
def hostile(texts):
    """The same scores, of words and tokens that were chosen to do harm."""
    stream = next(iter(texts.streams.values()))
    count = stream.scores.shape[1]
    tokens = [HOSTILE[i % len(HOSTILE)] for i in range(count)]
    words = [(text, [i % count]) for i, text in enumerate(HOSTILE)]
    made = replace(stream, tokens=[tokens, tokens], words=[words, words])
    return replace(
        texts, streams={stream.name: made}, labels=("<b>$label$\u202e</b>", "x"), target=(0, 0)
    )
