"""``cite``: which passages of some documents each sentence of a model's answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from relprop.adapters import Prepared
from relprop.adapters.processing import tokenizer_of
from relprop.adapters.texts import Text, decoded, recorded
from relprop.api.continuation import continued
from relprop.api.explain import conditions_of
from relprop.api.generation import steps_of
from relprop.error_boundary import guarded
from relprop.errors import InputError, OptionError
from relprop.explanation.citations import Citations, Passage, Said
from relprop.explanation.segments import KINDS, owners, split
from relprop.methods.options import SeedlessOptions
from relprop.opening.opening import opened
from relprop.progress import showing, with_progress
from relprop.rules import RuleSet
from relprop.runner.conditions import Memory
from relprop.runner.method import Options
from relprop.runner.question import Question
from relprop.targets import span
from relprop.tracer.offloaded import home_of

PROMPT = "{documents}\n\n{question}"
NAME = "input_ids"  # of the input that holds the documents
Prompt = str | Callable[[list[str], str], str]


@guarded
def cite(
    model: nn.Module | str | Any,
    question: str | Sequence[str],
    documents: Sequence[str],
    answer: str | Sequence[str] | None = None,
    *,
    processor: Any = None,
    by: str = "sentences",
    prompt: Prompt = PROMPT,
    method: str = "leave_one_out",
    rules: RuleSet | str | None = None,
    max_new_tokens: int = 100,
    generate: Mapping[str, Any] | None = None,
    seed: int = 0,
    precision: str | torch.dtype | None = None,
    progress: bool | None = None,
    trust_remote_code: bool = False,
    memory: Memory = "auto",
    strict: bool = False,
    **method_options: Unpack[SeedlessOptions],
) -> Citations | list[Citations]:
    """Which passages of ``documents`` each sentence of an answer rests on: as of
    ``explain_generation``, but each step is a sentence, of which the mean log-probability of its
    tokens is explained, given the prompt and the answer before it.

    Args:
        model: a model that generates; a pipeline, id or folder as for ``explain``.
        question: a text, or a list of them, each asked by itself: then the result is a list.
        answer: what the model said, or might have said; for several questions a list.
            ``None``: what it generates now.
        processor: the model's tokenizer.
        by: what a passage is: of the documents the ``"sentences"``, the ``"lines"``, what empty
            lines part (``"paragraphs"``); ``"whole"``, each document.
        prompt: a text with ``{documents}`` (parted by empty lines) and ``{question}`` in it, or a
            function of both. Where the tokenizer has a chat template, it is one turn of the user's.
        method: any; the default deletes each passage and asks the model again.
        max_new_tokens, generate, seed: as for ``explain_generation``.

    The other arguments are those of ``explain``.

    Raises:
        InputError: no tokenizer, documents that the prompt does not hold, an empty answer.

    >>> import relprop
    >>> from relprop.demo.lookup_model import lookup_model, lookup_tokenizer
    >>> documents = ["Anna likes amber kites. It rained all day.", "Boris paints silver rivers."]
    >>> found = relprop.cite(
    ...     lookup_model(), "Boris paints what?", documents, processor=lookup_tokenizer()
    ... )
    >>> found.answer, found.top(0, 1)[0][0].document
    ('Boris paints silver rivers.', 1)
    """
    texts, questions, answers = _checked(question, documents, answer, by)
    fill = prompt if callable(prompt) else partial(_filled, prompt)
    prompts = [fill(texts, one) for one in questions]
    model, prepared = opened(model, prompts[0], processor, trust_remote_code=trust_remote_code)
    tokenizer = tokenizer_of(prepared.processor)
    if tokenizer is None:
        raise InputError("cite needs the model's tokenizer", then=["processor=tokenizer"])
    opening = {"processor": prepared.processor, "trust_remote_code": False}
    how = conditions_of(locals() | opening)

    def one(text: str, given: str | None) -> Citations:
        ready, whole = _read(model, prepared, tokenizer, text)
        settings = {"max_new_tokens": max_new_tokens, "options": generate, "seed": seed}
        ids = _answered(model, ready.inputs, tokenizer, given, settings)
        after = torch.cat([ids, ids[:, -1:]], 1)  # all of it is read, and one token predicted
        run = continued(model, ready.inputs, output_ids=after, seed=seed)
        sentences = _sentences(ids, tokenizer, run.prompt)
        passages = _passages(whole, texts, by)
        options: Options = method_options
        if method == "leave_one_out":
            options = {"groups": {NAME: [p.positions for p in passages]}, **method_options}
        targets = [span(s.first, s.last) for s in sentences]
        steps = steps_of(model, ready, run, targets, Question(method, options, rules), how)
        rows = [e.streams[NAME].scores[0] for e in steps]
        scores = [torch.stack([row[p.positions].sum() for p in passages]) for row in rows]
        made = passages, sentences, torch.stack(scores), steps
        return Citations(*made, run.inputs, NAME, run.prompt)

    with showing(progress):
        every = with_progress(zip(prompts, answers, strict=True), "question", len(prompts))
        found = [one(text, given) for text, given in every]
    return found[0] if isinstance(question, str) else found


def _checked(
    question: Any, documents: Any, answer: Any, by: Any
) -> tuple[list[str], list[str], Sequence[str | None]]:
    """The documents, the questions and their answers. Raises ``OptionError`` or ``InputError``."""
    if by not in (*KINDS, "whole"):
        raise OptionError(f"by={by!r}: one of {', '.join(map(repr, (*KINDS, 'whole')))}")
    texts = _texts(documents, "documents")
    if not all(t.strip() for t in texts):
        raise InputError("documents is a list of texts, none of them empty")
    questions = _texts(question, "question")
    answers = _texts(answer, "answer") if answer is not None else [None] * len(questions)
    if len(answers) != len(questions):
        fact = f"there are {len(questions)} questions, and answers to {len(answers)}"
        raise InputError(fact, then=["answer=: a list with one for each, or None"])
    return texts, questions, answers


def _texts(given: Any, name: str) -> list[str]:
    """A text, or several, as a list."""
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, (list, tuple)) and texts and all(isinstance(t, str) for t in texts):
        return list(texts)
    raise InputError(f"{name} is {type(given).__name__}: a text or a list of texts is needed")


def _filled(prompt: str, documents: list[str], question: str) -> str:
    if "{documents}" not in prompt:
        raise OptionError(f"prompt={prompt!r}: {{documents}} must be in it")
    parts = prompt.split("{documents}", 1)
    before, behind = (part.replace("{question}", question) for part in parts)
    return before + "\n\n".join(documents) + behind


def _read(model: nn.Module, prepared: Prepared, tokenizer: Any, text: str) -> tuple[Prepared, Text]:
    """A prompt as the model reads it (a turn of the user's, where the tokenizer has a chat
    template), and its text with each token's characters."""
    chat = bool(getattr(tokenizer, "chat_template", None))
    if chat:
        turn = [{"role": "user", "content": text}]
        text = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    made = tokenizer([text], add_special_tokens=not chat)  # a chat's template writes them itself
    ids, records = list(made["input_ids"][0]), tuple(getattr(made, "encodings", None) or ())
    rows = torch.tensor([ids], device=home_of(model)[0])
    inputs = {NAME: rows, "attention_mask": torch.ones_like(rows)}
    known = recorded(records[0], text, ids) if records else None
    ready = replace(prepared, inputs=inputs, encodings=records, texts=(text,))
    return ready, decoded(ids, tokenizer, known)


def _answered(
    model: nn.Module,
    given: Mapping[str, Tensor],
    tokenizer: Any,
    answer: str | None,
    settings: Mapping[str, Any],
) -> Tensor:
    """The answer's ids, (1, tokens), without an end. Raises ``InputError`` for an empty one."""
    if answer is not None:
        ids = list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    else:
        ids = continued(model, given, **settings).ids[0].tolist()
    while ids and (ids[-1] < 0 or ids[-1] in tokenizer.all_special_ids):
        ids.pop()
    if not ids:
        raise InputError("the answer is empty", then=["answer=..., or a larger max_new_tokens="])
    return torch.tensor([ids], device=given[NAME].device)


def _sentences(ids: Tensor, tokenizer: Any, prompt: int) -> tuple[Said, ...]:
    """The answer's sentences with their places behind a prompt of so many positions."""
    text = decoded(ids[0].tolist(), tokenizer)
    spans = split(text, "sentences")
    both = zip(spans, owners(spans, text.spans), strict=True)
    return tuple(
        Said(text.text[a:b], tokens[0] + prompt, tokens[-1] + prompt)
        for (a, b), tokens in both
        if tokens
    )


def _passages(whole: Text, documents: list[str], by: str) -> tuple[Passage, ...]:
    """The passages with their tokens in the prompt. Raises ``InputError`` for a document that is
    not there."""
    found, at = list[tuple[int, int, int]](), 0
    for k, document in enumerate(documents):
        text = document.strip()
        start = whole.text.find(text, at)
        if start < 0:
            raise InputError(
                f"document {k} does not stand in the prompt as it is, behind those before it",
                then=["a prompt= that holds all documents in order, unchanged"],
            )
        at = start + len(text)
        spans = [(0, len(text))] if by == "whole" else KINDS[by](text)
        found += [(k, start + a, start + b) for a, b in spans]
    owned = owners([(a, b) for _, a, b in found], whole.spans)
    both = zip(found, owned, strict=True)
    return tuple(Passage(k, whole.text[a:b], tokens) for (k, a, b), tokens in both if tokens)
