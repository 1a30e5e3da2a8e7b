"""What the door costs per call of a public function, in microseconds: python benchmarks/door.py"""

import timeit

from relprop.door import guarded

CALLS = 100_000


def nothing(a, *, strict=False):
    return a


def seconds(call):
    return min(timeit.repeat(call, number=CALLS, repeat=5)) / CALLS


if __name__ == "__main__":
    at_the_door, plain = guarded(nothing), seconds(lambda: nothing(1))
    for options in ({}, {"strict": True}):
        cost = seconds(lambda o=options: at_the_door(1, **o)) - plain
        print(f"{options}: {1e6 * cost:.1f} µs")
