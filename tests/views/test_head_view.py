"""The head view: its numbers against a loop by hand, what it refuses, its page, and whether the
heads that it takes away are really gone."""

import json
import re
from dataclasses import replace

import pytest
import timm
import torch
import transformers
from axe_playwright_python.sync_playwright import Axe

import relprop
from relprop.cards.answer import percent
from relprop.cards.head_parts import head_vectors, parts_of
from relprop.cards.head_trials import ablated, compared
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import make_scenes
from relprop.errors import InputError, OptionError
from tests.common.rows import only
from tests.common.sizes import digits
from tests.views.conftest import HOSTILE, small_bert, small_tokenizer

SMALL = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "num_classes": 5,
}
IMAGE = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXT = "<s><|user|>Viktor brings rusty kites. Viktor brings what?<|end|><|assistant|>Viktor brings"


def small_vit(**options):
    torch.manual_seed(0)
    return timm.models.VisionTransformer(**SMALL | options).eval()


MODELS = {
    "class token": lambda: (small_vit(), IMAGE, {}),
    "mean of the patches": lambda: (small_vit(global_pool="avg", class_token=False), IMAGE, {}),
    "registers": lambda: (small_vit(global_pool="avg", reg_tokens=2), IMAGE, {}),
    "attention that pools": lambda: (small_vit(global_pool="map", class_token=False), IMAGE, {}),
    "text": lambda: (small_bert(), "the film was not boring", {"processor": small_tokenizer()}),
    "next token": lambda: (lookup_model(), TEXT, {"processor": lookup_tokenizer()}),
}


@pytest.fixture(scope="module")
def scene():
    torch.set_num_threads(1)
    return make_scenes(1, seed=12)


@pytest.fixture(scope="module")
def view(scene):
    return relprop.head_view(digits(), scene.images, int(scene.digits[0, 0]))


@pytest.mark.parametrize("name", only(["class token", "text"], MODELS))
def test_the_heads_add_up_to_the_scores(name):
    model, inputs, options = MODELS[name]()
    view = relprop.head_view(model, inputs, checks=False, **options)
    scores = view.explanation.scores[0].double()
    whole = torch.cat(view.vectors).sum(0)
    torch.testing.assert_close(whole, scores, rtol=0, atol=1e-4 * float(scores.max()))
    assert float(torch.cat(view.shares).sum()) == pytest.approx(1)
    assert [len(s) for s in view.shares] == [b.attention.shape[1] for b in view.explanation.blocks]


@pytest.mark.parametrize(
    "name", only(["mean of the patches"], ["class token", "mean of the patches", "next token"])
)
def test_a_loop_by_hand_finds_the_same(name):
    model, inputs, options = MODELS[name]()
    view = relprop.head_view(model, inputs, checks=False, precision="float64", **options)
    blocks, count = view.explanation.blocks, view.explanation.scores.shape[1]
    excess = [(b.gradient[0] * b.relevance[0]).clamp(min=0) for b in blocks]
    read = torch.full((count,), 1 / count) if "mean" in name else torch.eye(count)[0]
    read = torch.eye(count)[-1] if name == "next token" else read
    total = 0.0
    for b, heads in enumerate(excess):
        above = torch.eye(count, dtype=torch.float64)
        for later in reversed(excess[b + 1 :]):
            above = above @ (torch.eye(count) + later.mean(0))
        for h in range(len(heads)):
            expected = read.double() @ above @ heads[h] / len(heads)
            torch.testing.assert_close(view.vectors[b][h], expected, rtol=1e-6, atol=1e-12)
            total += float(expected.sum())
    strongest = max(float(v.sum()) for block in view.vectors for v in block) / total
    assert max(float(s.max()) for s in view.shares) == pytest.approx(strongest)


def test_without_strongest_heads_is_what_hooks_find(view, scene):
    model, taken = digit_scene_model(), view.ablation
    for block in model.blocks:
        block.attn.fused_attn = False
    order = torch.cat(view.shares).argsort(descending=True)[:5].tolist()

    def even(layer):
        def hook(_, args, maps):
            made = maps.clone()
            for head in (k % 4 for k in order if k // 4 == layer):
                made[:, head] = maps[:, head].mean(-2, keepdim=True)
            return made

        return hook

    target = view.explanation.target[0]

    def probability():
        with torch.no_grad():
            return float(model(scene.images)[0].softmax(0)[target])

    assert probability() == pytest.approx(taken.before, abs=1e-5)
    for layer, block in enumerate(model.blocks):
        block.attn.attn_drop.register_forward_hook(even(layer))
    assert probability() == pytest.approx(taken.after, abs=1e-4)
    assert abs(taken.after - taken.before) > 0.01
    assert "the 5 strongest heads" in taken.sentence and len(taken.others) == 20
    assert taken.what == f"probability of class {target} (by a softmax)"


def test_causal_models_see_no_later_token():
    """The mixture is of the keys that a query may attend to: the first position keeps its own."""
    from relprop.cards.head_trials import _even

    maps = torch.rand(1, 2, 5, 5).tril()
    made = _even(maps / maps.sum(-1, keepdim=True))
    torch.testing.assert_close(made.sum(-1), torch.ones(1, 2, 5))
    assert torch.equal(made.triu(1), torch.zeros_like(made))


@pytest.mark.slow
def test_the_model_is_left_as_it_was(scene):
    model = digit_scene_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    relprop.head_view(model, scene.images, 3)
    assert model.training
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("by_share", "words"),
    [(0.1, "more than 5 heads"), (0.5, "no more than 5 heads"), (0.9, "less than 5 heads")],
)
def test_what_chance_does_as_well_is_no_proof(by_share, words):
    chance = tuple(0.4 + 0.01 * k for k in range(20))
    found = compared(5, [0.95, by_share, *chance], "probability of 'cat'")
    assert words in found.verdict
    assert ("no more" in found.verdict) == (by_share == 0.5)
    low, middle, high = found.interval
    assert low == pytest.approx(0.4095) and middle == pytest.approx(0.495)
    assert found.written(high) in found.sentence


def test_several_samples_are_refused(scene):
    with pytest.raises(InputError, match="one sample, and these are 2"):
        relprop.head_view(digits(), scene.images.repeat(2, 1, 1, 1), 3)


def test_windows_are_refused():
    model = timm.models.SwinTransformer(
        img_size=32,
        patch_size=4,
        window_size=4,
        embed_dim=16,
        depths=(1, 1),
        num_heads=(2, 2),
        num_classes=5,
    )
    with pytest.raises(OptionError, match=r"over 16 tokens, and the scores are of 64") as caught:
        relprop.head_view(model, IMAGE, 1)
    assert "relprop.plot.heads" in str(caught.value)


@pytest.mark.slow
def test_encoders_with_decoders_are_refused():
    config = transformers.T5Config(
        vocab_size=60,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    ids = {"input_ids": torch.tensor([[5, 6, 7]]), "decoder_input_ids": torch.tensor([[0, 7]])}
    with pytest.raises(OptionError, match=r"2 inputs \('input_ids', 'decoder_input_ids'\)"):
        relprop.head_view(model, ids)


def test_another_roll_up_is_refused_with_both_numbers():
    with pytest.raises(OptionError, match=r"add up to [\d.e-]+ at token \d+, whose score is [\d.]"):
        relprop.head_view(small_vit(), IMAGE, 1, head_fusion="max", checks=False)


def test_scores_of_zero_have_no_shares(view):
    stream = next(iter(view.explanation.streams.values()))
    nothing = replace(stream, scores=torch.zeros_like(stream.scores))
    blocks = tuple(
        replace(b, gradient=torch.zeros_like(b.gradient)) for b in view.explanation.blocks
    )
    made = replace(view.explanation, streams={stream.name: nothing}, blocks=blocks)
    with pytest.raises(OptionError, match="all 0"):
        head_vectors(made)


def test_the_page_has_every_head(view, tmp_path):
    page = view.to_html(tmp_path / "heads.html").read_text()
    for layer, shares in enumerate(view.shares):
        for head, share in enumerate(shares.tolist()):
            assert f'aria-label="layer {layer}, head {head}: {percent(share)}"' in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert len(data["heads"]) == 17 and data["columns"] == data["rows"] == 8
    strongest = data["heads"][data["first"]]
    assert max(strongest["cells"]) == 255 and "module blocks.3.attn" in strongest["says"]
    assert view.said in page and "http" not in page.replace("http-equiv", "")
    assert "heads are taken away here" in page and "weights shuffled" in page
    assert page.index("layer 3<") < page.index("layer 0<")


def test_patches_and_the_rest_are_all(view):
    for vectors in view.vectors:
        for vector, part in zip(vectors, parts_of(view.explanation, list(vectors)), strict=True):
            assert part.cells.shape == (8, 8)
            assert part.cells.sum() + part.rest == pytest.approx(float(vector.sum()), abs=1e-9)


def test_hostile_words_do_nothing(hostile):
    one = hostile[0]
    vectors = head_vectors(one)
    view = relprop.cards.heads.HeadView(
        "<b>t", "<i>s", relprop.cards.trials.Checks(), "<u>m", one, vectors, None, "<s>w"
    )
    page = view._html()
    for text in ("<script>alert", "<img src=x", "\u202e", "\x1b", "<b>t", "<i>s", "<u>m", "<s>w"):
        assert text not in page
    assert len(view._data()["names"]) == len(HOSTILE)
    page.encode("utf-8")


def test_the_picture_is_drawn(view, tmp_path):
    pytest.importorskip("matplotlib")
    assert view.to_png(tmp_path / "heads.png").stat().st_size > 5000
    model, text, options = MODELS["text"]()
    words = relprop.head_view(model, text, checks=False, **options)
    assert words._repr_png_().startswith(b"\x89PNG")
    assert "<iframe" in words._repr_html_()


@pytest.mark.slow
def test_without_a_probability_the_explained_value_is_shown():
    view = relprop.head_view(small_vit(), IMAGE, lambda out: out[0, 0] + out[0, 1])
    assert view.ablation.what.startswith("explained value")
    assert "the 2 strongest heads" in view.ablation.sentence


def test_a_map_that_cannot_be_set_is_told(view):
    block = view.explanation.blocks[0]
    made = replace(view.explanation, blocks=(replace(block, path="elsewhere"),))
    with (
        relprop.instrument(digits(), torch.rand(1, 1, 32, 32), 3) as probe,
        pytest.raises(OptionError, match="'elsewhere' cannot be set"),
    ):
        ablated(probe, made, view.shares[:1])


@pytest.mark.parametrize("scheme", only(["dark"], ["light", "dark"]))
def test_the_page_by_keyboard(scene, scheme, tmp_path, browser):
    view = relprop.head_view(digits(), scene.images[:1], 3, checks=False)
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(view.to_html(tmp_path / "heads.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    chosen = page.locator(".heads button[aria-pressed='true']")
    first = chosen.get_attribute("aria-label")
    chosen.focus()
    key = "ArrowLeft" if "head 3" in first else "ArrowRight"
    page.keyboard.press(key)
    page.keyboard.press("Enter")
    label = chosen.get_attribute("aria-label")
    assert label != first and label.split(":")[0][1:] in page.locator("#which").inner_text()
    assert not Axe().run(page).response["violations"]
    context.close()
    assert not problems
