"""``relprop generate``: a model goes on after a prompt, and every token it generates is
explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relprop.commands.arguments import Answer, Args
from relprop.commands.explain import method_of
from relprop.commands.one_input import read_input
from relprop.commands.printing import WrongUsage, command_line, echo, echo_json
from relprop.commands.steps import Steps
from relprop.commands.writing import Writer, check_outs, json_writer, write

if TYPE_CHECKING:
    from relprop.explanation import Generation

ENDINGS = (".png", ".html", ".safetensors", ".json")
EXAMPLE = 'relprop generate "Anna likes amber kites. Anna likes" --model demo:lookups'


def generate(args: Args, answer: Answer, max_new_tokens: int, seed: int | None) -> None:
    """Explain what the model generates after the prompt: greedily, or sampled from ``seed``. Raises
    ``WrongUsage`` without a prompt; ``RelpropError``."""
    check_outs(answer.outs, ENDINGS, force=answer.force)
    with Steps(3 + len(answer.outs)) as steps:
        steps.next("loading PyTorch, reading the prompt")
        method, options = method_of(answer.methods, answer.rules)
        given = read_input(args)
        if given is None:
            raise WrongUsage("generate needs a prompt", then=[EXAMPLE])
        from relprop.api.generation import explain_generation
        from relprop.commands.subject import open_subject

        steps.next("opening the model")
        subject = open_subject(args.model, given)
        steps.next("generating and explaining")
        how: dict[str, Any] = {"precision": args.model.precision, "memory": args.model.bytes}
        if seed is not None:
            how |= {"seed": seed, "generate": {"do_sample": True}}
        found = explain_generation(
            subject.model,
            subject.inputs,
            max_new_tokens=max_new_tokens,
            processor=subject.processor,
            method=method,
            **how,
            **options,
        )
        shown = found if args.stream is None else found[args.stream]
        writers = _writers(shown)
        if args.stream is None:  # with what else might have been said, and how far to trust it
            from relprop.cards.card import answered

            call = {"method": method, **options, "precision": args.model.precision}
            writers[".html"] = lambda path: answered(
                subject.model, subject.inputs, found, subject.processor, call, command_line()
            ).to_html(path)
        write(answer.outs, writers, steps)
    _echo(shown, answer)


def _writers(found: Generation) -> dict[str, Writer]:
    """What writes a file of each ending."""
    from relprop.views.generations import contents

    return {
        ".safetensors": found.save,
        ".html": found.to_html,
        ".json": json_writer(lambda: contents(found)),
        ".png": lambda path: found.plot().savefig(path, dpi=110),
    }


def _echo(found: Generation, answer: Answer) -> None:
    from relprop.views.generations import contents, terminal

    if answer.json_output:
        echo_json(contents(found))
    elif answer.outs:
        echo("\n".join(f"written: {out}" for out in answer.outs))
    else:
        echo(terminal(found, 0, k=5))
