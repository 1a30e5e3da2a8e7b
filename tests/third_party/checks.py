"""What is checked of one model: relprop's answers beside each other, and beside the oracle's."""

import importlib
import re
import warnings
from functools import cached_property, partial
from typing import NamedTuple

import pytest
import torch

import relprop
from tests.third_party import oracle, relevance
from tests.third_party.drawing import redraw

DEFAULT = "transformer_attribution"
ROLL_UPS = ("rollout", "gae", "attention_times_grad")
AT_THE_INPUT = "gradient_x_input"
SAME_MAPS, SAME_SCORES = 1e-6, 1e-5
#: Of how many modules of a model values are set, about.
SOME = 4


def built(made):
    """A ``made`` is ("package.module:name", positional arguments, keyword arguments), to any depth;
    anything else stands for itself."""
    if isinstance(made, (list, tuple)) and not (len(made) == 3 and ":" in str(made[0])):
        return type(made)(built(one) for one in made)
    if not isinstance(made, tuple):
        return made
    (module, name), arguments, keywords = made[0].split(":"), *made[1:]
    function = getattr(importlib.import_module(module), name)
    return function(*built(arguments), **{key: built(one) for key, one in keywords.items()})


class Checked:
    """One model of the table, and what was asked about it, each question once."""

    def __init__(self, case):
        self.case, self.answers = case, {}
        torch.manual_seed(0)  # buffers that a model draws
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = redraw(built(case.made).double().eval())
        self.before = {k: v.clone() for k, v in self.model.state_dict().items()}

    def explained(self, method, sample=None):
        """relprop's answer for the batch, or for one of its samples."""
        if (method, sample) not in self.answers:
            keep = ("blocks",) if method == DEFAULT else ()
            inputs = self.case.inputs if sample is None else oracle.cut(self.case.inputs, sample)
            inputs = inputs if isinstance(next(iter(inputs)), str) else tuple(inputs.values())
            self.answers[method, sample] = relprop.explain(
                self.model, inputs, self.case.target, method=method, keep=keep
            )
        return self.answers[method, sample]

    @cached_property
    def seen(self):
        case = self.case
        return oracle.see(self.model, case.inputs, case.target, case.mixed, case.alone)


def same(one, other, tolerance, what=""):
    """Equal, relative to the largest number."""
    gap = float("inf")
    if one.shape == other.shape:
        gap = float((one - other).abs().max() / other.abs().max().clamp(min=1e-12))
    assert gap <= tolerance, f"{what} off by {gap}"


def one_by_one(checked):
    """A batch of two has the scores of its samples one by one. Of inputs that attend to each other
    gae is refused, where they are not whole."""
    several = len(checked.explained(DEFAULT).streams) > 1
    for method in (DEFAULT, *ROLL_UPS, *((AT_THE_INPUT,) if checked.case.at_the_input else ())):
        if method == "gae" and several:
            continue
        for sample, whole in enumerate(checked.explained(method)):
            alone = checked.explained(method, sample).streams
            for name, stream in whole.streams.items():
                same(stream.scores, alone[name].scores, checked.case.exact, f"{method}, {name}")


def attention(checked):
    """Every block that is kept holds A and ∇A of the model's own graph, row by row, and every map
    of that graph is held by a block, but where the table says that not all mix tokens."""
    blocks, maps = read(checked.explained(DEFAULT).blocks), read(checked.seen.maps)
    if not checked.case.steady:
        blocks, maps = ([Plain(o.attention) for o in both] for both in (blocks, maps))
    assert all(_is_held(block, maps) for block in blocks), "a block is off by all maps"
    if checked.case.sites is None:
        assert all(_is_held(one, blocks) for one in maps), "a map is off by all blocks"


class Plain(NamedTuple):
    """A map whose gradient is not compared."""

    attention: torch.Tensor

    @property
    def gradient(self):
        return 0 * self.attention


def read(maps):
    """Those that y depends on."""
    return [one for one in maps if one.gradient.abs().max() > 0]


def _is_held(one, others):
    """Whether each row of A and ∇A is a row of others, too: windows and heads are laid out in many
    ways, rows are not."""
    others = [o for o in others if o.attention.shape[-1] == one.attention.shape[-1]]
    scale = one.gradient.abs().max().clamp(min=1e-300)
    mine, *theirs = (
        torch.cat([o.attention, o.gradient / scale], -1).double().flatten(1, -2)
        for o in (one, *others)
    )
    if not theirs:
        return False
    gaps = torch.cdist(mine, torch.cat(theirs, 1), p=torch.inf).min(-1).values
    return bool(gaps.max() <= SAME_MAPS)


def sites(checked):
    """There are as many sites as softmaxes that mix tokens."""
    found, expected = len(read(checked.explained(DEFAULT).blocks)), checked.case.sites
    expected = len(read(checked.seen.maps)) if expected is None else expected
    assert found == expected, f"{found} sites for {expected}"


def rolled_up(checked, method):
    case = checked.case
    by_hand = oracle.scores(checked.seen.maps, method, case.reads, case.beside)
    same(checked.explained(method).scores, by_hand, SAME_SCORES)


def paper(checked):
    """The default method, from A and ∇A of the oracle and a walk of its own."""
    case = checked.case
    for sample, found in enumerate(checked.explained(DEFAULT)):
        one = oracle.cut(case.inputs, sample).values()
        walked = relevance.at_softmaxes(checked.model, one, case.target)
        maps = zip(checked.seen.maps, walked, strict=True)
        matrices = [(m.gradient[sample] * r).clamp(min=0).mean(0)[None] for m, r in maps]
        same(found.scores, oracle.read(oracle.rolled_up(matrices), case.reads), SAME_SCORES)


def identities(checked):
    """What skip connections leave of a row sums to 1 over all inputs, or to less where learned
    tokens stand; of two rows that a similarity reads, to 2."""
    streams = checked.explained(DEFAULT).streams.values()
    total = float(sum(stream.identity.sum(1) for stream in streams).max())
    assert total <= checked.case.rows * (1 + 1e-6), f"the identity sums to {total}"


def at_the_input(checked):
    """Gradient × input, summed over channels or features, of every input that is explained."""
    streams, compared = checked.explained(AT_THE_INPUT).streams, 0
    for key, product in checked.seen.products.items():
        stream = streams.get(key if isinstance(key, str) else f"input_{key}")
        if product is not None and stream is not None:
            scale = product.abs().max()
            gaps = [float((stream.scores - s).abs().max()) for s in _summed(product, stream.scores)]
            assert min(gaps, default=torch.inf) <= SAME_SCORES * scale, f"{key} off by {gaps}"
            compared += 1
    assert compared, f"nothing was compared: {list(streams)}"


def _summed(product, scores):
    """The element-wise product, summed over the one axis that is not of positions, if any."""
    if product[0].numel() == scores[0].numel():
        yield product.flatten(1)
    for axis in range(1, product.dim()):
        if product[0].numel() == scores[0].numel() * product.shape[axis]:
            yield product.sum(axis).flatten(1)


def settings(checked):
    """What some modules return, changed by name, is what a forward hook of PyTorch's makes of it: y
    of one sample, in which each module is called once."""
    inputs, model = oracle.cut(checked.case.inputs, 0), checked.model
    given = inputs if isinstance(next(iter(inputs)), str) else tuple(inputs.values())
    modules, compared = dict(model.named_modules()), 0

    def y(path, hook):
        handle = modules[path].register_forward_hook(hook)
        try:
            output = model(**given) if isinstance(given, dict) else model(*given)
        finally:
            handle.remove()
        return oracle.of_sample(output, 0, checked.case.target).detach()

    with relprop.instrument(model, given, checked.case.target) as probe, torch.no_grad():
        names = [n for n in probe.names() if n in modules and f"{n}@1" not in probe.names()]
        for name in names[:: max(1, len(names) // SOME)]:
            seen = []
            y(name, lambda module, args, output, seen=seen: seen.append(output))
            if len(seen) != 1 or not isinstance(seen[0], torch.Tensor):
                continue
            expected = y(name, lambda module, args, output: 0.7 * output + 0.1)
            (found,) = probe.many([{"name": name, "value": lambda v: 0.7 * v + 0.1}])
            same(found, expected.reshape(1), SAME_SCORES, name)
            compared += 1
    assert compared, "no module was compared"


def books(checked):
    ledger = checked.explained(DEFAULT).ledger
    assert ledger.balanced(), f"off by {ledger.worst()}"


def refused(checked):
    """Every method over attention is refused for the reason that the table gives."""
    for method in (DEFAULT, *ROLL_UPS):
        with pytest.raises(relprop.RelpropError, match=re.escape(checked.case.refused)):
            checked.explained(method)


def untouched(checked):
    """Parameters and buffers are what they were, bit for bit."""
    after = checked.model.state_dict()
    changed = [k for k, v in after.items() if not torch.equal(v, checked.before[k])]
    assert list(after) == list(checked.before) and not changed, f"changed: {changed[:3]}"


#: In this order: the last one looks at what all others have left of the model.
CHECKS = {
    "refused": refused,
    "batch": one_by_one,
    "maps": attention,
    "sites": sites,
    **{method: partial(rolled_up, method=method) for method in ROLL_UPS},
    "identity": identities,
    "paper": paper,
    "books": books,
    "settings": settings,
    AT_THE_INPUT: at_the_input,
    "untouched": untouched,
}
