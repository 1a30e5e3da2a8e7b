"""``relprop explain INPUT`` for one input, and ``relprop explain --data`` for a data set, whichever
the command line names: ``WrongUsage`` for both, for neither, and for options of the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from relprop.commands.arguments import Answer, Args, DataArgs, options_of_classes
from relprop.commands.one_input import read_inputs
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.showing import json_of, page_writer, picture_writer
from relprop.commands.steps import Steps
from relprop.commands.writing import Writer, check_outs, json_writer, write
from relprop.errors import OptionError, RollUpError
from relprop.views.escape import printable

if TYPE_CHECKING:
    from relprop.commands.subject import Subject
    from relprop.explanation import Explanation

T = TypeVar("T")
EXAMPLES = (
    "relprop explain cat.jpg --model timm:vit_base_patch16_224",
    "relprop explain --data pictures --out run --model timm:vit_base_patch16_224",
)
ENDINGS = (".png", ".html", ".safetensors", ".json")
INDEX = (".html", ".png")
ONE_INPUT = ("--text", "--text-file", "--stream", "--force", "--ledger")
DATA_SET = ("--data-option", "--resume", "--batch-size", "--limit", "--on-error", "--no-checks")


@options_of_classes()
def explain(args: Args, data: DataArgs, answer: Answer) -> None:
    """Explain pictures or texts; or, with --data, every sample of a data set, into a run folder
    (in several processes under accelerate launch -m relprop explain)."""
    one = bool(args.inputs) or args.text is not None or args.text_file is not None
    if one == bool(data.data):
        fact = "explain needs an input or a data set"
        if one:
            fact = "an input is given, and a data set with --data: give one of them"
        raise WrongUsage(fact, then=EXAMPLES)
    if one:
        on_error = data.on_error != "stop"
        how = (data.data_options or None, data.resume, data.batch_size, data.limit, on_error)
        _refuse(DATA_SET, (*how, data.no_checks), "with --data")
        _explain_named(args, answer)
    else:
        ledger = answer.ledger is not None  # --no-ledger, too
        given = (args.text, args.text_file, args.stream, answer.force, ledger)
        _refuse(ONE_INPUT, given, "for inputs that are named")
        _explain_all(args, data, answer)


def _refuse(names: Sequence[str], values: Sequence[object], where: str) -> None:
    """Refuse options that mean nothing here."""
    given = [n for n, v in zip(names, values, strict=True) if v is not None and v is not False]
    if given:
        raise WrongUsage(f"{', '.join(given)}: only {where}")


@contextmanager
def asked(
    args: Args,
    answer: Answer,
    endings: Sequence[str],
    chosen: Callable[[Answer], T],
    missing: WrongUsage | None = None,
) -> Iterator[tuple[Subject, T, Steps]]:
    """The model with what it is to read, what ``chosen`` says of the methods, and the steps, of
    which writing each file is one. What cannot be written, or is not known, is refused before the
    model is opened; ``missing`` is raised where nothing is to be read, and then one input is."""
    check_outs(answer.outs, endings, force=answer.force)
    with Steps(3 + len(answer.outs)) as steps:
        steps.next("loading PyTorch, reading the input")
        methods = chosen(answer)
        given = read_inputs(args, several=missing is None)
        if missing is not None and not given:
            raise missing
        from relprop.commands.subject import open_subject

        steps.next("opening the model")
        subject = open_subject(args.model, *given)
        yield subject, methods, steps


def method_of(answer: Answer) -> tuple[str, dict[str, Any]]:
    """The one method with its options, ``rules`` among them. Raises ``WrongUsage`` for several, or
    for two rule sets."""
    methods, rules = answer.methods, answer.rules
    if len(methods) > 1:
        fact = f"one input is explained by one method, not by {' and '.join(methods)}"
        raise WrongUsage(f"{fact}: relprop compare shows several")
    name, options = known_method((*methods, "transformer_attribution")[0], recommended=True)
    if rules is not None and "rules" in options:
        raise WrongUsage(f"--rules {rules}, and rules={options['rules']} with --method: give one")
    return name, options if rules is None else options | {"rules": rules}


def known_method(text: str, recommended: bool = False) -> tuple[str, dict[str, Any]]:
    """A method and its options from ``name:option=value,...``; ``recommended``: also by that word.
    Raises ``WrongUsage`` for a method or an option that does not exist."""
    from relprop.methods import method_named
    from relprop.runner.method import RECOMMENDED
    from relprop.runs.command import parse_method

    try:
        name, options = parse_method(text)
        own = {k: v for k, v in options.items() if k != "rules"}
        if not (recommended and name == RECOMMENDED):
            method_named(name, level=None).checked(own)
    except OptionError as error:
        raise WrongUsage(str(error)) from None
    return name, options


def _explain_named(args: Args, answer: Answer) -> None:
    """Explain pictures or texts for each target, write what is asked for, and print the rest."""
    with asked(args, answer, ENDINGS, method_of) as (subject, (method, options), steps):
        targets = [subject.target(target) for target in answer.targets or ("predicted",)]
        steps.next("explaining")
        how = args.model
        options |= {"method": method, "precision": how.precision, "memory": how.bytes}
        options |= {"ledger": answer.ledger, "processor": subject.processor}
        endings = {out.suffix.lower() for out in answer.outs}
        keep = _shown_by_a_page(subject) if ".html" in endings else ()
        found = _explained(subject, targets, keep, **options)
        found = found if args.stream is None else [e[args.stream] for e in found]
        write(answer.outs, _writers(found, subject, endings), steps)
    _echo(found, answer, subject.names)


def _writers(found: list[Explanation], subject: Subject, endings: set[str]) -> dict[str, Writer]:
    """What writes a file of each ending. A picture or a page may be refused, which happens here,
    before anything is written."""
    from relprop.explanation import join

    whole = join(found)
    writers: dict[str, Writer] = {
        ".safetensors": whole.save,
        ".json": json_writer(lambda: json_of(whole)),
    }
    if ".png" in endings:
        writers[".png"] = picture_writer(found, subject)
    if ".html" in endings:
        writers[".html"] = page_writer(found, subject)
    return writers


def _echo(found: list[Explanation], answer: Answer, names: tuple[str, ...]) -> None:
    """Print what was found, all targets of each input together."""
    from relprop.explanation import join

    if answer.json_output:
        echo_json(json_of(join(found)))
        return
    shown = []
    for i, name in enumerate(() if answer.outs else names):
        maps = [f"{e.terminal(i)}\n{e.summary(i)}" for e in found]
        shown += maps if len(names) == 1 else [f"{printable(name)}:", *maps]
    ledgers = [printable(f"{e.ledger}") for e in found if e.ledger and answer.ledger]
    written = printable("\n".join(f"written: {out}" for out in answer.outs))
    echo("\n\n".join([*shown, *ledgers, *filter(None, [written])]), painted=True)


def _shown_by_a_page(subject: Subject) -> tuple[str, ...]:
    """What a page shows beside the scores: the maps, and C unless it has too many positions."""
    from relprop.reporting.pooling import shows_matrix

    return ("blocks", "matrix") if shows_matrix(subject.words()) else ("blocks",)


def _explained(
    subject: Subject, targets: Sequence[Any], keep: tuple[str, ...], **options: Any
) -> list[Explanation]:
    """The explanations, with as much of ``keep`` as there is: not every method multiplies matrices,
    or looks at attention, and not every model has the same tokens in all of its blocks."""
    from relprop.api.explain import explain_many

    while True:
        try:
            return explain_many(subject.model, subject.inputs, targets, keep=keep, **options)
        except (OptionError, RollUpError):
            if not keep:
                raise
            keep = keep[:-1]


def _explain_all(args: Args, data: DataArgs, answer: Answer) -> None:
    """Explain a data set into the run folder, which gets a page and a model card."""
    pages = [out for out in answer.outs if out.suffix.lower() in INDEX]
    folders = [out for out in answer.outs if out not in pages]
    if len(folders) != 1:
        raise WrongUsage("--data needs one run folder: --out run")
    if len(answer.targets) > 1:
        raise WrongUsage("--data takes one --target: predicted or label")
    check_outs(pages, INDEX, force=data.resume)
    from relprop.commands.data_sets import explain_all

    answer = replace(answer, methods=_methods_with_rules(answer))
    explain_all(args.model, data, answer, folders[0], pages)


def _methods_with_rules(answer: Answer) -> list[str]:
    """The methods as they are written on the command line, ``--rules`` among their options."""
    for method in answer.methods:
        known_method(method)
    if answer.rules is None:
        return answer.methods
    methods = answer.methods or ["transformer_attribution"]
    return [f"{m}{',' if ':' in m else ':'}rules={answer.rules}" for m in methods]
