"""Notebook and terminal: safe with any text, marks that tell without colour, and pictures that are
pictures."""

import io
import re
import sys
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.image import imread

from relprop.errors import OptionError
from relprop.views.colours import STEPS, colours, ink, luminance, oklab, shade, table
from relprop.views.escape import JOINERS, markup, visible
from relprop.views.page import SAMPLES, png
from relprop.views.terminal import coarsened
from tests.views.conftest import HOSTILE

ALLOWED = {"div", "p", "b", "small", "bdi", "img"}
ATTRIBUTES = {"style", "title", "alt", "src"}


class Strict(HTMLParser):
    """Collects text; fails on any tag or attribute that the page does not use itself."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.text, self.open = [], []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED and {a for a, _ in attrs} <= ATTRIBUTES, (tag, attrs)
        assert all(v.startswith("data:image/png;base64,") for a, v in attrs if a == "src")
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)


def parsed(page):
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert not parser.open
    return parser.text


def test_the_page_shows_words_shaded_by_share(texts):
    page = texts._repr_html_()
    assert [t for t in parsed(page) if t.strip()][2:7] == [w for w, _ in texts.words(0)]
    ground = re.findall(r"<bdi style=\"background:(#\w+);color:(#\w+)", page)[:5]
    scores = np.array([s for _, s in texts.words(0)])
    assert ground == [
        (f"#{bytes(shade(v)).hex()}", f"#{bytes(ink(shade(v))).hex()}")
        for v in scores / scores.max()
    ]
    assert "⚠" in page and "attention sinks" in page  # the second sample's


def test_hostile_text_does_nothing_on_a_page(hostile):
    text = "".join(parsed(hostile._repr_html_()))
    assert (
        "<script>alert('x')</script>" in text
        and "\\u202eevil" in text
        and "\\x1b[31m" in text
        and "z" * 100 not in text
    )
    for sign in "\u202e\x1b\x07":
        assert sign not in hostile._repr_html_()
    hostile._repr_html_().encode("utf-8")


def test_hostile_text_does_nothing_in_a_terminal(hostile):
    plain = hostile.terminal(colour=False, width=60)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in plain.replace("\n", ""))
    coloured = hostile.terminal(colour=True, width=60)
    left = re.sub(r"\x1b\[(38|48);2;\d+;\d+;\d+m|\x1b\[0m", "", coloured)
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") for c in left.replace("\n", ""))


@given(st.text(max_size=200))
@example("".join(HOSTILE))
def test_visible_text_is_harmless_and_short(text):
    shown = visible(text, 40)
    assert not any(
        unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in JOINERS
        for c in shown
    )
    assert visible(shown, 10_000) == shown
    assert not set(re.sub(r"&(amp|lt|gt|quot|#x27);", "", markup(text))) & set("<>&\"'")
    if len(text) <= 40 and text.isascii() and text.isprintable():
        assert shown == text


def test_long_text_keeps_both_ends():
    assert (
        visible("a" * 5000 + "b" * 5000, 9) == "aaaaa…bbb"
        and len(visible("x" * 81)) <= 80
        and visible("x" * 80) == "x" * 80
    )


def test_the_picture_of_an_image_is_a_png(pictures, texts):
    made = pictures[0]._repr_png_()
    shown = imread(io.BytesIO(made))
    assert shown.shape[:2] == (224, 224)
    light = oklab(shown[..., :3])[..., 0].reshape(8, 28, 8, 28).mean((1, 3))
    assert light.argmin() == int(pictures[0].scores[0, 1:].argmax()) and texts._repr_png_() is None
    assert len(pictures[0]._repr_html_()) < 400_000 and parsed(pictures[0]._repr_html_())


def test_png_files_hold_their_pixels():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (np.round(255 * imread(io.BytesIO(png(pixels)))[..., :3]) == pixels).all()


def test_large_batches_are_cut(texts):
    stream = next(iter(texts.streams.values()))
    rows = {
        "scores": stream.scores[:1].expand(20, -1),
        "content": stream.content[:1].expand(20, -1),
    }
    many = replace(stream, **rows, tokens=stream.tokens[:1] * 20, words=stream.words[:1] * 20)
    e = replace(
        texts,
        streams={stream.name: many},
        target=(0,) * 20,
        labels=None,
        probability=None,
        predictions=None,
        started=None,
        output=torch.ones(20),
        ledger=None,
    )
    assert f"{20 - SAMPLES} more samples" in e._repr_html_()


def test_without_colour_marks_tell(texts):
    lines = texts.terminal(colour=False, width=20).splitlines()
    found = texts.words(0)
    strongest = max(s for _, s in found)
    marks = {}
    for above, below in zip(lines[1::2], lines[2::2], strict=False):
        below = below.ljust(len(above))
        marks |= {m[0]: below[m.start() : m.end()] for m in re.finditer(r"\S+", above)}
    assert marks["boring"] == "█" * 6
    for word, score in found:
        share = score / strongest
        assert marks[word][0] == (
            " " if share < 1 / 16 else "▁▂▃▄▅▆▇█"[max(1, round(8 * share)) - 1]
        ), word
    assert all(len(line) <= 20 for line in lines[1:-1] if line[0] != "▁")


def test_marks_against_the_target_are_told_apart(signed):
    found = signed.words(0)
    weakest = min(found, key=lambda w: w[1])[0]
    _, words, marks, *_ = signed.terminal(colour=False, width=100).splitlines()
    assert marks[words.index(weakest)] == "V"


def test_colours_are_those_of_the_scale(texts):
    coloured = texts.terminal(colour=True)
    red, green, blue = shade(1.0)
    assert f"\x1b[48;2;{red};{green};{blue}mboring\x1b[0m" in coloured


def test_maps_of_blocks(pictures):
    lines = pictures[0].terminal(colour=False).splitlines()[1:9]
    shares = (pictures[0].scores[0, 1:] / pictures[0].scores[0, 1:].max()).view(8, 8)
    assert lines == ["".join(2 * " ░▒▓█"[round(4 * float(v))] for v in row) for row in shares]
    coloured = pictures[0].terminal(colour=True, width=40).splitlines()[1:]
    assert len([line for line in coloured if "▀" in line]) == 8 and coloured[0].count("▀") == 16


def test_fine_maps_are_averaged_to_fit():
    values = np.arange(30.0).reshape(5, 6)
    assert coarsened(values, 6) is values
    assert coarsened(values, 3).tolist() == [
        [3.5, 5.5, 7.5],
        [15.5, 17.5, 19.5],
        [24.5, 26.5, 28.5],
    ]


def test_show_prints_in_the_terminals_encoding(hostile, texts, monkeypatch, capsys):
    texts.show(1)
    assert "awful" in capsys.readouterr().out
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    hostile.show()
    sys.stdout.flush()
    assert b"<script>" in raw.getvalue()


def test_colour_is_for_terminals_that_have_it(texts, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in texts.terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in texts.terminal()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("COLORTERM", "")
    assert "\x1b" not in texts.terminal()
    with pytest.raises(OptionError, match="at least 20 columns"):
        texts.terminal(width=5)


def test_repr_is_one_line(texts, hostile, pictures):
    assert all("\n" not in repr(e) for e in (texts, hostile, pictures[0]))


def test_the_scale_is_uniform_and_each_half_ordered_by_lightness():
    lab = oklab(table())
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    against, white, toward = steps[: STEPS - 1], steps[STEPS - 1], steps[STEPS:]
    assert all(part.max() < 1.05 * part.min() for part in (against, toward)) and white < 1e-3
    light = lab[:, 0]
    assert (np.diff(light[:STEPS]) > 0).all() and (np.diff(light[STEPS:]) < 0).all()


def test_the_two_signs_differ_for_the_colour_blind():
    """Without red-green difference (OKLab's a = 0) orange and blue are still apart in b."""
    ends = oklab(colours(np.array([-1.0, 1.0])) / 255)
    assert abs(ends[0, 2] - ends[1, 2]) > 0.15


@given(st.floats(-1, 1))
def test_letters_are_readable_on_every_shade(value):
    a, b = luminance(shade(value)), luminance(ink(shade(value)))
    assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5
