"""Train the small Llama that looks answers up in documents, on one core in some minutes; write its
weights and its numbers.

    python -m tools.train_lookups --out relprop/demo

Lookups are drawn anew for every step, with more facts as training goes on; the loss is that of the
answer's tokens. What it prints is of lookups of another seed: how many answers ``generate`` gives
word by word, and of how many the answer follows when the words of its fact are exchanged, and stays
when those of all other facts are.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from relprop.demo.lookup_model import (
    NUMBERS,
    WEIGHTS,
    lookup_model,
    lookup_tokenizer,
    vocabulary,
)
from relprop.demo.lookups import ADJECTIVES, MOST, NOUNS, VERBS, Lookup, make_lookups

HELD_OUT_SEED, BATCH, LOOKUPS = 10_000_019, 32, 1000
COPIED, COPY = 0.6, 32  # the share of steps that copy words, too, and how many
FACT = re.compile(rf"((\w+ (?:{'|'.join(VERBS)})) \w+ \w+\.)")


def encoded(
    tokenizer: Any, lookups: list[Lookup], random: Random | None = None
) -> tuple[Tensor, Tensor]:
    """Ids (batch, positions) of each chat, padded on the right, and which of them are answers;
    with ``random`` the chats go on until every fact was asked for."""
    rows, answers = [], []
    for lookup in lookups:
        row, answer = list[int](), list[bool]()
        for turn in [*_chat(lookup), *(_more(lookup, random) if random else ())]:
            end = len(row) + 1 if turn["role"] == "assistant" else None  # behind who speaks
            text = ("" if row else "<s>") + f"<|{turn['role']}|>{turn['content']}<|end|>"
            row += tokenizer(text, add_special_tokens=False)["input_ids"]
            answer += [end is not None and k >= end for k in range(len(answer), len(row))]
        rows.append(row)
        answers.append(answer)
    size, pad = max(map(len, rows)), tokenizer.pad_token_id
    ids = torch.tensor([row + [pad] * (size - len(row)) for row in rows])
    mask = torch.tensor([row + [False] * (size - len(row)) for row in answers])
    return ids, mask


def _chat(lookup: Lookup) -> list[dict[str, str]]:
    return [*lookup.messages, {"role": "assistant", "content": lookup.answer}]


def _more(lookup: Lookup, random: Random) -> list[dict[str, str]]:
    """Turns that ask for the facts that the first question left, one or two at a time."""
    facts = FACT.findall(" ".join(lookup.documents))
    left = [fact for fact in facts if fact[0] not in lookup.answer]
    random.shuffle(left)
    turns = []
    while left:
        count = random.randint(1, 2)
        asked, left = left[:count], left[count:]
        question = " and ".join(f"{name} what" for _, name in asked)
        turns.append({"role": "user", "content": f"{question}?"})
        turns.append({"role": "assistant", "content": " ".join(text for text, _ in asked)})
    return turns


def right(model: Any, tokenizer: Any, lookups: list[Lookup]) -> float:
    """The share of lookups whose answer is the likeliest token by token."""
    found = 0
    with torch.no_grad():
        for i in range(0, len(lookups), 100):
            ids, answer = encoded(tokenizer, lookups[i : i + 100])
            best = model(input_ids=ids).logits[:, :-1].argmax(-1)
            found += int(((best == ids[:, 1:]) | ~answer[:, 1:]).all(1).sum())
    return found / len(lookups)


def exchanged(lookup: Lookup, seed: int, *, asked: bool) -> Lookup:
    """The same with all words that only one fact has exchanged for others: of the facts that are
    asked for (the answer follows), or of all the others (it stays)."""
    random, reasons = Random(seed), set[str]()
    for evidence in lookup.evidence:
        text = lookup.documents[evidence.document]
        reasons |= {text[slice(*span)] for span in evidence.words}
    given = re.findall(r"\w+", " ".join(lookup.documents))
    new: dict[str, str] = {}
    for words in (ADJECTIVES, NOUNS):
        change = [w for w in given if w in words and (w in reasons) == asked]
        unused = [w for w in words if w not in given]
        new |= dict(zip(change, random.sample(unused, len(change)), strict=True))

    def turned(text: str) -> str:
        return re.sub(r"\w+", lambda word: new.get(word[0], word[0]), text)

    documents = tuple(map(turned, lookup.documents))
    return Lookup(documents, lookup.question, turned(lookup.answer), lookup.evidence)


def measured(model: Any, tokenizer: Any, n: int) -> dict[str, float]:
    """Shares of right answers on held-out lookups and on pairs made of them, in per cent."""
    lookups = make_lookups(n, seed=HELD_OUT_SEED)
    kinds = {
        "held_out": lookups,
        "fact_exchanged": [exchanged(lk, i, asked=True) for i, lk in enumerate(lookups)],
        "others_exchanged": [exchanged(lk, i, asked=False) for i, lk in enumerate(lookups)],
    }
    return {name: round(100 * right(model, tokenizer, kind), 2) for name, kind in kinds.items()}


def copies(size: int) -> Tensor:
    """(batch, 2 size): words drawn at random, and the same again: what teaches a model to look
    back. Of each row there are few different words, 4 to 32, so that what comes next is told by
    several words together."""
    words = 6 + torch.rand(BATCH, len(vocabulary()) - 6).argsort(1)
    few = torch.randint(4, 33, (BATCH, 1))
    drawn = words.gather(1, (torch.rand(BATCH, size) * few).long())
    return torch.cat([drawn, drawn], 1)


def _by_size(model: Any, tokenizer: Any) -> list[float]:
    """The shares of right answers to one question about 2, 4 and 9 facts."""
    return [
        right(model, tokenizer, make_lookups(50, seed=HELD_OUT_SEED + 1, facts=(n, n), questions=1))
        for n in (2, 4, 9)
    ]


def train(steps: int, rate: float, seed: int, out: Path) -> None:
    """AdamW with a one-cycle rate."""
    torch.manual_seed(seed)
    tokenizer, model = lookup_tokenizer(), lookup_model(pretrained=False).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    start, running = time.process_time(), 0.0
    for step in range(1, steps + 1):
        most = min(MOST, 2 + 14 * step // steps)
        lookups = make_lookups(BATCH, seed=1 + step + seed * steps, facts=(1, most))
        ids, answer = encoded(tokenizer, lookups, Random(step))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = F.cross_entropy(logits[answer[:, 1:]], ids[:, 1:][answer[:, 1:]])
        if step < steps * COPIED:
            drawn = copies(COPY)
            again = model(input_ids=drawn[:, :-1]).logits[:, COPY:]
            copied = F.cross_entropy(again.flatten(0, 1), drawn[:, COPY + 1 :].flatten())
            loss = loss + copied
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running += (float(loss.detach()) - running) / min(step, 50)
        if step % 100 == 0:
            said = " ".join(f"{share:.2f}" for share in _by_size(model, tokenizer))
            seconds = time.process_time() - start
            print(f"{step} loss {running:.4f} right {said} {seconds:.0f} s", flush=True)
    model.eval()
    numbers = {
        "steps": steps,
        "batch": BATCH,
        "seed": seed,
        "cpu_seconds": round(time.process_time() - start),
        "lookups": LOOKUPS,
        **measured(model, tokenizer, LOOKUPS),
    }
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file({k: v.contiguous() for k, v in state.items()}, out / WEIGHTS.name)
    (out / NUMBERS.name).write_text(json.dumps(numbers, indent=1) + "\n")
    print(numbers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    train(asked.steps, asked.rate, asked.seed, asked.out)
