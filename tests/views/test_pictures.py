"""``relprop.plot``: what is drawn are the explanation's numbers, axes come back, nothing global is
touched, and what cannot be drawn is refused."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

import relprop
from relprop import plot
from relprop.demo.model import digit_scene_model
from relprop.errors import InputError, OptionError
from relprop.evaluation.perturbation import PerturbationCurve
from relprop.views.figure import figure
from relprop.views.overlay import full_colour, pixels
from relprop.views.stages import part_of, short_names, stages
from tests.common.rows import only
from tests.common.sizes import digits
from tests.views.conftest import explain_texts


def drawn(axes):
    return np.ma.filled(axes.images[-1].get_array(), np.nan)


def texts_of(axes):
    return [t.get_text() for t in axes.texts]


def test_a_heat_map_is_the_explanations(pictures, scenes):
    e = pictures[0]
    axes = plot.heatmap(e, scenes.images[1], sample=1)
    assert np.allclose(drawn(axes), e.heatmap()[1].numpy(), rtol=1e-6)
    assert np.allclose(axes.images[0].get_array(), scenes.images[1, 0].numpy())
    alpha = axes.images[-1].get_alpha()
    strongest = np.unravel_index(drawn(axes).argmax(), (32, 32))
    assert alpha[strongest] == alpha.max() == pytest.approx(0.9) and alpha.min() < 0.1
    assert (
        axes.get_title() == f"target {e.target[1]}"
        and plot.heatmap(e, title="why?").get_title() == "why?"
    )
    assert plot.heatmap(e, strongest=7.0, colorbar=False).images[0].get_clim() == (0.0, 7.0)


def test_signed_maps_diverge_about_0(scenes):
    e = relprop.explain(digits(), scenes.images, 3, method="gradient_x_input")
    low, high = plot.heatmap(e).images[0].get_clim()
    assert low == -high and high == full_colour(e.heatmap()[0], e.streams["input_0"])
    colour = plot.heatmap(e).images[0].cmap
    assert (
        min(colour(0.5)[:3]) > 0.95
        and colour(0.0)[2] > colour(0.0)[0]
        and colour(1.0)[0] > colour(1.0)[2]
    )  # white; blue against, orange for


def test_targets_side_by_side_are_on_one_scale(pictures, scenes):
    axes = plot.compare(pictures, scenes.images[0])
    assert [a.get_title() for a in axes] == [f"target {e.target[0]}" for e in pictures]
    assert (
        axes[0].images[-1].get_clim()
        == axes[1].images[-1].get_clim()
        == pytest.approx((0, max(float(e.heatmap()[0].max()) for e in pictures)))
    )
    for panel, e in zip(axes, pictures, strict=True):
        assert np.allclose(drawn(panel), e.heatmap()[0].numpy(), rtol=1e-6)


def test_methods_side_by_side_are_each_divided_by_its_strongest(scenes):
    found = relprop.compare(digits(), scenes.images, ["rollout", "attcat"], target=3)
    axes = plot.compare(found, scale=None)
    for panel, (label, e) in zip(axes, found.explanations.items(), strict=True):
        heat = e.heatmap()[0]
        assert panel.get_title() == label and np.allclose(
            drawn(panel), (heat / heat.abs().max()).numpy(), rtol=1e-5
        )
        assert panel.images[-1].get_clim() == (-1, 1)
    shared = plot.compare(found, scale="shared", labels=["a", "b"])
    assert [a.get_title() for a in shared] == ["a", "b"] and np.allclose(
        drawn(shared[0]), found["rollout"].heatmap()[0].numpy(), rtol=1e-6
    )


def test_texts_side_by_side_are_rows_of_words(texts, signed):
    (axes,) = plot.compare({"one": texts, "two": signed})
    words = [w for w, _ in texts.words(0)]
    assert [t.get_text() for t in axes.get_xticklabels()] == words and [
        t.get_text() for t in axes.get_yticklabels()
    ] == ["one", "two"]
    for row, e in zip(drawn(axes), (texts, signed), strict=True):
        scores = np.array([s for _, s in e.words(0)])
        assert np.allclose(row, scores / np.abs(scores).max())


def test_running_text_has_every_word_in_order_and_in_lines(texts):
    axes = plot.text(texts, width=1.6, title="")
    words = [t for t in axes.texts if t.get_text() in {w for w, _ in texts.words(0)}]
    assert [t.get_text() for t in words] == ["the", "film", "was", "not", "boring"]
    lines = sorted({t.get_position()[1] for t in words})
    assert len(lines) > 1 and [t.get_position() for t in words] == sorted(
        (t.get_position() for t in words), key=lambda p: (p[1], p[0])
    )
    edges = [axes.transData.transform((axes.get_xlim()[1], 0))[0]]
    assert all(t.get_window_extent().x1 <= edges[0] + 1 for t in words)


def test_words_are_shaded_by_their_share_with_readable_contrast(texts, signed):
    from matplotlib.colors import to_rgb

    from relprop.views.colours import hexadecimal, luminance, shade

    for e in (texts, signed):
        found = e.words(0)
        strongest = max(abs(s) for _, s in found)
        axes = plot.text(e)
        assert [p.get_facecolor()[:3] for p in axes.patches] == [
            pytest.approx(to_rgb(hexadecimal(shade(s / strongest)))) for _, s in found
        ]
        for letters, ground in zip(
            [t for t in axes.texts if t.get_text() in dict(found)], axes.patches, strict=True
        ):
            a, b = (
                luminance(tuple(round(255 * c) for c in to_rgb(x)))
                for x in (letters.get_color(), ground.get_facecolor()[:3])
            )
            assert (max(a, b) + 0.05) / (min(a, b) + 0.05) >= 4.5


def test_tokens_are_shown_with_special_ones_in_grey(texts):
    axes = plot.text(texts, by="tokens")
    assert [t for t in texts_of(axes) if t in texts.tokens[0]] == texts.tokens[0]
    assert len(axes.patches) == int(texts.content[0].sum())


@pytest.mark.parametrize("kind", ["attention", "gradient", "relevance"])
def test_matrices_and_heads_are_the_blocks(texts, kind):
    maps = getattr(texts.blocks[-1], kind)[1].numpy()
    assert np.allclose(drawn(plot.matrix(texts, block=-1, kind=kind, sample=1)), maps.mean(0))
    assert np.allclose(drawn(plot.matrix(texts, block=-1, head=1, kind=kind, sample=1)), maps[1])
    axes = plot.heads(texts, kind=kind, sample=1, columns=1)
    assert len(axes) == 2 and all(np.allclose(drawn(a), m) for a, m in zip(axes, maps, strict=True))
    assert len({a.images[0].get_clim() for a in axes}) == 1


def test_c_has_tokens_on_both_sides(texts):
    axes = plot.matrix(texts)
    assert np.allclose(drawn(axes), texts.matrix[0].numpy())
    assert (
        [t.get_text() for t in axes.get_xticklabels()]
        == [t.get_text() for t in axes.get_yticklabels()]
        == texts.tokens[0]
    )
    off = texts.matrix[0].numpy()[~np.eye(8, dtype=bool)]
    assert axes.images[0].get_clim() == pytest.approx((0, off.max()))


def test_layers_are_rows_and_their_sum(signed):
    axes = plot.layers(signed)
    rows = drawn(axes)
    assert (
        np.allclose(rows[:2], signed.layers[0].numpy())
        and np.isnan(rows[2]).all()
        and np.allclose(rows[3], signed.scores[0].numpy())
    )
    assert [t.get_text() for t in axes.get_yticklabels()] == ["L0", "L1", "", "Σ"]
    mean = replace(
        signed, streams={n: replace(s, scores=s.scores / 2) for n, s in signed.streams.items()}
    )
    assert plot.layers(mean).get_yticklabels()[-1].get_text() == "scores"


def test_curves_draw_accuracies_with_their_area():
    hits = torch.arange(10)[None, :] < torch.tensor([3, 9, 5, 7])[:, None]
    curve = PerturbationCurve(hits, 0)
    axes = plot.curves(
        {
            "ours": curve,
            "plain": [0.5] * 10,
            "pair": ([0, 50], [1.0, 0.0]),
            "fine": torch.linspace(1, 0, 5),
        }
    )
    lines = axes.get_lines()
    assert np.allclose(lines[0].get_ydata(), curve.accuracy.numpy()) and lines[
        0
    ].get_xdata().tolist() == [10 * i for i in range(10)]
    assert lines[2].get_xdata().tolist() == [0, 50] and lines[3].get_xdata().tolist() == [
        0,
        25,
        50,
        75,
        100,
    ]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [
        f"ours (AUC {curve.auc:.1f})",
        "plain",
        "pair",
        "fine",
    ]
    assert (
        len({(line.get_color(), line.get_marker()) for line in lines}) == 4
        and len(axes.collections) == 1
    )


def test_the_ledgers_flow_adds_up(pictures, texts, scenes):
    for e in (
        pictures[0],
        texts,
        relprop.explain(digit_scene_model().double(), scenes.images.double(), 3, method="lrp"),
    ):
        found = stages(e.ledger, 1)
        reached = sum(float(v[1]) for v in e.ledger.reached.values())
        assert float(e.ledger.started[1]) - sum(s.left for s in found) == pytest.approx(
            reached, abs=1e-9
        )
        for kind, total in (("absorbed", e.ledger.absorbed()), ("lost", e.ledger.lost())):
            assert sum(getattr(s, kind) for s in found) == pytest.approx(
                sum(float(v[1]) for v in total.values()), abs=0.004
            )
        axes = plot.ledger(e, sample=1)
        label = next(t for t in texts_of(axes) if t.endswith(f"\n{reached:.2f}"))
        assert label.split("\n")[0] in ("attention", "input")


def test_the_ledgers_parts_are_blocks_and_top_modules(pictures):
    assert [s.name for s in stages(pictures[0].ledger, 0)] == [
        "head",
        "norm",
        "blocks.3",
        "blocks.2",
        "blocks.1",
        "blocks.0",
    ]
    account = next(a for a in pictures[0].ledger.accounts if a.path == "blocks.2.mlp.fc2")
    assert stages(pictures[0].ledger, 0)[3].entered["mlp"] == float(account.arrived[0])
    assert (
        part_of("bert.pooler.dense", {"bert"}) == "bert.pooler"
        and part_of("patch_embed.proj", {"blocks"}) == "patch_embed"
    )
    assert short_names(["a.layer.0", "a.layer.1", "b.norm", "c.norm", "a.head"]) == [
        "layer.0",
        "layer.1",
        "b.norm",
        "c.norm",
        "head",
    ]


@pytest.mark.parametrize("suffix", only(["svg"], ["pdf", "svg", "png"]))
def test_every_picture_saves_as_vectors_too(suffix, texts, signed, pictures, scenes, tmp_path):
    pages = [
        plot.heatmap(pictures[0], scenes.images[0]),
        *plot.compare(pictures)[:1],
        plot.text(texts),
        plot.matrix(texts),
        plot.layers(signed),
        *plot.heads(texts)[:1],
        plot.curves({"a": [1.0, 0.0]}),
        plot.ledger(texts),
    ]
    for i, axes in enumerate(pages):
        axes.figure.savefig(tmp_path / f"{i}.{suffix}")
        assert (tmp_path / f"{i}.{suffix}").stat().st_size > 1000


def test_given_axes_are_drawn_in(texts, pictures, signed):
    fig, columns = figure(2)
    assert (
        plot.heatmap(pictures[0], ax=columns[0]) is columns[0]
        and plot.text(texts, ax=columns[1]) is columns[1]
    )
    fig, columns = figure(2)
    assert plot.heads(texts, ax=columns) == columns and fig._suptitle is None
    (one,) = figure(1)[1]
    assert plot.layers(signed, ax=one) is one
    with pytest.raises(OptionError, match="ax has 1 axes; this picture needs 2"):
        plot.compare(pictures, ax=one)


@pytest.mark.slow
def test_nothing_global_is_touched():
    script = """
import sys, torch, relprop
from relprop.demo.model import digit_scene_model
assert "matplotlib" not in sys.modules
e = relprop.explain(digit_scene_model(), torch.rand(1, 1, 32, 32), target=3, keep=("matrix", "blocks"))
import matplotlib
before = matplotlib.rcParams.copy(), set(matplotlib.colormaps)
relprop.plot.heatmap(e); relprop.plot.matrix(e); relprop.plot.heads(e); relprop.plot.ledger(e); relprop.plot.curves([1.0, 0.5])
assert "matplotlib.pyplot" not in sys.modules
assert (matplotlib.rcParams.copy(), set(matplotlib.colormaps)) == before
"""  # noqa: E501
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=300)


REFUSED = [
    (lambda t, p: plot.heatmap(t), "heatmap.. is for images"),
    (lambda t, p: plot.text(p), "text.. is for texts: this explanation is of an image"),
    (
        lambda t, p: plot.matrix(
            replace(t, streams={n: replace(s, matrix=None) for n, s in t.streams.items()})
        ),
        r"keep='matrix'",
    ),
    (lambda t, p: plot.matrix(replace(t, blocks=None), block=0), r"keep='blocks'"),
    (lambda t, p: plot.heads(replace(t, blocks=None)), r"keep='blocks'"),
    (lambda t, p: plot.layers(t), r"keep='layers'"),
    (lambda t, p: plot.ledger(replace(t, ledger=None)), "needs relevance"),
    (lambda t, p: plot.heads(t, block=2), "block=2: the explanation has 2"),
    (lambda t, p: plot.matrix(t, block=0, head=2), "head=2: .* has 2 heads"),
    (lambda t, p: plot.matrix(t, head=0), "needs a block"),
    (lambda t, p: plot.heads(t, kind="attn"), "kind='attn': one of"),
    (lambda t, p: plot.text(t, sample=2), "sample=2: the explanation has 2 samples"),
    (lambda t, p: plot.text(t, by="letters"), "by='letters'"),
    (lambda t, p: plot.text(t, width=0), "positive numbers"),
    (lambda t, p: plot.compare([]), "no explanations"),
    (lambda t, p: plot.compare([t, p]), "some explanations are of images and some of texts"),
    (lambda t, p: plot.compare([t], scale="log"), "scale='log'"),
    (lambda t, p: plot.compare([t], labels=["a", "b"]), "labels has 2 entries for 1"),
    (lambda t, p: plot.curves({}), "none given"),
    (lambda t, p: t.plot(torch.rand(3, 8, 8)), "this explanation is of no image"),
]


@pytest.mark.parametrize(("call", "match"), REFUSED, ids=[m for _, m in REFUSED])
def test_what_cannot_be_drawn_is_refused(call, match, texts, pictures):
    with pytest.raises(OptionError, match=match):
        call(texts, pictures[0])


def test_different_words_are_not_compared(texts, hostile):
    with pytest.raises(OptionError, match="scores other tokens than"):
        plot.compare({"a": texts, "b": hostile})


def test_images_of_wrong_shapes_and_ranges_are_refused(pictures):
    for bad, match in (
        (torch.randn(3, 8, 8) * 9, "undo the normalisation"),
        (torch.rand(2, 8, 8), "one picture"),
        (torch.rand(1, 3, 8, 8), "one picture"),
    ):
        with pytest.raises(InputError, match=match):
            plot.heatmap(pictures[0], bad)
    with pytest.raises(InputError, match="finite numbers"):
        plot.curves([[1.0, float("nan")]])
    with pytest.raises(InputError, match="3 shares and 2 values"):
        plot.curves(([0, 1, 2], [1.0, 0.5]))


def test_images_come_in_any_layout():
    colour = torch.rand(3, 8, 6)
    for same in (
        colour,
        colour.movedim(0, -1),
        colour.numpy(),
        np.moveaxis((255 * colour.numpy()).round().astype(np.uint8), 0, -1),
    ):
        assert np.allclose(pixels(same), colour.movedim(0, -1).numpy(), atol=1 / 255)
    assert (
        pixels(torch.rand(1, 5, 3)).shape
        == pixels(torch.rand(5, 3)).shape
        == pixels(torch.rand(5, 3, 1)).shape
        == (5, 3)
    )


def test_hostile_text_is_drawn_as_text(hostile, tmp_path):
    for i, axes in enumerate(
        (
            plot.text(hostile),
            plot.text(hostile, by="tokens"),
            plot.matrix(hostile),
            *plot.compare([hostile]),
        )
    ):
        axes.figure.savefig(tmp_path / f"{i}.svg")
        shown = "".join(t.get_text() for t in (*axes.texts, *axes.get_xticklabels(), axes.title))
        assert "\u202e" not in shown and "\x1b" not in shown and "z" * 100 not in shown
        assert not any(
            t.get_parse_math()
            for t in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels(), axes.title)
            if "$" in t.get_text()
        )
    hostile.plot().savefig(tmp_path / "bars.svg")


def test_zeros_are_drawn(texts, pictures, tmp_path):
    for e, draw in ((texts, plot.text), (pictures[0], plot.heatmap), (texts, plot.matrix)):
        nothing = replace(
            e,
            streams={
                n: replace(s, scores=s.scores * 0, matrix=s.matrix * 0)
                for n, s in e.streams.items()
            },
        )
        draw(nothing).figure.savefig(tmp_path / "none.png")


def test_half_precision_and_gradients_are_drawn(texts):
    stream = next(iter(texts.streams.values()))
    narrow = {
        "matrix": stream.matrix.to(torch.bfloat16).requires_grad_(),
        "scores": (stream.scores * 1e6).to(torch.bfloat16),
    }
    half = replace(texts, streams={stream.name: replace(stream, **narrow)})
    assert plot.matrix(half).images and plot.text(half).patches and half.plot().axes


@pytest.mark.slow
def test_long_texts_break_into_many_lines_and_many_tokens_get_sparse_labels():
    e = explain_texts()
    stream = next(iter(e.streams.values()))
    words = [[(f"word{i}", [1]) for i in range(400)]] * 2
    axes = plot.text(replace(e, streams={stream.name: replace(stream, words=words)}))
    assert (
        len({t.get_position()[1] for t in axes.texts}) > 20 and axes.figure.get_size_inches()[1] > 5
    )
    one = plot.compare(replace_rows(e, words))[0]
    assert len(one.get_xticklabels()) <= 80


def replace_rows(e, words):
    stream = next(iter(e.streams.values()))
    return [replace(e, streams={stream.name: replace(stream, words=words)})]


@pytest.mark.slow
def test_the_gallery_page_runs(monkeypatch):
    """The code of docs/pictures.md, on the models of these tests."""
    import re
    from pathlib import Path

    from relprop.evaluation.perturbation import ImagePerturbation
    from tests.views.conftest import small_bert, small_tokenizer

    page = (Path(__file__).parents[2] / "docs/pictures.md").read_text()
    drawn_by = set()
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        images = torch.rand(2, 1, 32, 32)
        about_text = "tokenizer" in block or block.startswith("e  ")
        scope = {
            "relprop": relprop,
            "images": images,
            "text": "the film was not boring",
            "tokenizer": small_tokenizer(),
            "labels": [6, 8],
            "methods": ["rollout", "random"],
            "model": small_bert() if about_text else digit_scene_model(),
            "measure": ImagePerturbation(),
            "normalize": lambda x: x,
            "e": explain_texts(),
        }
        exec(compile(block, "docs/pictures.md", "exec"), scope)
        drawn_by |= set(re.findall(r"plot\.(\w+)\(", block))
    assert drawn_by == {
        name for name in plot.__all__ if name not in ("figure", "show_heatmap", "show_image")
    }
