"""``relprop compile``: an explainer of a model as one file."""

from __future__ import annotations

from relprop.commands.arguments import Answer, Args
from relprop.commands.explain import asked, method_of
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.writing import write

ENDINGS = (".safetensors", ".pt2")


def compile_model(args: Args, answer: Answer, *, ahead_of_time: bool) -> None:
    """Make a flat program of the model for inputs like the one given, and write it. Raises
    ``RelpropError``."""
    if len(answer.outs) != 1:
        raise WrongUsage("compile writes one file: --out explainer.pt2")
    example = "relprop compile cat.jpg --model timm:vit_base_patch16_224 --out cat.pt2"
    fact = "compile needs an input of the shape that is to be read"
    missing = WrongUsage(f"{fact}: {example}")
    with asked(args, answer, ENDINGS, method_of, missing) as (subject, (method, options), steps):
        from relprop.api.compile import compile

        steps.next("recording the program")
        made = compile(
            subject.model,
            subject.inputs,
            method=method,
            ledger=bool(answer.ledger),
            precision=args.model.precision,
            processor=subject.processor,
            **options,
        )
        writers = dict.fromkeys(ENDINGS, lambda path: made.save(path, ahead_of_time=ahead_of_time))
        write(answer.outs, writers, steps)
    (out,) = answer.outs
    if answer.json_output:
        echo_json({"written": str(out), "reads": str(made.shape), "method": method})
    else:
        echo(f"{method} for {made.shape}\nwritten: {out}")
