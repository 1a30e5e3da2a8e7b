"""CLIP as it was published, tokens first in both towers, against transformers' CLIP: the similarity
of each picture with its own text."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel

import relprop
from tests.people.pairs import BATCH, Pair, drawn, filled, ids, normal, pair

VOCABULARY, CONTEXT, SIZE, PATCH, WIDTH, HEADS, LAYERS, EMBED = 13, 6, 4, 2, 8, 2, 2, 4
PATCHES = (SIZE // PATCH) ** 2


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model: int, n_head: int, attn_mask: torch.Tensor | None = None):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        layers = [("c_fc", nn.Linear(d_model, d_model * 2)), ("gelu", QuickGELU())]
        layers += [("c_proj", nn.Linear(d_model * 2, d_model))]
        self.mlp = nn.Sequential(OrderedDict(layers))
        self.ln_2 = nn.LayerNorm(d_model)
        self.attn_mask = attn_mask

    def attention(self, x: torch.Tensor):
        mask = self.attn_mask
        self.attn_mask = None if mask is None else mask.to(dtype=x.dtype, device=x.device)
        return self.attn(x, x, x, need_weights=False, attn_mask=self.attn_mask)[0]

    def forward(self, x: torch.Tensor):
        x = x + self.attention(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class Transformer(nn.Module):
    def __init__(self, width, layers, heads, attn_mask=None):
        super().__init__()
        blocks = [ResidualAttentionBlock(width, heads, attn_mask) for _ in range(layers)]
        self.resblocks = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor):
        return self.resblocks(x)


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH, bias=False)
        self.class_embedding = nn.Parameter(torch.zeros(WIDTH))
        self.positional_embedding = nn.Parameter(torch.zeros(PATCHES + 1, WIDTH))
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = Transformer(WIDTH, LAYERS, HEADS)
        self.proj = nn.Parameter(torch.zeros(WIDTH, EMBED))

    def forward(self, x: torch.Tensor):
        x = self.conv1(x)  # shape = [*, width, grid, grid]
        x = x.reshape(x.shape[0], x.shape[1], -1)  # shape = [*, width, grid ** 2]
        x = x.permute(0, 2, 1)  # shape = [*, grid ** 2, width]
        class_embedding = self.class_embedding.to(x.dtype) + torch.zeros(
            x.shape[0], 1, x.shape[-1], dtype=x.dtype, device=x.device
        )
        x = torch.cat([class_embedding, x], dim=1)
        x = x + self.positional_embedding.to(x.dtype)
        x = self.ln_pre(x)
        x = x.permute(1, 0, 2)  # NLD -> LND
        x = self.transformer(x)
        x = x.permute(1, 0, 2)  # LND -> NLD
        x = self.ln_post(x[:, 0, :])
        return x @ self.proj


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = VisionTransformer()
        self.transformer = Transformer(WIDTH, LAYERS, HEADS, self.build_attention_mask())
        self.token_embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positional_embedding = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.ln_final = nn.LayerNorm(WIDTH)
        self.text_projection = nn.Parameter(torch.zeros(WIDTH, EMBED))
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def build_attention_mask(self):
        mask = torch.empty(CONTEXT, CONTEXT)
        mask.fill_(float("-inf"))
        mask.triu_(1)
        return mask

    def encode_text(self, text):
        x = self.token_embedding(text)
        x = x + self.positional_embedding
        x = x.permute(1, 0, 2)  # NLD -> LND
        x = self.transformer(x)
        x = x.permute(1, 0, 2)  # LND -> NLD
        x = self.ln_final(x)
        # take features from the eot embedding (eot_token is the highest number in each sequence)
        return x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.text_projection

    def forward(self, image, text):
        image_features = self.visual(image)
        text_features = self.encode_text(text)
        image_features = image_features / image_features.norm(dim=1, keepdim=True)
        text_features = text_features / text_features.norm(dim=1, keepdim=True)
        logit_scale = self.logit_scale.exp()
        logits_per_image = logit_scale * image_features @ text_features.t()
        logits_per_text = logits_per_image.t()
        return logits_per_image, logits_per_text


def block_weights(block):
    """A block's as transformers names them."""
    names = ("q_proj", "k_proj", "v_proj")
    thirds = zip(
        names, block.attn.in_proj_weight.chunk(3), block.attn.in_proj_bias.chunk(3), strict=True
    )
    weights = {}
    for name, weight, bias in thirds:
        weights |= {f"self_attn.{name}.weight": weight, f"self_attn.{name}.bias": bias}
    parts = {"self_attn.out_proj": block.attn.out_proj, "layer_norm1": block.ln_1}
    parts |= {"layer_norm2": block.ln_2, "mlp.fc1": block.mlp.c_fc, "mlp.fc2": block.mlp.c_proj}
    return weights | {
        f"{n}.{k}": p for n, part in parts.items() for k, p in part.named_parameters()
    }


def tower(name, transformer):
    return {
        f"{name}.encoder.layers.{i}.{key}": w
        for i, block in enumerate(transformer.resblocks)
        for key, w in block_weights(block).items()
    }


def twin_weights(model):
    visual, text, vision = model.visual, "text_model", "vision_model"
    norms = {"pre_layrnorm": visual.ln_pre, "post_layernorm": visual.ln_post}
    weights = {f"{vision}.{n}.{k}": p for n, m in norms.items() for k, p in m.named_parameters()}
    return {
        **weights,
        **tower(text, model.transformer),
        **tower(vision, visual.transformer),
        f"{text}.embeddings.token_embedding.weight": model.token_embedding.weight,
        f"{text}.embeddings.position_embedding.weight": model.positional_embedding,
        f"{text}.final_layer_norm.weight": model.ln_final.weight,
        f"{text}.final_layer_norm.bias": model.ln_final.bias,
        f"{vision}.embeddings.class_embedding": visual.class_embedding,
        f"{vision}.embeddings.patch_embedding.weight": visual.conv1.weight,
        f"{vision}.embeddings.position_embedding.weight": visual.positional_embedding,
        "text_projection.weight": model.text_projection.T,
        "visual_projection.weight": visual.proj.T,
        "logit_scale": model.logit_scale,
    }


def twin_of(model):
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
    }
    last = VOCABULARY - 1
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "eos_token_id": last}
    text |= {"bos_token_id": 0, "pad_token_id": None}
    config = CLIPConfig(
        text_config={**sizes, **text},
        vision_config={"image_size": SIZE, "patch_size": PATCH, **sizes},
        projection_dim=EMBED,
    )
    return filled(CLIPModel(config), twin_weights(model))


@pair
def clip():
    """The end of each text is the largest id; what comes behind it is not seen."""
    model = drawn(CLIP())
    text = ids(CONTEXT, VOCABULARY - 1, 1)
    ends = torch.tensor([CONTEXT - 1, 3, 4])
    text[torch.arange(BATCH), ends] = VOCABULARY - 1
    images = normal(BATCH, 3, SIZE, SIZE)
    twin = twin_of(model)
    return Pair(
        model,
        twin,
        (images, text),
        (PATCHES + 1, CONTEXT),
        target=lambda out: out[0][0, 0],
        twin_inputs={"pixel_values": images, "input_ids": text},
        twin_target=relprop.targets.similarity(),
        out=lambda out: out[0].diagonal()[:, None],
        twin_out=lambda out: out.logits_per_image.diagonal()[:, None],
        leaves=(model.token_embedding.weight, twin.text_model.embeddings.token_embedding.weight),
    )
