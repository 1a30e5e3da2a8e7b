"""The repository itself: imports point down, exports are sorted and complete, and the examples in
the docs run."""

import ast
import doctest
import functools
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import relprop
from tests.common.rows import only
from tests.common.sizes import SIZES, clip

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "relprop"
FLOORS = {
    "errors": -1,
    "numerics": 0,
    "progress": 0,
    "writing": 1,
    "error_boundary": 0,
    "operations": 0,
    "tracer": 1,
    "rules": 1,
    "plan": 2,
    "adapters": 2,
    "opening": 3,
    "interpreter": 3,
    "rollup": 3,
    "targets": 4,
    "layout": 4,
    "explanation": 4,
    "runner": 5,
    "storage": 5,
    "views": 5,
    "compiled": 6,
    "methods": 6,
    "api": 7,
    "data": 5,
    "demo": 8,
    "reporting": 8,
    "runs": 8,
    "evaluation": 9,
    "interop": 8,
    "testing": 10,
    "cards": 10,
    "commands": 11,
    "cli": 12,
    "__main__": 13,
    "__init__": 14,
}
MODULES = sorted(p for p in PACKAGE.rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms a file imports when it is itself imported (not inside functions, not for type
    checking only)."""
    found = set()

    def visit(body: list[ast.stmt]) -> None:
        for statement in body:
            if (
                isinstance(statement, ast.ImportFrom)
                and statement.module
                and statement.module.split(".")[0] == "relprop"
            ):
                parts = statement.module.split(".")
                found.update(
                    [parts[1]] if len(parts) > 1 else [alias.name for alias in statement.names]
                )
            elif isinstance(statement, (ast.Try, ast.With)) or (
                isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test)
            ):
                visit(statement.body)

    visit(tree(path).body)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path):
    mine = room(path)
    above = {other for other in imported_rooms(path) - {mine} if FLOORS[other] >= FLOORS[mine]}
    assert not above, f"{path.name} on floor {FLOORS[mine]} imports {sorted(above)}"


def test_the_package_stands_alone():
    """No file of it imports what is not in the wheel, not inside a function either."""
    outside = {"tools", "tests", "benchmarks", "examples"}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & outside, f"{path}:{node.lineno}"


@pytest.mark.slow
def test_a_fresh_process_knows_the_methods():
    """Whatever is imported first; of ``explain`` itself test_entry.py says it."""
    for first in ("from relprop.runs import run", "import relprop.evaluation"):
        code = f"import relprop; {first}; from relprop.runner.method import METHODS; assert METHODS"
        subprocess.run([sys.executable, "-c", code], check=True)


def test_every_room_has_a_floor():
    assert {room(p) for p in MODULES} == set(FLOORS)


def test_exports_are_sorted_and_exist():
    assert sorted(relprop.__all__, key=lambda n: (n[0].islower(), n)) == list(relprop.__all__)
    for name in relprop.__all__:
        assert getattr(relprop, name).__doc__, name


def test_public_functions_are_documented():
    for path in MODULES:
        assert ast.get_docstring(tree(path)), f"{path} has no docstring"
        for node in tree(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                assert ast.get_docstring(node), (
                    f"{path.name}:{node.lineno} {node.name} has no docstring"
                )


DOCTESTED = [p for p in MODULES if ">>>" in p.read_text()]
#: Rooms whose examples run in seconds, though each is one of a public function tested elsewhere.
LONG = {"cards", "evaluation", "methods", "reporting", "testing", "interop"}
LONG_FILES = {"compile", "interventions", "observation", "cite", "rounding", "maximization"}
LONG_FILES |= {"explanation", "generation"}
QUICK = [p for p in DOCTESTED if room(p) not in LONG and p.stem not in LONG_FILES]


@pytest.mark.parametrize("path", only(QUICK, DOCTESTED), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_docstring_examples_run(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed


def test_the_rule_guide_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/write-a-rule.md").read_text(), re.S)
    example = next(b for b in blocks if "gated_norm" in b and "class Classifier" in b)
    torch.manual_seed(0)
    exec(compile(example, "write-a-rule.md", "exec"), {"__name__": "guide"})
    printed = capsys.readouterr().out
    assert (
        "no relevance rule for mylib.gated_norm.default" in printed
        and "torch.Size([4, 6]) True" in printed
    )


@pytest.mark.slow
def test_the_readmes_tour_runs(tmp_path, monkeypatch, capsys):
    import transformers

    from relprop.demo.quadrant_model import quadrant_model, quadrant_processor
    from relprop.demo.quadrants import make_quadrants

    drawn = make_quadrants(1, seed=4)
    rows = re.findall(r"^\| .*? \| (.*) \| \[", (ROOT / "README.md").read_text(), re.M)
    tour = [call for row in rows for call in re.findall(r"`(.*?)`", row)]
    assert len(tour) > 15
    config = transformers.BertConfig(**SIZES, vocab_size=50, num_labels=10)
    model = transformers.BertForSequenceClassification(config)
    inputs = {
        "input_ids": torch.randint(5, 50, (2, 7)),
        "attention_mask": torch.ones(2, 7, dtype=torch.long),
    }
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    monkeypatch.chdir(tmp_path)
    scope = {
        "relprop": relprop,
        "clip": clip(),
        "llm": transformers.GPT2LMHeadModel(config),
        "vlm": quadrant_model(),
        "processor": quadrant_processor(),
        "picture": drawn.pictures()[0],
        "text": "<image> " + drawn.questions[0],
        "pair": {**inputs, "pixel_values": torch.randn(2, 3, 16, 16)},
        "model": model,
        "inputs": inputs,
        "explanation": relprop.explain(model, inputs),
        "MyLayer": torch.nn.GELU,
    }
    exec(compile("\n".join(tour), "README.md", "exec"), scope)
    assert "check: ok" in capsys.readouterr().out and (tmp_path / "one.safetensors").exists()


def test_nothing_names_a_machine_or_is_left_of_a_merge():
    """No absolute path of anybody's machine is committed, and no marker of a conflict."""
    other = ("docs/*.md", "*.md", "tests/**/*.py", "benchmarks/*.py", "tools/**/*.py")
    for path in [*MODULES, *(p for pattern in other for p in ROOT.glob(pattern))]:
        text = path.read_text()
        if path != Path(__file__):
            assert not re.search(r"/root/|/home/\w|/work/", text), path
        assert not re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE), path


def test_every_linked_file_is_there():
    """Pictures and pages that the README and the docs link to exist: in a clone, so they are
    committed."""
    for page in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(
            r"\]\(([^)#:\s]+)(?:#[^)]*)?\)",
            re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL),
        ):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_stay_small():
    """A file is one idea, seldom above 300 lines of at most 100 columns."""
    long = {
        str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 520
    }
    assert not long, long


def test_facts_of_nodes_are_typed():
    """What is known of a node is read and written in one module; what torch recorded, in another:
    nobody else opens a node's dictionary."""
    allowed = {PACKAGE / "tracer" / "facts.py", PACKAGE / "tracer" / "recorded.py"}
    opened = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path not in allowed
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "meta"
    ]
    assert not opened, opened
