"""The ledger of one sample, summed up by the parts of the model: its blocks and its top modules.

An operation has an account of its own; a person looks at a dozen parts, not at a thousand accounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relprop.interpreter.accounts import Account
from relprop.interpreter.ledger import Ledger

KINDS = ("absorbed", "lost", "unread")
SMALL = 0.002  # shares of Σ|R| at the start below which a part is drawn without a number
BETWEEN = "\0"  # begins the key of operations between parts; no module's path does


@dataclass(frozen=True)
class Stage:
    """The accounts of one part of the model, for one sample: the relevance that ended there, by
    kind, and the relevance that entered each of its own modules, by name."""

    name: str
    absorbed: float
    lost: float
    unread: float
    residual: float
    entered: dict[str, float]

    @property
    def left(self) -> float:
        """How much of the relevance on its way ends here."""
        return self.absorbed + self.lost + self.unread + self.residual


def stages(ledger: Ledger, sample: int) -> list[Stage]:
    """The parts of the model in the order relevance comes to them: its top modules, and each entry
    of a list of blocks by itself.

    Operations between the parts (a pick of the class token, an added position embedding) are a
    stage of their own where something ends there. What is left after all stages is what the
    explained inputs received: started − Σ ``Stage.left`` = Σ ``Ledger.reached``.
    """
    start = abs(float(ledger.started[sample])) or 1.0
    found: list[Stage] = []
    skipped = 0.0  # what ended in stages that are not shown, which the next one has as its residual
    for group, accounts in _grouped(ledger.accounts).items():
        name = "" if group.startswith(BETWEEN) else group
        stage = Stage(name, **ends(accounts, sample), entered=_entered(name, accounts, sample))
        if stage.name or max(abs(getattr(stage, kind)) for kind in KINDS) >= SMALL * start:
            named = stage.name or _named_by_what_ends(accounts, sample)
            found.append(replace(stage, name=named, residual=stage.residual + skipped))
            skipped = 0.0
        else:
            skipped += stage.left
    if found and skipped:
        found[-1] = replace(found[-1], residual=found[-1].residual + skipped)
    return found


def _grouped(accounts: Sequence[Account]) -> dict[str, list[Account]]:
    """Accounts by the part they belong to; those between two parts by a key that begins with
    ``BETWEEN``."""
    lists = {a.path.split(".")[0] for a in accounts if any(map(str.isdigit, a.path.split(".")))}
    groups: dict[str, list[Account]] = {}
    gaps = 0
    for account in accounts:
        name = part_of(account.path, lists)
        if name == "" and (not groups or not next(reversed(groups)).startswith(BETWEEN)):
            gaps += 1
        groups.setdefault(name or f"{BETWEEN}{gaps}", []).append(account)
    return groups


def part_of(path: str, lists: set[str]) -> str:
    """The module path up to its first number (``encoder.layer.3``), else its first name, or its
    first two where that holds blocks (``bert.pooler``)."""
    names = path.split(".")
    number = next((i for i, name in enumerate(names) if name.isdigit()), None)
    if number is not None:
        return ".".join(names[: number + 1])
    return ".".join(names[:2] if names[0] in lists else names[:1])


def short_names(names: Sequence[str]) -> list[str]:
    """Each name's end, with what comes before it where that is a number's list or two ends are the
    same."""
    parts = [name.split(".") for name in names]
    ends = [".".join(part[-2:] if part[-1].isdigit() else part[-1:]) for part in parts]
    return [end if ends.count(end) == 1 else name for end, name in zip(ends, names, strict=True)]


def _named_by_what_ends(accounts: Sequence[Account], sample: int) -> str:
    """The parameter or constant that absorbed most between two parts, else the operation at which
    most ended."""
    absorbed = {
        name: abs(float(amount[sample])) for a in accounts for name, amount in a.absorbed.items()
    }
    best = max(absorbed, key=lambda name: absorbed[name], default="")
    if best and absorbed[best] > 0:
        return best
    last = max(accounts, key=lambda account: _ended(account, sample))
    return last.op.split(".")[1] if last.op.count(".") > 1 else last.op


def _ended(account: Account, sample: int) -> float:
    """How much was lost or left unread at one operation."""
    return abs(float(account.unread[sample])) + sum(
        abs(float(amount[sample])) for amount in account.lost.values()
    )


def ends(accounts: Sequence[Account], sample: int) -> dict[str, float]:
    """How much of a sample's relevance ended in some accounts, by kind."""
    amounts = {
        "absorbed": (v for a in accounts for v in a.absorbed.values()),
        "lost": (v for a in accounts for v in a.lost.values()),
        "unread": (a.unread for a in accounts),
        "residual": (a.residual for a in accounts),
    }
    return {kind: float(sum(float(v[sample]) for v in each)) for kind, each in amounts.items()}


def _entered(name: str, accounts: list[Account], sample: int) -> dict[str, float]:
    """What arrived at each of a part's own modules, of those with several operations: the first
    account of a module has what entered it."""
    inside = [a for a in accounts if name and a.path.startswith(f"{name}.")]
    children = [a.path[len(name) + 1 :].split(".")[0] for a in inside]
    counts = Counter(children)
    first: dict[str, float] = {}
    for child, account in zip(children, inside, strict=True):
        first.setdefault(child, float(account.arrived[sample]))
    return {child: amount for child, amount in first.items() if counts[child] > 1}
