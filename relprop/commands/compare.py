"""``relprop compare``: several methods on one input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.commands.explain import known_method
from relprop.commands.given import read_given
from relprop.commands.steps import Steps
from relprop.commands.telling import WrongUsage, as_json, tell, tell_json
from relprop.commands.writing import Writer, check_outs, write
from relprop.errors import OptionError, message

if TYPE_CHECKING:
    from relprop.api.compare import Comparison


def compare(
    argument: str | None,
    *,
    model: str,
    text: str | None = None,
    text_file: Path | None = None,
    target: str = "predicted",
    methods: Sequence[str] = (),
    outs: Sequence[Path] = (),
    force: bool = False,
    stream: str | None = None,
    precision: str | None = None,
    max_length: int | None = None,
    json_output: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Explain one input by several methods; print how alike they rank its parts, and write the maps
    side by side. Raises ``RelpropError``."""
    check_outs(outs, (".png", ".json"), force=force)
    with Steps(3 + len(outs)) as steps:
        steps.next("loading PyTorch, reading the input")
        chosen = [known_method(method) for method in methods]
        given = read_given(argument, text, text_file)
        if given is None:
            raise WrongUsage(
                "compare needs an input: relprop compare cat.jpg --model timm:vit_base_patch16_224"
            )
        from relprop.api.compare import compare as compared
        from relprop.commands.subject import open_subject

        steps.next("opening the model")
        subject = open_subject(
            model, given, max_length=max_length, trust_remote_code=trust_remote_code
        )
        wanted = subject.target(target)
        steps.next("explaining by each method")
        found = compared(
            subject.model,
            subject.inputs,
            chosen or None,
            wanted,
            precision=precision,
            processor=subject.processor,
        )

        def draw(path: Path) -> None:
            shown = [e if stream is None else e[stream] for e in found.explanations.values()]
            maps = all(e.grid is not None and len(e.grid) == 2 for e in shown)
            found.plot(subject.own_image() if maps else None, stream=stream).savefig(path, dpi=110)

        streams = next(iter(found.explanations.values())).streams
        if (
            len(streams) > 1
            and stream is None
            and any(out.suffix.lower() == ".png" for out in outs)
        ):
            raise OptionError(
                message(
                    "several inputs are explained, and a picture is of one",
                    then=[f"--stream {name}" for name in streams],
                )
            )
        writers: dict[str, Writer] = {
            ".png": draw,
            ".json": lambda path: path.write_text(as_json(json_of(found)) + "\n", encoding="utf-8"),
        }
        for out in outs:
            steps.next(f"writing {out.name}")
            write([out], writers)
    tell_json(json_of(found)) if json_output else tell(
        "\n".join([str(found), *_left_out(found), *(f"written: {out}" for out in outs)])
    )


def _left_out(comparison: Comparison) -> list[str]:
    """The methods that score other parts of an input than the first one does, which no rank
    correlation can be with."""
    return [
        (
            f"{label} scores {len(e[stream].scores[0])} parts of {stream!r}, so that its "
            "ranks are not compared"
        )
        for stream in next(iter(comparison.explanations.values())).streams
        for label, e in comparison.explanations.items()
        if stream in e.streams and label not in comparison.rank_correlations(stream)[0]
    ]


def json_of(comparison: Comparison) -> dict[str, Any]:
    """Explanations by method, rank correlations by input, and what is not defined for this
    model."""
    from relprop.commands.showing import json_of as one

    correlations = {}
    for name in next(iter(comparison.explanations.values())).streams:
        labels, table = comparison.rank_correlations(name)
        correlations[name] = {"methods": labels, "rho": table.tolist()}
    return {
        "explanations": {k: one(e) for k, e in comparison.explanations.items()},
        "rank_correlations": correlations,
        "refused": dict(comparison.refused),
    }
