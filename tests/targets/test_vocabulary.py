"""Each target of a real head equals the plain element, callable or sum that it stands for, per
sample, and is refused with a sentence where it cannot."""

import functools
import itertools
import pickle
import re

import pytest
import torch
import transformers as hf

import relprop
from relprop.adapters import Adapter
from relprop.errors import TargetError
from relprop.targets import contrast, output, query, region, similarity, span, token
from tests.common.models import build, closeness, sample
from tests.common.rows import only
from tests.targets import models
from tests.targets.models import MASK, Heads, bert, pictures, words

EXACT = 1e-9


def assert_same(a, b):
    """Scores, rows and outputs of every stream."""
    assert list(a.streams) == list(b.streams)
    for name in a.streams:
        mine, theirs = a[name], b[name]
        assert (
            closeness(mine.scores, theirs.scores) <= EXACT
            and closeness(mine.row, theirs.row) <= EXACT
        )
    assert closeness(a.output, b.output) <= 1e-12
    assert any(float(s.scores.abs().max()) > 1e-9 for s in a.streams.values())


def assert_batch_exact(model, inputs, target, e):
    """Each sample alone gives its row of the batch; ``target`` is one for all, or a list."""
    for i in range(len(e)):
        alone = relprop.explain(
            model,
            {k: v[i : i + 1] for k, v in inputs.items()},
            [target[i]] if isinstance(target, list) else target,
        )
        assert alone.target == e.target[i : i + 1]
        for name in e.streams:
            assert closeness(alone[name].scores, e[name].scores[i : i + 1]) <= EXACT


# -- an element of any output
# -------------------------------------------------------------------------------------------------

OUTPUTS = {
    "a tuple, by place": (lambda y: (y, 2 * y), output(1)[2], lambda out: out[1][0, 2], "[1][2]"),
    "a tuple, from the end": (
        lambda y: (y, 2 * y),
        output(-1)[2],
        lambda out: out[1][0, 2],
        "[1][2]",
    ),
    "a tuple, by name": (
        lambda y: (y, 2 * y),
        output("[0]")[-1],
        lambda out: out[0][0, 3],
        "[0][3]",
    ),
    "a dict": (
        lambda y: {"a": y, "b": y.reshape(-1, 2, 2)},
        output("b")[1, 0],
        lambda out: out["b"][0, 1, 0],
        "b[1, 0]",
    ),
    "a dict with logits": (
        lambda y: {"logits": y, "boxes": y.exp()},
        output("boxes")[1],
        lambda out: out["boxes"][0, 1],
        "boxes[1]",
    ),
    "an output in an output": (
        lambda y: {"tower": {"pooled": y}, "b": y},
        output("tower.pooled")[3],
        lambda out: out["tower"]["pooled"][0, 3],
        "tower.pooled[3]",
    ),
    "a lone tensor": (lambda y: y, output("output")[1], lambda out: out[0, 1], "output[1]"),
}


@pytest.mark.parametrize("row", OUTPUTS)
def test_an_element_of_any_output(row):
    change, target, function, label = OUTPUTS[row]
    model, x = Heads(change).eval(), sample()
    e = relprop.explain(model, x, target)
    assert e.target == (label,) * 3
    assert_same(e, relprop.explain(model, x, function))


def test_an_outputs_own_prediction():
    model, x = Heads(lambda y: {"logits": y, "second": -y}).eval(), sample()
    e = relprop.explain(model, x, output("second"))
    best = model(x)["second"].argmax(1).tolist()
    assert e.target == tuple(f"second[{k}]" for k in best)
    assert_same(e, relprop.explain(model, x, [output("second")[k] for k in best]))


def test_a_list_may_mix_kinds_and_outputs():
    model, x = Heads(lambda y: {"logits": y.cos(), "second": y.sin()}).eval(), sample()
    e = relprop.explain(model, x, [2, output("second")[1], (0,)])
    assert e.target == (2, "second[1]", 0)
    for i, one in enumerate([2, output("second")[1], 0]):
        assert (
            closeness(e.scores[i : i + 1], relprop.explain(model, x[i : i + 1], one).scores)
            <= EXACT
        )
    assert e.ledger.balanced(1e-12)


def test_a_list_is_cut_with_the_batch():
    model, x, targets = (
        Heads(lambda y: (y.cos(), y.sin())).eval(),
        sample(batch=5),
        [output(i % 2)[i % 3] for i in range(5)],
    )
    assert_same(
        relprop.explain(model, x, targets, batch_size=2), relprop.explain(model, x, targets)
    )


REGRESSIONS = {
    "a number per sample": (lambda y: y[:, 1], None, "output"),
    "one column": (lambda y: y[:, 1:2], None, 0),
    "one of several": (lambda y: y[:, :2], 1, 1),
    "a number of a dict": (lambda y: {"age": y[:, 1], "size": y}, output("age"), "age"),
}


@pytest.mark.parametrize("row", REGRESSIONS)
def test_regression(row):
    change, target, label = REGRESSIONS[row]
    x = sample()
    e = relprop.explain(Heads(change).eval(), x, target)
    assert e.target == (label,) * 3
    assert_same(e, relprop.explain(Heads(lambda y: y).eval(), x, 1))


# -- a token's class
# --------------------------------------------------------------------------------------------------


def test_a_tokens_class_by_label_and_from_the_end():
    model, inputs = bert(hf.BertForTokenClassification), {"input_ids": words()}
    plain = relprop.explain(model, inputs, [(3, 1), (6, 2), (0, 3)])
    assert_same(plain, relprop.explain(model, inputs, [(3, "B-PER"), (-1, "I-PER"), (-7, "B-LOC")]))
    assert_same(
        plain,
        relprop.explain(
            model, inputs, [output("logits")[3, "B-PER"], output("logits")[6, 2], (0, -1)]
        ),
    )
    assert plain.target == ((3, 1), (6, 2), (0, 3))
    assert_batch_exact(model, inputs, [(3, "B-PER"), (6, 2), (0, 3)], plain)


# -- a span
# --------------------------------------------------------------------------------------------------


def test_a_span_is_the_sum_of_two_terms():
    model, inputs = bert(hf.BertForQuestionAnswering), {"input_ids": words()}
    e = relprop.explain(model, inputs, span(2, -2), keep="blocks")
    assert e.target == ("span(2, 5)",) * 3
    assert_same(
        e, relprop.explain(model, inputs, lambda out: out.start_logits[0, 2] + out.end_logits[0, 5])
    )
    terms = [
        relprop.explain(model, inputs, t, keep="blocks")
        for t in (output("start_logits")[2], output("end_logits")[5])
    ]
    for i, block in enumerate(e.blocks):
        assert closeness(block.relevance, sum(t.blocks[i].relevance for t in terms)) <= EXACT
        assert closeness(block.gradient, sum(t.blocks[i].gradient for t in terms)) <= EXACT
    positions = torch.zeros(7, dtype=torch.float64).index_add(
        0, torch.tensor([2, 5]), torch.full((2,), 0.5, dtype=torch.float64)
    )
    assert closeness(e.identity, positions.expand(3, -1)) <= 1e-12
    assert e.ledger.balanced(1e-12)


@pytest.mark.parametrize("side", only(["left"], ["right", "left"]))
@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
def test_without_positions_it_is_the_best_span_of_real_tokens(side):
    model, ids = bert(hf.BertForQuestionAnswering), words(6, 9)
    lengths = [9, 5, 4, 7, 3, 6]
    mask = torch.tensor(
        [[1] * n + [0] * (9 - n) if side == "right" else [0] * (9 - n) + [1] * n for n in lengths]
    )
    inputs = {"input_ids": ids, "attention_mask": mask}
    with torch.no_grad():
        logits = model(**inputs)
    best = []
    for i, n in enumerate(lengths):
        real = range(n) if side == "right" else range(9 - n, 9)
        pairs = [(a, b) for a, b in itertools.product(real, real) if a <= b]
        best.append(
            max(
                pairs,
                key=lambda p, i=i: float(logits.start_logits[i, p[0]] + logits.end_logits[i, p[1]]),
            )
        )
    e = relprop.explain(model, inputs)
    assert e.target == tuple(f"span({a}, {b})" for a, b in best)
    assert_same(e, relprop.explain(model, inputs, [span(a, b) for a, b in best]))
    assert_same(e, relprop.explain(model, inputs, span()))
    assert_batch_exact(model, inputs, None, e)
    assert not e.scores[mask == 0].any()
    naive = [
        (int(s), int(t))
        for s, t in zip(logits.start_logits.argmax(1), logits.end_logits.argmax(1), strict=True)
    ]
    assert naive != best  # the rule is more than two argmaxes here


# -- a token of the vocabulary
# ------------------------------------------------------------------------------------------------


def test_a_masked_token_by_its_text():
    model, ids, tok = bert(hf.BertForMaskedLM), words(), models.tokenizer()
    places = [3, 0, 6]
    ids[range(3), places] = MASK
    inputs = {"input_ids": ids}
    e = relprop.explain(model, inputs, token("w17", tok))
    assert e.target == ((3, 17), (0, 17), (6, 17))
    assert_same(e, relprop.explain(model, inputs, [(p, 17) for p in places]))
    assert_batch_exact(model, inputs, token("w17", tok), e)
    likeliest = relprop.explain(model, inputs, token(tokenizer=tok))
    best = model(**inputs).logits[range(3), places].argmax(1).tolist()
    assert likeliest.target == tuple(zip(places, best, strict=True))
    assert_same(likeliest, relprop.explain(model, inputs, list(zip(places, best, strict=True))))
    assert_same(
        relprop.explain(model, inputs, token("w17", tok, position=-2)),
        relprop.explain(model, inputs, (5, 17)),
    )
    assert_same(
        relprop.explain(model, inputs, token(position=2)),
        relprop.explain(
            model, inputs, [(2, int(k)) for k in model(**inputs).logits[:, 2].argmax(1)]
        ),
    )


def test_the_next_token_by_its_text():
    inputs = {"input_ids": words()}
    e = relprop.explain(models.gpt2(), inputs, token("w9", models.tokenizer()))
    assert e.target == ((6, 9),) * 3
    assert_same(e, relprop.explain(models.gpt2(), inputs, 9))
    assert_same(relprop.explain(models.gpt2(), inputs, token(9)), e)
    assert_same(
        relprop.explain(models.gpt2(), inputs, token()), relprop.explain(models.gpt2(), inputs)
    )


# -- a decoder's step
# --------------------------------------------------------------------------------------------------

DECODER_MASKS = {
    "none": None,
    "right": torch.tensor([[1] * 5, [1] * 3 + [0] * 2, [1] * 2 + [0] * 3]),
    "left": torch.tensor([[1] * 5, [0] * 2 + [1] * 3, [0] * 3 + [1] * 2]),
}
DECODER_LAST = {"none": [4, 4, 4], "right": [4, 2, 1], "left": [4, 4, 4]}


@pytest.mark.filterwarnings("ignore::relprop.errors.PaddingWarning")
@pytest.mark.parametrize(
    ("make", "padding"),
    only([("t5", "right"), ("bart", "left")], itertools.product(["t5", "bart"], DECODER_MASKS)),
)
def test_a_decoders_default_is_the_predicted_token_at_its_last_real_position(make, padding):
    model, last = getattr(models, make)(), DECODER_LAST[padding]
    source = torch.tensor([[1] * 7, [1] * 5 + [0] * 2, [1] * 6 + [0]])
    inputs = {"input_ids": words(), "attention_mask": source, "decoder_input_ids": words(3, 5, 5)}
    if DECODER_MASKS[padding] is not None:
        inputs["decoder_attention_mask"] = DECODER_MASKS[padding]
    best = model(**inputs).logits[range(3), last].argmax(1).tolist()
    e = relprop.explain(model, inputs)
    assert e.target == tuple(zip(last, best, strict=True))
    assert_same(e, relprop.explain(model, inputs, list(zip(last, best, strict=True))))
    assert_same(
        relprop.explain(model, inputs, 9), relprop.explain(model, inputs, [(p, 9) for p in last])
    )
    assert_batch_exact(model, inputs, None, e)
    assert not e["input_ids"].scores[source == 0].any()
    if padding != "none":
        assert not e["decoder_input_ids"].scores[DECODER_MASKS[padding] == 0].any()


def test_a_chosen_step_is_as_if_the_decoder_had_stopped_there():
    model, ids, decoder = models.t5(), words(), words(3, 5, 5)
    e = relprop.explain(model, {"input_ids": ids, "decoder_input_ids": decoder}, (2, 9))
    short = relprop.explain(model, {"input_ids": ids, "decoder_input_ids": decoder[:, :3]}, 9)
    assert closeness(e["input_ids"].scores, short["input_ids"].scores) <= EXACT
    assert (
        closeness(e["decoder_input_ids"].scores[:, :3], short["decoder_input_ids"].scores) <= EXACT
    )
    assert not e["decoder_input_ids"].scores[:, 3:].any()


# -- a detector's query
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "size"), only([("yolos", 32)], [("detr", 64), ("yolos", 32)]))
def test_a_detectors_queries(make, size):
    model, inputs = getattr(models, make)(), {"pixel_values": pictures(3, size)}
    logits = model(**inputs).logits.detach()
    confidence = logits.softmax(-1)[..., :-1]  # as the model's own post-processing has it
    best = [divmod(int(k), 4) for k in confidence.flatten(1).argmax(1)]
    e = relprop.explain(model, inputs, query())
    assert e.target == tuple(best)
    assert_same(e, relprop.explain(model, inputs, best))
    of_class = [(int(q), 3) for q in confidence[..., 3].argmax(1)]
    e = relprop.explain(model, inputs, query("B-LOC"))
    assert e.target == tuple(of_class)
    assert_same(e, relprop.explain(model, inputs, of_class))
    assert_batch_exact(model, inputs, query(3), e)
    raw = relprop.explain(model, inputs, query(3, nothing=False))
    assert raw.target == tuple((int(q), 3) for q in logits[..., 3].argmax(1))
    assert_same(
        relprop.explain(model, inputs, [query(3), (2, "O"), (4, 4)]),
        relprop.explain(model, inputs, [of_class[0], (2, 0), (4, 4)]),
    )


def test_a_box_of_a_query():
    model, inputs = models.yolos(), {"pixel_values": pictures(2)}
    assert_same(
        relprop.explain(model, inputs, output("pred_boxes")[3, 2]),
        relprop.explain(model, inputs, lambda out: out.pred_boxes[0, 3, 2]),
    )


def test_queries_of_an_output_by_name():
    def change(y):
        return {
            "class_queries": torch.stack([y.cos(), 1.5 * y.flip(1), y.sin()], 1),
            "masks": y.reshape(-1, 2, 2),
        }

    model, x = Heads(change).eval(), sample()
    value = model(x)["class_queries"]
    e = relprop.explain(model, x, query(1, output="class_queries"))
    assert e.target == tuple(f"class_queries[{q}, 1]" for q in value[:, :, 1].argmax(1).tolist())
    rivals = value.softmax(-1).clone()
    rivals[..., 0] = -1
    best = [divmod(int(k), 4) for k in rivals.flatten(1).argmax(1)]
    assert relprop.explain(model, x, query(output="class_queries", nothing=0)).target == tuple(
        f"class_queries[{q}, {c}]" for q, c in best
    )


# -- a pixel and a region
# --------------------------------------------------------------------------------------------------


def disc(size=16, radius=3.5, y=6, x=9):
    rows, columns = torch.arange(size)[:, None], torch.arange(size)
    return (rows - y) ** 2 + (columns - x) ** 2 <= radius**2


def test_a_pixel():
    model, inputs = models.segformer(), {"pixel_values": pictures()}
    e = relprop.explain(model, inputs, (2, 3, -1))
    assert e.target == ((2, 3, 15),) * 3
    assert_same(e, relprop.explain(model, inputs, lambda out: out.logits[0, 2, 3, 15]))
    assert_same(e, relprop.explain(model, inputs, ("I-PER", 3, 15)))
    one = torch.zeros(16, 16, dtype=torch.bool)
    one[3, 15] = True
    assert_same(e, relprop.explain(model, inputs, region(2, one)))


@pytest.mark.filterwarnings("ignore::relprop.errors.JointStartWarning")
def test_a_region_starts_as_one_with_equal_weights():
    """The mean of many logits: y_t and ∇A of the mean, one relevance pass that starts with 1/n at
    each, and rows that are a mean, too."""
    model, inputs, mask = (
        models.segformer(),
        {"pixel_values": pictures()},
        torch.ones(16, 16, dtype=torch.bool),
    )
    e = relprop.explain(model, inputs, region(2, mask), keep="blocks")
    assert e.target == ("mean of logits[2] over 256 places",) * 3
    mean = relprop.explain(model, inputs, lambda out: out.logits[0, 2].mean(), keep="blocks")
    assert (
        closeness(e.output, mean.output) <= 1e-12
        and closeness(e.ledger.started, torch.ones(3, dtype=torch.float64)) <= 1e-12
    )
    for mine, theirs in zip(e.blocks, mean.blocks, strict=True):
        assert (
            closeness(mine.relevance, theirs.relevance) <= EXACT
            and closeness(mine.gradient, theirs.gradient) <= EXACT
        )
    assert closeness(e.row, mean.row) <= EXACT


@pytest.mark.filterwarnings("ignore::relprop.errors.JointStartWarning")
def test_a_callable_may_read_a_constant_mask():
    model, inputs, mask = models.segformer(), {"pixel_values": pictures()}, disc(radius=6)
    assert mask.sum() > 64
    e = relprop.explain(model, inputs, lambda out: out.logits[0, 2][mask].mean(), keep="blocks")
    same = relprop.explain(model, inputs, region(2, mask), keep="blocks")
    assert closeness(e.output, same.output) <= 1e-12
    assert all(
        closeness(a.relevance, b.relevance) <= EXACT
        for a, b in zip(e.blocks, same.blocks, strict=True)
    )


def test_regions_of_each_sample():
    model, inputs = models.segformer(), {"pixel_values": pictures()}
    masks = [disc(), disc(radius=1, y=2, x=2), ~disc()]
    targets = [region(c, m) for c, m in zip([0, 3, 1], masks, strict=True)]
    e = relprop.explain(model, inputs, targets)
    logits = model(**inputs).logits
    assert (
        closeness(
            e.output,
            torch.stack(
                [
                    logits[i, c][m].mean()
                    for i, (c, m) in enumerate(zip([0, 3, 1], masks, strict=True))
                ]
            ).detach(),
        )
        <= 1e-12
    )
    assert e.target == tuple(
        f"mean of logits[{c}] over {int(m.sum())} places"
        for c, m in zip([0, 3, 1], masks, strict=True)
    )
    assert_batch_exact(model, inputs, targets, e)


def test_a_region_without_a_mask_is_where_the_class_is_predicted():
    model, inputs = models.segformer(), {"pixel_values": pictures()}
    predicted = model(**inputs).logits.argmax(1)
    label = int(predicted.flatten().mode().values)
    masks = [p == label for p in predicted]
    assert all(m.any() for m in masks)
    assert_same(
        relprop.explain(model, inputs, region(label)),
        relprop.explain(model, inputs, [region(label, m) for m in masks]),
    )
    absent = next(
        c
        for c in range(4)
        if not (predicted == c).any(0).all() and not all((p == c).any() for p in predicted)
    )
    with pytest.raises(TargetError, match=rf"logits\[{absent}\] is predicted nowhere in sample \d"):
        relprop.explain(model, inputs, region(absent))


def test_a_region_of_a_named_output_and_of_a_single_map():
    x = sample()
    model = Heads(
        lambda y: {"masks": torch.stack([y, y.sin()], 1).reshape(-1, 2, 2, 2), "logits": y}
    ).eval()
    mask = [[True, False], [True, False]]
    e = relprop.explain(model, x, region(1, mask, output="masks"))
    assert closeness(e.output, model(x)["masks"][:, 1, :, 0].mean(1).detach()) <= 1e-12
    single = Heads(lambda y: y.reshape(-1, 1, 2, 2)).eval()
    e = relprop.explain(single, x, region(0))
    value = single(x)[:, 0]
    assert closeness(e.output, torch.stack([v[v > 0].mean() for v in value]).detach()) <= 1e-12
    bare = Heads(lambda y: y.reshape(-1, 2, 2)).eval()
    assert_same(e, relprop.explain(bare, x, region()))
    assert (
        relprop.explain(bare, x, region(mask=mask)).target == ("mean of output over 2 places",) * 3
    )


# -- similarity of pairs
# --------------------------------------------------------------------------------------------------


def test_similarity_of_pairs():
    model, inputs = models.clip(), {"input_ids": words(), "pixel_values": pictures()}
    e = relprop.explain(model, inputs, similarity())
    assert closeness(e.output, model(**inputs).logits_per_image.diagonal().detach()) <= 1e-12
    assert_same(e, relprop.explain(model, inputs))
    assert_same(e, relprop.explain(model, inputs, lambda out: out.logits_per_image[0, 0]))
    assert_batch_exact(model, inputs, similarity(), e)
    assert (
        list(e.streams) == ["input_ids", "pixel_values"]
        and e.target == ("logits_per_image[0]",) * 3
    )


def test_one_image_against_several_texts():
    model, ids, image = models.clip(), words(), pictures(1)
    e = relprop.explain(model, {"input_ids": ids, "pixel_values": image}, similarity())
    assert (
        closeness(e.output, model(input_ids=ids, pixel_values=image).logits_per_image[0].detach())
        <= 1e-12
    )
    assert_same(
        e,
        relprop.explain(
            model, {"input_ids": ids, "pixel_values": image.expand(3, -1, -1, -1)}, similarity()
        ),
    )


# -- as values
# --------------------------------------------------------------------------------------------------

VALUES = {
    "pred_boxes[0, 2]": lambda: output("pred_boxes")[0, 2],
    "logits[3, B-PER]": lambda: output("logits")[3, "B-PER"],
    "output 1[0]": lambda: output(1)[0],
    "second": lambda: output("second"),
    "span(1, 4)": lambda: span(1, 4),
    "span()": span,
    "query('cat')": lambda: query("cat"),
    "query()": query,
    "region(2, 37 places)": lambda: region(2, disc()),
    "region('cat')": lambda: region("cat"),
    "region()": region,
    "region(37 places)": lambda: region(mask=disc()),
    "token('w9')": lambda: token("w9", models.tokenizer()),
    "token(17, position=4)": lambda: token(17, position=4),
    "logits_per_image[0]": similarity,
}


@pytest.mark.parametrize("shown", VALUES)
def test_a_target_is_a_value(shown):
    a, b = VALUES[shown](), VALUES[shown]()
    assert str(a) == shown
    assert a == b and hash(a) == hash(b) and pickle.loads(pickle.dumps(a)) == a
    assert len({a, b, output("another")[0]}) == 2
    with pytest.raises(AttributeError):
        a.label = 3


def test_labels_survive_on_disk(tmp_path):
    model, inputs = bert(hf.BertForQuestionAnswering), {"input_ids": words()}
    e = relprop.explain(model, inputs, [span(1, 2), output("start_logits")[3], span()])
    assert relprop.load(e.save(tmp_path / "e.safetensors")).target == e.target


def test_many_targets_of_all_kinds_share_a_forward_pass():
    model, inputs = bert(hf.BertForQuestionAnswering), {"input_ids": words()}
    targets = [
        None,
        span(1, 2),
        output("end_logits")[3],
        lambda out: out.start_logits[0, 1] - out.end_logits[0, 1],
    ]
    for target, e in zip(targets, relprop.explain_many(model, inputs, targets), strict=True):
        assert_same(e, relprop.explain(model, inputs, target))


def masked(places=(2, 4, 0)):
    ids = words()
    ids[range(3), list(places)] = MASK
    return {"input_ids": ids}


@pytest.mark.parametrize(
    ("kind", "given", "method"),
    [("masked", masked(), "gae"), ("next", {"input_ids": words()}, "attnlrp")],
    ids=str,
)
def test_text_is_a_token_where_the_tokenizer_is_given(kind, given, method):
    model = bert(hf.BertForMaskedLM) if kind == "masked" else models.gpt2()
    tokenizer = models.tokenizer()
    named = {t: token(t, tokenizer) for t in ("w9", "w11")}
    pairs = [("w9", named["w9"]), (["w9", "w11", "w9"], [named[t] for t in ("w9", "w11", "w9")])]
    pairs += [((3, "w9"), (3, 9))]
    if method == "attnlrp":
        pairs += [(contrast("w9", "w11"), contrast(*named.values()))]
    for text, target in pairs:
        asked = {"method": method, "processor": tokenizer}
        e, plain = (relprop.explain(model, given, t, **asked) for t in (text, target))
        assert_same(e, plain)
        assert e.scores.any() and e.labels == plain.labels


# -- refused
# --------------------------------------------------------------------------------------------------


def qa(target):
    return relprop.explain(bert(hf.BertForQuestionAnswering), {"input_ids": words()}, target)


def mlm(target, ids=None, **options):
    given = {"input_ids": words() if ids is None else ids}
    return relprop.explain(bert(hf.BertForMaskedLM), given, target, **options)


def plain(target):
    return relprop.explain(Heads(lambda y: y).eval(), sample(), target)


def tags(target):
    return relprop.explain(bert(hf.BertForTokenClassification), {"input_ids": words()}, target)


def boxes(target):
    return relprop.explain(models.yolos(), {"pixel_values": pictures()}, target)


def maps(target):
    return relprop.explain(models.segformer(), {"pixel_values": pictures()}, target)


REFUSED = {
    "a callable that picks by values": (
        lambda: plain(lambda y: y[y > 0].sum()),
        r"picks elements by their values.*torch.where\(mask, values, 0\)",
    ),
    "a callable that selects by values": (
        lambda: plain(lambda y: y.masked_select(y > 0).sum()),
        r"picks elements by their values",
    ),
    "no target for tokens' classes": (
        lambda: tags(None),
        r"target=None needs a class head; output 'logits' is \[1, 7, 4\].*\(position, class\)",
    ),
    "no target for a detector": (
        lambda: boxes(None),
        (
            r"target=None needs a class head.*a detector's most confident query: "
            r"relprop.targets.query\(\)"
        ),
    ),
    "no target for class maps": (
        lambda: maps(None),
        r"target=None needs a class head.*relprop.targets.region\(class\)",
    ),
    "no target for a masked language model": (
        lambda: mlm(None),
        r"target=None needs a class head.*relprop.targets.token\(tokenizer=tokenizer\)",
    ),
    "an int for a span": (
        lambda: qa(3),
        (
            r"returns 2 floating outputs and none is named "
            r"'logits'.*relprop.targets.output\('start_logits'\)\[0\]"
        ),
    ),
    "unknown label of a token": (
        lambda: tags((3, "B-DOG")),
        r"'B-DOG' is no label of the model; it has O, B-PER, I-PER, B-LOC",
    ),
    "label for a token of a vocabulary": (
        lambda: mlm((3, "LABEL_1")),
        (
            r"one of the model's 2 labels, but the output has 31 "
            r"classes.*relprop.targets.token\('LABEL_1', tokenizer\)"
        ),
    ),
    "text for a token of a vocabulary": (
        lambda: mlm((3, "Paris")),
        r"'Paris' is no label.*processor=tokenizer, .*relprop.targets.token\('Paris', tokenizer\)",
    ),
    "text of two tokens": (
        lambda: mlm("w5 w6", masked()["input_ids"], processor=models.tokenizer()),
        r"not one token .* but 'w5', 'w6' then the first of them: relprop.targets.token\('w5'",
    ),
    "text without a mask token": (
        lambda: mlm("w5", processor=models.tokenizer()),
        r"sample 0 has no mask token; say which position",
    ),
    "text of a token for a classifier": (
        lambda: relprop.explain(
            bert(hf.BertForSequenceClassification),
            {"input_ids": words()},
            "w5",
            processor=models.tokenizer(),
        ),
        r"'w5' is no label of the model; it has LABEL_0, LABEL_1",
    ),
    "position out of range": (
        lambda: tags((7, 1)),
        r"target 7 is out of range: axis 0 of output 'logits' has 7 elements",
    ),
    "unknown output": (
        lambda: qa(output("answer")[0]),
        r"output 'answer' does not exist; it returns start_logits \[1, 7\], end_logits \[1, 7\]",
    ),
    "output beyond the tuple": (lambda: qa(output(5)[0]), r"output 5 does not exist"),
    "too many indices": (
        lambda: qa(output("start_logits")[0, 1]),
        r"target start_logits\[0, 1\] has 2 indices, output 'start_logits' has 1 axes",
    ),
    "an element of an element": (lambda: output("a")[0][1], r"a\[0\] is one element already"),
    "a slice": (lambda: output("a")[0:3], r"target slice\(0, 3, None\) is slice"),
    "output without a name": (lambda: output(None), r"output\(None\): the name of an output"),
    "half a span": (
        lambda: span(3),
        r"give both, or none.*relprop.targets.output\('start_logits'\)",
    ),
    "a span backwards": (
        lambda: qa(span(4, 2)),
        r"target span\(4, 2\): the span ends at 2, before its start at 4",
    ),
    "a span beyond the text": (
        lambda: qa(span(1, 7)),
        r"target 7 is out of range: axis 0 of output 'end_logits' has 7",
    ),
    "a span of lists": (
        lambda: span([1, 2], [3, 4]),
        r"\[1, 2\] is list, not an integer; a list of targets gives one per sample",
    ),
    "a span of a model without": (
        lambda: tags(span(1, 2)),
        r"output 'start_logits' does not exist; it returns logits",
    ),
    "text without a tokenizer": (lambda: token("Paris"), r"text needs the tokenizer"),
    "text of two tokens, without a call": (
        lambda: token("w5 w6", models.tokenizer()),
        r"token\('w5 w6'\): not one token of this tokenizer but 'w5', 'w6'",
    ),
    "text the vocabulary lacks": (
        lambda: token("Paris", models.tokenizer()),
        r"not one token of this tokenizer but '\[UNK\]'",
    ),
    "no mask in a sample": (
        lambda: mlm(token("w9", models.tokenizer()), torch.tensor([[4, 7, 8], [7, 8, 9]])),
        r"sample 1 has no mask token; say which position",
    ),
    "two masks in a sample": (
        lambda: mlm(token("w9", models.tokenizer()), torch.tensor([[4, 7, 4]])),
        r"sample 0 has 2 mask tokens, at 0, 2",
    ),
    "a token without a position": (
        lambda: mlm(token(9)),
        r"target token\(9\) has 1 indices, output 'logits' has 2 axes",
    ),
    "a query of one axis": (
        lambda: relprop.explain(Heads(lambda y: y).eval(), sample(), query()),
        r"target query\(\) needs an output \(queries, classes\) per sample; 'output' is \[4\]",
    ),
    "a query of an unknown class": (lambda: boxes(query("dog")), r"'dog' is no label"),
    "a query of a class out of range": (
        lambda: boxes(query(5)),
        r"target 5 is out of range: axis 1 of output 'logits' has 5",
    ),
    "nothing out of range": (lambda: boxes(query(1, nothing=7)), r"nothing=7 is none of 5 classes"),
    "a mask of another size": (
        lambda: maps(region(1, torch.ones(8, 8) > 0)),
        r"the mask is \[8, 8\], the output has \[16, 16\] places per class.*interpolate",
    ),
    "one mask per sample in one": (
        lambda: maps(region(1, torch.ones(3, 16, 16) > 0)),
        r"one per sample: \[region\(class, m\) for m in masks\]",
    ),
    "an empty mask": (
        lambda: region(1, torch.zeros(4, 4) > 0),
        r"no place of the mask \[4, 4\] is set",
    ),
    "a mask of floats": (
        lambda: region(1, torch.rand(4, 4)),
        r"the mask is a float32 tensor \[4, 4\]; it is bool",
    ),
    "a region without a class": (
        lambda: maps(region(mask=torch.ones(16, 16) > 0)),
        r"target region\(256 places\): the mask is \[16, 16\], the output has \[4, 16, 16\] places",
    ),
    "a region of a class out of range": (
        lambda: maps(region(4)),
        r"class 4 is out of range, output 'logits' has 4 classes",
    ),
    "a region of tokens": (
        lambda: qa(region(0, output="start_logits")),
        r"needs an output \(classes, height, width\) or \(height, width\)",
    ),
    "similarity of a model without": (
        lambda: tags(similarity()),
        r"output 'logits_per_image' does not exist",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_is_refused_with_a_sentence(row):
    call, said = REFUSED[row]
    with pytest.raises(TargetError) as caught:
        call()
    flat = " ".join(str(caught.value).split())
    assert re.search(said, flat), flat


# -- outputs in which other axes are folded into the batch
# -----------------------------------------------------------------------
class TwoHeads(torch.nn.Module):
    """The classes of two heads: (samples, heads, classes), or folded to (samples · heads,
    classes)."""

    def __init__(self, folded):
        super().__init__()
        self.inner, self.folded = build(), folded

    def forward(self, x):
        both = torch.stack([self.inner(x), 2 * self.inner(-x)], 1)
        return both.flatten(0, 1) if self.folded else both


def test_an_output_that_folds_axes_into_the_batch():
    folded, plain, x = TwoHeads(True), TwoHeads(False), sample()
    assert_same(relprop.explain(folded, x, (1, 2)), relprop.explain(plain, x, (1, 2)))
    for change in (lambda y: y[1, 2], lambda y: y[1, 2] - y[1, 0], lambda y: y[1, 2].exp()):
        assert_same(
            relprop.explain(folded, x, change),
            relprop.explain(plain, x, functools.partial(lambda of, y: of(y[0]), change)),
        )
    each = [(0, 1), (1, 2), (1, 0)]
    assert_same(relprop.explain(folded, x, each), relprop.explain(plain, x, each))
    assert_same(relprop.explain(folded, x, [(1, 2)] * 3), relprop.explain(folded, x, (1, 2)))
    with pytest.raises(
        TargetError, match="target 2 is out of range: axis 0 of output 'output' has 2 elements"
    ):
        relprop.explain(folded, x, (2, 0))


def test_positions_are_not_looked_for_among_axes_folded_into_the_batch(monkeypatch):
    monkeypatch.setattr(Adapter, "is_causal", lambda self, model: True)
    model = Heads(lambda y: y[:, None, None].expand(-1, 2, 3, -1).flatten(0, 1))
    with pytest.raises(TargetError, match="needs a class head"):
        relprop.explain(model, sample())
    assert relprop.explain(model, sample(), (1, 2, 0)).target == ((1, 2, 0),) * 3
