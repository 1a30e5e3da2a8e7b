"""What relprop says of models and of calls is what is kept of them: scores, books, sentences.

``python -m tools.reference compare`` compares all models; here are three of a dozen, and of calls
every method and option of one model; in the slow suite the others, and sixty models that the
commit's hash draws. ``make`` keeps what was changed on purpose.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.common.rows import only
from tests.reference.calls import OWN
from tools.reference.__main__ import chosen, unlike
from tools.reference.called import measure_call
from tools.reference.comparison import differences
from tools.reference.drawn import draw, enlarge
from tools.reference.files import FOLDER, entries, path
from tools.reference.measure import measure
from tools.reference.numbers import gap, kept
from tools.reference.run import entry_of
from tools.reference.subjects import CALL, every

SUBJECTS = every()
CALLS = [n for n in SUBJECTS if n.startswith(CALL)]
MODELS = [n for n in SUBJECTS if not n.startswith(CALL)]
DOZEN = (
    "timm/vision_transformer/vit_tiny_patch16_224 (registers)",
    "timm/swin_transformer/swin_tiny_patch4_window7_224",
    "timm/cait/cait_xxs24_224",
    "hf/bert/BertForSequenceClassification",
    "hf/gpt2/GPT2ForSequenceClassification",
    "hf/llama/LlamaForCausalLM",
    "hf/t5/T5ForConditionalGeneration",
    "hf/clip/CLIPModel",
    "hf/mixtral/MixtralForCausalLM",
    "hf/deberta-v2/DebertaV2ForTokenClassification",
    "hf/wav2vec2/Wav2Vec2ForCTC",
    "people/einsum_gpt2",
)
DAILY = tuple(DOZEN[k] for k in (0, 3, 5))
#: Models of calls that are quickly captured, which take turns.
QUICK = ("ViT", "BERT", "Llama", *OWN)


def in_turn(names):
    """Each thing that is asked of models, of one of them; and what is asked but once."""
    asked = {}
    for name in names:
        _, model, *what = name.split("/")
        asked.setdefault(tuple(what) or model, []).append(name)
    for i, same in enumerate(asked.values()):
        quick = [n for n in same if n.split("/")[1] in QUICK] or same
        yield quick[i % len(quick)]


def found(name, now):
    """What is otherwise of a model, of that which was measured."""
    then = entries([SUBJECTS[name].family])[name]
    if unlike(SUBJECTS[name].family, now, then):
        pytest.skip("other versions of the libraries give another graph")
    return list(differences(now, {k: v for k, v in then.items() if k in now or k == "moved"}))


@pytest.mark.parametrize("name", only(DAILY, DOZEN))
def test_models_say_what_is_kept(name):
    plain = replace(SUBJECTS[name], varied=False, compiled=False)
    assert found(name, measure(plain, rounding=False)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", list(chosen("", 60, MODELS)))
def test_models_drawn_by_the_commit_say_what_is_kept(name):
    assert found(name, entry_of(name)) == []


@pytest.mark.parametrize("name", only(in_turn(CALLS), CALLS))
def test_calls_answer_what_is_kept(name):
    now = measure_call(name.removeprefix(CALL), rounding=False)
    assert list(differences(now, entries([SUBJECTS[name].family])[name])) == []


def test_everything_kept_is_there_still():
    """Every subject is kept, and nothing is kept that no subject has, but third-party models whose
    packages are installed elsewhere."""
    files = {file.stem for file in FOLDER.glob("*.json")}
    known = {path(s.family).stem for s in SUBJECTS.values()}
    assert all(name.startswith("third-party-") for name in files - known)
    kept_now = set(entries(s.family for s in SUBJECTS.values()))
    assert kept_now >= set(SUBJECTS)
    assert all(name.startswith("third-party/") for name in kept_now - set(SUBJECTS))


def test_weights_are_numpys():
    """What another processor draws differs in the last place; the weights are the same then."""
    here = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40)).double()
    there = copy.deepcopy(here)
    with torch.no_grad():
        for p in there.parameters():
            p.mul_(1 + 1e-7 * torch.randn_like(p))
    for model in (here, there):
        draw(model, 7)
    for mine, other in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        assert torch.equal(mine, other)


def test_the_last_layer_is_enlarged():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)).double()
    x = torch.ones(1, 3, dtype=torch.float64)
    y = model(x)
    enlarge(model, y[0, 1], 8.0)
    assert torch.equal(model(x), 8 * y)


def test_no_number_is_no_number_again():
    nan, one = ({"blocks": [{"sum": x}]} for x in (float("nan"), 1.0))
    assert list(differences(nan, nan)) == [] and len(list(differences(nan, one))) == 1


@pytest.mark.parametrize("length", (5, 500))
def test_a_score_that_changed_is_found(length):
    """Of all numbers and of sums alike: 1e-7 of the largest of one score, or its sign."""
    scores = torch.linspace(-1, 2, 2 * length, dtype=torch.float64).reshape(2, length)
    for change in (1e-7, -2 * float(scores[1, 3])):
        other = scores.clone()
        other[1, 3] += change
        then, now = ({"scores": {"lrp|x": kept(s)}} for s in (scores, other))
        assert list(differences(then, then)) == [] and len(list(differences(now, then))) == 1
        assert gap(other, scores) > 1e-8
