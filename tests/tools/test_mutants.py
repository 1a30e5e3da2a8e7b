"""Mutants are found by their names, change one statement that is code, and are met by tests."""

import ast
import builtins
import importlib
from importlib.machinery import SourceFileLoader

import pytest

from tools import mutants
from tools.changes import AREAS, Mutant, changes, files, inner, marked, named, plant
from tools.changes import mutants as every_mutant

SMALL = '''
"""Not 1 text."""
MOST = 3

def total(values: "list[int] | 4", text="5") -> 6:
    """No 7 text."""
    made = 0
    for value in values:
        if value > MOST and True:
            raise ValueError(f"{value + 8}" + str(9))
        made += value
    return made

class Counter:
    def step(self):
        self.at = "a" + "b"
        print("done", 10)
'''


@pytest.fixture(scope="module")
def every():
    return every_mutant()


def changed(text):
    """The mutants of a text by name."""
    tree = ast.parse(text)
    found = {}
    for change in changes(tree):
        change.swap()
        made = ast.unparse(tree)
        change.swap()
        found[change.name()] = made
    assert ast.unparse(tree) == ast.unparse(ast.parse(text))
    return found


def test_what_is_changed_is_code():
    """Nothing in texts, types, and what is thrown."""
    assert list(changed(SMALL)) == [
        ": MOST = 3 -> MOST = 4",
        "total: made = 0 -> made = 1",
        "total: if value > MOST and True: -> if value > MOST or True:",
        "total: if value > MOST and True: -> if not (value > MOST and True):",
        "total: if value > MOST and True: -> if value >= MOST and True:",
        "total: if value > MOST and True: -> if value > MOST and False:",
        "total: made += value -> pass",
        "Counter.step: self.at = 'a' + 'b' -> pass",
        "Counter.step: print('done', 10) -> pass",
        "Counter.step: print('done', 10) -> print('done', 11)",
    ]


def test_each_changes_one_statement():
    before = ast.unparse(ast.parse(SMALL)).splitlines()
    for name, made in changed(SMALL).items():
        pairs = list(zip(before, made.splitlines(), strict=True))
        assert sum(a != b for a, b in pairs) == 1, name


def test_operators_have_opposites():
    made = {name.split(" -> ")[1] for name in changed("x = a + b * c // d\ny = not a in b\n")}
    assert made == {
        "x = a - b * c // d",
        "x = a + b * c * d",
        "x = a + b / c // d",
        "y = a in b",
        "y = not a not in b",
    }


def test_engine_mutants_are_planted_by_name(every):
    """A few of those in the package: the named file is what changes, and by what the name says."""
    assert len(every) > 4000
    for name in sorted(every)[:: len(every) // 20]:
        mutant, text = every[name], every[name].path.read_text()
        tree = ast.parse(text)
        assert ast.unparse(mutant.planted()) != ast.unparse(tree)
        told = f"{name.split(':', 1)[1]}".rstrip("'")
        assert list(changes(tree))[mutant.number].name() == told


def test_a_function_that_moved_is_found(every, monkeypatch):
    monkeypatch.setattr("tools.changes.mutants", lambda: every)
    name = next(n for n in every if n.startswith("rules/sums.py:") and not n.endswith("'"))
    assert named(name) == named(name.replace("sums", "elsewhere")) == every[name]
    with pytest.raises(KeyError):
        named("rules/sums.py:nowhere: x = 1 -> x = 2")


def test_marks_tell_what_runs(monkeypatch):
    tree = ast.parse(SMALL)
    told = [ast.unparse(s).splitlines()[0] for s in inner(tree)]
    scope = {}
    monkeypatch.setattr(builtins, "__reached__", bytearray(b"0" * (len(told) + 2)), raising=False)
    exec(compile(marked(tree, 2), "small", "exec"), scope)
    assert builtins.__reached__.count(b"1") == 0
    assert scope["total"].__doc__ == "No 7 text." and scope["total"]([1, 2]) == 3
    ran = [line for i, line in enumerate(told) if builtins.__reached__[i + 2] == ord("1")]
    assert sorted(ran) == sorted(
        [
            "made = 0",
            "for value in values:",
            "if value > MOST and True:",
            "made += value",
            "return made",
        ]
    )


def test_a_planted_mutant_computes_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "small_and_changed.py"
    path.write_text(SMALL)
    tree = ast.parse(SMALL)
    next(c for c in changes(tree) if c.name() == "total: made = 0 -> made = 1").swap()
    plant({str(path): tree})
    module = importlib.import_module("small_and_changed")
    assert module.total([1, 2]) == 4 and path.read_text() == SMALL


COUNTING = """
def count(most):
    at = 0
    while at < most:
        at += 1
    return at
"""
TEST = "from counting import count\n\n\ndef test_count():\n    assert count({0}) == {0}\n"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "came"),
    [
        ("count: at = 0 -> at = 1", mutants.OTHERS),
        ("count: while at < most: -> while at <= most:", mutants.OWN),
        ("count: at += 1 -> pass", mutants.STOPPED),
        ("count: at += 1 -> at += 2", mutants.LIVED),
    ],
)
def test_what_comes_of_a_mutant(tmp_path, monkeypatch, name, came):
    """Its own tests count to 4, the others to nothing."""
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    found = {}
    for folder, most in (("rules", 4), ("tracer", 0)):
        path = f"tests/{folder}/test_{folder}.py"
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(TEST.format(most))
        found[path] = {"tests": [(f"{path}::test_count", 0.01, "1")]}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mutants, "STOP", 1)
    number = [c.name() for c in changes(ast.parse(COUNTING))].index(name)
    result = mutants.verdict(Mutant(name, "rules", tmp_path / "counting.py", number, 1), found)
    assert result["came"] == came and result["tests"] == [1, 1]


def test_tests_that_reach_a_statement_come_first():
    tests = [("a::long", 30, "2"), ("a::f[1]", 3, "2"), ("a::f[2]", 4, "3"), ("a::g", 5, "6")]
    found = {"a": {"tests": tests}, "b": {"tests": [("b::h", 1, "1")]}}
    assert mutants.chosen(2, found, 20) == ["a::f[1]", "a::g", "a::f[2]"]
    assert mutants.chosen(4, found, 10) == ["a::g", "a::f[1]"]
    assert mutants.chosen(1, found, 20) == ["b::h", "a::f[2]", "a::f[1]", "a::g"]
    assert mutants.chosen(8, found, 20) == []


def test_every_area_has_files_and_tests():
    asked = mutants.test_files()
    for area, (_, begins) in AREAS.items():
        assert [path for name, path, _ in files() if name == area]
        assert all(any(n.startswith(f"tests/{b}") for n in asked) for b in begins), area
