"""What is explained: from the caller's ``target`` to a scalar per sample, and how relevance starts
at it.

The public part are the functions that name a target of a real head: ``answer``, ``contrast``,
``direction``, ``output``, ``query``, ``region``, ``similarity``, ``span``, ``token`` and ``unit``
(docs/targets.md): an element of any output, a span, an answer, a token, a detector's query, a
region, a similarity, a unit or a direction inside the model, and the difference of two. Each is
immutable, hashable and picklable, and names no model: what it is in a sample is worked out when
the model has run. A list gives one per sample. Where a position or class is left out, the model's
own prediction takes its place.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from relprop.error_boundary import guarded
from relprop.errors import TargetError
from relprop.targets.answers import Answer, Contrast
from relprop.targets.index import Output
from relprop.targets.inside import Direction, Unit
from relprop.targets.plain import id_of, plain_index
from relprop.targets.regions import Query, Region
from relprop.targets.spans import Span, Token
from relprop.targets.start import Target

__all__ = [
    "answer",
    "contrast",
    "direction",
    "output",
    "query",
    "region",
    "similarity",
    "span",
    "token",
    "unit",
]


def __dir__() -> list[str]:
    return __all__


SIMILARITY = "logits_per_image"


@guarded
def output(name: str | int) -> Output:
    """An output by its name, or by its place in a tuple: alone its prediction, indexed one element.
    Labels may stand for classes.

    >>> from relprop.targets import output
    >>> str(output("pred_boxes")[0, 2])
    'pred_boxes[0, 2]'
    """
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise TargetError(f"output({name!r}): the name of an output, or its place among several")
    return Output(name)


@guarded
def unit(name: str, feature: int, *, position: int | None = None, head: int | None = None) -> Unit:
    """One unit inside the model: entry ``feature`` of a node's value at one ``position``, or,
    ``None``, the mean over all. ``name``: as ``relprop.instrument(...).names()`` has it; of
    ``NAME:heads`` and of attention maps the ``head``, too. Of a map positions are queries, and
    features keys.

    >>> from relprop.targets import unit
    >>> str(unit("blocks.2.mlp", 17)), str(unit("blocks.2.attn:heads", 5, position=0, head=1))
    ('unit 17 of blocks.2.mlp', 'unit 5 of blocks.2.attn:heads, position 0, head 1')
    """
    if feature is None or not _are_whole(feature, position, head) or not isinstance(name, str):
        raise TargetError(f"unit({name!r}, {feature!r}): a name; integers for the rest")
    return Unit(name, position, head, feature)


@guarded
def direction(
    name: str,
    vector: Tensor | Sequence[float],
    *,
    position: int | None = None,
    head: int | None = None,
) -> Direction:
    """A direction inside the model (a concept vector, a probe's weights): the scalar product of
    ``vector``, ``(features,)``, with a node's value at one ``position``; ``None``: its mean over
    all positions. ``name`` is a node's, of one attention ``head`` if that is given: see ``unit``.

    Relevance of the features with positive and with negative weights is worked out apart, and the
    one taken from the other, as for ``contrast``.

    >>> import torch
    >>> from relprop.targets import direction
    >>> str(direction("blocks.2", torch.ones(96), position=0))
    'a direction in blocks.2, position 0'
    """
    weights = torch.as_tensor(vector).detach()
    whole = _are_whole(position, head)
    if weights.dim() != 1 or not whole or not isinstance(name, str) or weights.is_complex():
        fact = f"direction({name!r}, ...): the vector has shape {list(weights.shape)}"
        raise TargetError(f"{fact}; a name, one number per feature, and integers are needed")
    if not bool(weights.isfinite().all()) or not bool(weights.any()):
        raise TargetError(f"direction({name!r}, ...): the vector is 0, or not finite")
    return Direction(name, position, head, tuple(weights.double().tolist()))


@guarded
def span(start: int | None = None, end: int | None = None, *, together: bool = False) -> Span:
    """The span from ``start`` to ``end``, both included. Of a model that generates, the mean
    log-probability of the tokens there; of one that answers by pointing, the sum of the two logits,
    and without both the predicted span.

    ``together``: relevance of all tokens starts at once, in one walk, whatever the rules are. By
    rules with Lemma 2 that is another explanation than the mean of the tokens' own, which is what
    is given without it (docs/targets.md).

    >>> from relprop.targets import span
    >>> str(span(3, 5))
    'span(3, 5)'
    """
    if (start is None) != (end is None):
        raise TargetError(
            "span(start, end): give both, or none for the predicted span; one alone is "
            "relprop.targets.output('start_logits')[position]"
        )
    first, last = (None if k is None else _integer(k, "span") for k in (start, end))
    return Span(first, last, together)


@guarded
def answer(text: str, tokenizer: Any = None, *, together: bool = False) -> Answer:
    """Why a language model would answer ``text``: the mean log-probability of its tokens, each
    predicted by the position before it. The input is the prompt with the answer behind it; where
    ``text`` occurs several times there, its last occurrence counts.

    ``tokenizer``: what turns ids into text; ``None``: that of the call's ``processor=``.
    ``together`` as for ``span``. Raises
    ``TargetError`` where the text is not there.

    >>> from relprop.targets import answer
    >>> str(answer("in Paris"))
    "answer('in Paris')"
    """
    if not isinstance(text, str) or not text:
        raise TargetError(f"answer({text!r}): a piece of the text that the model is given")
    return Answer(text, tokenizer, together)


@guarded
def contrast(a: object, b: object) -> Contrast:
    """Why ``a`` rather than ``b``: y_t is the one less the other. Each is one of these targets, or
    a plain form: an index, a label, a tuple of them.

    Refused by methods that give the same scores for ``contrast(b, a)``, the default one among them;
    ``"attnlrp"`` and other signed ones show what speaks for the one and what for the other.

    >>> from relprop.targets import contrast
    >>> str(contrast("cat", "dog"))
    'cat rather than dog'
    """
    return Contrast(*(t if isinstance(t, Target) else Output(None, plain_index(t)) for t in (a, b)))


@guarded
def token(
    token: int | str | None = None, tokenizer: Any = None, *, position: int | None = None
) -> Token:
    """A token where the model predicts one: at ``position``, else at the sample's one mask token,
    else at a language model's last position.

    ``token``: an id, a piece or text of one token of ``tokenizer``'s vocabulary, or ``None``: the
    likeliest. Raises ``TargetError`` where text is no single token.

    >>> from relprop.targets import token
    >>> str(token(17, position=4))
    'token(17, position=4)'
    """
    place = None if position is None else _integer(position, "token")
    mask = None if tokenizer is None else getattr(tokenizer, "mask_token_id", None)
    if not isinstance(token, str):
        return Token(None if token is None else _integer(token, "token"), place, mask)
    if tokenizer is None:
        raise TargetError(
            f"token({token!r}): text needs the tokenizer: token({token!r}, tokenizer)"
        )
    return Token(id_of(token, tokenizer), place, mask, token)


@guarded
def query(
    label: int | str | None = None,
    *,
    output: str | int | None = None,
    nothing: int | bool | None = None,
) -> Query:
    """A detector's (query, class): the query most confident of ``label``, or the most confident of
    any class.

    ``output``: the queries' class logits, if not the class output. ``nothing``: the class that
    means "no object", ``False`` if there is none; by default the last if there is one class more
    than labels.

    >>> from relprop.targets import query
    >>> str(query("cat"))
    "query('cat')"
    """
    return Query(_class(label, "query"), output, nothing)


@guarded
def region(
    label: int | str | None = None, mask: object = None, *, output: str | int | None = None
) -> Region:
    """The mean logit of class ``label`` over ``mask`` (height, width), bool, or over where the
    model predicts it.

    Without a label: of an output that is one map, (height, width). ``output``: the maps, if not the
    class output.

    >>> import torch
    >>> from relprop.targets import region
    >>> str(region(2, torch.ones(4, 4) > 0))
    'region(2, 16 places)'
    """
    name = _class(label, "region")
    return Region(name, None if mask is None else _mask(mask), output)


def _mask(mask: object) -> tuple[tuple[int, ...], bytes]:
    """A mask's size and its 0s and 1s in order, which can be hashed."""
    try:
        given = torch.as_tensor(mask).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"the mask is {type(mask).__name__}"
        raise TargetError(f"region(label, mask): {what}; it is bool, (height, width)") from error
    plain = not given.is_floating_point() and given.dim() > 0
    if not plain or not bool(((given == 0) | (given == 1)).all()):
        raise TargetError(
            "region(label, mask): the mask is a "
            f"{str(given.dtype).removeprefix('torch.')} tensor {list(given.shape)}; "
            "it is bool, (height, width)"
        )
    if not bool(given.any()):
        raise TargetError(f"region(label, mask): no place of the mask {list(given.shape)} is set")
    return tuple(given.shape), bytes(given.flatten().tolist())


@guarded
def similarity() -> Output:
    """The similarity of a pair of image and text, one pair per sample, as CLIP-like models return
    it.

    >>> from relprop.targets import similarity
    >>> str(similarity())
    'logits_per_image[0]'
    """
    return Output(SIMILARITY, (0,))


def _are_whole(*given: object) -> bool:
    """Whether these are whole numbers, where they are given."""
    return all(i is None or (isinstance(i, int) and not isinstance(i, bool)) for i in given)


def _class(label: object, what: str) -> int | str | None:
    return label if label is None or isinstance(label, str) else _integer(label, what)


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TargetError(
            f"{what}(...): {value!r} is {type(value).__name__}, not an integer; a list "
            "of targets gives one per sample"
        )
    return operator.index(value)
