"""``relprop check``: whether a model is supported, which rule each operation takes, and where
relevance is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relprop.commands.explain import known_method
from relprop.commands.given import read_given
from relprop.commands.steps import Steps
from relprop.commands.telling import tell, tell_json
from relprop.errors import RelpropError

if TYPE_CHECKING:
    from relprop.interpreter.ledger import Ledger

WORST = 5


def check(
    argument: str | None,
    *,
    model: str,
    text: str | None = None,
    text_file: Path | None = None,
    method: str = "transformer_attribution",
    rules: str = "paper",
    precision: str | None = None,
    json_output: bool = False,
    trust_remote_code: bool = False,
) -> bool:
    """Print the report on a model, for one input or, without, for a random one of the shape it
    takes; whether ``method`` can explain it.

    Where relevance is lost is that input's: of random pixels and ids it says which operations lose
    any. Raises ``RelpropError``.
    """
    with Steps(4) as steps:
        steps.next("loading PyTorch, reading the input")
        method, _ = known_method(method)
        given = read_given(argument, text, text_file)
        from relprop.api.check import check as checked
        from relprop.commands.subject import open_subject, typical_subject

        steps.next("opening the model")
        subject = (
            typical_subject(model, trust_remote_code=trust_remote_code)
            if given is None
            else open_subject(model, given, trust_remote_code=trust_remote_code)
        )
        inputs = subject.tensors()
        steps.next("capturing the model")
        report = checked(subject.model, inputs, rules=rules, precision=precision)
        steps.next("explaining one input")
        ledger, why = _books(subject.model, inputs, rules, precision) if report.ok else (None, "")
    supported = method in report.methods
    books: dict[str, Any] = (
        {}
        if ledger is None
        else {
            "totals": {k: float(v.mean()) for k, v in ledger.totals().items()},
            "worst_residual": ledger.worst(),
            "places": losses(ledger),
        }
    )
    if json_output:
        tell_json(
            {
                **dataclasses.asdict(report),
                "ok": report.ok,
                "methods": report.methods,
                "method": method,
                "supported": supported,
                "ledger": books,
                "ledger_error": why,
            }
        )
        return supported
    tell(report)
    if ledger is not None:
        tell(f"\n{ledger}\n")
        tell(_where(books["places"]))
    elif why:
        tell(f"\n  relevance could not be followed for one input: {why}")
    if method != "transformer_attribution":
        tell(f"\n  {method} {'applies' if supported else 'does NOT apply'}")
    if given is None:
        tell(
            "\n  for a random input of the shape the model takes; relprop check INPUT "
            "--model ... takes yours"
        )
    return supported


def losses(ledger: Ledger) -> list[dict[str, Any]]:
    """The places where most relevance is lost, absorbed or left unread: shares of Σ|R| at the
    start, largest first."""
    started = float(ledger.started.abs().sum()) or 1.0
    found: list[dict[str, Any]] = []
    for account in ledger.accounts:
        amounts = [("lost", cause, v) for cause, v in account.lost.items()] + [
            ("absorbed", cause, v) for cause, v in account.absorbed.items()
        ]
        for kind, cause, amount in [*amounts, ("unread", "", account.unread)]:
            if share := float(amount.abs().sum()) / started:
                found.append(
                    {
                        "share": share,
                        "kind": kind,
                        "cause": cause,
                        "operation": account.op,
                        "rule": account.rule,
                        "path": account.path,
                        "node": account.node,
                    }
                )
    return sorted(found, key=lambda place: -place["share"])[:WORST]


def _where(places: list[dict[str, Any]]) -> str:
    """The places that keep more than a ten-thousandth of what started, in words."""
    lines = [
        (
            f"    {p['share']:>6.2%}  {p['kind']:<8}  "
            f"{p['operation']}{', ' + p['cause'] if p['cause'] else ''}  at "
            f"{p['path'] or 'the model itself'}"
        )
        for p in places
        if p["share"] > 1e-4
    ]
    return "\n".join(
        [
            (
                "  where relevance stays, in shares of what started (unread: handed to where "
                "nothing is read any more)"
            ),
            *(lines or ["    nowhere above 0.01%"]),
        ]
    )


def _books(model: Any, inputs: Any, rules: str, precision: str | None) -> tuple[Ledger | None, str]:
    """The ledger of one explanation, or why there is none."""
    from relprop.api.explain import explain

    try:
        return explain(model, inputs, rules=rules, precision=precision).ledger, ""
    except RelpropError as error:
        return None, str(error)
