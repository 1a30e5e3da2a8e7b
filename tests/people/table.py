"""``python -m tests.people.table [name ...]`` prints, for every pair (or those named) and method,
whether the model's explanation is the twin's: same, different (and how far, as a part of the
largest number), refused or crashed (and what the error says)."""

import sys
from collections import Counter

import torch

from tests.people.everything import PAIRS
from tests.people.explaining import verdict
from tests.people.pairs import METHODS


def lines(name):
    """The pair's verdicts, those that say the same put together."""
    found = {method: verdict(name, method) for method in METHODS}
    alike = {}
    for method, v in found.items():
        alike.setdefault((v.word, "" if v.word == "same" else v.detail, v.right), []).append(method)
    yield f"{name}: {sum(v.right for v in found.values())} of {len(found)} right"
    for (word, detail, right), methods in alike.items():
        yield f"  {' ' if right else '✗'} {word:<9} {', '.join(methods)}"
        if detail:
            yield f"      {detail}"


def main(names):
    torch.set_num_threads(1)
    words, right, whole = Counter(), 0, 0
    for name in names or PAIRS:
        print("\n".join(lines(name)), flush=True)
        verdicts = [verdict(name, method) for method in METHODS]
        words.update(v.word if v.right else f"{v.word} ✗" for v in verdicts)
        right += sum(v.right for v in verdicts)
        whole += all(v.right for v in verdicts)
    count = len(names or PAIRS)
    print(f"\n{whole} of {count} pairs, {right} of {count * len(METHODS)} maps: {dict(words)}")


if __name__ == "__main__":
    main(sys.argv[1:])
