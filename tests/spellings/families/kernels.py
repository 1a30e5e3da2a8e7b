"""PyTorch's own operators for attention, called by their names, and its fused layers."""

import torch
from torch.nn import functional as F

from tests.spellings.bases import CAUSAL, GROUPED, IDS, PADDED, PLAIN, RELATIVE
from tests.spellings.families.attentions import PytorchAttention, _EncoderLayer
from tests.spellings.model import WIDTH
from tests.spellings.spelling import spells

aten = torch.ops.aten

# Heads alone.


@spells("attend", CAUSAL)
def math_causal(parts, q, k, v, allowed):
    return aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, True)[0]


@spells("attend", PADDED)
def math_with_a_mask(parts, q, k, v, allowed):
    hidden = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill(~allowed, -torch.inf)
    return aten._scaled_dot_product_attention_math(q, k, v, attn_mask=hidden)[0]


@spells("attend", PLAIN)
def math_for_its_map(parts, q, k, v, allowed):
    _, a = aten._scaled_dot_product_attention_math(q, k, torch.zeros_like(v))
    return a @ v


@spells("attention", GROUPED)
def math_grouped(at, x, allowed):
    q = at.parts.split(at.query(x), at.heads)
    k, v = (at.parts.split(f(x), at.groups) for f in (at.key, at.value))
    y, _ = aten._scaled_dot_product_attention_math(q, k, v, enable_gqa=True)
    return at.out(at.parts.join(y))


@spells("attend", PLAIN)
def flash_on_the_cpu(parts, q, k, v, allowed):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


@spells("attend", RELATIVE)
def flash_on_the_cpu_with_biases(parts, q, k, v, allowed):
    given = allowed.detach().expand(len(q), -1, -1, -1)
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=given, scale=0.5)[0]


@spells("attend", CAUSAL)
def flash_on_the_cpu_causal(parts, q, k, v, allowed):
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True)[0]


# Projections, too; these have no derivative.


@spells("attention", PLAIN, inference=True)
class NativeAttention(PytorchAttention):
    """What the fast path of ``nn.MultiheadAttention`` calls."""

    def forward(self, x, allowed):
        return self.native(x)[0]

    def native(self, x, *more, **options):
        i, out = self.inner, self.inner.out_proj
        given = (i.in_proj_weight, i.in_proj_bias, out.weight, out.bias)
        with torch.no_grad():
            return torch._native_multi_head_attention(
                x, x, x, WIDTH, i.num_heads, *given, *more, **options
            )


@spells("attention", CAUSAL, inference=True)
class NativeAttentionCausal(NativeAttention):
    def forward(self, x, allowed):
        return self.native(x, ~allowed, False, mask_type=0)[0]


@spells("attention", PADDED, inference=True)
class NativeAttentionPadded(NativeAttention):
    def forward(self, x, allowed):
        return self.native(x, ~allowed[:, 0, 0], True, False, mask_type=1)[0]


@spells("block", PLAIN, IDS, inference=True)
class NativeLayer(_EncoderLayer):
    """What the fast path of ``nn.TransformerEncoderLayer`` calls."""

    def forward(self, x, allowed):
        return self.native(x)

    def native(self, x, *mask):
        i, attention = self.inner, self.inner.self_attn
        pairs = (i.norm1, i.norm2, i.linear1, i.linear2)
        layers = [t for layer in pairs for t in (layer.weight, layer.bias)]
        gelu = i.activation_relu_or_gelu == 2
        with torch.no_grad():
            return torch._transformer_encoder_layer_fwd(
                x, WIDTH, attention.num_heads, attention.in_proj_weight, attention.in_proj_bias,
                attention.out_proj.weight, attention.out_proj.bias, gelu, i.norm_first, 1e-5,
                *layers, *mask,
            )  # fmt: skip


@spells("block", PADDED, inference=True)
class NativeLayerPadded(NativeLayer):
    def forward(self, x, allowed):
        return self.native(x, ~allowed[:, 0, 0], 1)


# ``F.multi_head_attention_forward`` with all it can do.


class _Forward(PytorchAttention):
    def called(self, x, keys=None, values=None, **options):
        i, x = self.inner, x.transpose(0, 1)
        keys, values = (x if t is None else t.transpose(0, 1) for t in (keys, values))
        out, _ = F.multi_head_attention_forward(
            x, keys, values, WIDTH, i.num_heads,
            options.pop("weight", i.in_proj_weight), i.in_proj_bias, None, None, False, 0.0,
            i.out_proj.weight, i.out_proj.bias, False, **options,
        )  # fmt: skip
        return out.transpose(0, 1)


@spells("attention", PLAIN)
class ForwardWithSeparateWeights(_Forward):
    def forward(self, x, allowed):
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        given = dict(zip(names, self.inner.in_proj_weight.chunk(3), strict=True))
        return self.called(x, weight=None, use_separate_proj_weight=True, **given)


@spells("attention", CAUSAL)
class ForwardCausal(_Forward):
    def forward(self, x, allowed):
        return self.called(x, need_weights=False, attn_mask=~allowed, is_causal=True)


@spells("attention", CAUSAL)
class ForwardWithAFloatMask(_Forward):
    def forward(self, x, allowed):
        mask = torch.zeros(allowed.shape, dtype=x.dtype).masked_fill(~allowed, -torch.inf)
        return self.called(x, attn_mask=mask, average_attn_weights=False)


@spells("attention", PADDED)
class ForwardPadded(_Forward):
    def forward(self, x, allowed):
        return self.called(x, key_padding_mask=~allowed[:, 0, 0], need_weights=False)


@spells("attention", PLAIN)
class ForwardWithStaticKeys(_Forward):
    def forward(self, x, allowed):
        _, w, v = self.inner.in_proj_weight.chunk(3)
        _, b, c = self.inner.in_proj_bias.chunk(3)
        heads = self.inner.num_heads
        k, v = (
            F.linear(x, *f).unflatten(-1, (heads, -1)).transpose(1, 2).flatten(0, 1)
            for f in ((w, b), (v, c))
        )
        return self.called(x, static_k=k, static_v=v)
