"""Several pictures beside a text, in the layouts that vision–language models read: what is planted
in a part of one picture is found on that picture's patches, and nowhere else."""

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

import relprop
from relprop.errors import OptionError
from relprop.views.heat import patches

SIDE, PATCH, IMAGE, NEW = 16, 4, 4, 3
HEADS = {"num_attention_heads": 2, "intermediate_size": 24}
VISION = {"hidden_size": 16, "num_hidden_layers": 2, "patch_size": PATCH, "image_size": SIDE}
TEXT = {  # one block: the last position looks at what the pictures' tokens are, and no further
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
SQUARE = {"size": {"height": SIDE, "width": SIDE}}
QWEN_TEXT = {**TEXT, **HEADS, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
QWEN = {
    "image_token_id": IMAGE,
    "video_token_id": 11,
    "vision_start_token_id": 9,
    "vision_end_token_id": 10,
}
CUT = {"patch_size": PATCH, "spatial_merge_size": 2, "temporal_patch_size": 2}


def llava():
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION, **HEADS),
        text_config=hf.LlamaConfig(**TEXT, **HEADS),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
    )
    pictures = hf.CLIPImageProcessor(**SQUARE, do_center_crop=False, **PLAIN)
    return hf.LlavaForConditionalGeneration(config), pictures, lambda made: [16] * 2


def gemma3():
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**TEXT, **HEADS, head_dim=8, sliding_window=64),
        vision_config=hf.SiglipVisionConfig(**VISION, **HEADS, vision_use_head=False),
        mm_tokens_per_image=4,
        image_token_id=IMAGE,
        boi_token_id=9,
        eoi_token_id=10,
    )
    pictures = hf.SiglipImageProcessor(**SQUARE, **PLAIN)
    return hf.Gemma3ForConditionalGeneration(config), pictures, lambda made: [4] * 2


def qwen2():
    vision = {**CUT, "depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2}
    config = hf.Qwen2VLConfig(text_config=QWEN_TEXT, vision_config=vision, **QWEN)
    return hf.Qwen2VLForConditionalGeneration(config), _qwen_pictures(), _qwen_counts


def qwen2_5():
    """Patches in windows: the model puts them in another order than they come."""
    vision = {**CUT, "depth": 2, "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2}
    vision |= {"intermediate_size": 24, "window_size": 16, "fullatt_block_indexes": [1]}
    config = hf.Qwen2_5_VLConfig(text_config=QWEN_TEXT, vision_config=vision, **QWEN)
    return hf.Qwen2_5_VLForConditionalGeneration(config), _qwen_pictures(), _qwen_counts


def _qwen_pictures():
    return hf.Qwen2VLImageProcessor(
        patch_size=PATCH,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 64, "longest_edge": 10_000},
        **PLAIN,
    )


def _qwen_counts(made):
    return (made["image_grid_thw"].prod(1) // 4).tolist()


def idefics3():
    config = hf.Idefics3Config(
        text_config=hf.LlamaConfig(**TEXT, **HEADS),
        vision_config={**VISION, **HEADS},
        image_token_id=IMAGE,
        scale_factor=2,
    )
    pictures = hf.Idefics3ImageProcessor(
        size={"longest_edge": SIDE},
        max_image_size={"longest_edge": SIDE},
        do_image_splitting=False,
        **PLAIN,
    )
    return hf.Idefics3ForConditionalGeneration(config), pictures, lambda made: [4] * 2


class Chain:
    """As a vision–language model's processor: pictures, and ids with room for them."""

    def __init__(self, image_processor, counts):
        self.image_processor, self.counts = image_processor, counts

    def __call__(self, *, images, text, return_tensors):
        made = self.image_processor(images=images, return_tensors=return_tensors)
        row, counts = [1], iter(self.counts(made))
        for token in text:
            row += [IMAGE] * next(counts) if token == IMAGE else [token]
        ids = torch.tensor([row])
        made.update({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        marks = (ids == IMAGE).long()
        made.update({"mm_token_type_ids": marks, "token_type_ids": marks})
        return made


def bare(model, seed=0):
    """Random weights with which a black patch is 0 before the words: no biases, no positions, and
    patches that do not look at each other."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, 0.0 if weight.dim() > 1 else 1.0, 0.3)
        if any(part in name for part in ("bias", "position_embedding", "class_embedding")):
            torch.nn.init.zeros_(weight)
        if "vis" in name and name.endswith(("out_proj.weight", "attn.proj.weight")):
            torch.nn.init.zeros_(weight)
    return model.double().eval()


def black(height, width, *planted):
    """A black picture with noise in (top, left, bottom, right)."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for top, left, bottom, right in planted:
        shape = (bottom - top, right - left, 3)
        pixels[top:bottom, left:right] = np.random.default_rng(1).integers(40, 255, shape)
    return Image.fromarray(pixels)


def asked(make, *pictures, seed=1):
    model, processor, counts = make()
    chain = Chain(processor, counts)
    inputs = {"images": list(pictures), "text": [5, 9, IMAGE, 6, IMAGE, 7, 8]}
    return relprop.explain_generation(
        bare(model, seed), inputs, max_new_tokens=NEW, processor=chain
    )


@pytest.mark.parametrize(
    "make, sizes",
    [
        (llava, ((16, 16), (16, 16))),
        pytest.param(gemma3, ((16, 16), (16, 16)), marks=pytest.mark.slow),
        pytest.param(qwen2, ((16, 16), (16, 24)), marks=pytest.mark.slow),
        pytest.param(qwen2_5, ((16, 16), (16, 24)), marks=pytest.mark.slow),
        pytest.param(idefics3, ((16, 16), (16, 16)), marks=pytest.mark.slow),
    ],
)
def test_what_is_planted_in_a_picture_is_found_there(make, sizes):
    """Planted in squares of 2 × 2 patches, which is what some of these models make one token of."""
    regions = [(0, 8, 8, 16), (sizes[1][0] - 8, 0, sizes[1][0], 8)]
    given = [black(*size, region) for size, region in zip(sizes, regions, strict=True)]
    generation = asked(make, *given)
    assert len(generation.steps) == NEW
    seen = [0.0, 0.0]
    for step in generation.steps:
        assert step["pixel_values"].streams["pixel_values"].grid[0] == 2
        for k, (picture, (top, left, bottom, right)) in enumerate(zip(given, regions, strict=True)):
            one = step["pixel_values"].picture(k)
            found = patches(one.streams["pixel_values"], 0)
            there = np.zeros_like(found, dtype=bool)
            there[top // PATCH : bottom // PATCH, left // PATCH : right // PATCH] = True
            assert (found[there] >= 0).all() and not found[~there].any()
            seen[k] += found[there].sum()
            heat = one.original_heatmap()
            assert heat.shape == picture.size[::-1]
            assert heat[top:bottom, left:right].sum() >= 0.5 * heat.sum()
    assert min(seen) > 0


@pytest.mark.slow
def test_one_picture_of_rows_of_patches_is_a_picture():
    model, processor, counts = qwen2()
    inputs = {"images": [black(16, 24, (0, 16, 4, 20))], "text": [5, IMAGE, 6]}
    chain = Chain(processor, counts)
    e = relprop.explain(bare(model), inputs, method="attnlrp", processor=chain)["pixel_values"]
    assert (e.grid, e.image) == ((4, 6), (16, 24))
    assert [place for place, score in e.top(24) if score] == [(0, 4)]
    assert e.original_heatmap().shape == (16, 24)
    with pytest.raises(OptionError, match="has 1 pictures"):
        e.picture(1)


def test_pictures_are_kept_plotted_and_read_again(tmp_path):
    g = asked(llava, black(16, 16, (0, 0, 4, 4)), black(32, 64, (0, 0, 8, 16)))
    e = g.steps[0]["pixel_values"]
    assert [o.size for o in e.streams["pixel_values"].pictures[0]] == [(16, 16), (32, 64)]
    assert len(e.plot().axes) == 2
    again = relprop.load(e.save(tmp_path / "e.safetensors"))
    for k in range(2):
        first, second = e.picture(k), again.picture(k)
        assert torch.equal(first.original_heatmap(), second.original_heatmap())
        kept = [x.streams["pixel_values"].originals[0].picture for x in (first, second)]
        assert torch.equal(*kept) and kept[0].shape[0] == 3
    with pytest.raises(OptionError, match=r"picture\(0\)"):
        e.original_heatmap()
