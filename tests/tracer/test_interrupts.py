"""Ctrl-C at any moment: model, PyTorch and process are as before, and the next call answers."""

import random
import sys

import pytest
import torch
from torch._C._functorch import get_dynamic_layer_stack_depth

import relprop
from relprop.tracer import side_effects, surroundings
from relprop.tracer.undoing import cleanup_steps
from tests.common.models import sample
from tests.common.rows import marked
from tests.e2e.test_non_invasive import RECIPE, assert_undisturbed, lively_model, snapshot
from tests.tracer.test_threads import process

X = sample(RECIPE)


def everything(model):
    """What an interrupt could leave changed."""
    return snapshot(model, [X]) | {
        "process": process(),
        "functorch": get_dynamic_layer_stack_depth(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "in eval mode for us": len(surroundings._evaluated),
        "capturing": surroundings.TRACING._is_owned(),
    }


def interrupted(call, at):
    """Call it, with an interrupt at its so-many-th function call; how many there were till then."""
    count = 0

    def watch(frame, event, arg):
        nonlocal count
        if event == "call":
            count += 1
            if count == at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        call()
    except KeyboardInterrupt:
        pass  # one that falls into a generator's end is printed by Python, and no more
    finally:
        sys.setprofile(None)
    return count


def entered_or_left(call):
    """At which of the function calls within ``call`` a block is entered or left, for each block:
    the name of the function that it stands in, and their numbers."""
    found, count = {}, 0

    def watch(frame, event, arg):
        nonlocal count
        if event != "call":
            return
        count += 1
        within, depth = frame, 0
        while within is not None and depth < 6:
            if within.f_code.co_name in ("__enter__", "__exit__", "evaluating", "_put_back"):
                found.setdefault((frame.f_code, within.f_code, within.f_back.f_code), []).append(
                    count
                )
                break
            within, depth = within.f_back, depth + 1

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return [(by.co_name, counts) for (_, _, by), counts in found.items()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", marked(range(2), ("0",)))
def test_an_interrupt_where_a_block_is_entered_or_left_changes_nothing(seed):
    draw, model = random.Random(seed), lively_model()
    expected = relprop.explain(model, X, 1).scores
    places = entered_or_left(lambda: relprop.explain(model, X, 1))
    around_the_model = [p for p in places if p[0] == "_outputs"]
    before = everything(model)
    for _, counts in [*around_the_model, *draw.sample(places, 15)]:
        interrupted(lambda: relprop.explain(model, X, 1), draw.choice(counts))
        assert_undisturbed(before, everything(model))
    assert torch.equal(relprop.explain(model, X, 1).scores, expected)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_during_a_capture_changes_nothing():
    draw, model = random.Random(5), lively_model()
    expected = relprop.explain(lively_model(), X, 1).scores
    relprop.trace(model, X)  # what PyTorch sets up when it is first used
    before = everything(model)
    for _ in range(6):
        relprop.tracer.trace.forget(model)
        interrupted(lambda: relprop.explain(model, X, 1), draw.randint(20_000, 250_000))
        assert_undisturbed(before, everything(model))
    assert torch.equal(relprop.explain(model, X, 1).scores, expected)


def test_every_step_is_taken_and_then_the_interrupt_is_raised():
    taken = []

    def step(name, interrupts=0):
        taken.append(name)
        if taken.count(name) <= interrupts:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), cleanup_steps() as steps:
        steps.extend((lambda: step("first", 1), lambda: step("second", 2), lambda: step("third")))
    assert taken == ["third", "second", "second", "second", "first", "first"]


def test_a_list_of_the_users_is_put_back_whole_though_putting_back_is_interrupted():
    kept = {"a": 1, "b": 2}
    model = torch.nn.Linear(1, 1)
    model.kept = kept
    seen = []

    def interrupting(container, before, original=side_effects._restore):
        if container is kept and not seen:
            seen.append(1)
            container.clear()
            raise KeyboardInterrupt
        original(container, before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(side_effects, "_restore", interrupting)
        with pytest.raises(KeyboardInterrupt), side_effects.restored(model):
            model.kept["c"] = 3
    assert model.kept is kept == {"a": 1, "b": 2} and seen


def test_an_error_while_the_user_handles_an_interrupt_is_that_error():
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(relprop.errors.RelpropError):
            relprop.explain(lively_model(), X, 99)
