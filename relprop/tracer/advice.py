"""What people hold in place of a model's tensors, and the lines that make those of it."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

import numpy as np

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
IDS = "of ids: one row for each sample"


def made_of(thing: Any, *, read: bool = False) -> list[str]:
    """The lines that make of ``inputs``, which are no tensor, what a model is given, or where a
    ``processor`` is to ``read`` them, what that takes; none where nothing is known of them."""
    reader = "processor" if read else "tokenizer"
    if isinstance(thing, (str, PurePath)):
        return _of_file(thing, read)
    if isinstance(thing, (bytes, bytearray)):
        return ["inputs = inputs.decode()   # of a text"]
    if hasattr(thing[0] if isinstance(thing, (list, tuple)) and thing else thing, "convert"):
        return ["processor= reads pictures: relprop.explain(model, picture, processor=...)"]
    if hasattr(thing, "iloc") and hasattr(thing, "columns"):
        return _of_table(thing, read)
    if hasattr(thing, "keys") and not hasattr(thing, "tolist"):
        return _of_named({name: thing[name] for name in list(thing.keys())}, reader, read)
    if isinstance(thing, (list, tuple)) and thing and isinstance(thing[0], np.ndarray) and not read:
        return ["inputs = [torch.as_tensor(one) for one in inputs]   # or processor=, of pictures"]
    held = _held(thing)
    missing = [i for i, one in enumerate(held.flat) if one is None] if held.dtype == object else []
    if held.ndim and missing:
        return [f"inputs[{missing[0]}] is None: leave it out"]
    return _of_list(held, held.flat[0] if held.size else None, reader, read)


def _of_list(held: Any, leaf: Any, reader: str, read: bool) -> list[str]:
    """A chat's messages, texts, ids or numbers, the first of which is ``leaf``."""
    turn = leaf[0] if isinstance(leaf, list) and leaf else leaf
    if isinstance(turn, dict) and "role" in turn:
        options = "padding=True, " * (held.ndim > 1 or leaf is not turn)
        options += "add_generation_prompt=True, return_dict=True, return_tensors='pt'"
        return [f"inputs = {reader}.apply_chat_template(inputs, {options})"]
    if isinstance(leaf, str):
        if held.ndim > 1:
            return [f"inputs = {reader}(inputs, is_split_into_words=True, return_tensors='pt')"]
        if not read:
            return ["processor=tokenizer reads texts: relprop.explain(model, text, processor=...)"]
        return ["inputs = list(inputs)" if held.ndim else "inputs = inputs.item()"]
    if isinstance(leaf, list) and all(isinstance(n, int) for n in leaf):
        return [f"inputs = {reader}.pad({{'input_ids': inputs}}, return_tensors='pt')   # {IDS}"]
    return _of_numbers(held, leaf, read) if held.ndim and _are_numbers([leaf]) else []


def _of_table(table: Any, read: bool) -> list[str]:
    """A table's column of texts, or its numbers where nothing is to ``read`` them."""
    texts = [n for n in table.columns if len(table) and isinstance(table[n].iloc[0], str)]
    if texts:
        return [f"inputs = inputs[{texts[0]!r}].tolist()   # of a table's column"]
    numbers = "inputs = torch.as_tensor(inputs.to_numpy(), dtype=torch.float32)"
    return [numbers] if len(table) and not read else []


def _of_numbers(held: Any, leaf: Any, read: bool) -> list[str]:
    """Recordings, pictures, ids or ready numbers, by how they are held."""
    whole = isinstance(leaf, (int, np.integer))
    if read and held.ndim == 1 and not whole:
        return ["inputs = np.asarray(inputs, dtype=np.float32)   # of a recording"]
    if read and held.ndim == 3 and whole:
        return ["inputs = np.asarray(inputs, dtype=np.uint8)   # of a picture"]
    row, dtype = "[None]" * (held.ndim == 1), "int64" if whole else "float32"
    hint = IDS if whole and (read or held.ndim < 2) else "or processor=, if it is a picture"
    return [f"inputs = torch.as_tensor(inputs, dtype=torch.{dtype}){row}   # {hint}"]


def _of_file(name: str | PurePath, read: bool) -> list[str]:
    suffix = PurePath(name).suffix.lower()
    if read:
        return ["inputs = inputs.read_text()   # of a text"] * isinstance(name, PurePath)
    if isinstance(name, PurePath) or suffix in PICTURES or Path(name[:250]).is_file():
        opened = "PIL.Image.open(path)" if suffix in PICTURES else "what the file holds"
        return [f"inputs are not read from files: give {opened}, and processor="]
    return ["processor=tokenizer reads texts: relprop.explain(model, text, processor=...)"]


def _of_named(named: dict[str, Any], reader: str, read: bool) -> list[str]:
    """Lists of ids, as a tokenizer makes them that was asked for no tensors; else the first thing
    that there is a line for."""
    held = {name: _held(value) for name, value in named.items()}
    leaves = [h.flat[0] if h.size else None for h in held.values()]
    if leaves and any(isinstance(leaf, list) for leaf in leaves):
        return [f"inputs = {reader}.pad(inputs, return_tensors='pt')"]
    if leaves and all(h.ndim for h in held.values()) and _are_numbers(leaves):
        row = "[None]" if all(h.ndim < 2 for h in held.values()) else ""
        return [f"inputs = {{name: torch.as_tensor(rows){row} for name, rows in inputs.items()}}"]
    for name, value in named.items():
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        ready = isinstance(first, str) or isinstance(value, np.ndarray)
        lines = [] if ready else made_of(value, read=read)
        for line in (one for one in lines if one.startswith("inputs = ")):
            made = line.removeprefix("inputs = ").replace("inputs", f"inputs[{name!r}]")
            whole = "apply_chat_template" in line
            return [f"inputs = {made if whole else f'{{**inputs, {name!r}: {made}}}'}"]
    return []


def _held(thing: Any) -> Any:
    """What a thing holds, one by one, in as many axes as it is even in. Arrays and pictures in a
    list stay whole."""
    if hasattr(thing, "dtype"):
        return np.asarray(thing)
    things = list(thing) if isinstance(thing, (set, frozenset)) else thing
    if isinstance(things, (list, tuple)) and things and hasattr(things[0], "__array__"):
        return np.fromiter(things, dtype=object)
    return np.asarray(things if isinstance(things, (list, tuple)) else [], dtype=object)


def _are_numbers(leaves: list[Any]) -> bool:
    return all(isinstance(n, (int, float, np.number)) and not isinstance(n, bool) for n in leaves)
