"""Bad calls of everything public: each ends in one error of relprop's, which says what is wrong,
and changes nothing."""

import re
from pathlib import Path

import pytest
import torch

import relprop
from relprop import adapters, data, evaluation, methods, plot, runs, targets
from relprop.error_boundary import _is_yours, answered, guarded
from relprop.errors import CallError, OptionError, RelpropError, UnforeseenError
from tests.common.rows import only
from tests.fuzz.world import OWN, OWN_AT_INPUT, rows, state, world

CALLS = rows(Path(__file__).with_name("calls.txt").read_text(encoding="utf-8"))
#: Functions of the caller's own that raise: what is said of them is the boundary's.
OF_YOURS = ("raises", "1 / 0")


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calls")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield world(folder)
    for name in (*OWN, *OWN_AT_INPUT):
        methods.remove(name)


def test_there_are_many():
    assert len(CALLS) >= 500 and len(dict(CALLS)) == len(CALLS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", only([0, 3, 5], range(8)))
def test_bad_calls_are_refused_by_name_and_change_nothing(names, part):
    wrong, before = [], state(names)
    for call, said in CALLS[part::8]:
        try:
            eval(call, dict(vars(names)))
            wrong.append(f"{call}: accepted")
        except RelpropError as error:
            text = str(error)
            if isinstance(error, UnforeseenError) and not any(own in call for own in OF_YOURS):
                wrong.append(f"{call}: {text}")
            if not re.search(said, text, re.S) or len(text.splitlines()[0]) < 12:
                wrong.append(f"{call}: says {text}")
        except Exception as error:
            wrong.append(f"{call}: raw {type(error).__name__}: {error}")
        after = state(names)
        wrong += [f"{call}: changed {name}" for name in before if before[name] != after[name]]
        before = after
    assert not wrong, "\n".join(wrong)


ROOTS = ("RelpropError", "RelpropWarning", "Rule")  # classes to build on
PUBLIC = [
    *((relprop, n) for n in (*relprop.__all__, *relprop._RESULTS) if n not in ROOTS),
    *((room, n) for room in (plot, targets, data, evaluation, runs) for n in room.__all__),
    *((methods, n) for n in ("available", "register", "remove")),
    *((adapters, n) for n in ("register", "remove")),
]
#: Plain values and protocols, which compute nothing; what only names things inside.
PLAIN = {
    *("Metric", "Interval", "Entry", "Word", "Sample", "Source", "Record", "Work", "Summary"),
    *("Maximization", "RuleSet"),
    *("Batch", "ClassCorrelation", "ImageCurve", "Maps", "Measure", "OfLabel", "mean_of"),
    *("Randomisation", "SegmentationCounts", "Statistic", "Unfaithful", "Unstable"),
}


def test_every_public_function_stands_at_the_door():
    open_ = []
    for room, name in PUBLIC:
        thing = getattr(room, name)
        if name in PLAIN or not callable(thing):
            continue
        own = vars(thing).values() if isinstance(thing, type) else [thing]
        found = [getattr(v, "fget", v) for v in own]
        if not any(
            getattr(v, "__globals__", {}).get("__name__") == "relprop.error_boundary" for v in found
        ):
            open_.append(name)
    assert not open_


@guarded
def shout(text, *, loud=True):
    return text + 1 if loud else relprop.explain(None, None)


def test_what_nobody_foresaw_is_said_with_its_place_and_its_cause():
    with pytest.raises(UnforeseenError, match="shout: code of yours raised TypeError") as caught:
        shout("a")
    assert isinstance(caught.value.__cause__, TypeError) and "test_bad_calls.py" in str(
        caught.value
    )
    with pytest.raises(ZeroDivisionError) as raised:
        eval(compile("1 / 0", "/library/of/theirs.py", "eval"))
    raised.value.__traceback__ = raised.value.__traceback__.tb_next
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relprop.error_boundary.LIBRARIES", ("/library/",))
        said = str(answered(raised.value, "shout"))
    assert "/library/of/theirs.py:1" in said and "relprop/" not in said
    assert not _is_yours("pyarrow/error.pxi") and _is_yours(__file__)
    with pytest.raises(OptionError, match="did you mean 'loud'") as caught:
        shout("a", lod=True)
    assert isinstance(caught.value, CallError) and isinstance(caught.value, TypeError)
    with pytest.raises(RelpropError, match="NoneType") as caught:
        shout("a", loud=False)
    assert not isinstance(caught.value, UnforeseenError)


def test_no_memory_and_warnings_and_interrupts_pass_the_door():
    def raising(error):
        @guarded
        def call():
            raise error

        return call

    with pytest.raises(RelpropError, match="there is no memory left"):
        raising(MemoryError())()
    for error in (relprop.RelpropWarning("w"), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            raising(error)()


def test_a_door_inside_another_changes_nothing():
    """What relprop calls itself raises what it always did."""

    @guarded
    def inner():
        raise KeyError("a")

    @guarded
    def outer():
        try:
            inner()
        except KeyError:
            return torch.ones(1)

    assert outer() == 1
