"""Warnings: each has a cause by name, and ``strict=True`` makes any of them an error."""

import ast
import inspect
from pathlib import Path

import PIL.Image
import pytest
import torch

import relprop
from relprop import cli, errors, evaluation, runs
from relprop.errors import OptionError, RelpropError, RelpropWarning
from tests.api.test_check import Odd
from tests.common.around import Written
from tests.common.models import sample, shared
from tests.common.rows import only
from tests.runs.works import Numbers
from tests.targets.models import gpt2

ROOT = Path(__file__).parent.parent.parent
CAUSES = {c.__name__: c for c in RelpropWarning.__subclasses__()}
ENTRIES = [
    *("explain", "explain_many", "trace", "compare", "compile", "check", "instrument"),
    *("explain_generation", "activation_maximization", "report"),
]
X = torch.rand(2, 5, 8)
UNUSED = relprop.rules.PAPER.with_rule("no.such.module", relprop.rules.carry)


def test_every_warning_has_a_cause_of_its_own_and_a_row_in_the_docs():
    assert len(CAUSES) >= 14
    page = " ".join((ROOT / "docs/reliability.md").read_text(encoding="utf-8").split())
    for name, cause in CAUSES.items():
        assert getattr(errors, name) is cause
        assert (
            f"| `{name}` | {' '.join(inspect.getdoc(cause).split()).replace('``', '`')} |" in page
        )


def test_nothing_in_the_package_warns_without_a_cause():
    """``warn`` is given one of them, or a notice that is one."""
    for path in (ROOT / "relprop").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warn":
                given = ast.unparse(node.args[0])
                assert given.split("(")[0] in {*CAUSES, "notice"}, f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "warnings.warn":
                assert path.name == "errors.py", f"{path}:{node.lineno}"


def watched(model, pattern, **options):
    with relprop.instrument(model, X, 0, **options) as probe:
        return probe.relevance(pattern)


def explained_there(model, **options):
    with relprop.instrument(model, X, 0, **options) as probe:
        return probe.explanation(method="lrp")


def by_few_steps(model, images, target):
    options = {"method": "integrated_gradients", "n_steps": 1}
    return relprop.explain(model, images, target.tolist(), **options).heatmap()


WARNING = {
    "explain": lambda model, path, **o: relprop.explain(model, X, 0, **o),
    "explain_many": lambda model, path, **o: relprop.explain_many(model, X, [0, 1], **o),
    "compare": lambda model, path, **o: relprop.compare(model, X, ["lrp", "rollout"], 0, **o),
    "compile": lambda model, path, **o: relprop.compile(model, X, 0, **o),
    "rounding_stability": lambda model, path, **o: relprop.rounding_stability(model, X, 0, **o),
    "check": lambda model, path, **o: relprop.check(
        Written(lambda m, x: m.inner(x - x.mean(0, keepdim=True))), sample(), **o
    ),
    "instrument": lambda model, path, **o: watched(model, "*softmax*", **o),
    "explanation": lambda model, path, **o: explained_there(model, **o),
    "explain_generation": lambda model, path, **o: relprop.explain_generation(
        gpt2(), torch.tensor([[1, 2, 3]]), max_new_tokens=1, rules=UNUSED, **o
    ),
    "report": lambda model, path, **o: relprop.report(
        relprop.explain(shared(), sample(), 1, keep="blocks"), path, megabytes=0.001, **o
    ),
    "run": lambda model, path, **o: resumed(path.with_suffix(""), **o),
    "evaluate": lambda model, path, **o: evaluation.evaluate(
        evaluation.digit_scenes(2), [("mine", by_few_steps)], **o
    ),
}


def resumed(folder, **options):
    """A run that another version of PyTorch began."""
    if not folder.exists():
        runs.run(Numbers(4), folder, progress=False)
        text = (folder / "run.json").read_text(encoding="utf-8")
        old = text.replace(f'"{torch.__version__}"', '"1.0"')
        assert old != text
        (folder / "run.json").write_text(old, encoding="utf-8")
    runs.run(Numbers(4), folder, resume=True, progress=False, **options)


@pytest.mark.parametrize("name", only((n for n in WARNING if n != "evaluate"), WARNING))
def test_a_warning_is_an_error_where_that_is_asked_for(name, tmp_path):
    """Also one that is given once for a model and has been: and what was an error first is still
    told where it is a warning."""
    model, call, path = Odd(), WARNING[name], tmp_path / "a.html"
    for _ in range(2):
        with pytest.raises(RelpropError) as caught:
            call(model, path, strict=True)
        cause = caught.value.__cause__
        assert isinstance(cause, RelpropWarning) and type(cause) is not RelpropWarning
        assert str(cause) == str(caught.value)
    with pytest.warns(type(cause)):
        call(model, path)
    with pytest.raises(RelpropError, match=r"\w"):
        call(model, path, strict=True)
    assert not errors.is_strict()


@pytest.mark.parametrize("name", [*ENTRIES, "evaluate", "run"])
def test_every_entry_has_the_switch_which_is_yes_or_no(name):
    room = {"evaluate": evaluation, "run": runs}.get(name, relprop)
    assert inspect.signature(getattr(room, name)).parameters["strict"].default is False
    with pytest.raises(OptionError, match="strict='yes': True or False"):
        getattr(room, name)(strict="yes")


def test_what_warns_of_nothing_is_the_same():
    a, b = (relprop.explain(shared(), sample(), 1, strict=s) for s in (True, False))
    assert a.scores.equal(b.scores)


@pytest.mark.filterwarnings("default::relprop.RelpropWarning")
def test_the_command_line_has_it_for_all_commands(capsys, tmp_path):
    picture = tmp_path / "a.png"
    torch.manual_seed(0)
    PIL.Image.fromarray((torch.rand(32, 32) * 255).byte().numpy()).save(picture)
    command = [
        *("explain", str(picture), "--model", "demo:digits"),
        *("--method", "integrated_gradients:n_steps=1"),
    ]
    try:
        cli.main(command)
    except SystemExit as ended:
        assert not ended.code
    assert "warning: integrated gradients of 1 of 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        cli.main(["--strict", *command])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "relprop: integrated gradients of 1 of 1" in said
    assert "Traceback" not in said and "foresee" not in said and not errors.is_strict()
