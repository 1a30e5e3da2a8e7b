"""Mutants: what is changed and what is left alone, names that are one mutant's, and verdicts."""

import ast
import subprocess
import sys

import pytest

from tests.common.rows import only
from tools.mutants import LIVED, OTHERS, OWN, changes, line, mutants

SOURCE = '''
class C:
    @cached(1)
    def f(self, x: "int | 1" = 3) -> str:
        """Text."""
        if x > 2 and not self.y:
            raise ValueError(f"{x + 1}")
        self.y = x % 4
        zip(x, x, strict=True)
        return "a" + "b" if x else []
'''
CHANGED = {
    "def f(self, x: 'int | 1'=4) -> str:",
    "if x > 2 or not self.y:",
    "if not (x > 2 and (not self.y)):",
    "if x >= 2 and (not self.y):",
    "if x > 3 and (not self.y):",
    "if x > 2 and self.y:",
    "pass",  # of two statements
    "self.y = x * 4",
    "self.y = x % 5",
    "return 'a' + 'b' if not x else []",
}


def test_what_is_changed():
    found = []
    for function, statement, holder, at, new in list(changes(ast.parse(SOURCE))):
        old, holder[at] = holder[at], new
        found.append("pass" if old is statement else line(statement))
        holder[at] = old
        assert function in ("C", "C.f")
    assert set(found) == CHANGED and len(found) == len(CHANGED) + 1


@pytest.mark.slow
def test_every_mutant_has_a_name_of_its_own():
    names = [name for name, *_ in mutants()]
    assert len(set(names)) == len(names) > 2000
    asked = {names[0], names[-1]}
    assert [name for name, _, _, code, _ in mutants(asked) if code] == [names[0], names[-1]]


@pytest.mark.parametrize(
    ("own", "others", "came"),
    only(
        [("x", "x == 1", OTHERS)],
        [("x == 1", "", OWN), ("x", "x == 1", OTHERS), ("x", "x", LIVED), ("", "", LIVED)],
    ),
)
def test_who_notices(tmp_path, own, others, came):
    module = tmp_path / "held.py"
    module.write_text("x = 1\n")

    found = {}
    for file, asserts in (("rules/test_a.py", own), ("rollup/test_b.py", others)):
        path = tmp_path / file.replace("/", "_")
        path.write_text(f"from held import x\ndef test_it():\n    assert {asserts}\n")
        test = f"{path}::test_it"
        reached = {str(module): {"1": [test]} if asserts else {}}
        took = {test: 0.1}
        found[file] = {"took": took, "reached": reached}
    code = f"""if True:
        import sys; sys.path.insert(0, {str(tmp_path)!r})
        from pathlib import Path
        from tools.mutants import verdict
        code = compile("x = 2", {str(module)!r}, "exec")
        print(verdict(("name", "rules", Path({str(module)!r}), code, 1), {found!r}))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == came
