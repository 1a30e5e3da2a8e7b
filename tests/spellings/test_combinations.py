"""Several parts written differently at once: seeded random choices, one spelling for each of some
parts of one base."""

from __future__ import annotations

import functools
import random
from collections import defaultdict

import pytest

from tests.spellings.bases import (
    CAUSAL,
    ENDED,
    EXPERTS,
    GROUPED,
    IDS,
    LLAMA,
    PADDED,
    PAIRS,
    PLAIN,
    RELATIVE,
    SCALED,
    SILU,
    START,
)
from tests.spellings.checks import compare_all, gap, outputs_and_gradients, verdict
from tests.spellings.left import LEFT
from tests.spellings.model import Model
from tests.spellings.spelling import Spelling, spellings

METHODS = (
    "transformer_attribution", "rollout", "gae", "attcat", "value_zeroing", "lrp", "attnlrp",
    "input_gradient",
)  # fmt: skip
BASES, EACH = (PLAIN, START, IDS, PADDED, CAUSAL, LLAMA, PAIRS), 12
ROUNDING = 1e-11
#: Parts that are written as a whole leave no room for a spelling of what is in them.
INSIDE = {
    "blocks": ("block",),
    "block": ("attention", "mlp", "residual"),
    "attention": ("attend", "split", "join", "rotate"),
    "attend": ("scores", "normalise", "weigh", "contract"),
    "normalise": ("hide", "softmax"),
    "mlp": ("activation", "gate"),
}


@functools.cache
def wanted(base):
    return outputs_and_gradients(Model(base).eval(), base.inputs())


@functools.cache
def ways():
    """By part, the spellings of it that must give the same answer, of whatever base."""
    found = defaultdict(list)
    for s in spellings():
        if not (s.refused or s.either or s.inference or s.apart or s.id in LEFT):
            (part,) = s.parts
            found[part].append(s)
    return found


def _covered(part):
    inner = INSIDE.get(part, ())
    return {*inner, *(name for p in inner for name in _covered(p))}


@functools.cache
def used(base):
    """The parts that ``base`` has: without them it does not run."""

    def missing(*_, **__):
        raise NotImplementedError

    return [part for part in sorted(ways()) if not _fits(base, {part: missing})]


def _fits(base, parts):
    """Whether these spellings can be used together for this function. One that is written for three
    axes cannot where another hands it two."""
    try:
        found = outputs_and_gradients(Model(base, **parts).eval(), base.inputs())
    except Exception:  # whatever a misfit raises
        return False
    return all(gap(a, b) <= ROUNDING for a, b in zip(found, wanted(base), strict=True))


@functools.cache
def combination(base, seed):
    """One spelling for each of some parts, in random order, as long as they fit."""
    source, chosen = random.Random(f"{base.name} {seed}"), {}
    for part in source.sample(used(base), source.randint(4, len(used(base)))):
        if any(part in _covered(p) or p in _covered(part) for p in chosen):
            continue
        for way in source.sample(ways()[part], min(3, len(ways()[part]))):
            if _fits(base, _parts(chosen | {part: way})):
                chosen[part] = way
                break
    name = ",".join(f"{part}={way.name}" for part, way in chosen.items())
    return Spelling("combination", name, base, _parts(chosen))


def _parts(chosen):
    return {part: way.parts[part] for part, way in chosen.items()}


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=lambda b: b.name)
def test_combinations_are_many_and_different(base):
    found = [combination(base, seed) for seed in range(EACH)]
    assert len({c.name for c in found}) > EACH - 3
    assert sum(len(c.parts) for c in found) >= 3 * EACH


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=lambda b: b.name)
@pytest.mark.parametrize("seed", range(EACH))
def test_the_explanation_of_a_combination(base, seed):
    combined = combination(base, seed)
    wrong = verdict(combined, compare_all(combined, METHODS))
    assert not wrong, "\n".join([combined.name, *wrong])


#: Parts of one base that were wrong together, or on this base alone.
ONCE_WRONG = (
    (START, "softmax=expm1 contract=mm_of_every_head"),
    (IDS, "mlp=tokens_in_equal_chunks project=one_input_at_a_time"),
    (PADDED, "scores=two_halves_of_the_features"),
    (LLAMA, "scores=two_halves_of_the_features"),
    (START, "position=token_by_token"),
    (START, "position=added_by_token"),
)
#: One spelling of every part of every family, as many at once as fit.
ONE_OF_EACH = (
    (
        PLAIN,
        "activation=erf attend=heads_stacked pool=torch_mean split=view_and_transpose "
        "join=permute_and_reshape norm=written_out position=cut_of_a_join "
        "project=matmul_of_the_transposed head=matmul patch=matmul residual=the_other_way",
    ),
    (SILU, "activation=slope_of_softplus"),
    (LLAMA, "gate=the_other_way attend=fused_causal rotate=llama"),
    (LLAMA, "mlp=MergedAndChunked rotate=heads_by_vmap_written_in_place"),
    (
        PLAIN,
        "mlp=token_by_token attend=divided_after_the_product position=embedding_of_arange "
        "project=Transposed",
    ),
    (
        PLAIN,
        "mlp=called_with_its_weights attend=fused position=copied_through_transpose "
        "project=module_by_vmap",
    ),
    (CAUSAL, "attend=math_causal embed=index causal=tril_of_numbers"),
    (CAUSAL, "attend=heads_by_vmap_and_a_mask"),
    (PLAIN, "attention=MultiheadAttention"),
    (GROUPED, "attention=FusedGroups share=expand_and_reshape"),
    (PLAIN, "attention=WeightsPerHeadByEinsum"),
    (GROUPED, "attention=math_grouped"),
    (PLAIN, "block=TransformerEncoderLayer"),
    (PLAIN, "block=NormsInsideTheLayers"),
    (PLAIN, "block=Baddbmm"),
    (PLAIN, "softmax=torch_softmax contract=matmul weigh=abs scores=matmul_and_mT"),
    (RELATIVE, "bias=embedding hide=bias_first"),
    (CAUSAL, "hide=lowest_number"),
    (PADDED, "pool=lengths_as_a_mask normalise=numbers_times_mask"),
    (ENDED, "pool=gather"),
    (EXPERTS, "experts=all_stacked_and_gathered"),
    (EXPERTS, "experts=masks_times_shares"),
    (EXPERTS, "experts=experts_by_vmap"),
    (SCALED, "scale=number_first"),
    (PLAIN, "blocks=reduced"),
    (PLAIN, "blocks=list_of_all_summed_anew"),
    (PLAIN, "blocks=stream_in_place"),
    (START, "begin=repeated"),
    (START, "begin=read_between_writes"),
)


@pytest.mark.parametrize(
    ("base", "names"),
    ONCE_WRONG + ONE_OF_EACH,
    ids=lambda part: getattr(part, "name", part),
)
def test_the_parts_together_are_the_base(base, names):
    wanted = [name.split("=") for name in names.split()]
    chosen = {part: next(w for w in ways()[part] if w.name == name) for part, name in wanted}
    assert _fits(base, _parts(chosen))
    found = Spelling("combination", names, base, _parts(chosen))
    methods = ("transformer_attribution", "attnlrp", "input_gradient")
    assert not (wrong := verdict(found, compare_all(found, methods))), "\n".join(wrong)


def test_one_of_each_leaves_no_part_out():
    parts = {name.split("=")[0] for _, names in ONE_OF_EACH for name in names.split()}
    assert parts == {*ways()}


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(ways()))
def test_each_way_on_every_base(part):
    """A spelling of one base on the others that it fits: the same answer, or a refusal."""
    wrong = []
    for way in {w.name: w for w in ways()[part]}.values():
        for base in BASES:
            if part in used(base) and base is not way.base and _fits(base, way.parts):
                found = Spelling("other base", way.name, base, way.parts)
                outcomes = compare_all(found, METHODS)
                differing = {n: o for n, o in outcomes.items() if o[0].kind in ("differs", "fails")}
                wrong += [f"{base.name} {way.name} {line}" for line in verdict(found, differing)]
    assert not wrong, "\n".join(wrong)
