"""``relprop card``: one page about one picture or text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relprop.commands.arguments import Answer, Args
from relprop.commands.explain import asked, method_of
from relprop.commands.printing import WrongUsage, command_line, echo, echo_json
from relprop.commands.writing import write

if TYPE_CHECKING:
    from relprop.cards.base import Card

ENDINGS = (".html", ".png")
EXAMPLE = "relprop card cat.jpg --model timm:vit_base_patch16_224 --out cat.html"


def card(args: Args, answer: Answer, max_new_tokens: int, *, heads: bool, checks: bool) -> None:
    """Make a card, or the view of a model's heads, and write it. Raises ``WrongUsage`` without an
    input; ``RelpropError``."""
    if heads and answer.methods:
        raise WrongUsage("--heads is of the default method: leave --method out")
    missing = WrongUsage(f"card needs a picture or a text: {EXAMPLE}")
    with asked(args, answer, ENDINGS, method_of, missing) as (subject, (method, options), steps):
        from relprop.cards.card import card as make

        steps.next("explaining")
        how: dict[str, Any] = {"processor": subject.processor, "checks": checks}
        how |= {"precision": args.model.precision, "made": command_line(), **options}
        target = subject.target(answer.targets[0])
        if heads:
            from relprop.cards.heads import head_view

            found: Card = head_view(subject.model, subject.inputs, target, **how)
        else:
            how |= {"method": method, "max_new_tokens": max_new_tokens}
            found = make(subject.model, subject.inputs, target, **how)
        write(answer.outs, {".html": found.to_html, ".png": found.to_png}, steps)
    if answer.json_output:
        echo_json({"title": found.title, "said": found.said, "made": found.made})
        return
    echo(f"{found.title}\n{found.said}\n" + "\n".join(f"written: {o}" for o in answer.outs))
