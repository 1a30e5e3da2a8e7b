"""Threads: while one captures, others call the model, explain it, and print, warn and log."""

import functools
import gc
import logging
import sys
import threading
import time
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import relprop
from relprop.errors import CaptureError, InputError
from relprop.interpreter.forward import forward
from relprop.tracer.shadow import shadow_of
from relprop.tracer.surroundings import unlogged, unwarned
from tests.common.models import CLASSES, Recipe, build, randomise, sample
from tests.common.rows import diagonal, marked


def together(*works):
    """Every work in a thread of its own, all started at once; what each returned."""
    barrier, found = threading.Barrier(len(works)), {}

    def at(i):
        try:
            barrier.wait()
            found[i] = works[i]()
        except BaseException as error:
            found[i] = error

    threads = [threading.Thread(target=at, args=(i,)) for i in range(len(works))]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(switch)
    for one in found.values():
        if isinstance(one, BaseException):
            raise one
    return [found[i] for i in range(len(works))]


class AnyLength(nn.Module):
    """Attention over as many tokens as it gets, ids in; ``shared``: one block twice; ``branch``: on
    values, so that ``torch.export`` refuses it."""

    def __init__(self, shared=False, branch=False):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        blocks = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList([blocks[0], blocks[0]] if shared else blocks)
        self.head, self.branch = nn.Linear(8, CLASSES), branch

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        if self.branch and bool(x.sum() > 1e9):
            x = -x
        return self.head(x.mean(1))


def any_length(seed=0, **how):
    return randomise(AnyLength(**how), seed).double().eval()


def ids(length):
    return torch.arange(2 * length).reshape(2, length) % 11


KINDS = {"plain": {}, "shared blocks": {"shared": True}, "branching": {"branch": True}}


@pytest.mark.parametrize("kind", marked(KINDS, ("shared blocks",)))
def test_one_captures_new_lengths_while_others_call_and_explain(kind):
    kind = KINDS[kind]
    model, done = any_length(**kind), threading.Event()
    warm = ids(5)[:1]
    with torch.no_grad():
        value = model(warm)
    scores = relprop.explain(model, warm, 1).scores
    alone = {6: relprop.explain(any_length(**kind), ids(6)[:1], 1)}

    def capture():
        try:
            return {n: relprop.explain(model, ids(n)[:1], 1) for n in alone}
        finally:
            done.set()

    def call():
        found = []
        while not done.is_set() or not found:
            with torch.no_grad():
                found.append(model(warm))
            time.sleep(0.001)
            assert not any(p.is_meta or type(p) is not nn.Parameter for p in model.parameters())
        return found

    def explain():
        found = [relprop.explain(model, warm, 1).scores]
        while not done.is_set():
            found.append(relprop.explain(model, warm, 1).scores)
            time.sleep(0.01)
        return found

    captured, values, many = together(capture, call, explain)
    for n, e in captured.items():
        assert torch.equal(e.scores, alone[n].scores)
        assert e.facts["attention_sites"] == alone[n].facts["attention_sites"]
    # PyTorch's encoder takes its fused path but while something is exported: rounding
    assert all(torch.allclose(v, value, rtol=1e-12, atol=1e-12) for v in values)
    assert all(torch.equal(s, scores) for s in many)


@pytest.mark.parametrize("warm", marked([False, True], ("False",)))
def test_four_threads_explain_the_same_and_different_models(warm):
    models = [any_length(seed=i) for i in range(2)] * 2
    expected = [relprop.explain(any_length(seed=i), ids(4), 2) for i in range(2)] * 2
    if warm:
        for model in models:
            relprop.explain(model, ids(4), 2)
    found = together(*(lambda m=m: relprop.explain(m, ids(4), 2) for m in models))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.scores, theirs.scores)
        assert mine.ledger.balanced()


def test_a_model_in_train_mode_is_in_train_mode_after_many_threads():
    model = any_length().train()
    model.blocks[1].eval()
    before = [m.training for m in model.modules()]
    together(*(lambda n=n: relprop.explain(model, ids(n), 1) for n in (4, 4, 5, 4)))
    assert [m.training for m in model.modules()] == before


def test_a_callable_target_is_traced_by_one_thread_at_a_time():
    model = any_length()
    expected = relprop.explain(model, ids(4), lambda o: o[0, 1] * o[0, 2].exp()).scores
    called = nn.Module.__call__
    found = together(
        *(
            lambda: relprop.explain(model, ids(4), lambda o: o[0, 1] * o[0, 2].exp()).scores
            for _ in range(3)
        )
    )
    assert all(torch.equal(f, expected) for f in found)
    assert nn.Module.__call__ is called


class Failing(nn.Module):
    """Fails when it is traced, not when it is called; ``always``: when it is called, too."""

    def __init__(self, always=False):
        super().__init__()
        self.inner, self.always = build(), always

    def forward(self, x):
        print("called")
        warnings.warn("heard", UserWarning, stacklevel=1)
        self.seen = x
        if self.always or torch.compiler.is_exporting() or traced():
            raise RuntimeError("data-dependent, no")
        return self.inner(x)


def traced():
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None


def process():
    """What belongs to the process, and what a capture may not change."""
    root = logging.getLogger()
    loggers = [v for v in logging.root.manager.loggerDict.values() if isinstance(v, logging.Logger)]
    return (
        (sys.stdout, sys.stderr, warnings.showwarning, id(warnings.filters), *warnings.filters),
        (logging.root.manager.disable, root.level, root.handlers[:], root.filters[:]),
        [(log.level, log.disabled, log.filters[:], log.handlers[:]) for log in loggers],
        (nn.Module.__call__, nn.Module.__getattr__, torch.backends.mha.get_fastpath_enabled()),
        (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_rng_state().tolist()),
        torch.are_deterministic_algorithms_enabled(),
    )


@pytest.mark.filterwarnings("ignore:heard")
@pytest.mark.parametrize(("always", "threads"), diagonal((False, True), (3, 1)))
def test_an_error_inside_a_capture_leaves_the_process_and_the_model(always, threads, capfd):
    models = [Failing(always) for _ in range(threads)]
    with pytest.raises((CaptureError, InputError)):  # what PyTorch sets up when it is first used
        relprop.explain(Failing(always), sample(Recipe()), 1)
    before, kept = process(), [dict(vars(m)) for m in models]
    capfd.readouterr()

    def explain(model):
        with pytest.raises((CaptureError, InputError), match="data-dependent, no"):
            relprop.explain(model, sample(Recipe()), 1)

    together(*(lambda m=m: explain(m) for m in models))
    assert process() == before
    assert [dict(vars(m)) for m in models] == kept
    assert capfd.readouterr().err == ""  # export prints the graph it had, were it not for us


def test_warnings_and_logs_of_other_threads_are_heard(caplog, monkeypatch):
    for name in ("torch", "torch.export"):  # some releases hand nothing on, some do
        monkeypatch.setattr(logging.getLogger(name), "propagate", False)
    monkeypatch.setattr(logging.getLogger("torch.export"), "handlers", [caplog.handler])

    def speak(who):
        warnings.warn(f"{who} warns", UserWarning, stacklevel=1)
        logging.getLogger("torch.export").error("%s logs", who)
        logging.getLogger("torch.export").critical("%s calls", who)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with unwarned(), unlogged():
            together(lambda: speak("another"))
            speak("this")
        speak("later")
    assert [str(w.message) for w in caught] == ["another warns", "later warns"]
    assert [r.getMessage() for r in caplog.records] == [
        *("another logs", "another calls", "this calls", "later logs", "later calls")
    ]


def test_print_goes_where_it_went_while_another_thread_captures():
    model, done, seen = any_length(), threading.Event(), []

    def capture():
        try:
            relprop.explain(model, ids(8), 1)
        finally:
            done.set()

    def look():
        while not done.is_set():
            seen.append((sys.stdout, sys.stderr, logging.root.manager.disable))
            time.sleep(0.0005)

    before = sys.stdout, sys.stderr, logging.root.manager.disable
    together(capture, look)
    assert seen and all(s == before for s in seen)


@pytest.mark.parametrize("order", ["both inside", "both outside", "first in, first out", "last"])
def test_filters_of_warnings_that_another_thread_puts_in_meanwhile_stay_its_own(order):
    """``catch_warnings`` of another thread may begin and end at any time: it puts a copy in place,
    and puts back what it found."""
    before, held = list(warnings.filters), warnings.filters
    ours, theirs = unwarned("x"), warnings.catch_warnings()
    steps = {
        "both inside": (ours.__enter__, theirs.__enter__, end(theirs), end(ours)),
        "both outside": (theirs.__enter__, ours.__enter__, end(ours), end(theirs)),
        "first in, first out": (ours.__enter__, theirs.__enter__, end(ours), end(theirs)),
        "last": (theirs.__enter__, ours.__enter__, end(theirs), end(ours)),
    }
    for step in steps[order]:
        step()
    assert warnings.filters is held and list(warnings.filters) == before


def end(context):
    return lambda: context.__exit__(None, None, None)


class Counting(nn.Module):
    """Counts its calls, in a buffer and in a list, and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.inner, self.calls = build(), []
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.count += 1
        self.calls.append(len(x))
        self.seen = x
        return self.inner(x)


def test_what_another_threads_calls_leave_behind_stays():
    model, done = Counting().eval(), threading.Event()

    def capture():
        try:
            relprop.explain(model, sample(Recipe()), 1)
        finally:
            done.set()

    def call():
        count = 0
        while not done.is_set():
            model(sample(Recipe())[:1])
            count += 1
            time.sleep(0.001)
        return count

    _, count = together(capture, call)
    assert (int(model.count), len(model.calls)) == (count, count)


# what a shadow must be


MODULES, NAMES, SEEN = {}, {}, []


def by_global(module, args, output):
    SEEN.append(NAMES[module])
    return output * 2 if module is MODULES["second"] else output


def with_hooks_that_know_modules(model):
    MODULES["second"] = model.blocks[1]
    NAMES.update({m: n for n, m in model.named_modules()})
    names, first, seen = dict(NAMES), model.blocks[0], []

    def by_closure(module, args, output):
        seen.append(names[module])
        return output * 3 if module is first else output

    for block in model.blocks:
        block.register_forward_hook(by_global)
        block.register_forward_hook(by_closure)


def with_a_patched_forward(model):
    def scaled(module, x):
        return module._old_forward(x) * 2

    for block in model.blocks:
        block._old_forward = block.forward
        block.forward = functools.update_wrapper(functools.partial(scaled, block), block.forward)


def with_bound_methods_and_parents(model):
    block = model.blocks[0]
    block.__dict__["parent"] = model
    block.reference = weakref.ref(model)
    block.holder = [types.SimpleNamespace(owner=model)]

    def forward(self, x):
        assert self.parent is self.reference() is self.holder[0].owner
        return type(self).forward(self, x) + self.parent.head.bias.sum()

    block.forward = types.MethodType(forward, block)


def with_modules_in_a_list(model):
    layers = list(model.blocks)
    del model.blocks
    model.blocks = layers


def with_compiled_parts(model):
    model.blocks[0] = torch.compile(model.blocks[0])
    model.blocks[1].compile()


WRITTEN = [
    with_hooks_that_know_modules,
    with_a_patched_forward,
    with_bound_methods_and_parents,
    with_modules_in_a_list,
    with_compiled_parts,
]


@pytest.mark.parametrize("write", WRITTEN, ids=lambda f: f.__name__)
def test_a_shadow_is_the_same_function_in_modules_of_its_own(write):
    model = any_length()
    write(model)
    SEEN.clear()
    called = []
    shadow = shadow_of(model)
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected = model(ids(4))
        for module in model.modules():
            module.register_forward_pre_hook(lambda m, args: called.append(m))
        assert torch.equal(shadow(ids(4)), expected)
    assert not called, "the shadow runs the user's modules"
    mine, theirs = dict(model.named_parameters()), dict(shadow.named_parameters())
    assert mine.keys() == theirs.keys() and all(mine[n] is theirs[n] for n in mine)
    assert not {id(m) for m in model.modules()} & {id(m) for m in shadow.modules()}


@pytest.mark.parametrize("write", WRITTEN, ids=lambda f: f.__name__)
def test_such_a_model_is_explained_and_left_as_it_is(write):
    model = any_length()
    write(model)
    SEEN.clear()
    before = {n: dict(vars(m)) for n, m in model.named_modules()}
    e = relprop.explain(model, ids(4), 1)
    assert {n: dict(vars(m)) for n, m in model.named_modules()} == before and not SEEN
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(e.output, model(ids(4))[:, 1])


def test_buffers_that_share_memory_do_so_in_a_shadow():
    model = nn.Linear(2, 2)
    whole = torch.arange(6.0)
    model.register_buffer("whole", whole)
    model.register_buffer("part", whole[2:4])
    model.register_buffer("again", whole)
    model.register_buffer("of_a_parameter", model.weight.detach()[0])
    shadow = shadow_of(model)
    shadow.whole += 1
    assert shadow.part.tolist() == [3.0, 4.0] and shadow.again is shadow.whole
    assert model.whole.tolist() == list(range(6)) and model.part.tolist() == [2.0, 3.0]
    assert shadow.of_a_parameter.data_ptr() == model.weight.data_ptr()


class OfOneObject(nn.Module):
    """Runs as the very object that was made, and as no other."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.me = id(self)

    def forward(self, x):
        if id(self) != self.me:
            raise RuntimeError("an impostor")
        return self.inner(x)


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param((4, 4, 4), id="one"),
        pytest.param((4, 5, 6, 7), id="many", marks=pytest.mark.slow),
    ],
)
def test_a_model_without_a_shadow_is_captured_itself_and_read_by_one_thread_at_a_time(
    lengths, monkeypatch
):
    model = OfOneObject(any_length()).eval()

    def when_another_captures(*args, **kwargs):
        until = time.monotonic() + 0.5
        while time.monotonic() < until and all(type(p) is nn.Parameter for p in model.parameters()):
            time.sleep(0.001)
        return forward(*args, **kwargs)

    monkeypatch.setattr("relprop.runner.run.forward", when_another_captures)
    expected = [relprop.explain(any_length(), ids(n), 1).scores for n in lengths]
    found = together(*(lambda n=n: relprop.explain(model, ids(n), 1).scores for n in lengths))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=0)
    assert not any(type(p) is not nn.Parameter for p in model.parameters())


def test_nothing_keeps_a_captured_model_alive():
    model = Counting().eval()
    relprop.explain(model, sample(Recipe()), 1)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
