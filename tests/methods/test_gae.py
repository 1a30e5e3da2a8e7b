"""Generic attention explainability: the authors' numbers, and Eq. 5–11 worked out by hand on dense
matrices of small models of several inputs."""

import numpy as np
import pytest
import torch
from torch import nn

import relprop
from relprop.errors import OptionError
from relprop.methods.gae import attention_to, normalised, self_attention
from tests.common import goldens
from tests.common.rows import only
from tests.parity.test_goldens import EXACT, INPUT_AND_TARGET, TOGETHER, explained, met
from tests.rollup.hand import SAMPLES, Attention, Layer, agree, eye, normal
from tests.rollup.structures import WIDTH
from tests.rollup.test_streams import (
    SIMILARITIES,
    CoAttention,
    EncoderDecoder,
    Joint,
    S,
    T,
    Towers,
    both,
    ids,
)

GOLDENS = {
    k: torch.from_numpy(v)
    for k, v in np.load(goldens.FOLDER / "rules_f64.npz").items()
    if k.startswith("gae.")
}
R_TT, R_II = (GOLDENS[f"gae.{k}"] - eye(n).double() for k, n in (("Rtt", 4), ("Rii", 6)))
CAM, SELF = GOLDENS["gae.cam_ti"], GOLDENS["gae.selfcam"]


def golden(found, name):
    met(found, GOLDENS[f"gae.{name}"], EXACT)


def test_equation_5():
    golden((GOLDENS["gae.grad"] * GOLDENS["gae.attn"]).clamp(min=0).mean(1)[0], "eq5")


@pytest.mark.parametrize(
    ("excess", "name"), [(R_TT, "Rtt_bar"), (R_II, "Rii_bar")], ids=["text", "image"]
)
def test_equations_8_and_9(excess, name):
    golden(normalised(excess), f"eq8_9.{name}")


def test_equations_6_and_7():
    added = self_attention(SELF, {"t": R_TT, "i": GOLDENS["gae.Rti"]}, "t")
    golden(added["t"], "eq6.add")
    golden(added["i"], "eq7.add")


def test_equations_10_and_11():
    golden(attention_to(CAM, R_TT, R_II), "eq10.add")
    golden(attention_to(CAM, R_TT, R_II), "detr.eq10.add")
    golden(CAM @ GOLDENS["gae.Rit"], "eq11.add")


def test_an_empty_row_is_left_empty_where_theirs_drops_the_update():
    excess = GOLDENS["gae.detr.zero_row.Rqq"] - eye(4).double()
    empty = excess.sum(1) == 0
    assert (
        empty.any()
        and (GOLDENS["gae.detr.eq10.zero_row_add"] == 0).all()
        and GOLDENS["gae.lxmert.eq10.zero_row_add"].isnan().all()
    )
    rows = [
        torch.zeros(4).double() if e else r / r.sum() for e, r in zip(empty, excess, strict=True)
    ]
    assert torch.equal(normalised(excess)[empty], eye(4).double()[empty])
    agree(
        attention_to(CAM, excess, R_II),
        (torch.stack(rows) + eye(4).double()).T @ CAM @ GOLDENS["gae.eq8_9.Rii_bar"],
    )


@TOGETHER
@INPUT_AND_TARGET
def test_the_authors_vision_transformer(i, k, together):
    f = explained("vit", i, k, together, method="gae")
    met(f.explanation.scores[f.at][None, 1:], f.golden("gae"), EXACT)
    alone = explained("vit", i, k, False, method="gae", keep="matrix")
    met(alone.explanation.matrix[0], alone.golden("gae_R"), EXACT)


@TOGETHER
@INPUT_AND_TARGET
def test_the_authors_bert(i, k, together):
    f = explained("bert", i, k, together, method="gae", keep="matrix")
    golden = f.golden("gae_R")
    met(f.explanation.matrix[f.at][: len(golden), : len(golden)], golden, EXACT)
    met(f.explanation.row[f.at][: len(golden)], golden[0], EXACT)


# -- by hand: R as a dict of dense matrices, every update a line
# -----------------------------------------------------------------------


def fresh():
    """R of ICCV 2021: R^ss = R^qq = I, the others 0."""
    return {
        "ss": eye(S).double(),
        "tt": eye(T).double(),
        "st": torch.zeros(S, T).double(),
        "ts": torch.zeros(T, S).double(),
    }


def bar(r):
    hat = r - torch.eye(len(r), dtype=r.dtype)
    return torch.stack([row / row.sum() if row.sum() != 0 else row for row in hat]) + torch.eye(
        len(r), dtype=r.dtype
    )


def own(r, x, y, a):
    return {x + x: a @ r[x + x], x + y: a @ r[x + y]}


def across(r, x, y, a):
    return {x + y: bar(r[x + x]).T @ a @ bar(r[y + y]), x + x: a @ r[y + x]}


def added(r, *changes):
    return {k: r[k] + sum(c[k] for c in changes if k in c) for k in r}


def maps(e, sample):
    """Eq. 5 for every site of one sample."""
    found = [(b.gradient * b.attention).clamp(min=0).mean(1) for b in e.blocks]
    assert all(float(a.max()) > 0 for a in found), "a site with an empty matrix tests nothing"
    return [a[sample] for a in found]


def gae(model, inputs, target=(1, 2), **options):
    model = model.double().eval()
    return relprop.explain(
        model,
        inputs,
        target=list(target) if isinstance(target, tuple) else target,
        method="gae",
        keep="blocks",
        **options,
    )


def read(e, r_of_sample, weights):
    """``weights``: by stream, the weights of the positions the head reads."""
    names = dict(zip("st", e.streams, strict=True))
    for sample in range(SAMPLES):
        r = r_of_sample(maps(e, sample))
        for column, name in names.items():
            by_hand = sum(weights[row].double() @ r[row + column] for row in weights)
            identity = weights.get(column, torch.zeros(1)).double()
            agree(e[name].row[sample], by_hand)
            assert float((e[name].identity[sample] - identity).abs().max()) <= 1e-12
            agree(e[name].scores[sample], by_hand - identity)


LAST = eye(T)[-1]


@pytest.mark.parametrize("post", only([True], [False, True]))
def test_encoder_and_decoder(post):
    e = gae(EncoderDecoder(post), both())

    def by_hand(a):
        e1, e2, own1, cross1, own2, cross2 = a
        r = fresh()
        for x, y, update, m in (
            ("s", "t", own, e1),
            ("s", "t", own, e2),
            ("t", "s", own, own1),
            ("t", "s", across, cross1),
            ("t", "s", own, own2),
            ("t", "s", across, cross2),
        ):
            r = added(r, update(r, x, y, m))
        assert (r["st"] == 0).all()  # so that Eq. 11 adds nothing, as in DETR
        return r

    read(e, by_hand, {"t": LAST})


def test_encoder_and_decoder_with_some_layers_left_out():
    e = gae(EncoderDecoder(), both(), layers=[1, 2, 3, 5])

    def by_hand(a):
        e2, own1, cross1, cross2 = a
        r = added(fresh(), own(fresh(), "s", "t", e2), own(fresh(), "t", "s", own1))
        for m in (cross1, cross2):
            r = added(r, across(r, "t", "s", m))
        return r

    read(e, by_hand, {"t": LAST})


@pytest.mark.parametrize("how", only(["max"], ["max", "min"]))
def test_heads_are_fused_as_asked(how):
    model, inputs = EncoderDecoder(), both()
    e = gae(model, inputs, head_fusion=how, layers=[-1])
    m = (e.blocks[0].gradient * e.blocks[0].attention).clamp(min=0)
    agree(e["source"].scores, getattr(m, f"a{how}")(1)[:, -1])


@pytest.mark.parametrize("shared", only([False], [False, True]))
def test_co_attention_from_the_matrices_before_the_layer(shared):
    torch.manual_seed(1)
    model = CoAttention(shared, lambda m, x, y: m.head(x[:, 0] * y[:, 1]))
    e = gae(model, {"words": ids(S), "boxes": normal(SAMPLES, T, 3)})

    def by_hand(a):
        r = fresh()
        for there, back, own1, own2 in (a[:4], a[4:]):
            r = added(r, across(r, "s", "t", there), across(r, "t", "s", back))
            r = added(r, own(r, "s", "t", own1), own(r, "t", "s", own2))
        return r

    read(e, by_hand, {"s": eye(S)[0], "t": eye(T)[1]})


def test_co_attention_read_in_one_stream():
    e = gae(
        CoAttention(False, lambda m, x, y: m.head(x.mean(1))),
        {"words": ids(S), "boxes": normal(SAMPLES, T, 3)},
    )

    def by_hand(a):
        there, back, own1, own2, there2, own12 = a
        r = fresh()
        r = added(r, across(r, "s", "t", there), across(r, "t", "s", back))
        r = added(r, own(r, "s", "t", own1), own(r, "t", "s", own2))
        r = added(r, across(r, "s", "t", there2))
        return added(r, own(r, "s", "t", own12))

    read(e, by_hand, {"s": torch.ones(S).double() / S})


@pytest.mark.parametrize("layers", [None, slice(1, None)])
def test_two_towers_are_rolled_up_each_for_itself(layers):
    model, inputs = (
        Towers(SIMILARITIES["CLIP"]),
        {"image": normal(SAMPLES, 1, 4, 4), "text": ids(4)},
    )
    e = gae(model, inputs, target=lambda y: y[0, 0], layers=layers)
    for sample in range(SAMPLES):
        found = {b.path: a for b, a in zip(e.blocks, maps(e, sample), strict=True)}
        for name, at in (("image", 0), ("text", -1)):
            r = eye(e[name].scores.shape[1]).double()
            for path in (f"{name}.0.attention", f"{name}.1.attention"):
                r = r + (found[path] @ r if path in found else 0)
            agree(e[name].row[sample], r[at])


def test_one_joint_sequence_is_one_matrix():
    e = gae(Joint(lambda x: x[:, 4]), {"words": ids(4), "image": normal(SAMPLES, 1, 4, 4)})
    for sample in range(SAMPLES):
        first, second = maps(e, sample)
        c = (eye(9).double() + second) @ (eye(9).double() + first)
        agree(torch.cat([e["words"].row[sample], e["image"].row[sample]]), c[4])


class Pruned(EncoderDecoder):
    """The decoder attends to every other token of the encoder, or to them in another order."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def forward(self, source, target):
        memory, x = self.source(source), self.target(target)
        for layer in self.encoder:
            memory = layer(memory)
        memory = (
            memory[:, ::2]
            if self.order == "half"
            else memory.flip(1)
            if self.order == "back"
            else torch.cat([memory, x], 1)
            if self.order == "both"
            else memory
        )
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(self.pool(x))


class Latents(nn.Module):
    """Learned queries attend to one input, and another input attends to them."""

    def __init__(self):
        super().__init__()
        self.words, self.boxes, self.latents = (
            nn.Embedding(9, WIDTH),
            nn.Linear(3, WIDTH),
            nn.Parameter(torch.randn(1, S, WIDTH)),
        )
        self.ask, self.cross, self.layer, self.head = (
            Attention(),
            Attention(),
            Layer(),
            nn.Linear(WIDTH, 5),
        )

    def forward(self, words, boxes):
        x, y = self.layer(self.words(words)), self.boxes(boxes)
        z = self.latents.expand(len(y), -1, -1)
        z = z + self.ask(z, y)
        return self.head((x + self.cross(x, z))[:, 0])


REFUSED = {
    "half of the tokens": (lambda: Pruned("half"), both, "merged, moved or only some"),
    "both inputs": (lambda: Pruned("both"), both, "'source' and 'target', not those of one input"),
    "learned queries": (
        Latents,
        lambda: {"words": ids(S), "boxes": normal(SAMPLES, T, 3)},
        "no explained input",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_tokens_of_one_input_is_refused(name):
    model, inputs, said = REFUSED[name]
    with pytest.raises(OptionError, match=said):
        gae(model(), inputs())


def test_tokens_that_are_read_in_another_order_are_the_same_tokens():
    found = {}
    for order in ("back", "as they are"):
        torch.manual_seed(0)
        found[order] = gae(Pruned(order), both())
    for name in ("source", "target"):
        agree(found["back"][name].scores, found["as they are"][name].scores)


def test_row_normalisation_is_their_own_where_inputs_meet():
    with pytest.raises(OptionError, match=r"Eq\. 8–9"):
        gae(EncoderDecoder(), both(), normalize_rows=True)


@pytest.mark.parametrize("length", only([4], [1, 4]))
def test_t5(length):
    """Relative positions, a shared embedding, a mask; also when the decoder has one token."""
    model, inputs = t5(length)
    e = relprop.explain(model, inputs, 7, method="gae", keep="blocks", precision="float64")
    last = e.blocks[-1]
    for name, tokens in (("input_ids", 6), ("decoder_input_ids", length)):
        assert (
            e[name].scores.shape == (2, tokens)
            and (e[name].scores >= 0).all()
            and e[name].scores.any()
        )
    assert last.attention.shape[-2:] == (length, 6)
    assert (e["input_ids"].scores[1, 4:] == 0).all() and (
        e["decoder_input_ids"].identity[:, -1] == 1
    ).all()
    for sample in range(2):
        one = relprop.explain(
            model,
            {k: v[sample : sample + 1] for k, v in inputs.items()},
            7,
            method="gae",
            precision="float64",
        )
        for name in e.streams:
            agree(e[name].scores[sample : sample + 1], one[name].scores)


def t5(length):
    import transformers

    config = transformers.T5Config(
        vocab_size=30,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    inputs = {
        "input_ids": torch.randint(2, 30, (2, 6)),
        "attention_mask": mask,
        "decoder_input_ids": torch.randint(2, 30, (2, length)),
    }
    return transformers.T5ForConditionalGeneration(config).eval(), inputs
