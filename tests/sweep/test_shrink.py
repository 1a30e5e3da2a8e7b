"""The generic rule that makes a config small: what must fit together still does."""

import pytest
import transformers

from tools.sweep.shrink import HEADS, HIDDEN, VOCABULARY, shrink
from tools.sweep.timm_models import shrunk_arguments


def test_widths_heads_and_lengths_are_capped():
    small = shrink(transformers.BertConfig())
    assert (
        small.hidden_size,
        small.num_attention_heads,
        small.num_hidden_layers,
        small.vocab_size,
    ) == (HIDDEN, HEADS, 2, VOCABULARY)
    assert (
        small.hidden_size % small.num_attention_heads == 0 and small.max_position_embeddings < 512
    )


def test_grouped_queries_stay_grouped_and_plain_ones_plain():
    grouped = shrink(transformers.LlamaConfig(num_attention_heads=32, num_key_value_heads=8))
    assert grouped.num_attention_heads == HEADS and grouped.num_key_value_heads == 2
    plain = shrink(transformers.LlamaConfig(num_attention_heads=32, num_key_value_heads=32))
    assert plain.num_key_value_heads == plain.num_attention_heads
    single = shrink(transformers.LlamaConfig(num_attention_heads=32, num_key_value_heads=1))
    assert single.num_key_value_heads == 1


def test_every_kind_of_layer_is_kept():
    small = shrink(transformers.Gemma3TextConfig())
    assert (
        set(small.layer_types) == {"sliding_attention", "full_attention"}
        and len(small.layer_types) == small.num_hidden_layers
    )
    assert small.sliding_window < 12  # shorter than the sweep's texts: the window matters


def test_special_ids_stay_inside_the_vocabulary_and_apart():
    small = shrink(
        transformers.GPT2Config(bos_token_id=50256, eos_token_id=50256, pad_token_id=50255)
    )
    assert max(small.bos_token_id, small.eos_token_id, small.pad_token_id) < VOCABULARY
    assert small.bos_token_id == small.eos_token_id != small.pad_token_id
    listed = shrink(transformers.LlamaConfig(eos_token_id=[128001, 128009]))
    assert len(set(listed.eos_token_id)) == 2 and max(listed.eos_token_id) < VOCABULARY
    assert shrink(transformers.GPT2Config()).pad_token_id == 0


def test_sub_configs_are_shrunk_too():
    small = shrink(transformers.CLIPConfig())
    assert (
        small.text_config.hidden_size
        == small.vision_config.hidden_size
        == small.projection_dim
        == HIDDEN
    )
    assert small.vision_config.image_size == 4 * small.vision_config.patch_size
    detector = shrink(transformers.DetrConfig())
    assert detector.d_model == HIDDEN and detector.num_queries < 100


def test_stages_keep_their_ratios():
    small = shrink(transformers.SegformerConfig())
    before = transformers.SegformerConfig()
    assert [h // small.hidden_sizes[0] for h in small.hidden_sizes] == [
        h // before.hidden_sizes[0] for h in before.hidden_sizes
    ]
    assert all(
        h % n == 0 for h, n in zip(small.hidden_sizes, small.num_attention_heads, strict=True)
    )
    assert max(small.depths) <= 2


def test_scaling_divides_all_widths_by_one_number():
    small = shrink(transformers.BertConfig(), how="scale", divisor=16)
    assert (small.hidden_size, small.intermediate_size, small.num_attention_heads) == (48, 192, 12)
    assert shrink(transformers.BertConfig(), how="layers").hidden_size == 768


def test_changes_override_the_rule():
    small = shrink(
        transformers.CLIPConfig(),
        changes={"projection_dim": 24, "text_config": {"hidden_size": 16}},
    )
    assert (
        small.projection_dim == 24
        and small.text_config.hidden_size == 16
        and small.vision_config.hidden_size == HIDDEN
    )


def test_the_config_given_is_not_changed():
    config = transformers.CLIPConfig()
    before = config.to_dict()
    shrink(config)
    assert config.to_dict() == before


@pytest.mark.parametrize(
    "divisor, shallow, wanted",
    [
        (8, True, {"embed_dim": 12, "depths": (2, 2, 2, 2), "window_size": 4}),
        (1, False, {"window_size": 4}),
    ],
)
def test_constructor_arguments_of_timm(divisor, shallow, wanted):
    given = {
        "embed_dim": 96,
        "depths": (2, 2, 6, 2),
        "num_heads": (3, 6, 12, 24),
        "window_size": 7,
        "qkv_bias": True,
        "num_classes": 1000,
        "drop_rate": 0.0,
    }
    assert shrunk_arguments(given, divisor, shallow) == {**wanted, "num_classes": 10}
