"""The page of a run and its model card: every sample by its name, numbers as they are by hand, and
what a person does with it in a browser."""

import re
from html import unescape

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

import relprop
from relprop.cards.run import run_page
from relprop.data import ImageFolder
from relprop.demo.model import digit_scene_model
from relprop.demo.scenes import as_scene, make_scenes
from relprop.errors import InputError
from relprop.runs import ExplainWork, read_run, run
from tests.runs.sources import Pictures, Texts, bert, patches, tokenizer

HOSTILE = "<img src=x onerror=alert(1)> \"'&amp;.png"
NAMES = ("a cat.png", HOSTILE, "z" * 90 + ".png")


def page_of(work, folder, **options):
    run(work, folder, batch_size=4, progress=False, on_error="skip")
    return run_page(read_run(folder), work, "relprop explain --data x", **options)


def cells(page, path):
    """The rows of the table, each the texts of its cells."""
    text = page.to_html(path).read_text(encoding="utf-8")
    rows = re.findall(r"<tr data-verdict.*?</tr>", text)
    return text, [
        [unescape(re.sub(r"<.*?>", " ", cell)).strip() for cell in re.findall("<td.*?</td>", row)]
        for row in rows
    ]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The page of three pictures in files."""
    import PIL.Image

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run page")
    (folder / "pictures").mkdir()
    for name, image in zip(NAMES, make_scenes(3, seed=8).images, strict=True):
        pixels = (image[0] * 255).round().byte().numpy()
        PIL.Image.fromarray(pixels).save(folder / "pictures" / name)
    source = ImageFolder(folder / "pictures", transform=as_scene)
    work = ExplainWork(digit_scene_model(), source)
    return work, page_of(work, folder / "run"), folder


def test_every_sample_has_its_row_and_nothing_in_a_name_acts(pictures, tmp_path):
    work, page, folder = pictures
    text, rows = cells(page, tmp_path / "page.html")
    assert len(rows) == 3 and "<img src=x" not in text
    assert sorted(row[1] for row in rows) == sorted(work.source.files)
    assert page.made.endswith("relprop explain --data x")
    facts = read_run(folder / "run").identity["model"]
    assert all(value in text for value in facts.values())


def test_numbers_are_those_by_hand(pictures, tmp_path):
    work, page, _ = pictures
    model, image = work.model, work.source[0].inputs
    e = relprop.explain(model, image[None])
    scores, target = e.scores[0][e.content[0]], e.target[0]
    chance = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    shown = []
    for order in (scores.topk(13).indices, chance):
        mask = torch.zeros(64).index_fill(0, order[:13], 1).view(8, 8)
        mask = mask.repeat_interleave(4, 0).repeat_interleave(4, 1)
        given = image * (1 - mask) + image.mean() * mask
        shown.append(model(given[None]).softmax(-1)[0, target].item())
    judged = page.entries[0].found[0]
    assert judged.covered[:2] == pytest.approx(shown, abs=1e-5) and len(judged.covered) == 6
    stable = relprop.rounding_stability(model, image[None])
    assert judged.stability == pytest.approx(float(stable), abs=1e-3)
    _, rows = cells(page, tmp_path / "page.html")
    low, high = min(judged.covered[1:]), max(judged.covered[1:])
    assert judged.verdict[0] in rows[0][2]
    probability = model(image[None]).softmax(-1)[0, target].item()
    assert rows[0][3:] == [
        str(target),
        f"{probability:.4f}",
        str(len(e.concerns())),
        f"{float(stable):.2f}",
        f"{shown[0]:.2f}",
        f"{judged.chance:.2f} ({low:.2f} to {high:.2f})",
    ]


def test_the_model_card(pictures, tmp_path):
    page = pictures[1]
    card = page.to_markdown(tmp_path / "card.md").read_text(encoding="utf-8")
    assert len(card.splitlines()) <= 40 and "    relprop explain --data x" in card
    for verdict in ("certain", "doubtful"):
        count = sum(e.found[0].verdict[0] == verdict for e in page.entries)
        assert (f"| Maps that are {verdict} | {count} |" in card) == bool(count)
    middle = sorted(e.found[0].covered[0] for e in page.entries)[1]
    assert f"| Median strongest fifth covered | {middle:.2f} |" in card
    assert "| Samples | 3 explained, 0 failed |" in card


def test_a_run_with_failures_and_without_checks(tmp_path):
    class Broken(Pictures):
        def __getitem__(self, index):
            if index == 2:
                raise InputError("no such picture")
            return super().__getitem__(index)

    page = page_of(ExplainWork(patches(), Broken(5)), tmp_path / "run", checks=False)
    text, rows = cells(page, tmp_path / "page.html")
    assert len(rows) == 4 and "1 sample failed" in text and "no such picture" in text
    assert "4 not judged" in page.said and all(row[6] == row[7] == "–" for row in rows)
    card = page.to_markdown(tmp_path / "card.md").read_text(encoding="utf-8")
    assert "| Samples | 4 explained, 1 failed |" in card and "| Median stability | – |" in card


class OnlySingle(torch.nn.Module):
    """One sample at a time."""

    def __init__(self):
        super().__init__()
        self.inner = patches()

    def forward(self, images):
        if len(images) > 1:
            raise RuntimeError("only one sample")
        return self.inner(images)


def test_what_cannot_be_measured_is_said(tmp_path, monkeypatch):
    def explain(model, inputs, target, **options):
        raise InputError("no float64 on this device")

    monkeypatch.setattr("relprop.cards.run_checks.explain", explain)
    work = ExplainWork(OnlySingle().eval(), Pictures(2))
    run(work, tmp_path / "run", batch_size=1, progress=False)
    page = run_page(read_run(tmp_path / "run"), work, "")
    text, rows = cells(page, tmp_path / "page.html")
    assert [row[6:] for row in rows] == 2 * [["–", "–", "–"]]
    for entry in page.entries:
        assert set(entry.found[0].why) == {"stability", "covering"}
        assert all(why in unescape(text) for why in entry.found[0].why.values())


@pytest.mark.slow
def test_texts(tmp_path):
    work = ExplainWork(bert(), Texts(3), processor=tokenizer())
    page = page_of(work, tmp_path / "run")
    text, rows = cells(page, tmp_path / "page.html")
    assert [row[1].split(" ")[0] for row in rows] == ["t0", "t1", "t2"]
    judged = page.entries[2].found[0]
    shown = [work.source[i].inputs for i in range(3)]
    given = tokenizer()(work.source[2].inputs, return_tensors="pt")
    e = relprop.explain(work.model, dict(given), judged.explanation.target[0])
    words = e.scores[0, 1:-1]
    given["attention_mask"][0, 1 + words.topk(round(0.2 * len(words))).indices] = 0
    shares = work.model(**given).logits.softmax(-1)[0].detach()
    assert judged.covered[0] == pytest.approx(float(shares[e.target[0]]), abs=1e-5)
    assert text.count('class="shade') == sum(len(one.split()) for one in shown)


def test_what_has_no_class_has_no_numbers(pictures):
    """A map of something that is no single class: its covering is said to mean nothing."""
    from dataclasses import replace

    from relprop.cards.run_checks import checked
    from relprop.cards.run_samples import row_of

    work, page, _ = pictures
    entry = page.entries[0]
    e = replace(entry.found[0].explanation, target=("similarity",), probability=None, labels=None)
    judged = replace(entry.found[0], explanation=e, covered=(), why={"covering": "no class"})
    row = row_of(replace(entry, found=[judged]))
    assert row.count(">–</td>") == 3 and ">nan" not in row and judged.verdict[0] != "certain"
    assert checked(work, [0], [[e]])[0][0].covered == ()


@pytest.mark.slow
def test_in_a_browser(pictures, tmp_path, browser):
    path = pictures[1].to_html(tmp_path / "page.html")
    context = browser.new_context(viewport={"width": 390, "height": 800})
    page, noise = context.new_page(), []
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    assert not Axe().run(page).response["violations"]
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    names = page.locator("tbody tr td:nth-child(2) button")
    head = page.locator("thead th").nth(1)
    for order in ("ascending", "descending"):
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == order
        found = [name[:2] for name in names.all_inner_texts()]
        assert found == (["<i", "a ", "zz"] if order == "ascending" else ["zz", "a ", "<i"])
    page.locator("#filter").fill("a cat")
    assert page.locator("tbody tr:visible").count() == 1
    page.locator("tbody tr:visible button").press("Enter")
    page.wait_for_selector("dialog[open] canvas[data-painted]")
    assert not Axe().run(page).response["violations"]
    assert page.locator("dialog h2").inner_text() == "a cat.png"
    paint = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 99)"
    assert page.locator("dialog canvas").evaluate(paint)
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "a cat.png"
    context.close()
    assert noise == []
