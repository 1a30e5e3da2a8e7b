"""Ordinary inputs, each given in an unusual way: the same numbers as by the plainest road, or a
refusal each of whose advices works. The table is `ordinary_inputs.py`."""

import ast
import functools
import re
import warnings
from pathlib import Path

import numpy as np
import pandas
import PIL.Image
import pytest
import torch
from PIL import Image

import relprop
from relprop.errors import RelpropError, RelpropWarning, UnforeseenError
from tests.common.models import closeness
from tests.e2e.ordinary_inputs import ROWS
from tests.e2e.ordinary_roads import READS, ROADS, TOKENIZER, file, model, written

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MODELS = {"processor": "vit", "path": "vit", "timm": "timm", "tokenizer": "bert", "sound": "wave"}
PREPARED = {
    "vit": ("images", {}),
    "bert": ("text", {"padding": True}),
    "wave": ("raw_speech", {"sampling_rate": 16000}),
}
#: Advice in words, or with a name left open: what it asks for is what other rows give, or what
#: `test_own_modules.py` follows.
WORDS = (
    r"call (the pipeline|model\(\.\.\.\)) on|give ids|cut the text|did you mean|.* is a constant"
    r"|a path, a file's bytes|give (levels|a tensor, a tuple|each tensor|None, an int|what reads)"
    r"|a tuple indexes|processor= reads|inputs are not read from|choose (one|with)|prepare the"
    r"|(text|label|classes)=(\(\.\.\.\))?   #|torch.as_tensor\(array|--text gives|.*COMMAND --help"
    r"|inputs\[\d\] is None"
    r"|put the model into one|\s*(class Plain|def |super|self|return|relprop.explain\(Plain)"
)


@functools.cache
def right(road, key):
    """What the plain thing gives, once for all rows that it is the twin of."""
    return ROADS[road](PLAIN[key])


PLAIN = {id(row.plain): row.plain for _, row in ROWS.values()}


def assert_same(found, road, row):
    for one, other in zip(found, right(road, id(row.plain)), strict=True):
        if isinstance(other, torch.Tensor):
            assert closeness(one.double(), other.double()) <= row.close and other.any()
        else:
            assert one == other


@pytest.mark.parametrize("name", ROWS)
def test_ordinary(name, monkeypatch):
    road, row = ROWS[name]
    if row.error is None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = ROADS[road](row.given)
        said = [str(w.message) for w in caught if issubclass(w.category, RelpropWarning)]
        assert bool(said) == bool(row.says) and row.says in "".join(said), said
        assert_same(found, road, row)
        return
    with pytest.raises(RelpropError) as refused:
        ROADS[road](row.given)
    assert isinstance(refused.value, row.error) and not isinstance(refused.value, UnforeseenError)
    assert row.says in str(refused.value)
    if isinstance(row.given, tuple) and isinstance(row.given[0], str):
        monkeypatch.chdir(written(*row.given[:2]).parent)
    _, *then = re.split(r"\n  (?:then|    )  ", str(refused.value))
    for advice in then:
        instead = followed(advice, road, row)
        if instead is None:
            assert re.match(WORDS, advice), advice
            continue
        found = ROADS[road](instead)
        if row.plain is not None:
            assert_same(found, road, row)


def followed(advice, road, row):
    """What is given instead, by an advice that is code; ``None`` for words."""
    given, name = row.given, MODELS.get(road)
    of_files = isinstance(given, tuple) and isinstance(given[0], str)
    scope = {"np": np, "torch": torch, "relprop": relprop, "pandas": pandas, "PIL": PIL}
    scope |= {"input_0": given, "sound": given, "inputs": given, "tokenizer": TOKENIZER}
    scope |= {"array": given} if hasattr(given, "__array__") else {}
    scope |= {"model": model(name), "processor": READS[name]} if name else {}
    scope["picture"] = Image.open(given[0]) if of_files and road != "labels" else given
    if name in PREPARED and row.plain is not None and advice.startswith("prepare the inputs"):
        argument, more = PREPARED[name]
        return READS[name](**{argument: row.plain}, **more, return_tensors="pt")
    if near := re.match("did you mean '(.*)'", advice):
        return near[1]
    code = advice.split(", or ")[0]
    try:
        (*_, last) = ast.parse(code).body
        made = (eval if isinstance(last, ast.Expr) else exec)(code, scope)
    except (SyntaxError, NameError):
        return None
    if isinstance(last, ast.Expr):  # a new tensor, or a new file
        return made if made is not None else (given[0], Path("commas.csv").read_bytes())
    (option,) = (target.id for target in last.targets)
    made = scope[option]
    if road == "labels":
        return None if made is ... else (*given[:2], dict(*given[2:]) | {option: made})
    return file(Image.fromarray(made)) if of_files else made
