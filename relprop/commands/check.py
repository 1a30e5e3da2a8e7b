"""``relprop check``: whether a model is supported, which rule each operation takes, and where
relevance is lost. That is an input's own: of random pixels and ids it says which operations lose
any."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relprop.commands import options
from relprop.commands.arguments import Args, options_of_classes
from relprop.commands.explain import known_method
from relprop.commands.one_input import read_inputs
from relprop.commands.printing import echo, echo_json
from relprop.commands.steps import Steps
from relprop.errors import AmbiguityWarning, RelpropError

if TYPE_CHECKING:
    from relprop.api.check import Report
    from relprop.interpreter.accounts import Account
    from relprop.interpreter.ledger import Ledger

MOST_PLACES = 5
LEAST_SHARE = 1e-4  # of the relevance that started; less than this is not printed


@options_of_classes("stream", "memory", "max_length")
def check(
    args: Args,
    method: options.CheckedMethod = "transformer_attribution",
    rules: Annotated[str, typer.Option(help="The rule set, by name.")] = "paper",
    json_output: options.Json = False,
) -> None:
    """Is a model supported: each operation and its rule, where relevance is lost, and which methods
    apply. Without INPUT, for a random one."""
    with Steps(4) as steps:
        steps.next("loading PyTorch, reading the input")
        method, _ = known_method(method)
        given = read_inputs(args, several=False)
        from relprop.api.check import check as checked
        from relprop.commands.subject import open_subject, typical_subject

        steps.next("opening the model")
        model, precision = args.model, args.model.precision
        subject = open_subject(model, *given) if given else typical_subject(model)
        inputs = subject.tensors()
        steps.next("capturing the model")
        report = checked(subject.model, inputs, rules=rules, precision=precision)
        steps.next("explaining one input")
        ledger, why = None, ""
        if report.ok:
            from relprop.api.explain import explain

            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", AmbiguityWarning)  # whichever class it is
                    found = explain(subject.model, inputs, rules=rules, precision=precision)
                ledger = found.ledger
            except RelpropError as error:
                why = str(error)
    if json_output:
        echo_json(_as_json(report, method, ledger, why))
    else:
        _echo(report, method, ledger, why)
        if not given:
            yours = "relprop check INPUT --model ... takes yours"
            echo(f"\n  for a random input of the shape the model takes; {yours}")
    if method not in report.methods:
        raise typer.Exit(1)


def _as_json(report: Report, method: str, ledger: Ledger | None, why: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if ledger is not None:
        totals = {kind: float(amount.mean()) for kind, amount in ledger.totals().items()}
        found = {"totals": totals, "worst_residual": ledger.worst(), "places": losses(ledger)}
    return {
        **dataclasses.asdict(report),
        "ok": report.ok,
        "methods": report.methods,
        "method": method,
        "supported": method in report.methods,
        "ledger": found,
        "ledger_error": why,
    }


def _echo(report: Report, method: str, ledger: Ledger | None, why: str) -> None:
    echo(report)
    if ledger is not None:
        echo(f"\n{ledger}\n")
        echo(_where(losses(ledger)))
    elif why:
        echo(f"\n  relevance could not be followed for one input: {why}")
    if method != "transformer_attribution":
        echo(f"\n  {method} {'applies' if method in report.methods else 'does NOT apply'}")


def losses(ledger: Ledger) -> list[dict[str, Any]]:
    """The places where most relevance is lost, absorbed or left unread: shares of Σ|R| at the
    start, largest first."""
    started = float(ledger.started.abs().sum()) or 1.0
    found: list[dict[str, Any]] = [
        {
            "share": amount / started,
            "kind": kind,
            "cause": cause,
            "operation": account.op,
            "rule": account.rule,
            "path": account.path,
            "node": account.node,
        }
        for account in ledger.accounts
        for kind, cause, amount in _amounts(account)
        if amount / started
    ]
    return sorted(found, key=lambda place: -place["share"])[:MOST_PLACES]


def _amounts(account: Account) -> list[tuple[str, str, float]]:
    """What does not travel on from one operation: what became of it, by which cause, how much."""
    kinds = [
        *(("lost", cause, amount) for cause, amount in account.lost.items()),
        *(("absorbed", cause, amount) for cause, amount in account.absorbed.items()),
        ("unread", "", account.unread),
    ]
    return [(kind, cause, float(amount.abs().sum())) for kind, cause, amount in kinds]


def _where(places: list[dict[str, Any]]) -> str:
    """The places that matter, in words."""
    unread = "unread: handed to where nothing is read any more"
    lines = [f"  where relevance stays, in shares of what started ({unread})"]
    for place in places:
        if place["share"] > LEAST_SHARE:
            what = ", ".join(filter(None, (place["operation"], place["cause"])))
            at = place["path"] or "the model itself"
            lines.append(f"    {place['share']:>6.2%}  {place['kind']:<8}  {what}  at {at}")
    return "\n".join(lines if lines[1:] else [*lines, "    nowhere above 0.01%"])
