"""``relprop compare``: several methods on one input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.commands.arguments import Answer, Args, ModelArgs
from relprop.commands.explain import known_method
from relprop.commands.one_input import required_input
from relprop.commands.printing import echo, echo_json
from relprop.commands.showing import json_of as explanation_as_json
from relprop.commands.showing import page_writer, refuse_several
from relprop.commands.steps import Steps
from relprop.commands.writing import check_outs, json_writer, write

if TYPE_CHECKING:
    from relprop.api.comparison import Comparison
    from relprop.commands.subject import Subject
    from relprop.explanation import Explanation


def compare(args: Args, answer: Answer) -> None:
    """Explain one input by several methods; print how alike they rank its parts, and write the maps
    side by side. Raises ``RelpropError``."""
    outs = answer.outs
    check_outs(outs, (".png", ".html", ".json"), force=answer.force)
    with Steps(3 + len(outs)) as steps:
        steps.next("loading PyTorch, reading the input")
        chosen = [_group_or_method(method) for method in answer.methods]
        example = "relprop compare cat.jpg --model timm:vit_base_patch16_224"
        given = required_input(args, "compare needs an input", example)
        from relprop.commands.subject import open_subject

        steps.next("opening the model")
        subject = open_subject(args.model, given)
        wanted = subject.target(answer.targets[0])
        steps.next("explaining by each method")
        found = _compared(subject, chosen, wanted, args.model, answer.ledger)
        if args.stream is None and any(out.suffix.lower() == ".png" for out in outs):
            refuse_several(next(iter(found.explanations.values())))
        writers = {
            ".png": lambda path: _draw(found, subject, args.stream, path),
            ".html": page_writer(_shown(found, args.stream), subject),
            ".json": json_writer(lambda: json_of(found)),
        }
        write(outs, writers, steps)
    if answer.json_output:
        echo_json(json_of(found))
    else:
        ledgers = _ledgers(found) if answer.ledger else []
        written = [f"written: {out}" for out in outs]
        echo("\n".join([str(found), *ledgers, *written]))


def _ledgers(comparison: Comparison) -> list[str]:
    """The books of every method that keeps some."""
    found = comparison.explanations.items()
    return [f"\n{label}\n{e.ledger}" for label, e in found if e.ledger is not None]


def _group_or_method(text: str) -> str | tuple[str, dict[str, Any]]:
    from relprop.methods import GROUPS

    return text if text in GROUPS else known_method(text)


def _compared(
    subject: Subject, methods: list[Any], target: Any, model: ModelArgs, ledger: bool | None
) -> Comparison:
    from relprop.api.compare import compare

    return compare(
        subject.model,
        subject.inputs,
        methods or None,
        target,
        precision=model.precision,
        memory=model.bytes,
        processor=subject.processor,
        ledger=ledger,
    )


def _draw(comparison: Comparison, subject: Subject, stream: str | None, path: Path) -> None:
    """The maps of all methods side by side, over the picture, or the model's own image where the
    picture's place is not known."""
    from relprop.views.overlay import laid

    shown = list(_shown(comparison, stream).values())
    maps = all(e.grid is not None and len(e.grid) == 2 for e in shown)
    kept = maps and laid(shown[0], 0, None)[1] is not None
    images = subject.own_images() if maps and not kept else None
    image = None if images is None else images[0]
    comparison.plot(image, stream=stream).savefig(path, dpi=110)


def _shown(comparison: Comparison, stream: str | None) -> dict[str, Explanation]:
    """Each method's explanation, of one explained input alone if it is named."""
    found = comparison.explanations.items()
    return {label: e if stream is None else e[stream] for label, e in found}


def json_of(comparison: Comparison) -> dict[str, Any]:
    """Explanations by method, rank correlations by input, and what is not defined for this
    model."""
    correlations = {}
    for name in next(iter(comparison.explanations.values())).streams:
        labels, table = comparison.rank_correlations(name)
        correlations[name] = {"methods": labels, "rho": table.tolist()}
    return {
        "explanations": {k: explanation_as_json(e) for k, e in comparison.explanations.items()},
        "rank_correlations": correlations,
        "refused": dict(comparison.refused),
    }
