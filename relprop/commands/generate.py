"""``relprop generate``: a model goes on after a prompt, and every token it generates is
explained."""

from __future__ import annotations

from typing import Any

from relprop.commands import options
from relprop.commands.arguments import Answer, Args, options_of_classes
from relprop.commands.explain import asked, method_of
from relprop.commands.printing import WrongUsage, command_line, echo, echo_json
from relprop.commands.writing import Writer, json_writer, write

ENDINGS = (".png", ".html", ".safetensors", ".json")
EXAMPLE = 'relprop generate "Anna likes amber kites. Anna likes" --model demo:lookups'


@options_of_classes("targets", "ledger")
def generate(
    args: Args,
    answer: Answer,
    max_new_tokens: options.NewTokens = 20,
    seed: options.Seed = None,
) -> None:
    """Let a model go on after a prompt (INPUT), and explain every token that it generates."""
    missing = WrongUsage("generate needs a prompt", then=[EXAMPLE])
    with asked(args, answer, ENDINGS, method_of, missing) as (subject, (method, own), steps):
        from relprop.api.generation import explain_generation
        from relprop.views.generations import contents, terminal

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
            **own,
        )
        shown = found if args.stream is None else found[args.stream]
        writers: dict[str, Writer] = {
            ".safetensors": shown.save,
            ".html": shown.to_html,
            ".json": json_writer(lambda: contents(shown)),
            ".png": lambda path: shown.plot().savefig(path, dpi=110),
        }
        if args.stream is None:  # with what else might have been said, and how far to trust it
            from relprop.cards.card import answered

            call = {"method": method, **own, "precision": args.model.precision}
            writers[".html"] = lambda path: answered(
                subject.model, subject.inputs, found, subject.processor, call, command_line()
            ).to_html(path)
        write(answer.outs, writers, steps)
    if answer.json_output:
        echo_json(contents(shown))
    elif answer.outs:
        echo("\n".join(f"written: {out}" for out in answer.outs))
    else:
        echo(terminal(shown, 0, k=5))
