"""``relprop card``: one page about one picture or text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from relprop.commands import options
from relprop.commands.arguments import Answer, Args, options_of_classes
from relprop.commands.explain import asked, method_of
from relprop.commands.printing import WrongUsage, command_line, echo, echo_json
from relprop.commands.writing import write

if TYPE_CHECKING:
    from relprop.cards.base import Card

ENDINGS = (".html", ".png")
EXAMPLE = "relprop card cat.jpg --model timm:vit_base_patch16_224 --out cat.html"


@options_of_classes("targets", "outs", "stream", "memory", "ledger")
def card(
    args: Args,
    answer: Answer,
    out: options.CardOut,
    target: options.Target = "predicted",
    max_new_tokens: options.NewTokens = 20,
    heads: options.Heads = False,
    checks: options.Checks = True,
) -> None:
    """One page about one picture or text: what the answer rests on, in words and outlined, what
    the model nearly said, and what it says when that part is covered."""
    if heads and answer.methods:
        raise WrongUsage("--heads is of the default method: leave --method out")
    answer = replace(answer, outs=out)
    missing = WrongUsage(f"card needs a picture or a text: {EXAMPLE}")
    with asked(args, answer, ENDINGS, method_of, missing) as (subject, (method, own), steps):
        from relprop.cards.card import card as make

        steps.next("explaining")
        how: dict[str, Any] = {"processor": subject.processor, "checks": checks}
        how |= {"precision": args.model.precision, "made": command_line(), **own}
        wanted = subject.target(target)
        if heads:
            from relprop.cards.heads import head_view

            found: Card = head_view(subject.model, subject.inputs, wanted, **how)
        else:
            how |= {"method": method, "max_new_tokens": max_new_tokens}
            found = make(subject.model, subject.inputs, wanted, **how)
        write(out, {".html": found.to_html, ".png": found.to_png}, steps)
    if answer.json_output:
        echo_json({"title": found.title, "said": found.said, "made": found.made})
        return
    echo(f"{found.title}\n{found.said}\n" + "\n".join(f"written: {path}" for path in out))
