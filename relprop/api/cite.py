"""``cite``: which passages of some documents each sentence of a model's answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from relprop.adapters.processing import tokenizer_of
from relprop.adapters.texts import Text, decoded, recorded
from relprop.api.continuation import continued
from relprop.door import guarded
from relprop.errors import InputError, OptionError
from relprop.explanation.citations import Citations, Passage, Said
from relprop.explanation.segments import KINDS, owners, split
from relprop.methods.options import SeedlessOptions
from relprop.opening.opening import opened
from relprop.progress import showing
from relprop.rules import RuleSet
from relprop.runner.ask import ask
from relprop.runner.conditions import Conditions, Memory
from relprop.runner.memory import checked_memory
from relprop.runner.method import Options
from relprop.runner.question import Question
from relprop.targets import span

PROMPT = "{documents}\n\n{question}"
Prompt = str | Callable[[list[str], str], str]


@guarded
def cite(
    model: nn.Module | str | Any,
    question: str,
    documents: Sequence[str],
    answer: str | None = None,
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
    progress: bool = False,
    trust_remote_code: bool = False,
    memory: Memory = "auto",
    strict: bool = False,
    **method_options: Unpack[SeedlessOptions],
) -> Citations:
    """Which passages of ``documents`` each sentence of an answer rests on. What is explained of a
    sentence is the mean log-probability of its tokens, given the prompt and the answer before it.

    Args:
        model: a model that generates; a pipeline, id or folder as for ``explain``.
        answer: what the model said, or might have said. ``None``: what it generates now.
        processor: the model's tokenizer.
        by: what a passage is: of the documents the ``"sentences"``, the ``"lines"``, what empty
            lines part (``"documents"``); ``"whole"``, each document.
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
    texts = _checked(question, documents, by)
    asked = prompt(texts, question) if callable(prompt) else _filled(prompt, texts, question)
    model, prepared = opened(model, asked, processor, trust_remote_code=trust_remote_code)
    tokenizer = tokenizer_of(prepared.processor)
    if tokenizer is None:
        raise InputError("cite needs the model's tokenizer", then=["processor=tokenizer"])
    whole, ids = _encoded(tokenizer, _in_chat(tokenizer, asked))
    device = next(iter(prepared.inputs.values())).device
    given = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
    how = Conditions(
        precision=precision,
        progress=progress,
        processor=prepared.processor,
        memory=checked_memory(memory),
    )
    with showing(progress):
        said = _answered(model, given, tokenizer, answer, (max_new_tokens, generate, seed))
    after = torch.cat([said, said[:, -1:]], 1)  # all of the answer is read, and one token predicted
    run = continued(model, given, max_new_tokens=None, output_ids=after, options=None, seed=seed)
    sentences = _sentences(said[0].tolist(), tokenizer, run.prompt)
    passages = _passages(whole, texts, by)
    options: Options = method_options
    if method == "leave_one_out":
        options = {
            "groups": {"input_ids": [p.positions for p in passages]},
            **method_options,
        }
    targets = [span(s.first, s.last) for s in sentences]
    rows = ask(model, run.inputs, targets, [Question(method, options, rules)], how)
    found = tuple(e for row in rows for e in row if e is not None)
    scores = torch.stack([_summed(e["input_ids"].scores[0], passages) for e in found])
    return Citations(passages, sentences, scores, found, run.inputs, "input_ids", run.prompt)


def _summed(scores: Tensor, passages: Sequence[Passage]) -> Tensor:
    """(passages,): the sum of each one's tokens."""
    return torch.stack([scores[p.positions].sum() for p in passages])


def _checked(question: Any, documents: Any, by: Any) -> list[str]:
    """The documents as a list. Raises ``OptionError`` or ``InputError``."""
    texts = [documents] if isinstance(documents, str) else documents
    named = isinstance(texts, (list, tuple)) and all(isinstance(t, str) for t in texts)
    if not named or not texts or not all(t.strip() for t in texts):
        raise InputError("documents is a list of texts, none of them empty")
    if not isinstance(question, str):
        raise InputError(f"question is {type(question).__name__}: a text is needed")
    if by not in (*KINDS, "whole"):
        raise OptionError(f"by={by!r}: one of {', '.join(map(repr, (*KINDS, 'whole')))}")
    return list(texts)


def _filled(prompt: str, documents: list[str], question: str) -> str:
    if "{documents}" not in prompt:
        raise OptionError(f"prompt={prompt!r}: {{documents}} must be in it")
    both = {"{documents}": "\n\n".join(documents), "{question}": question}
    before, behind = prompt.split("{documents}", 1)
    before, behind = (part.replace("{question}", both["{question}"]) for part in (before, behind))
    return before + both["{documents}"] + behind


def _in_chat(tokenizer: Any, text: str) -> str:
    """The prompt as a turn of the user's, where the tokenizer has a chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return text
    chat = [{"role": "user", "content": text}]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))


def _encoded(tokenizer: Any, text: str) -> tuple[Text, Tensor]:
    """A prompt's text with each token's characters, and its ids, (1, positions)."""
    chat = bool(getattr(tokenizer, "chat_template", None))  # which writes special tokens itself
    made = tokenizer([text], add_special_tokens=not chat)
    ids = list(made["input_ids"][0])
    encodings = getattr(made, "encodings", None)
    found = recorded(encodings[0], text) if encodings else None
    return found or decoded(ids, tokenizer), torch.tensor([ids])


def _answered(
    model: nn.Module,
    given: Mapping[str, Tensor],
    tokenizer: Any,
    answer: str | None,
    asked: tuple[int, Mapping[str, Any] | None, int],
) -> Tensor:
    """The answer's ids, (1, tokens), without an end. Raises ``InputError`` for an empty one."""
    if answer is not None:
        ids = torch.tensor([list(tokenizer(answer, add_special_tokens=False)["input_ids"])])
    else:
        count, options, seed = asked
        made = continued(
            model, given, max_new_tokens=count, output_ids=None, options=options, seed=seed
        )
        ids = made.ids
    special = set(tokenizer.all_special_ids)
    kept = [int(k) for k in ids[0].tolist() if k >= 0]
    while kept and kept[-1] in special:
        kept.pop()
    if not kept:
        raise InputError("the answer is empty", then=["answer=..., or a larger max_new_tokens="])
    return torch.tensor([kept], device=next(iter(given.values())).device)


def _sentences(ids: list[int], tokenizer: Any, prompt: int) -> tuple[Said, ...]:
    """The answer's sentences with their places behind a prompt of so many positions."""
    text = decoded(ids, tokenizer)
    spans = split(text, "sentences")
    owned = owners(spans, text.spans)
    return tuple(
        Said(text.text[a:b], tokens[0] + prompt, tokens[-1] + prompt)
        for (a, b), tokens in zip(spans, owned, strict=True)
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
