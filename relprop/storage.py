"""Explanations on disk: one safetensors file, everything that is not a tensor in its JSON header.
No pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from relprop.adapters import Original
from relprop.adapters.texts import Text
from relprop.error_boundary import guarded
from relprop.errors import InputError, as_path, first_line
from relprop.explanation.fitting import refuse_unfit
from relprop.interpreter.accounts import Account
from relprop.interpreter.ledger import Ledger
from relprop.writing import refuse_other_kinds, written

if TYPE_CHECKING:
    from relprop.explanation import Block, Explanation, Generation, TokenScores

FORMAT = "relprop-explanation-3"
GENERATION = "relprop-generation-1"
OF_TOKENS = ("scores", "row", "identity", "content", "padding", "source")
TENSORS = (*OF_TOKENS, "matrix", "input", "layers", "spans")
STREAM = ("tokens", "grid", "image", "extent", "words", "texts", "clock")
PLAIN = ("method", "rules", "facts")
MAPS = ("attention", "gradient", "relevance")
PICTURE = ".picture."
AMOUNTS = ("arrived", "absolute", "to_inputs", "unread")


def save(explanation: Explanation, path: str | Path) -> Path:
    """Write ``explanation`` to ``path``. Raises ``InputError`` where no file can be
    written, ``OptionError`` for the name of a file of another kind."""
    return _write(path, FORMAT, _header(explanation), dict(_tensors(explanation)))


def save_generation(generation: Generation, path: str | Path) -> Path:
    """Write ``generation``, all its steps, to ``path``. Raises as ``save`` does."""
    header = {name: getattr(generation, name) for name in ("labels", "stream", "prompt")}
    header["steps"] = [_header(step) for step in generation.steps]
    tensors: dict[str, Tensor | None] = {"ids": generation.ids}
    for k, step in enumerate(generation.steps):
        tensors |= {
            f"steps.{k}.{name}": t
            for name, t in _tensors(step)
            if k == 0 or PICTURE not in name  # all steps are of the same pictures
        }
    return _write(path, GENERATION, header, tensors)


def _write(
    path: str | Path, kind: str, header: dict[str, Any], tensors: Mapping[str, Tensor | None]
) -> Path:
    refuse_other_kinds(path, kind.split("-")[1])
    there = {name: t for name, t in tensors.items() if t is not None}
    # contiguous() leaves an axis of length 1 with the stride it had
    saved = {
        k: t.detach().cpu().clone(memory_format=torch.contiguous_format) for k, t in there.items()
    }
    text = json.dumps(header)
    metadata = {"format": kind, "header": text, "sha256": _digest(text, saved)}
    with written(path, "the explanation") as beside:
        save_file(saved, beside, metadata=metadata)
    return Path(path)


def _digest(header: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the header and of every tensor: its name, type, shape and bytes."""
    found = hashlib.sha256(header.encode("utf-8", "surrogatepass"))
    for name, tensor in sorted(tensors.items()):
        found.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors(explanation: Explanation) -> Iterator[tuple[str, Tensor | None]]:
    """Every tensor by the name it has in the file."""
    for i, stream in enumerate(explanation.streams.values()):
        yield from ((f"streams.{i}.{name}", getattr(stream, name)) for name in TENSORS)
        for j, original in enumerate(stream.originals or ()):
            yield f"streams.{i}.picture.{j}", original.picture
        for j, several in enumerate(stream.pictures or ()):
            yield from ((f"streams.{i}.picture.{j}.{k}", o.picture) for k, o in enumerate(several))
    yield "output", explanation.output
    yield "probability", explanation.probability
    yield "started", explanation.started
    for i, block in enumerate(explanation.blocks or ()):
        yield from ((f"blocks.{i}.{name}", getattr(block, name)) for name in MAPS)
    if explanation.ledger is not None:
        yield from _ledger_tensors(explanation.ledger)


def _ledger_tensors(ledger: Ledger) -> Iterator[tuple[str, Tensor]]:
    yield "ledger.started", ledger.started
    yield from ((f"ledger.reached.{name}", amount) for name, amount in ledger.reached.items())
    for i, account in enumerate(ledger.accounts):
        yield from ((f"ledger.{i}.{name}", getattr(account, name)) for name in AMOUNTS)
        for kind in ("absorbed", "lost"):
            amounts = enumerate(getattr(account, kind).values())
            yield from ((f"ledger.{i}.{kind}.{j}", amount) for j, amount in amounts)


def _header(explanation: Explanation) -> dict[str, Any]:
    """All that is no tensor, as JSON has it."""
    blocks, ledger = explanation.blocks, explanation.ledger
    header: dict[str, Any] = {name: getattr(explanation, name) for name in (*PLAIN, "labels")}
    header["predictions"] = explanation.predictions
    header["target"] = [list(t) if isinstance(t, tuple) else t for t in explanation.target]
    header["streams"] = [_stream_header(stream) for stream in explanation.streams.values()]
    header["blocks"] = None if blocks is None else [block.path for block in blocks]
    if ledger is not None:
        rows = [
            [a.node, a.path, a.op, a.rule, list(a.absorbed), list(a.lost)] for a in ledger.accounts
        ]
        header["ledger"] = {"rows": rows, "reached": list(ledger.reached)}
    return header


def _stream_header(stream: TokenScores) -> dict[str, Any]:
    fields = {name: getattr(stream, name) for name in STREAM}
    pictures = stream.pictures and [_places(sample) for sample in stream.pictures]
    originals = stream.originals and _places(stream.originals)
    return {"name": stream.name, **fields, "originals": originals, "pictures": pictures}


def _places(originals: Iterable[Original]) -> list[Any]:
    return [[o.size, o.frame] for o in originals]


@guarded
def load(path: str | Path) -> Explanation | Generation:
    """Read an explanation that ``Explanation.save`` wrote, or a generation that
    ``Generation.save`` did. Raises ``InputError`` for any other file."""
    if not as_path(path).is_file():
        raise InputError(f"{path} cannot be read as a saved explanation: it is no file")
    header, tensors = _read(path)
    try:
        return (_generation if "steps" in header else _explanation)(header, tensors)
    except Exception as error:  # a damaged header is wrong in any way
        reason = f"{type(error).__name__}: {first_line(error)}"
        fact = f"{path} is damaged: its header and its tensors do not fit ({reason})"
        raise InputError(fact, then=["save the explanation again"]) from error


def _explanation(header: dict[str, Any], tensors: dict[str, Tensor]) -> Explanation:
    from relprop.explanation import Explanation, Prediction

    rows = header.get("predictions")
    streams = [
        _read_stream(stream, _below(tensors, f"streams.{i}."))
        for i, stream in enumerate(header["streams"])
    ]
    found = Explanation(
        {stream.name: stream for stream in streams},
        output=tensors["output"],
        **{name: header[name] for name in PLAIN},
        target=tuple(_tuple(t) for t in header["target"]),
        ledger=_read_ledger(header["ledger"], tensors) if "ledger" in header else None,
        blocks=_read_blocks(header["blocks"], tensors),
        labels=_tuple(header.get("labels")),
        probability=tensors.get("probability"),
        started=tensors.get("started"),
        predictions=rows and tuple(Prediction(*row) for row in rows),
    )
    refuse_unfit(found)
    return found


def _generation(header: dict[str, Any], tensors: dict[str, Tensor]) -> Generation:
    from relprop.explanation import Generation

    pictures = {n: t for n, t in _below(tensors, "steps.0.").items() if PICTURE in n}
    steps = tuple(
        _explanation(step, pictures | _below(tensors, f"steps.{k}."))
        for k, step in enumerate(header["steps"])
    )
    own = {name: header[name] for name in ("labels", "stream", "prompt")}
    return Generation(steps, tensors["ids"], **own)


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the tensors of a file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            # a copy: what is handed out is the file's own memory, and changes, or ends, with it
            tensors = {name: file.get_tensor(name).clone() for name in list(file.keys())}
    except Exception as error:  # safetensors raises a type of its own
        raise InputError(f"{path} cannot be read as a saved explanation: {error}") from error
    if metadata.get("format") not in (FORMAT, GENERATION):
        raise InputError(
            f"{path} is no saved explanation: its format is "
            f"{metadata.get('format')!r}, not {FORMAT!r} or {GENERATION!r}"
        )
    if metadata.get("sha256") != _digest(metadata.get("header", ""), tensors):
        fact = f"{path} is damaged: its checksum is not that of its numbers and names"
        raise InputError(fact, then=["save the explanation again"])
    try:
        return dict(json.loads(metadata["header"])), tensors
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is damaged: its header is no JSON object: {error}") from error


def _read_blocks(
    paths: list[str] | None, tensors: Mapping[str, Tensor]
) -> tuple[Block, ...] | None:
    from relprop.explanation import Block

    if paths is None:
        return None
    values = (_below(tensors, f"blocks.{i}.") for i in range(len(paths)))
    return tuple(
        Block(path, own["attention"], own.get("gradient"), own.get("relevance"))
        for path, own in zip(paths, values, strict=True)
    )


def _below(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def _text(text: str, spans: list[list[int]], turns: list[list[int]]) -> Text:
    return Text(text, [(a, b) for a, b in spans], [(a, b) for a, b in turns])


def _read_stream(header: dict[str, Any], tensors: dict[str, Tensor]) -> TokenScores:
    from relprop.explanation import TokenScores

    words, originals = header.get("words"), header.get("originals")
    pictures, several = _below(tensors, "picture."), header.get("pictures")
    return TokenScores(
        name=header["name"],
        tokens=header["tokens"],
        extent=tuple(header.get("extent", ())),
        texts=header.get("texts") and [_text(*row) for row in header["texts"]],
        words=words and [[(text, tokens) for text, tokens in row] for row in words],
        originals=originals and _read_originals(originals, pictures),
        pictures=several
        and tuple(
            _read_originals(sample, _below(pictures, f"{j}.")) for j, sample in enumerate(several)
        ),
        **{n: tuple(header[n]) if header.get(n) else None for n in ("grid", "image", "clock")},  # type: ignore[arg-type]
        **{n: tensors.get(n) for n in TENSORS},  # type: ignore[arg-type]
    )


def _read_originals(header: list[Any], pictures: dict[str, Tensor]) -> tuple[Original, ...]:
    return tuple(
        Original(tuple(size), tuple(frame), pictures.get(str(j)))
        for j, (size, frame) in enumerate(header)
    )


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


def _tuple(target: Any) -> Any:
    return tuple(target) if isinstance(target, list) else target
