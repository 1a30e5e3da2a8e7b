"""Cards of a picture, a class and an answer: their numbers by hand, what they say, and their pages
in a browser: by keyboard, for screen readers, narrow, with hostile text."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from transformers import Wav2Vec2FeatureExtractor

import relprop
from relprop.cards.answer import percent
from relprop.cards.picture import PLACES, in_words, outline, strongest_part
from relprop.cards.trials import COVERED, ORDERS, shuffled
from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
from relprop.demo.model import digit_scene_model
from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
from relprop.demo.quadrants import make_quadrants
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.demo.scenes import make_scenes
from relprop.errors import InputError, OptionError
from tests.common.rows import only
from tests.common.sizes import SIZES, clip, digits
from tests.views.conftest import HOSTILE
from tests.views.test_card_inputs import COLUMNS, ROW, Rows, listener

REVIEW = "The plot was thrilling. The film was boring."
STORY = "Boris paints rusty bottles. It rained all day. Anna likes amber kites. Anna likes what?"


def asked(text):
    chat = [{"role": "user", "content": text}]
    return lookup_tokenizer().apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


@pytest.fixture(scope="module")
def scene():
    return make_scenes(1, seed=8).images


KINDS = ("picture", "answer", "review", "both", "sound", "table")


class Cards(dict):
    """One of every kind, each made when a test asks for it."""

    def __missing__(self, which):
        self[which] = getattr(self, which)()
        return self[which]

    def sound(self):
        sound = np.random.default_rng(0).standard_normal(8000).astype(np.float32)
        return relprop.card(listener(), [sound], processor=Wav2Vec2FeatureExtractor())

    def table(self):
        return relprop.card(Rows(), ROW, columns=COLUMNS)

    def picture(self):
        return relprop.card(digits(), make_scenes(1, seed=8).images)

    def answer(self):
        return relprop.card(lookup_model(), asked(STORY), processor=lookup_tokenizer())

    def review(self):
        return relprop.card(review_model(), REVIEW, processor=review_tokenizer())

    def both(self):
        quadrants = make_quadrants(1, seed=4)
        inputs = {"images": quadrants.pictures(), "text": "<image> " + quadrants.questions[0]}
        seen = quadrant_processor()
        return relprop.card(quadrant_model(), inputs, processor=seen, max_new_tokens=2)


@pytest.fixture(scope="module")
def cards():
    return Cards()


def chance(images, target):
    with torch.no_grad():
        return digits()(images).double().softmax(-1)[:, target]


def test_what_covering_the_strongest_part_does(cards, scene):
    card, target = cards["picture"], 6
    region = torch.from_numpy(strongest_part(card.heat))
    assert torch.equal(region, torch.from_numpy(card.region))
    assert 0.15 < region.float().mean() < 0.25
    mean = scene.mean((2, 3), keepdim=True)
    covered = torch.where(region, mean, scene)
    assert card.cover.before == pytest.approx(float(chance(scene, target)[0]), rel=1e-5)
    assert card.cover.after == pytest.approx(float(chance(covered, target)[0]), rel=1e-4, abs=1e-9)
    assert len(card.cover.others) == PLACES and len(set(card.cover.others)) > PLACES / 2
    own = relprop.explain(digits(), scene, target)
    assert np.allclose(card.heat, own.heatmap()[0].numpy())
    share = card.heat[card.region].sum() / card.heat.sum()
    assert f"a fifth of the picture holds {share:.0%}" in card.said


def test_a_cover_within_the_others_proves_nothing(cards):
    from dataclasses import replace

    cover = cards["picture"].cover
    among = replace(cover, after=float(np.median(cover.others)))
    assert "That proves nothing" in among.sentence
    away = replace(cover, after=-1.0)
    assert "proves nothing" not in away.sentence and "almost anywhere" in away.sentence


def test_the_curve_is_the_models(cards, scene):
    deletion = cards["picture"].checks.deletion
    assert len(deletion.by_map) == len(COVERED) and len(deletion.by_chance) == ORDERS
    patches = torch.from_numpy(cards["picture"].heat).unfold(0, 4, 4).unfold(1, 4, 4).sum((2, 3))
    order = patches.flatten().argsort(descending=True, stable=True)
    gone = torch.zeros(64, dtype=torch.bool)
    gone[order[: round(0.2 * 64)]] = True
    mask = gone.view(8, 8).repeat_interleave(4, 0).repeat_interleave(4, 1)
    image = torch.where(mask, scene.mean((2, 3), keepdim=True), scene)
    assert deletion.by_map[3] == pytest.approx(float(chance(image, 6)[0]), rel=1e-4, abs=1e-9)


def test_where_a_map_lies():
    heat = np.full((30, 30), 0.01)
    heat[2:8, 22:28] = 1.0
    region = strongest_part(heat)
    assert region.sum() == 36 and in_words(heat, region).startswith("Mostly top right: a fifth")
    flat = np.ones((30, 30)) + 1e-3 * np.random.default_rng(0).random((30, 30))
    assert strongest_part(flat) is None
    assert strongest_part(np.zeros((9, 9))) is None
    assert "spread evenly" in in_words(flat, None)
    square = np.zeros((4, 4), bool)
    square[1:3, 1:3] = True
    assert sorted(re.findall("M[^M]+", outline(square))) == ["M1,1H3", "M1,1V3", "M1,3H3", "M3,1V3"]


def test_a_flat_map_is_not_drawn(cards, tmp_path):
    from dataclasses import replace

    card = replace(cards["picture"], region=None)
    assert "none is drawn" in card._html() and "<canvas" not in card._html()
    assert card.to_png(tmp_path / "flat.png").exists()


def test_shares_are_the_generations(cards):
    answer = cards["answer"].answers[0]
    g = relprop.explain_generation(lookup_model(), asked(STORY), processor=lookup_tokenizer())
    assert answer.text == "Anna likes amber kites."
    assert [one.text for one in answer.said] == g.labels[0][: len(answer.said)]
    by_sentence = dict(g.segments("sentences").words(0))
    shares = answer.of_parts(answer.whole)
    assert [part.text for part in answer.parts] == list(by_sentence)
    prompt = sum(by_sentence.values())
    for part, share in zip(answer.parts, shares, strict=False):
        expected = by_sentence[part.text] / prompt * (1 - shares[-1])
        assert share == pytest.approx(expected, abs=1e-6)
    for k, one in enumerate(answer.said):
        assert one.probability == pytest.approx(float(g.steps[k].probability[0]), rel=1e-4)
        assert sum(map(abs, one.shares)) == pytest.approx(1)
        assert len(one.shares) == len(answer.words) + k
        assert len(one.others) == 3 and one.others[0][1] <= 1 - one.probability + 1e-6
    amber = answer.said[2]
    assert answer.words[int(np.argmax(amber.shares))] == amber.text == "amber"
    assert answer.words[int(np.argmax(amber.against))] == "amber" and min(amber.against) < 0


def test_hidden_words_are_hidden_from_the_model(cards):
    deletion = cards["review"].checks.deletion
    read = review_tokenizer()(REVIEW, return_tensors="pt")
    answer = cards["review"].answers[0]
    best = int(np.argmax(answer.whole))
    words = relprop.explain(review_model(), REVIEW, processor=review_tokenizer())
    tokens = words.streams["input_ids"].words[0][best][1]
    mask = read["attention_mask"].clone()
    mask[0, tokens] = 0
    with torch.no_grad():
        logits = review_model()(**{**read, "attention_mask": mask}).logits
    target = words.target[0]
    expected = float(logits.double().softmax(-1)[0, target])
    assert deletion.by_map[2] == pytest.approx(expected, rel=1e-4)  # one of ten words


def test_the_control_is_of_shuffled_weights_and_the_model_is_left(cards, scene):
    model = digits()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    drawn = shuffled(model)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    for (name, own), other in zip(model.named_parameters(), drawn.parameters(), strict=True):
        assert torch.equal(own.flatten().sort().values, other.flatten().sort().values), name
    assert abs(cards["picture"].checks.control) < 0.8
    assert "weights shuffled" in cards["picture"].checks.control_sentence


def test_citations_and_generations_have_the_same_page(tmp_path):
    documents = ["Anna likes amber kites. It rained all day.", "Boris paints silver rivers."]
    found = relprop.cite(
        lookup_model(), "Boris paints what?", documents, processor=lookup_tokenizer()
    )
    page = found.to_html(tmp_path / "c.html", title="<b>?").read_text()
    assert "<h3>document 1</h3>" in page and "&lt;b&gt;?" in page and "<b>?" not in page
    data = json.loads(re.search('id="data">(.*?)</script>', page)[1])["answers"][0]
    assert data["words"] == len(found.passages) and len(data["said"]) == len(found)
    row = found.scores[0] / found.scores[0].abs().sum()
    assert data["said"][0]["shares"] == pytest.approx(row.tolist(), abs=1e-4)
    assert "iframe" in found._repr_html_()


def test_what_is_refused(scene):
    with pytest.raises(InputError, match="2 are given"):
        relprop.card(digits(), torch.cat([scene, scene]))
    with pytest.raises(OptionError, match="columns= names columns"):
        relprop.card(digits(), scene, columns=["a"])


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.004, 0.5, 0.996, 1.0])
def test_a_chance_is_never_none_or_all(p):
    assert percent(p) not in ("0%", "100%") and percent(0.5) == "50%"


def test_hostile_words_stay_text(cards, tmp_path, browser):
    from dataclasses import replace

    card = cards["answer"]
    one = card.answers[0]
    said = tuple(
        replace(s, text=t, others=((t, 0.1),)) for s, t in zip(one.said, HOSTILE, strict=False)
    )
    parts = tuple(replace(p, text=t) for p, t in zip(one.parts, HOSTILE, strict=False))
    words = tuple(HOSTILE[i % len(HOSTILE)] for i in range(len(one.words)))
    bad = replace(one, said=said, parts=parts, words=words)
    path = replace(card, answers=(bad,), title=HOSTILE[0], said=HOSTILE[1]).to_html(
        tmp_path / "bad.html"
    )
    assert path.read_text(encoding="utf-8").count("<script") == 2
    page = browser.new_page()
    page.on("dialog", lambda dialog: pytest.fail("a script ran"))
    page.goto(path.as_uri())
    page.locator("[data-said='0']").click()
    page.close()


@pytest.mark.parametrize(
    ("which", "scheme"),
    only(
        [("picture", "dark"), ("answer", "light"), ("table", "dark")],
        itertools.product(KINDS, ["light", "dark"]),
    ),
)
def test_a_page_is_for_everyone(cards, which, scheme, tmp_path, browser):
    path = cards[which].to_html(tmp_path / "card.html")
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: r.url.startswith(("file:", "data:")) or problems.append(r.url))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for chip in page.locator("[data-said]").all():
        chip.focus()
        page.keyboard.press("Enter")
        found = Axe().run(page)
        assert not found.response["violations"], found.generate_report()
    assert not Axe().run(page).response["violations"]
    context.close()
    assert not problems


def test_a_chosen_part_shades_its_words(cards, tmp_path, browser):
    answer = cards["answer"].answers[0]
    page = browser.new_page()
    page.goto(cards["answer"].to_html(tmp_path / "a.html").as_uri())
    page.locator("[data-said='2']").focus()
    page.keyboard.press("Enter")
    strength = page.locator("[data-word]").evaluate_all(
        "all => all.map(e => parseFloat(e.style.getPropertyValue('--s')))"
    )
    shares = np.abs(answer.said[2].shares[: len(answer.words)])
    assert np.allclose(strength, 100 * shares / shares.max(), atol=0.6)
    percents = page.locator("[data-percent]").all_inner_texts()
    expected = answer.of_parts(answer.said[2].shares)
    assert [int(p[:-1]) for p in percents] == [round(100 * x) for x in expected]
    page.get_by_role("button", name="Why not").click()
    shares = np.array(answer.said[2].against)[: len(answer.words)]
    against = page.locator("[data-word].against").evaluate_all(
        "all => all.map(e => +e.dataset.word)"
    )
    assert set(against) == set(np.flatnonzero(shares < 0).tolist())
    assert "attnlrp" in page.locator("[data-colours]").inner_text()
    page.close()


def test_the_slider_hides_what_is_weaker(cards, tmp_path, browser):
    page = browser.new_page()
    page.goto(cards["picture"].to_html(tmp_path / "p.html").as_uri())
    count = """canvas => {
        const {width, height} = canvas;
        const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
        return pixels.filter((v, i) => i % 4 === 3 && v > 0).length / (width * height);
    }"""
    canvas = page.locator("#heat")
    page.wait_for_function("document.getElementById('shown').textContent")
    page.locator("#least").fill("20")
    assert page.locator("#shown").inner_text() == "20 %"
    assert 0.1 < canvas.evaluate(count) < 0.3
    page.close()


@pytest.mark.parametrize("which", only(["picture", "answer", "table"], KINDS))
def test_pictures_and_notebooks(cards, which, tmp_path):
    card = cards[which]
    assert card.to_png(tmp_path / "card.png").read_bytes()[:4] == b"\x89PNG"
    assert card._repr_png_()[:4] == b"\x89PNG"
    assert card._repr_html_().startswith("<iframe") and "<script" not in card._repr_html_()
    assert len(repr(card)) < 400


def test_the_command_line(tmp_path, scene):
    from PIL import Image
    from typer.testing import CliRunner

    from relprop.cli import app

    file = tmp_path / "scene.png"
    Image.fromarray((255 * scene[0, 0]).round().byte().numpy()).save(file)
    outs = [str(tmp_path / name) for name in ("c.html", "c.png")]
    wanted = ["--target", "2", *(x for out in outs for x in ("--out", out))]
    run = CliRunner().invoke(app, ["card", str(file), "--model", "demo:digits", *wanted])
    assert run.exit_code == 0, run.output
    assert "a fifth of the picture holds" in run.output and "written" in run.output
    page = (tmp_path / "c.html").read_text()
    assert "weights SHA-256" in page and "Covering the outlined part" in page
    again = CliRunner().invoke(app, ["card", str(file), "--model", "demo:digits", *wanted])
    assert again.exit_code == 1


@pytest.mark.slow
def test_inputs_of_every_kind(tmp_path):
    """A spectrogram, a picture with a text, a next token, a function: each has a card, or a reason
    for what it lacks."""
    import transformers

    torch.manual_seed(0)
    sound = transformers.ASTConfig(**SIZES, max_length=64, num_mel_bins=32)
    heard = relprop.card(transformers.ASTForAudioClassification(sound), torch.randn(1, 64, 32))
    assert heard.picture.shape[:2] == heard.heat.shape and "no picture" in heard.checks.deletion
    pair = {"input_ids": torch.randint(1, 48, (1, 5)), "pixel_values": torch.randn(1, 3, 16, 16)}
    pair["attention_mask"] = torch.ones(1, 5, dtype=torch.long)
    both = relprop.card(clip(), pair, relprop.targets.similarity())
    (answer,) = both.answers
    assert len(answer.whole) == len(answer.words) + 1 and len(answer.maps) == 1
    assert sum(map(abs, answer.whole)) == pytest.approx(1)
    text = asked("Anna likes amber kites. Anna likes what?")
    one = relprop.card(lookup_model(), text, (-1, 10), processor=lookup_tokenizer())
    said = one.answers[0].said[0]
    assert said.probability > 0.9 and len(said.others) == 3 and said.against is not None
    assert one.checks.deletion.by_map[0] == pytest.approx(said.probability, rel=1e-4)
    model = digits()
    free = relprop.card(model, make_scenes(1, seed=8).images, lambda y: y[0, 2] - y[0, 6])
    assert free.checks.deletion == "the target is no class" and isinstance(
        free.checks.control, float
    )


@pytest.mark.slow
def test_a_model_that_repeats_its_prompt_has_a_card():
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    config = transformers.T5Config(
        **sizes, vocab_size=9, decoder_start_token_id=0, eos_token_id=None
    )
    model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        model.lm_head.weight[0] = 50 * model.shared.weight[0].sign()
    ids = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3).long()}
    card = relprop.card(model, ids, max_new_tokens=3)
    assert len(card.answers[0].said) == 3 and card.answers[0].said[0].others


class Returns(torch.nn.Module):
    """The digit model, whose output is made into something else."""

    def __init__(self, made):
        super().__init__()
        self.model, self.made = digits(), made

    def forward(self, x):
        return self.made(self.model(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:output 'output' ends in a softmax")
def test_probabilities_are_the_models(scene):
    expected = float(chance(scene, 6)[0])
    for made in (lambda y: y.softmax(-1), lambda y: (y,), lambda y: {"scores": y}):
        card = relprop.card(Returns(made), scene, 6)
        assert card.cover.before == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_what_the_user_watches_sees_no_covered_run(scene):
    model, seen = digit_scene_model(), []
    model.blocks[0].register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    relprop.explain(model, scene, 6)
    before = len(seen)
    relprop.card(model, scene, 6)
    assert set(seen) <= {1} and len(seen) <= 2 * before + 1


def test_of_a_cropped_picture_what_the_model_saw_is_outlined():
    import timm
    from PIL import Image

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", depth=1)
    pixels = (np.random.default_rng(0).random((224, 400, 3)) * 255).astype(np.uint8)
    card = relprop.card(model, Image.fromarray(pixels), 5, checks=False)
    columns = np.flatnonzero(card.region.any(0))  # of 224 × 400 it sees about 202 × 202
    assert columns.min() > 80 and columns.max() < 320
    assert card.region.mean() == pytest.approx(0.2 * (0.9 * 224) ** 2 / (224 * 400), rel=0.2)


def test_what_the_processor_is_told_may_stand_in_the_call():
    read = review_tokenizer()
    card = relprop.card(
        review_model(), REVIEW * 3, processor=read, truncation=True, max_length=9, checks=False
    )
    assert 3 < len(card.answers[0].words) <= 7


@pytest.mark.slow
def test_one_word_has_a_fifth():
    card = relprop.card(review_model(), "thrilling", processor=review_tokenizer())
    assert card.checks.deletion.by_map[3] != card.checks.deletion.by_map[0]


@pytest.mark.slow
def test_tokens_are_shown_as_they_are_written():
    import tokenizers
    import transformers

    words = "Die Hauptstadt von Bayern ist München ."
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([words] * 5, vocab_size=300, special_tokens=["<end>"])
    read = transformers.PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token="<end>")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(read), "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, eos_token_id=0))
    ids = read(" München", return_tensors="pt")["input_ids"]
    given = relprop.explain_generation(
        model, "Die Hauptstadt von Bayern ist", processor=read, output_ids=ids
    )
    assert any("Ġ" in label or "Ã" in label for label in given.labels[0])
    card = relprop.card(model, "Die Hauptstadt", processor=read, max_new_tokens=2, checks=False)
    shown = " ".join(s.text + " ".join(t for t, _ in s.others) for s in card.answers[0].said)
    assert "Ġ" not in shown and "Ã" not in card.title


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:output 'logits' ends in a softmax")
def test_runners_up_of_a_model_that_ends_in_a_softmax():
    """They are as likely as the model says, not a softmax of that."""

    class Ends(type(review_model())):
        def forward(self, *args, **named):
            found = super().forward(*args, **named)
            found.logits = found.logits.softmax(-1)
            return found

    model = review_model()
    model.__class__ = Ends
    card = relprop.card(model, REVIEW, processor=review_tokenizer(), checks=False)
    (said,) = card.answers[0].said
    assert said.probability + said.others[0][1] == pytest.approx(1, abs=1e-5)
    assert said.probability > 0.9


def test_a_small_difference_is_none_of_probabilities_alone():
    from relprop.cards.head_trials import compared

    others = [1e-4] * 20
    assert "no more" in compared(5, [0.5, 1e-5, *others], "probability of 'cat'").verdict
    assert "no more" not in compared(5, [0.5, 1e-5, *others], "explained value").verdict
