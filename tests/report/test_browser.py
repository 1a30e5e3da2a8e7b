"""The report in a real browser: what a person does with it, and what she then sees, against the
explanation's own numbers."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import relprop
from relprop.demo.review_model import review_model, review_tokenizer
from relprop.views.colours import colours, ramps, shade
from tests.common.rows import only
from tests.report.conftest import HOSTILE, Made

MAPS = ("attention", "gradient", "relevance")


def token(page, i):
    return page.locator(f"#score-field button[data-token='{i}']")


def top(page):
    """The listed entries: {token: number}."""
    items = page.eval_on_selector_all(
        "#top li",
        (
            "items => items.map(item => [Number(item.dataset.token), "
            "item.textContent.split(' ').pop()])"
        ),
    )
    return {i: float(text) for i, text in items}


def table(page):
    """The table's columns by name, as they are written."""
    if not page.eval_on_selector("#table-details", "d => d.open"):
        page.click("#table-details summary")
    page.wait_for_selector("#table tbody tr")
    names = page.eval_on_selector_all(
        "#table thead th", "cells => cells.map(cell => cell.textContent)"
    )
    rows = page.eval_on_selector_all(
        "#table tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def same(texts, values):
    """Whether the texts are exactly these float32 numbers."""
    return np.array_equal(
        np.array([float(t) for t in texts], np.float32), values.detach().float().numpy()
    )


def choose(page, control, label):
    page.select_option(f"#{control}", label=label)
    page.wait_for_timeout(50)


def test_the_policy_stops_what_the_page_did_not_bring(scenes, browser):
    page = browser.new_page()
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(scenes.path.as_uri())
    page.evaluate(
        "() => { const s = document.createElement('script'); try { s.textContent = "
        "'window.ran = 1'; document.body.append(s); } catch (e) {} "
        "fetch('https://example.org').catch(() => 0); }"
    )
    page.wait_for_timeout(50)
    assert page.evaluate("window.ran") is None and any(
        "Content Security Policy" in text for text in said
    )
    page.close()


def test_hovering_a_patch_shows_its_row_of_c(scenes, opened):
    page, c = opened(scenes), scenes.explanations[0].matrix[0].float()
    assert page.locator("main section").count() == 5
    for i in (9, 30, 0, 64):
        token(page, i).hover()
        listed = top(page)
        best = c[i].abs().argsort(descending=True)[:8].tolist()
        assert list(listed) == [j for j in best if c[i, j] != 0] and same(
            listed.values(), c[i, list(listed)]
        )
    page.mouse.move(5, 5)
    assert (
        page.text_content("#picked-name")
        == page.locator("#score-field [aria-pressed=true]")
        .get_attribute("aria-label")
        .split(", score")[0]
    )  # back to the kept one


@pytest.mark.slow
def test_the_colours_of_the_row_are_its_numbers(scenes, opened):
    page, c = opened(scenes), scenes.explanations[0].matrix[0].float()
    token(page, 20).click()
    alpha = page.eval_on_selector(
        "#row-field canvas",
        (
            "canvas => [...canvas.getContext('2d').getImageData(0, 0, 8, 8).data].filter((_, "
            "k) => k % 4 === 3)"
        ),
    )
    values = c[20, 1:].abs()
    largest = c[20].abs().where(torch.arange(65) != 20, 0).max()
    assert (
        np.abs(np.array(alpha) / (0.9 * 255) - (values / largest).clamp(max=1).numpy()).max() < 0.01
    )


def test_a_click_keeps_a_token_and_the_table_has_every_number(scenes, opened):
    page, e = opened(scenes), scenes.explanations[0]
    token(page, 33).click()
    page.mouse.move(5, 5)
    columns = table(page)
    assert (
        page.text_content("#picked-name") == "patch (4, 0)"
        and same(columns["Score"], e.scores[0])
        and same(columns["Row of C"], e.matrix[0, 33])
    )


def test_sample_target_and_method_change_what_is_shown(scenes, opened):
    page, (one, other, rollout, gradient) = opened(scenes), scenes.explanations
    assert same(table(page)["Score"], one.scores[0])
    choose(page, "target", str(other.target[0]))
    assert same(
        table(page)["Score"], other.scores[0]
    ) and f"Target {other.target[0]}, " in page.text_content("#summary")
    assert page.eval_on_selector_all(
        "#method option", "all => all.filter(o => o.disabled).map(o => o.textContent)"
    ) == ["rollout", "input_gradient"]
    choose(page, "target", str(one.target[0]))
    choose(page, "method", "rollout")
    assert same(table(page)["Score"], rollout.scores[0]) and "no books" in page.text_content(
        "#ledger-note"
    )
    assert (
        'keep="blocks"' in page.text_content("#heads-note")
        and page.locator("#heads-body").is_hidden()
    )
    choose(page, "method", "input_gradient")
    assert same(table(page)["Score"], gradient.scores[0]) and 'keep="matrix"' in page.text_content(
        "#row-note"
    )
    choose(page, "method", "transformer_attribution")
    choose(page, "sample", "2 of 2")
    assert same(table(page)["Score"], one.scores[1])


@pytest.mark.parametrize(
    ("which", "choices"),
    [
        ("scenes", [(0, 0), (3, 2)]),
        pytest.param("large", [(0, 11), (7, 3), (11, 0)], marks=pytest.mark.slow),
    ],
)
def test_block_and_head_choose_the_maps(which, choices, request, opened):
    made = request.getfixturevalue(which)
    page, e = opened(made), made.explanations[0]
    token(page, 12).click()
    for block, head in choices:
        page.select_option("#block", str(block))
        page.wait_for_selector(f"#maps canvas[aria-label*='of {e.blocks[block].path},']")
        page.select_option("#head", str(head))
        columns, note = table(page), page.text_content("#heads-note")
        for kind, name in zip(MAPS, ("A", "∇A", "R"), strict=True):
            whole = getattr(e.blocks[block], kind)[0, head].float()
            finest = int(re.search(rf" {name} to 1/(\d+)", note)[1])
            assert (
                np.abs(np.array(columns[name], np.float64) - whole[12].numpy()).max()
                <= float(whole.abs().max()) / finest * 1.0001
            ), (block, head, kind)
            assert finest >= 255 or which == "large"
    page.select_option("#head", "-1")
    mean = e.blocks[block].attention[0].float().mean(0)[12]
    assert (
        np.abs(np.array(table(page)["A"], np.float64) - mean.numpy()).max()
        <= float(mean.max()) / 255 * 1.0001
    )


@pytest.mark.slow
def test_maps_of_windows_are_shown_by_number(windows, opened):
    page, block = opened(windows), windows.explanations[0].blocks[0]
    page.select_option("#head", label="window 3, head 1")
    page.fill("#query", "6")
    page.keyboard.press("Tab")
    said = page.locator("#maps .readout").first.text_content()
    largest, key = re.match(r"Query 6: largest (\S+) at key (\d+)\.", said).groups()
    row = block.attention[0, 3, 1, 6]
    assert int(key) == int(row.argmax()) and abs(float(largest) - float(row.max())) < 1e-3 * float(
        row.max()
    )


@pytest.mark.slow
def test_each_explained_input_is_chosen_by_name(pairs, opened):
    page, e = opened(pairs), pairs.explanations[0]
    assert same(table(page)["Score"], e["input_ids"].scores[0])
    choose(page, "stream", "pixel_values")
    assert same(
        table(page)["Score"], e["pixel_values"].scores[0]
    ) and "explained input" in page.text_content("#row-note")
    token(page, 2).hover()
    assert (
        page.input_value("#query") == "2"
    )  # the picture's tower has as many queries as the picture tokens
    choose(page, "stream", "input_ids")
    token(page, 4).hover()
    assert page.input_value("#query") == "2"  # and no queries of the text


@pytest.mark.slow
def test_more_pixels_than_can_be_pointed_at_are_summed(pixels, opened):
    page, scores = opened(pixels), pixels.explanations[0].scores[0].double()
    assert "each cell holds 7×7 of them" in page.text_content("#score-note")
    cells = torch.nn.functional.pad(scores.view(224, 160), (0, 1)).view(32, 7, 23, 7).sum((1, 3))
    assert np.allclose(
        [float(t) for t in table(page)["Score"]],
        cells.flatten().numpy(),
        rtol=1e-6,
        atol=1e-9 * float(cells.abs().max()),
    )


@pytest.mark.slow
def test_a_point_on_a_whole_map_shows_its_number(scenes, opened):
    page, block = opened(scenes), scenes.explanations[0].blocks[0]
    page.select_option("#head", "1")
    page.locator("#maps canvas").first.scroll_into_view_if_needed()
    area = page.locator("#maps canvas").first.bounding_box()
    page.mouse.move(
        area["x"] + area["width"] * (40.5 / 65), area["y"] + area["height"] * (22.5 / 65)
    )
    said = page.locator("#maps .readout").first.text_content()
    number = float(re.search(r"Pointed at: (\S+) \(patch \(4, 7\)\)", said)[1])
    assert said.startswith("Query 22:") and abs(
        number - float(block.attention[0, 1, 22, 40])
    ) < 1e-3 * float(block.attention[0, 1].max())


@pytest.mark.slow
def test_the_threshold_hides_what_is_smaller(scenes, opened):
    page, e = opened(scenes), scenes.explanations[0]
    page.eval_on_selector(
        "#threshold", "slider => { slider.value = 40; slider.dispatchEvent(new Event('input')); }"
    )
    scores = e.scores[0].float().abs()
    left = int((scores >= 0.4 * scores.max()).sum())
    assert page.text_content("#threshold-said").startswith(f"40 %: {left} of 65 tokens")
    coloured = page.eval_on_selector(
        "#score-field canvas",
        (
            "canvas => [...canvas.getContext('2d').getImageData(0, 0, 8, 8).data].filter((a, "
            "k) => k % 4 === 3 && a > 0).length"
        ),
    )
    assert coloured == int((scores[1:] >= 0.4 * scores.max()).sum())


def test_everything_works_with_the_keyboard_alone(scenes, opened):
    page, c = opened(scenes), scenes.explanations[0].matrix[0].float()

    def tab_to(selector):
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.closest(s) !== null", selector):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    tab_to("#threshold")
    page.keyboard.press("ArrowRight")
    assert page.text_content("#threshold-said").startswith("1 %")
    page.keyboard.press("ArrowLeft")
    tab_to("#score-field")
    page.keyboard.press("Home")
    assert page.text_content("#picked-name") == "token 0 (the model's own)"
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert page.text_content("#picked-name") == "patch (2, 1)" and same(
        top(page).values(), c[18, list(top(page))]
    )
    page.keyboard.press("Enter")
    assert token(page, 18).get_attribute(
        "aria-pressed"
    ) == "true" and "patch (2, 1) kept" in page.text_content("#spoken")
    tab_to("#table-details")
    page.keyboard.press("Enter")
    assert same(table(page)["Row of C"], c[18])
    tab_to("#block")
    page.keyboard.press("ArrowDown")
    tab_to("#query")
    page.keyboard.press("Control+A")
    page.keyboard.type("5")
    page.keyboard.press("Tab")
    assert page.text_content("#picked-name") == "patch (0, 4)" and same(
        table(page)["Row of C"], c[5]
    )


NAMELESS = """() => [...document.querySelectorAll('button, select, input, a, summary, [role=img], [role=group], [role=region], canvas, img, form, section')].filter(e => {
  if (e.closest('[hidden]') || e.closest('[aria-hidden=true]') || (e.tagName === 'IMG' && e.alt === '')) return false;
  const by = e.getAttribute('aria-labelledby');
  const name = e.getAttribute('aria-label') || (by && document.getElementById(by)?.textContent) || e.labels?.[0]?.textContent || (['BUTTON', 'A', 'SUMMARY'].includes(e.tagName) && e.textContent);
  return !name || !name.trim();
}).map(e => e.outerHTML.slice(0, 120))"""  # noqa: E501


def test_a_screen_reader_finds_names_roles_and_a_table(scenes, opened):
    page = opened(scenes)
    table(page)
    assert page.evaluate(NAMELESS) == []
    assert (
        page.evaluate(
            "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, k, all) "
            "=> all.indexOf(id) !== k)"
        )
        == []
    )
    assert page.evaluate(
        "[...document.querySelectorAll('table')].every(t => t.caption.textContent && "
        "[...t.querySelectorAll('thead th')].every(h => h.scope === 'col') && "
        "t.querySelector('tbody th[scope=row]'))"
    )
    assert (
        page.get_attribute("html", "lang") == "en"
        and page.evaluate("[...document.querySelectorAll('h1, h2')].map(h => h.tagName).join()")
        == "H1,H2,H2,H2,H2,H2"
    )
    snapshot = page.locator("#score-field").aria_snapshot()
    assert (
        re.search(r'button "patch \(3, 2\), score [\d.e-]+" \[pressed\]', snapshot)
        and 'group "Patches"' in snapshot
    )
    assert page.locator("#spoken").get_attribute("aria-live") == "polite"
    assert (
        page.evaluate("[...document.querySelectorAll('#score-field [tabindex=\"0\"]')].length") == 1
    )  # one stop for Tab


@pytest.mark.parametrize("which", only(["hostile"], ["scenes", "hostile", "large"]))
def test_a_phone_has_no_sideways_scroll_and_taps_work(which, request, opened):
    made = request.getfixturevalue(which)
    page = opened(made, viewport={"width": 375, "height": 740}, is_mobile=True, has_touch=True)
    page.click("#table-details summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    token(page, 3).tap()
    assert token(page, 3).get_attribute("aria-pressed") == "true" and same(
        top(page).values(), made.explanations[0].matrix[0, 3, list(top(page))]
    )


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4).reduce((s, c, k) => s + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const all = [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !['SCRIPT', 'OPTION'].includes(e.tagName) && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return all.map(e => { const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x); return [(a + 0.05) / (b + 0.05), e.outerHTML.slice(0, 80)]; });
}"""  # noqa: E501


@pytest.mark.parametrize("which", only(["friendly"], ["friendly", "scenes"]))
def test_dark_and_light_follow_the_system_with_enough_contrast(which, request, opened):
    made = request.getfixturevalue(which)
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(made, color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 80 and min(contrasts)[0] >= 4.5, min(contrasts)
        grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == ["rgb(251, 250, 248)", "rgb(21, 20, 19)"]


@pytest.mark.slow
def test_a_hover_is_answered_within_a_frame(large, opened):
    page = opened(large)
    page.select_option("#head", "4")
    times = page.evaluate("""() => {
        const cells = [...document.querySelectorAll('#score-field button')], times = [];
        for (let k = 0; k < 50; k += 1) {
            const begun = performance.now();
            cells[(k * 37) % cells.length].dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
            document.body.getBoundingClientRect();  // layout is part of the answer
            times.push(performance.now() - begun);
        }
        return times;
    }""")  # noqa: E501
    print(f"hover: median {np.median(times):.1f} ms, largest {max(times):.1f} ms")
    assert len(times) == 50 and np.median(times) <= 16


@pytest.mark.slow
def test_the_ledgers_numbers(scenes, opened):
    page, ledger = opened(scenes), scenes.explanations[0].ledger
    assert page.locator("#totals").is_hidden()  # closed at first
    page.click("#ledger summary")
    for name, value in ledger.totals().items():
        assert float(page.text_content(f"[data-total={name}]")) == pytest.approx(
            float(value[0]), rel=6e-3
        )
    for depth in ("1", "3"):
        page.select_option("#depth", depth)
        rows = page.eval_on_selector_all(
            "#modules tbody tr",
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))",
        )
        unread = {}
        for account in ledger.accounts:
            name = ".".join(account.path.split(".")[: int(depth)]) or "(top level)"
            unread[name] = unread.get(name, 0) + float(account.unread[0])
        assert [row[0] for row in rows] == list(unread) and [
            float(row[4]) for row in rows
        ] == pytest.approx(list(unread.values()), rel=1e-3)


def test_hostile_text_changes_nothing_but_the_text_shown(hostile, friendly, opened):
    def outline(page):
        table(page)
        return page.evaluate(
            """() => [...document.querySelectorAll('body *')].filter(e => !e.closest('#top, #made, #said li, #lost-by-cause, #absorbed-by-name')).map(e => e.tagName + '.' + e.id)"""  # noqa: E501
        )

    evil, good = opened(hostile), opened(friendly)
    assert (
        outline(evil) == outline(good)
        and evil.evaluate("document.title") == "</title><script>alert(2)</script>\u202e"
    )
    words = evil.eval_on_selector_all("#score-field button", "all => all.map(b => b.textContent)")
    count = len(words)
    assert (
        words[:3] == HOSTILE[:3][:count] and words[3] == "⟨U+202E⟩evil⟨U+202C⟩ ⟨U+202E⟩ שלום مرحبا"
    )
    assert (
        words[4] == "⟨U+0000⟩⟨U+0007⟩⟨U+001B⟩[31m⟨U+000D⟩⟨U+000A⟩⟨U+0009⟩⟨U+2028⟩"
        and words[5] == "a" * 60 + "… (10000 characters)"
    )
    assert (
        evil.text_content("#code") == "</pre><script>alert(3)</script>"
        and evil.eval_on_selector("#method", "s => s.options[0].text") == "<b>m</b>"
    )
    token(evil, 1).hover()
    assert (
        evil.text_content("#picked-name") == HOSTILE[1]
        and evil.evaluate("document.documentElement.scrollWidth") <= 1280
    )


@pytest.mark.slow
def test_a_report_short_of_room_says_what_it_left_out(large, opened, tmp_path):
    e = large.explanations[0]
    page = opened(Made(e.to_html(tmp_path / "short.html", megabytes=0.4), [e]))
    kept, of = map(
        int,
        re.search(
            r"To stay within 0\.4 MB, single heads keep (\d+) of (\d+) rows",
            page.text_content("#heads-note"),
        ).groups(),
    )
    assert 0 < kept < of == 197
    worst = int(e.scores[0].abs().argmin())
    page.select_option("#head", "3")
    token(page, worst).click()
    assert (
        "this row is not in the file for single heads"
        in page.locator("#maps .readout").first.text_content()
    )
    page = opened(Made(e.to_html(tmp_path / "coarse.html", megabytes=1.5), [e]))
    assert "means of the rounded heads" in page.text_content("#heads-note")
    token(page, worst).click()
    mean, error = (
        e.blocks[0].attention[0].mean(0)[worst],
        re.search(r"Every number ± (\S+);", page.locator("#maps .readout").first.text_content()),
    )
    assert (
        np.abs(np.array(table(page)["A"], np.float64) - mean.numpy()).max()
        <= float(error[1]) * 1.01
    )


def test_the_first_box_is_in_plain_words(friendly, scenes, opened):
    for report in (friendly, scenes):
        page, e = opened(report), report.explanations[0]
        assert page.locator("main section").first.get_attribute("id") == "said"
        assert page.inner_text("#said-answers p").lower() == e.summary().splitlines()[0].lower()
        assert "What in the input speaks for" in page.inner_text("#said-asked")
        assert relprop.methods.METHODS[e.method].plain in page.inner_text("#said-method")
        own = e.predictions and e.predictions[0].target != e.target[0]
        assert ("itself" in page.inner_text("#said-instead")) == bool(own and e.labels)
        assert page.locator("#said-instead").is_visible() == bool(own)
        assert len(page.query_selector_all("#said-concerns li")) == len(e.concerns())
        page.click("#said summary")
        assert "Not to conclude" in page.inner_text("#said-distrust")


@pytest.mark.slow
def test_the_scale_of_unsigned_scores_has_one_side(scenes, opened):
    """From 0 to the largest; only signed scores have a least one."""
    page = opened(scenes)
    assert min(scenes.explanations[0].scores.flatten().tolist()) >= 0
    assert page.inner_text("#legend-least") == "0"
    assert "−" not in page.inner_text("#legend-most")


@pytest.mark.slow
def test_methods_of_one_target_stand_side_by_side(scenes, opened):
    page, (one, _, rollout, _) = opened(scenes), scenes.explanations
    names = page.locator("#beside .link")
    assert names.all_text_contents() == ["transformer_attribution", "rollout", "input_gradient"]
    alpha = page.eval_on_selector_all(
        "#beside canvas",
        "all => all.map(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
        ".filter((_, k) => k % 4 === 3))",
    )
    for found, e in zip(alpha, (one, rollout), strict=False):
        shares = (e.scores[0] / e.scores[0].abs().max())[e.source >= 0].abs()
        assert np.abs(np.array(found) / (0.9 * 255) - shares.numpy()).max() < 0.01
    names.nth(1).click()
    assert same(table(page)["Score"], rollout.scores[0])
    assert page.locator("#beside .link[aria-pressed=true]").text_content() == "rollout"


@pytest.mark.slow
def test_words_are_whole_until_tokens_are_asked_for(opened, tmp_path):
    text = "a wonderfully dull film"
    e = relprop.explain(review_model(), text, 1, processor=review_tokenizer())
    (stream,) = e.streams.values()
    parts = dict(stream.words[0])["wonderfully"]
    assert len(parts) > 1
    scores = torch.zeros_like(e.scores)
    scores[0, parts] = torch.linspace(0.5, 0.1, len(parts))
    e = replace(e, streams={stream.name: replace(stream, scores=scores)})
    page = opened(Made(relprop.report(e, tmp_path / "words.html"), [e]))
    shown = page.locator("#score-field button.word").all_text_contents()
    assert shown[1:-1] == text.split()
    total = f"{float(scores.sum()):.4g}"
    assert token(page, parts[0]).get_attribute("aria-label") == f"wonderfully, score {total}"
    token(page, parts[0]).click()
    assert page.text_content("#picked-name").endswith(f"(of wonderfully: {total})")
    strongest = token(page, parts[0]).evaluate("e => getComputedStyle(e).backgroundColor")
    assert strongest == "rgb({}, {}, {})".format(*shade(1.0))  # the scale of every picture
    page.uncheck("#words")
    assert page.locator("#score-field button.word").count() == len(stream.tokens[0])
    assert token(page, parts[1]).is_visible()


def test_the_scale_of_a_page_is_that_of_every_picture():
    light = bytes.fromhex(ramps()["light"])
    found = np.frombuffer(light, np.uint8).reshape(-1, 3).astype(int)
    shares = np.arange(-255, 256) / 255
    assert len(found) == 511 and np.abs(found - colours(shares)).max() <= 3
