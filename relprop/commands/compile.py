"""``relprop compile``: an explainer of a model as one file."""

from __future__ import annotations

from relprop.commands.arguments import Answer, Args
from relprop.commands.explain import method_of
from relprop.commands.one_input import required_input
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.steps import Steps
from relprop.commands.writing import check_outs, write

ENDINGS = (".safetensors", ".pt2")


def compile_model(args: Args, answer: Answer, *, ahead_of_time: bool) -> None:
    """Make a flat program of the model for inputs like the one given, and write it. Raises
    ``RelpropError``."""
    if len(answer.outs) != 1:
        raise WrongUsage("compile writes one file: --out explainer.pt2")
    check_outs(answer.outs, ENDINGS, force=answer.force)
    with Steps(4) as steps:
        steps.next("loading PyTorch, reading the input")
        method, options = method_of(answer.methods, answer.rules)
        example = "relprop compile cat.jpg --model timm:vit_base_patch16_224 --out cat.pt2"
        fact = "compile needs an input of the shape that is to be read"
        given = required_input(args, fact, example)
        from relprop.api.compile import compile
        from relprop.commands.subject import open_subject

        steps.next("opening the model")
        subject = open_subject(args.model, given)
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
