"""``relprop compare``: several methods on one input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.commands import options
from relprop.commands.arguments import Answer, Args, options_of_classes
from relprop.commands.explain import asked, known_method
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.showing import json_of as explanation_as_json
from relprop.commands.showing import page_writer, refuse_several
from relprop.commands.writing import json_writer, write

if TYPE_CHECKING:
    from relprop.api.comparison import Comparison
    from relprop.commands.subject import Subject

ENDINGS = (".png", ".html", ".json")


@options_of_classes("targets", "rules", "outs")
def compare(
    args: Args,
    answer: Answer,
    target: options.Target = "predicted",
    out: options.ComparisonOut = [],  # noqa: B006
) -> None:
    """Explain one input by several methods (six that differ, if none is named): rank
    correlations, and the maps side by side."""
    answer = replace(answer, outs=out)
    example = "relprop compare cat.jpg --model timm:vit_base_patch16_224"
    missing = WrongUsage(f"compare needs an input: {example}")
    with asked(args, answer, ENDINGS, _methods, missing) as (subject, chosen, steps):
        from relprop.api.compare import compare as make
        from relprop.api.comparison import shown

        wanted = subject.target(target)
        steps.next("explaining by each method")
        found = make(
            subject.model,
            subject.inputs,
            chosen or None,
            wanted,
            precision=args.model.precision,
            memory=args.model.bytes,
            processor=subject.processor,
            ledger=answer.ledger,
        )
        if args.stream is None and any(path.suffix.lower() == ".png" for path in out):
            refuse_several(next(iter(found.explanations.values())))
        writers = {
            ".png": lambda path: _draw(found, subject, args.stream, path),
            ".html": page_writer(shown(found, args.stream), subject),
            ".json": json_writer(lambda: json_of(found)),
        }
        write(out, writers, steps)
    if answer.json_output:
        echo_json(json_of(found))
    else:
        each = found.explanations.items() if answer.ledger else ()
        ledgers = [f"\n{label}\n{e.ledger}" for label, e in each if e.ledger is not None]
        written = [f"written: {path}" for path in out]
        echo("\n".join([str(found), *ledgers, *written]))


def _methods(answer: Answer) -> list[str | tuple[str, dict[str, Any]]]:
    """The groups, and the methods with their options."""
    from relprop.methods import GROUPS

    return [text if text in GROUPS else known_method(text) for text in answer.methods]


def _draw(comparison: Comparison, subject: Subject, stream: str | None, path: Path) -> None:
    """The maps of all methods side by side, over the picture, or the model's own image where the
    picture's place is not known."""
    from relprop.api.comparison import shown
    from relprop.views.overlay import heatmap_and_image

    each = list(shown(comparison, stream).values())
    maps = all(e.grid is not None and len(e.grid) == 2 for e in each)
    kept = maps and heatmap_and_image(each[0], 0, None)[1] is not None
    images = subject.own_images() if maps and not kept else None
    image = None if images is None else images[0]
    comparison.plot(image, stream=stream).savefig(path, dpi=110)


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
