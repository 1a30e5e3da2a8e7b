"""``relprop explain INPUT`` for one input, and ``relprop explain --data`` for a data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relprop.commands.given import read_given
from relprop.commands.steps import Steps
from relprop.commands.telling import WrongUsage, as_json, tell, tell_json
from relprop.commands.writing import Writer, check_outs, write

ENDINGS = (".png", ".html", ".safetensors", ".json")
ONE_INPUT = ("--text", "--text-file", "--stream", "--force")
DATA_SET = ("--data-option", "--resume", "--batch-size", "--limit", "--on-error")


def choose(argument: str | None, data: str | None, options: dict[str, Any]) -> bool:
    """Whether one input is explained, rather than a data set. Raises ``WrongUsage`` for both, for
    neither, and for options of the other one."""
    one = argument is not None or any(
        options[name] is not None for name in ("--text", "--text-file")
    )
    if one == (data is not None):
        fact = (
            "one input is given, and a data set with --data: give one of them"
            if one
            else "explain needs an input or a data set"
        )
        raise WrongUsage(
            f"{fact}\n  then  relprop explain cat.jpg --model "
            "timm:vit_base_patch16_224\n        relprop explain --data pictures "
            "--out run --model timm:vit_base_patch16_224"
        )
    other = DATA_SET if one else ONE_INPUT
    if given := [name for name in other if options[name] not in (None, False)]:
        raise WrongUsage(f"{', '.join(given)}: only {'with --data' if one else 'for one input'}")
    return one


def method_of(methods: Sequence[str], rules: str | None) -> tuple[str, dict[str, Any]]:
    """The one method with its options, ``rules`` among them. Raises ``WrongUsage`` for several, or
    for two rule sets."""
    if len(methods) > 1:
        raise WrongUsage(
            f"one input is explained by one method, not by {' and '.join(methods)}: "
            "relprop compare shows several"
        )
    name, options = known_method(methods[0] if methods else "transformer_attribution")
    if rules is not None and "rules" in options:
        raise WrongUsage(f"--rules {rules}, and rules={options['rules']} with --method: give one")
    return name, options if rules is None else options | {"rules": rules}


def known_method(text: str) -> tuple[str, dict[str, Any]]:
    """A method and its options from ``name:option=value,...``. Raises ``WrongUsage`` for a method
    or an option that does not exist."""
    from relprop.errors import OptionError
    from relprop.methods import method_named
    from relprop.runs.command import parse_method

    try:
        parsed = parse_method(text)
        name, options = (parsed, {}) if isinstance(parsed, str) else (parsed[0], dict(parsed[1]))
        method_named(name, level=None).checked({k: v for k, v in options.items() if k != "rules"})
    except OptionError as error:
        raise WrongUsage(str(error)) from None
    return name, options


def explain_one(
    argument: str | None,
    *,
    model: str,
    text: str | None = None,
    text_file: Path | None = None,
    targets: Sequence[str] = (),
    methods: Sequence[str] = (),
    rules: str | None = None,
    outs: Sequence[Path] = (),
    force: bool = False,
    stream: str | None = None,
    precision: str | None = None,
    max_length: int | None = None,
    json_output: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Explain one picture or text for each target, write what is asked for, and print the rest.
    Raises ``RelpropError``."""
    check_outs(outs, ENDINGS, force=force)
    with Steps(3 + len(outs)) as steps:
        steps.next("loading PyTorch, reading the input")
        method, options = method_of(methods, rules)
        given = read_given(argument, text, text_file)
        assert given is not None  # choose
        from relprop.api.explain import explain_many
        from relprop.commands.showing import json_of, on_terminal, page_writer, picture_writer
        from relprop.commands.subject import open_subject
        from relprop.explanation import join

        steps.next("opening the model")
        subject = open_subject(
            model, given, max_length=max_length, trust_remote_code=trust_remote_code
        )
        wanted = [subject.target(t) for t in targets or ("predicted",)]
        steps.next("explaining")
        keep = (
            ("blocks", "matrix") if any(out.suffix.lower() == ".html" for out in outs) else ()
        )  # what a page has to show
        found = _explained(
            explain_many, subject, wanted, keep, method=method, precision=precision, **options
        )
        found = found if stream is None else [e[stream] for e in found]
        whole = join(found)
        writers: dict[str, Writer] = {
            ".safetensors": whole.save,
            ".json": lambda path: path.write_text(as_json(json_of(whole)) + "\n", encoding="utf-8"),
        }
        for ending in {out.suffix.lower() for out in outs} & {
            ".png",
            ".html",
        }:  # each may refuse, before anything is written
            writers[ending] = (
                picture_writer(found, subject) if ending == ".png" else page_writer(found, subject)
            )
        for out in outs:
            steps.next(f"writing {out.name}")
            write([out], writers)
    if json_output:
        tell_json(json_of(whole))
    elif outs:
        tell("\n".join(f"written: {out}" for out in outs))
    else:
        tell(on_terminal(found))


def _explained(
    explain_many: Any, subject: Any, targets: Sequence[Any], keep: tuple[str, ...], **options: Any
) -> list[Any]:
    """The explanations, with as much of ``keep`` as the method has: not every one multiplies
    matrices, or looks at attention."""
    from relprop.errors import OptionError

    while True:
        try:
            return explain_many(
                subject.model,
                subject.inputs,
                targets,
                processor=subject.processor,
                keep=keep,
                **options,
            )  # type: ignore[no-any-return]
        except OptionError:
            if not keep:
                raise
            keep = keep[:-1]


def explain_all(
    data: str,
    *,
    outs: Sequence[Path],
    targets: Sequence[str] = (),
    methods: Sequence[str] = (),
    rules: str | None = None,
    json_output: bool = False,
    **options: Any,
) -> None:
    """Explain a data set into the run folder, ``relprop.runs.command.explain_data``, and print the
    summary. Raises ``RelpropError``."""
    if len(outs) != 1:
        raise WrongUsage("--data needs one run folder: --out run")
    if len(targets) > 1:
        raise WrongUsage("--data takes one --target: predicted or label")
    from relprop.runs import command, processes

    for method in methods:
        known_method(method)
    if rules is not None:
        methods = [
            f"{m}{',' if ':' in m else ':'}rules={rules}"
            for m in methods or ["transformer_attribution"]
        ]
    summary = command.explain_data(
        data=data,
        out=outs[0],
        methods=methods,
        target=targets[0] if targets else "predicted",
        **options,
    )
    tell_json(
        dataclasses.asdict(summary) | {"complete": summary.complete}
    ) if json_output else tell(summary)
    processes.leave()
