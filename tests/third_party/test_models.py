"""Third-party models beside the oracle. What is wrong today stands in ``faults.py``, what is
refused in the table of models."""

from functools import lru_cache

import pytest

from tests.third_party.checks import AT_THE_INPUT, CHECKS, ROLL_UPS, Checked
from tests.third_party.faults import FAULTS
from tests.third_party.models import CASES

pytestmark = pytest.mark.filterwarnings("ignore")  # what the models' own code warns of


def asked(case):
    """The names of a model's checks, in the order of ``CHECKS``."""
    names = {"refused"} if case.refused else {"batch", "maps", "sites", "identity", "books"}
    names |= set() if case.refused or case.alone else {"settings"}
    names |= {AT_THE_INPUT} if case.at_the_input else set()
    names |= set(ROLL_UPS) if case.reads is not None else set()
    names |= {"paper"} if case.paper else set()
    return [name for name in CHECKS if name in names | {"untouched"}]


ALL = [(name, check) for name, case in CASES.items() for check in asked(case)]


@lru_cache(1)
def checked(name):
    return Checked(CASES[name])


@pytest.mark.parametrize(("name", "check"), ALL)
def test_model(name, check):
    if (name, check) not in FAULTS:
        CHECKS[check](checked(name))
        return
    reason, *words = FAULTS[name, check]
    try:
        CHECKS[check](checked(name))
    except Exception as error:
        if not isinstance(error, AssertionError) and (not words or words[0] not in str(error)):
            raise
    else:
        pytest.fail(f"right now: take {check!r} of {name} out of faults.py ({reason})")


def test_the_faults_are_of_models_and_checks():
    assert set(FAULTS) <= set(ALL)
