"""A generation shown, written and read again: lines, tables, JSON, pictures, a page, a file, and
``relprop generate``."""

import json

import pytest
import torch

import relprop
from relprop.errors import InputError, OptionError
from tests.targets.models import llama, t5, tokenizer, words

NEW = 3


@pytest.fixture(scope="module")
def generation():
    read = tokenizer()
    read.model_input_names = ["input_ids", "attention_mask"]
    options = {"eos_token_id": None}
    text = ["<s> w5 w6 w7", "<s> w8 w9 w10"]
    return relprop.explain_generation(
        llama(), text, max_new_tokens=NEW, processor=read, generate=options
    )


def test_lines(generation, capsys):
    generation.show(1, k=2)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("3 generated tokens, transformer_attribution")
    assert len(lines) == NEW
    for line, step, label in zip(lines, generation.steps, generation.labels[1], strict=True):
        every = zip(step.scores[1].tolist(), step.tokens[1], step.content[1].tolist(), strict=True)
        parts = [(s, t) for s, t, c in every if c]
        best, total = max(parts), sum(abs(s) for s, _ in parts)
        assert line.strip().startswith(label) and f"{best[1]} ({best[0] / total:.2f})" in line
        assert "<s>" not in line and line.count(",") <= 1
    with pytest.raises(OptionError, match="sample=2"):
        generation.show(2)


def test_json_and_tables(generation):
    found = json.loads(generation.to_json())
    assert [len(s["steps"]) for s in found["samples"]] == [NEW, NEW]
    step = found["samples"][1]["steps"][2]
    assert step["scores"]["input_ids"] == pytest.approx(generation.scores[1, 2].tolist())
    assert step["token"] == generation.labels[1][2] and step["id"] == int(generation.ids[1, 2])
    frame = generation.to_dataframe()
    assert len(frame) == 2 * NEW * generation.scores.shape[2]
    one = frame[(frame["sample"] == 1) & (frame["step"] == 2)]
    assert one["score"].tolist() == pytest.approx(generation.scores[1, 2].tolist())
    assert set(one["generated"]) == {generation.labels[1][2]}


def test_a_file_is_read_again(generation, tmp_path):
    path = generation.save(tmp_path / "g.safetensors")
    again = relprop.load(path)
    assert repr(again) == repr(generation) and again.labels == generation.labels
    for a, b in zip(again.steps, generation.steps, strict=True):
        assert torch.equal(a.scores, b.scores) and a.target == b.target and a.tokens == b.tokens
        assert a.labels == b.labels
    assert torch.equal(again.ids, generation.ids) and again.to_json() == generation.to_json()
    damaged = path.read_bytes()
    path.write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    with pytest.raises(InputError, match="damaged"):
        relprop.load(path)


def test_a_picture_has_a_row_per_token(generation):
    (axes,) = generation.plot(sample=1).axes
    (image,) = axes.images
    values = image.get_array()
    assert values.shape == (NEW, generation.scores.shape[2])
    assert values.max() == pytest.approx(1.0)
    assert [t.get_text() for t in axes.get_yticklabels()] == generation.labels[1]


def test_an_encoder_decoder_is_shown_by_input(tmp_path):
    g = relprop.explain_generation(t5(), {"input_ids": words(1)}, max_new_tokens=2)
    with pytest.raises(OptionError, match=r"generation\['decoder_input_ids'\]"):
        g.plot()
    assert g["input_ids"].plot().axes
    text = g.to_html(tmp_path / "g.html").read_text()
    assert text.count('data-word="') == int(g.steps[0]["input_ids"].content[0].sum())
    assert "<iframe" in g._repr_html_()


def test_a_page_escapes_what_it_shows(generation, tmp_path):
    from dataclasses import replace

    labels = [["<b>", '"', "</script>"], *generation.labels[1:]]
    page = replace(generation, labels=labels).to_html(tmp_path / "g.html", title="<i>").read_text()
    assert "<b>" not in page and "<i>" not in page and page.count("</script>") == 2
    assert "http:" not in page and "https:" not in page


def test_blue_is_announced_where_there_is_some(generation, tmp_path):
    assert "blue" not in generation.to_html(tmp_path / "g.html").read_text().split("<script")[0]
    ids, options = torch.tensor([[1, 5, 6]]), {"eos_token_id": None}
    signed = relprop.explain_generation(
        llama(), ids, max_new_tokens=2, method="gradient_x_input", generate=options
    )
    assert "blue against it." in signed.to_html(tmp_path / "s.html").read_text()


def test_pointing_at_a_token_shades_the_prompt(generation, tmp_path, browser):
    path = generation.to_html(tmp_path / "g.html")
    page = browser.new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    section = page.locator("[data-answer]").nth(1)
    for step in range(NEW):
        section.locator(f"[data-said='{step}']").hover()
        strengths = section.locator("[data-word], [data-said]").evaluate_all(
            "all => all.map(e => parseFloat(e.style.getPropertyValue('--s')))"
        )
        chips, words = strengths[: NEW + 1], strengths[NEW + 1 :]
        assert max(strengths) == 100 and not any(chips[step:])
        scores = (generation.scores[1, step] * generation.content[1])[: generation.prompt]
        scores = scores[generation.content[1][: generation.prompt]]
        assert int(torch.tensor(words).argmax()) == int(scores.argmax())
    page.close()
    assert not problems


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "llama"
    llama().float().save_pretrained(folder)
    llama().double()
    read = tokenizer()
    read.model_input_names = ["input_ids", "attention_mask"]
    read.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_the_command_line(folder, tmp_path, monkeypatch, capsys):
    from typer.testing import CliRunner

    from relprop.cli import app

    def run(*arguments):
        return CliRunner().invoke(app, ["generate", "w5 w6 w7", "--model", str(folder), *arguments])

    said = run("--max-new-tokens", "2")
    assert said.exit_code == 0 and "2 generated tokens" in said.output
    outs = [tmp_path / f"g{ending}" for ending in (".html", ".json", ".png", ".safetensors")]
    named = [part for out in outs for part in ("--out", str(out))]
    done = run("--max-new-tokens", "2", "--method", "attnlrp", "--seed", "3", *named)
    assert done.exit_code == 0 and all(out.exists() for out in outs)
    again = relprop.load(outs[-1])
    assert len(again.steps) == 2 and again.steps[0].method == "attnlrp"
    assert json.loads(outs[1].read_text()) == json.loads(again.to_json())
