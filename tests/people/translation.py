"""The translation tutorial's encoder and decoder around ``nn.Transformer``, tokens first, with
padding on both sides, and the tutorial before it with ``nn.TransformerEncoder``."""

import math

import torch
from torch import Tensor, nn
from torch.nn import Transformer, TransformerEncoder, TransformerEncoderLayer
from torch.nn import functional as F

from tests.people import plain
from tests.people.bert import padded
from tests.people.pairs import Pair, drawn, filled, ids, pair, renamed

SOURCE, TARGET, EMB, NHEAD, LAYERS, FFN, PAD_IDX = 6, 5, 8, 2, 2, 12, 1
SRC_VOCAB, TGT_VOCAB = 11, 9


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 20):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding)

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


def generate_square_subsequent_mask(sz):
    mask = (torch.triu(torch.ones((sz, sz))) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float("-inf"))
    return mask.masked_fill(mask == 1, 0.0)


def create_mask(src, tgt):
    tgt_mask = generate_square_subsequent_mask(tgt.shape[0])
    src_mask = torch.zeros((src.shape[0], src.shape[0])).type(torch.bool)
    src_padding_mask = (src == PAD_IDX).transpose(0, 1)
    tgt_padding_mask = (tgt == PAD_IDX).transpose(0, 1)
    return src_mask, tgt_mask == -torch.inf, src_padding_mask, tgt_padding_mask


class Seq2SeqTransformer(nn.Module):
    """Its batches come first, as a data loader of today gives them."""

    def __init__(self):
        super().__init__()
        self.transformer = Transformer(
            d_model=EMB,
            nhead=NHEAD,
            num_encoder_layers=LAYERS,
            num_decoder_layers=LAYERS,
            dim_feedforward=FFN,
            dropout=0.1,
        )
        self.generator = nn.Linear(EMB, TGT_VOCAB)
        self.src_tok_emb = TokenEmbedding(SRC_VOCAB, EMB)
        self.tgt_tok_emb = TokenEmbedding(TGT_VOCAB, EMB)
        self.positional_encoding = PositionalEncoding(EMB, dropout=0.1)

    def forward(self, src: Tensor, trg: Tensor):
        src, trg = src.transpose(0, 1), trg.transpose(0, 1)
        src_mask, tgt_mask, src_padding_mask, tgt_padding_mask = create_mask(src, trg)
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(
            src_emb,
            tgt_emb,
            src_mask,
            tgt_mask,
            None,
            src_padding_mask,
            tgt_padding_mask,
            src_padding_mask,
        )
        return self.generator(outs).transpose(0, 1)


class DecoderBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.other = plain.Attention(EMB, NHEAD), plain.Attention(EMB, NHEAD)
        self.mlp = plain.Mlp(EMB, FFN, F.relu)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(EMB) for _ in range(3))

    def forward(self, x, memory, own_mask, other_mask):
        x = self.norm1(x + self.own(x, mask=own_mask))
        x = self.norm2(x + self.other(x, memory, mask=other_mask))
        return self.norm3(x + self.mlp(x))


def encoder_block():
    mlp = plain.Mlp(EMB, FFN, F.relu)
    return plain.PostBlock(plain.Attention(EMB, NHEAD), mlp, lambda: nn.LayerNorm(EMB))


class Twin(nn.Module):
    """Scaled tables, positions as parameters."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(SRC_VOCAB, EMB), nn.Embedding(TGT_VOCAB, EMB)
        self.position = nn.Parameter(torch.zeros(SOURCE, EMB))
        self.encoder = nn.ModuleList([encoder_block() for _ in range(LAYERS)])
        self.decoder = nn.ModuleList([DecoderBlock() for _ in range(LAYERS)])
        self.norm1, self.norm2 = nn.LayerNorm(EMB), nn.LayerNorm(EMB)
        self.generator = nn.Linear(EMB, TGT_VOCAB)

    def forward(self, src, trg):
        seen, known = (src != PAD_IDX)[:, None, None], (trg != PAD_IDX)[:, None, None]
        past = torch.ones(TARGET, TARGET, dtype=torch.bool).tril()
        memory = self.source(src) + self.position
        for block in self.encoder:
            memory = block(memory, mask=seen)
        memory = self.norm1(memory)
        x = self.target(trg) + self.position[:TARGET]
        for block in self.decoder:
            x = block(x, memory, known & past, seen)
        return self.generator(self.norm2(x))


def apart(weights):
    """PyTorch's attention as three projections."""
    parts = ("q.", "k.", "v.")
    return plain.thirds(weights, "in_proj_", parts)


def scaled(weights, *names):
    return {n: w * math.sqrt(EMB) if n in names else w for n, w in weights.items()}


@pair
def translation():
    """The first sample is a full pair; the target reads an early step of the decoder."""
    model = drawn(Seq2SeqTransformer())
    weights = renamed(
        model,
        ("transformer.encoder.norm", "norm1"),
        ("transformer.decoder.norm", "norm2"),
        ("transformer.", ""),
        ("coder.layers", "coder"),
        ("self_attn", "own"),
        ("multihead_attn", "other"),
        ("out_proj", "out"),
        ("linear1", "mlp.up"),
        ("linear2", "mlp.down"),
        ("src_tok_emb.embedding", "source"),
        ("tgt_tok_emb.embedding", "target"),
    )
    weights = {
        n.replace(".own.", ".attention.") if "encoder" in n else n: w for n, w in weights.items()
    }
    weights = scaled(apart(weights), "source.weight", "target.weight")
    weights["position"] = model.positional_encoding.pos_embedding[:SOURCE, 0].double()
    twin = filled(Twin(), weights)
    src, mask = padded(SOURCE, (6, 4, 5), SRC_VOCAB, pad=PAD_IDX, low=2)
    trg, _ = padded(TARGET, (5, 4, 5), TGT_VOCAB, pad=PAD_IDX, low=2)
    leaves = (model.generator.weight, twin.generator.weight)
    return Pair(
        model,
        twin,
        (src, trg),
        (SOURCE, TARGET),
        target=(3, 4),
        leaves=leaves,
        padding=mask == 0,
    )


class TransformerModel(nn.Module):
    """A causal language model; its mask is made anew when the length changes."""

    def __init__(self, ntoken, d_model, nhead, d_hid, nlayers, dropout=0.2):
        super().__init__()
        self.src_mask = None
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        encoder_layers = TransformerEncoderLayer(d_model, nhead, d_hid, dropout)
        self.transformer_encoder = TransformerEncoder(encoder_layers, nlayers)
        self.encoder = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.decoder = nn.Linear(d_model, ntoken)

    def forward(self, src):
        src = src.t()
        if self.src_mask is None or self.src_mask.size(0) != len(src):
            self.src_mask = generate_square_subsequent_mask(len(src)).to(self.encoder.weight.dtype)
        src = self.encoder(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        output = self.transformer_encoder(src, self.src_mask)
        output = self.decoder(output)
        return F.log_softmax(output, dim=-1).transpose(0, 1)


class LanguageTwin(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SRC_VOCAB, EMB)
        self.position = nn.Parameter(torch.zeros(SOURCE, EMB))
        self.blocks = nn.ModuleList([encoder_block() for _ in range(LAYERS)])
        self.head = nn.Linear(EMB, SRC_VOCAB)
        for block in self.blocks:
            block.attention.causal = True

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(x).log_softmax(-1)


@pair
def encoder_tutorial():
    model = drawn(TransformerModel(SRC_VOCAB, EMB, NHEAD, FFN, LAYERS))
    weights = renamed(
        model,
        ("decoder", "head"),
        ("transformer_encoder.layers", "blocks"),
        ("encoder.weight", "embed.weight"),
        ("self_attn.out_proj", "attention.out"),
        ("self_attn", "attention"),
        ("linear1", "mlp.up"),
        ("linear2", "mlp.down"),
    )
    weights = scaled(apart(weights), "embed.weight")
    weights["position"] = model.pos_encoder.pos_embedding[:SOURCE, 0].double()
    twin = filled(LanguageTwin(), weights)
    leaves = (model.decoder.weight, twin.head.weight)
    return Pair(model, twin, ids(SOURCE, SRC_VOCAB), SOURCE, target=(-1, 3), leaves=leaves)
