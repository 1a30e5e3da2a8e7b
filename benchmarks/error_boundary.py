"""What the error boundary costs per call, in microseconds: python benchmarks/error_boundary.py"""

import timeit

from relprop.error_boundary import guarded

CALLS = 100_000


def nothing(a, *, strict=False):
    return a


def seconds(call):
    return min(timeit.repeat(call, number=CALLS, repeat=5)) / CALLS


if __name__ == "__main__":
    inside, plain = guarded(nothing), seconds(lambda: nothing(1))
    for options in ({}, {"strict": True}):
        cost = seconds(lambda o=options: inside(1, **o)) - plain
        print(f"{options}: {1e6 * cost:.1f} µs")
