"""Tokenizers of every kind, trained on a few sentences: nothing is downloaded."""

from collections.abc import Callable

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SENTENCES = [
    "the unhappy cats don't like café noise",
    "happy dogs like the noise, and the cat likes naïve people",
    "Unlikely stories about cats and dogs, The end",
] * 20


def wordpiece() -> PreTrainedTokenizerFast:
    """As BERT: ``##`` continues a word, words and punctuation split before."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer, t.decoder = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    )
    t.train_from_iterator(
        SENTENCES,
        trainers.WordPieceTrainer(
            vocab_size=60, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        ),
    )
    ends = [(name, t.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2: bytes, ``Ġ`` for a space, no token before or after."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    t.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=290,
            special_tokens=["<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t, eos_token="<|end|>", pad_token="<|end|>", padding_side="left"
    )


def unigram() -> PreTrainedTokenizerFast:
    """As T5: ``▁`` begins a word."""
    t = Tokenizer(models.Unigram())
    t.pre_tokenizer, t.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    t.train_from_iterator(
        SENTENCES,
        trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>"
        ),
    )
    t.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", t.token_to_id("</s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    )


def no_pre_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama: spaces become ``▁`` before, nothing splits the text, so that it is all one word to
    the record."""
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "<s>", "</s>"])
    )
    t.pre_tokenizer = None
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=t, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


def ends_marked() -> PreTrainedTokenizerFast:
    """As CLIP: ``</w>`` ends a word."""
    t = Tokenizer(models.BPE(unk_token="<e>", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer, t.decoder = (
        normalizers.Lowercase(),
        pre_tokenizers.BertPreTokenizer(),
        decoders.BPEDecoder(suffix="</w>"),
    )
    t.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=80, special_tokens=["<s>", "<e>"], end_of_word_suffix="</w>"
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=t, unk_token="<e>", bos_token="<s>", eos_token="<e>", pad_token="<e>"
    )


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "WordPiece": wordpiece,
    "byte-level BPE": byte_level,
    "Unigram": unigram,
    "BPE without pre-tokenizer": no_pre_tokenizer,
    "BPE with ends": ends_marked,
}
