"""Explanations on disk: one safetensors file, everything that is not a tensor in its JSON header.
No pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from relprop.adapters import Original
from relprop.errors import InputError, writable
from relprop.interpreter.ledger import Account, Ledger

if TYPE_CHECKING:
    from relprop.explanation import Explanation, TokenScores

FORMAT = "relprop-explanation-2"
TENSORS = ("scores", "row", "identity", "content", "source", "matrix", "input", "layers", "spans")
STREAM = ("tokens", "grid", "image", "extent", "words", "clock")
PLAIN = ("method", "rules", "facts")
AMOUNTS = ("arrived", "absolute", "to_inputs", "unread")


def save(explanation: Explanation, path: str | Path) -> Path:
    """Write ``explanation`` to ``path``. Raises ``InputError`` where no file can be written."""
    path = writable(path)
    given = {
        f"streams.{i}.{n}": getattr(s, n)
        for i, s in enumerate(explanation.streams.values())
        for n in TENSORS
    }
    tensors = {name: value for name, value in given.items() if value is not None} | {
        "output": explanation.output
    }
    if explanation.probability is not None:
        tensors["probability"] = explanation.probability
    header: dict[str, Any] = {name: getattr(explanation, name) for name in (*PLAIN, "labels")} | {
        "target": [_plain(t) for t in explanation.target]
    }
    header["streams"] = [
        {"name": name}
        | {n: getattr(s, n) for n in STREAM}
        | {"originals": s.originals and [[o.size, o.frame] for o in s.originals]}
        for name, s in explanation.streams.items()
    ]
    for i, block in enumerate(explanation.blocks or ()):
        parts = {
            "attention": block.attention,
            "gradient": block.gradient,
            "relevance": block.relevance,
        }
        tensors |= {f"blocks.{i}.{name}": t for name, t in parts.items() if t is not None}
    header["blocks"] = (
        None if explanation.blocks is None else [block.path for block in explanation.blocks]
    )
    if explanation.ledger is not None:
        header["ledger"] = _ledger_header(explanation.ledger, tensors)
    save_file(
        {k: t.detach().cpu().contiguous().clone() for k, t in tensors.items()},
        path,
        metadata={"format": FORMAT, "header": json.dumps(header)},
    )
    return path


def load(path: str | Path) -> Explanation:
    """Read an explanation that ``Explanation.save`` wrote. Raises ``InputError`` for any other
    file."""
    from relprop.explanation import Block, Explanation

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise InputError(
                    f"{path} is no saved explanation: its format is "
                    f"{metadata.get('format')!r}, not {FORMAT!r}"
                )
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as a saved explanation: {error}") from error
    except Exception as error:  # safetensors raises a type of its own
        raise InputError(f"{path} cannot be read as a saved explanation: {error}") from error
    header = json.loads(metadata["header"])
    blocks = header["blocks"]
    kept = (
        None
        if blocks is None
        else tuple(
            Block(
                p,
                tensors[f"blocks.{i}.attention"],
                tensors.get(f"blocks.{i}.gradient"),
                tensors.get(f"blocks.{i}.relevance"),
            )
            for i, p in enumerate(blocks)
        )
    )
    streams = [
        _read_stream(s, {n: tensors.get(f"streams.{i}.{n}") for n in TENSORS})
        for i, s in enumerate(header["streams"])
    ]
    ledger = _read_ledger(header["ledger"], tensors) if "ledger" in header else None
    return Explanation(
        {s.name: s for s in streams},
        output=tensors["output"],
        **{name: header[name] for name in PLAIN},
        target=tuple(_tuple(t) for t in header["target"]),
        ledger=ledger,
        blocks=kept,
        labels=_tuple(header.get("labels")),
        probability=tensors.get("probability"),
    )


def _read_stream(header: dict[str, Any], tensors: dict[str, Tensor | None]) -> TokenScores:
    from relprop.explanation import TokenScores

    words, originals = header.get("words"), header.get("originals")
    return TokenScores(
        name=header["name"],
        tokens=header["tokens"],
        extent=tuple(header.get("extent", ())),
        words=words and [[(text, tokens) for text, tokens in row] for row in words],
        originals=originals
        and tuple(Original(tuple(size), tuple(frame)) for size, frame in originals),
        **{n: tuple(header[n]) if header.get(n) else None for n in ("grid", "image", "clock")},  # type: ignore[arg-type]
        **tensors,  # type: ignore[arg-type]
    )


def _ledger_header(ledger: Ledger, tensors: dict[str, Tensor]) -> dict[str, Any]:
    rows = []
    tensors["ledger.started"] = ledger.started
    tensors |= {f"ledger.reached.{k}": v for k, v in ledger.reached.items()}
    for i, account in enumerate(ledger.accounts):
        tensors |= {f"ledger.{i}.{name}": getattr(account, name) for name in AMOUNTS}
        for kind in ("absorbed", "lost"):
            tensors |= {
                f"ledger.{i}.{kind}.{j}": v for j, v in enumerate(getattr(account, kind).values())
            }
        rows.append(
            [
                account.node,
                account.path,
                account.op,
                account.rule,
                list(account.absorbed),
                list(account.lost),
            ]
        )
    return {"rows": rows, "reached": list(ledger.reached)}


def _read_ledger(header: dict[str, Any], tensors: dict[str, Tensor]) -> Ledger:
    accounts = tuple(
        Account(
            node,
            path,
            op,
            rule,
            **{name: tensors[f"ledger.{i}.{name}"] for name in AMOUNTS},
            absorbed={k: tensors[f"ledger.{i}.absorbed.{j}"] for j, k in enumerate(absorbed)},
            lost={k: tensors[f"ledger.{i}.lost.{j}"] for j, k in enumerate(lost)},
        )
        for i, (node, path, op, rule, absorbed, lost) in enumerate(header["rows"])
    )
    return Ledger(
        accounts,
        tensors["ledger.started"],
        {k: tensors[f"ledger.reached.{k}"] for k in header["reached"]},
    )


def _plain(target: Any) -> Any:
    return list(target) if isinstance(target, tuple) else target


def _tuple(target: Any) -> Any:
    return tuple(target) if isinstance(target, list) else target
