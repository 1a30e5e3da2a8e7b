"""The site's pages run: each page's Python blocks, in order, in one namespace, in a folder of their
own; loaders of weights give small models built here."""

import ast
import os
import re
from pathlib import Path

import numpy
import PIL.Image
import pytest
import timm
import torch
import transformers

import relprop
from relprop.demo.model import digit_scene_model
from relprop.demo.review_model import review_model, review_tokenizer

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """The page's Python blocks, each with empty lines in front, so that a traceback's line is the
    page's."""
    text = (DOCS / page).read_text()
    return [
        "\n" * text[: m.start(1)].count("\n") + m[1]
        for m in re.finditer(r"```python\n(.*?)```", text, re.DOTALL)
    ]


def run(page: str, **scope) -> dict:
    found = blocks(page)
    assert found
    for block in found:
        exec(compile(block, page, "exec"), scope)
    return scope


@pytest.fixture(autouse=True)
def a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return tmp_path


def small_llm():
    config = transformers.GPT2Config(
        vocab_size=500,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=3,
    )
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture
def loaders(monkeypatch):
    """What downloads weights: small models in their place, of the classes that a user would get."""
    create = timm.create_model
    monkeypatch.setattr(
        timm,
        "create_model",
        lambda name, pretrained: create("vit_tiny_patch16_224", depth=2) if pretrained else None,
    )
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name: review_tokenizer()
    )
    monkeypatch.setattr(
        transformers.AutoModelForSequenceClassification,
        "from_pretrained",
        lambda name: review_model(),
    )
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda name: small_llm()
    )


def test_five_minutes(loaders, capsys):
    pixels = numpy.random.default_rng(0).integers(0, 255, (200, 300, 3), dtype=numpy.uint8)
    PIL.Image.fromarray(pixels).save("dog.jpg")
    scope = run("start.md")
    printed = capsys.readouterr().out
    assert (
        scope["heat"].shape == (200, 300)
        and Path("map.png").exists()
        and Path("words.png").exists()
    )
    assert scope["tabby"].target == (281,) and scope["explanation"].target == (1, 1)
    assert scope["generation"].scores.shape[1] == 6 and scope["why_third"].scores.any()
    assert "check: ok" in printed and "not" in printed


def test_the_first_page():
    explanation = run("index.md")["explanation"]
    assert explanation.target == (2,) and explanation.heatmap().shape == (1, 32, 32)


@pytest.mark.slow
def test_pictures_with_words(capsys):
    scope = run("pictures-with-words.md")
    generation, drawn = scope["generation"], scope["drawn"]
    assert " ".join(generation.labels[0]) == drawn.answers[0]
    assert Path("answer.png").exists() and Path("answer.html").exists()
    assert scope["heat"].shape == (32, 32) and "pixel_values:patch" in capsys.readouterr().out
    assert scope["both"]["pixel_values"].grid == (2, 4, 4)
    assert scope["second"].original_heatmap().shape == (64, 64)


@pytest.mark.slow
def test_one_program_to_deploy():
    scope = run("compile.md")
    assert scope["found"].target == (3, 1, 4, 1, 5) and Path("digits.pt2").exists()
    assert scope["numbers"]["input_0.scores"].shape == scope["found"].scores.shape


def test_three_ways_to_say_a_rule():
    """The block of write-a-rule.md that speaks of a layer, an operator and a part of the reader's;
    the rest of that page is tested in test_house.py."""

    @torch.library.custom_op("mylib_of_the_guide::gated_norm", mutates_args=())
    def gated_norm(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    ways = next(b for b in blocks("write-a-rule.md") if "with_rule(MyNorm" in b).replace(
        "ops.mylib.", "ops.mylib_of_the_guide."
    )
    scope = {
        "relprop": relprop,
        "torch": torch,
        "MyNorm": torch.nn.LayerNorm,
        "my_rule": relprop.rules.carry,
        "model": digit_scene_model(),
        "inputs": torch.rand(1, 1, 32, 32),
    }
    exec(compile(ways, "write-a-rule.md", "exec"), scope)
    assert scope["rules"] is not relprop.rules.PAPER


@pytest.mark.slow
def test_the_mathematics(capsys):
    scope = run("mathematics.md")
    assert "ledger" in capsys.readouterr().out
    assert all(abs(float(p)) > 5 for p in scope["plain"]) and all(
        0 <= f <= 1 for f in scope["found"]
    )


def test_a_model_of_ones_own(capsys):
    run("own-model.md")
    printed = capsys.readouterr().out
    report = blocks("own-model.md")
    shown = re.search(
        r"```text\n(check: .*?)\n```", (DOCS / "own-model.md").read_text(), re.DOTALL
    )[1]
    assert len(report) == 5
    for line in shown.splitlines():  # the report on the page is what is printed
        assert line == "  ..." or line.removesuffix(" ...") in printed, line
    assert "logcumsumexp" in printed


@pytest.mark.slow
def test_export():
    run("export.md")
    for name in ("scenes.safetensors", "map.png", "words.svg"):
        assert os.path.getsize(name) > 1000
    assert len(Path("words.csv").read_text().splitlines()) == 12


@pytest.mark.slow
def test_the_comparison():
    scope = run("comparison.md")
    assert scope["ours"].scores.any()


@pytest.mark.slow
def test_questions_that_are_asked(capsys):
    scope = run("faq.md")
    assert "all scores of 2 of 2 samples are 0" in capsys.readouterr().out
    assert scope["nothing"].ledger.lost()["no positive term"].tolist() == [1, 1]


def _texts(path: Path) -> str:
    """The strings of a module, each in one piece however many lines it stands on."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return "\n".join(
        n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)
    )


def test_the_warnings_named_on_the_first_page_are_the_librarys():
    """Each row of the table of warnings quotes text that the library's source has."""
    text = (DOCS / "start.md").read_text().split("## When a warning comes")[1]
    source = "".join(_texts(p) for p in Path(relprop.__file__).parent.rglob("*.py"))
    rows = re.findall(r"^\| (`….*?`|`[a-z].*?`)(?:, `.*?`)? \|", text, re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        for piece in (p.strip(" `") for p in row.split("…")):
            assert piece in source or piece.removesuffix(" softmax").removesuffix(" a") in source, (
                piece
            )


def test_the_first_example_of_the_readme(capsys):
    first = re.search(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(), re.DOTALL)[1]
    scope = {}
    exec(compile(first, "README.md", "exec"), scope)
    said = re.search(r"# (class 2 .*?),", first)[1]
    assert capsys.readouterr().out.startswith(said)
    assert scope["explanation"].heatmap().shape == (1, 32, 32)


@pytest.mark.slow
def test_values_are_changed_by_five_recipes():
    """Each of them moves the answer, and in the end all is as it was."""
    scope = run("change-values.md")
    before, probe = scope["before"], scope["probe"]
    assert scope["effects"].shape == (4, 4) and bool(scope["effects"].abs().amax(1).gt(1e-3).all())
    plain = relprop.explain(scope["model"], scope["images"], 2, method="attnlrp", keep="input")
    for made in ("steered", "by_one_head"):
        assert (scope[made].scores - plain.scores).abs().max() > 1e-3 * plain.scores.abs().max()
    assert torch.equal(probe.output(), before)


@pytest.mark.slow
def test_reference_samples_of_a_unit_light_it_most():
    scope = run("concepts.md")
    model, layer, best = scope["model"], scope["layer"], int(scope["best"][0])
    seen = []
    handle = model.get_submodule(layer).register_forward_hook(lambda m, a, out: seen.append(out))
    model(scope["scenes"].images)
    handle.remove()
    means = seen[0].detach()[..., best].mean(1)
    expected = means.topk(8).values
    assert torch.allclose(means[scope["reference"]], expected, rtol=1e-4)
    assert torch.allclose(scope["lit"].output, means, rtol=1e-4, atol=1e-5)
