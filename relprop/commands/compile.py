"""``relprop compile``: an explainer of a model as one file."""

from __future__ import annotations

from dataclasses import replace

from relprop.commands import options
from relprop.commands.arguments import Answer, Args, options_of_classes
from relprop.commands.explain import asked, method_of
from relprop.commands.printing import WrongUsage, echo, echo_json
from relprop.commands.writing import write

ENDINGS = (".safetensors", ".pt2")


@options_of_classes("targets", "methods", "outs", "stream", "memory")
def compile(
    args: Args,
    answer: Answer,
    method: options.OneMethod = None,
    out: options.CompiledOut = None,
    ahead_of_time: options.AheadOfTime = False,
) -> None:
    """One method of one model as a file that PyTorch runs without either, for inputs of INPUT's
    shape and batches of any size."""
    if out is None:
        raise WrongUsage("compile writes one file: --out explainer.pt2")
    answer = replace(answer, methods=[] if method is None else [method], outs=[out])
    example = "relprop compile cat.jpg --model timm:vit_base_patch16_224 --out cat.pt2"
    fact = "compile needs an input of the shape that is to be read"
    missing = WrongUsage(f"{fact}: {example}")
    with asked(args, answer, ENDINGS, method_of, missing) as (subject, (name, own), steps):
        from relprop.api.compile import compile as make

        steps.next("recording the program")
        made = make(
            subject.model,
            subject.inputs,
            method=name,
            ledger=bool(answer.ledger),
            precision=args.model.precision,
            processor=subject.processor,
            **own,
        )
        writers = dict.fromkeys(ENDINGS, lambda path: made.save(path, ahead_of_time=ahead_of_time))
        write(answer.outs, writers, steps)
    if answer.json_output:
        echo_json({"written": str(out), "reads": str(made.shape), "method": name})
    else:
        echo(f"{name} for {made.shape}\nwritten: {out}")
