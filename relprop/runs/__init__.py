"""Work over whole data sets: in batches, in shards on disk, resumed after any interruption, by one
process or many."""

from relprop.runs.base import Record, Work
from relprop.runs.explaining import ExplainWork
from relprop.runs.reading import RunResults, read_run
from relprop.runs.running import Summary, run
from relprop.runs.stored import explanation_of

__all__ = [
    "ExplainWork",
    "Record",
    "RunResults",
    "Summary",
    "Work",
    "explanation_of",
    "read_run",
    "run",
]


def __dir__() -> list[str]:
    return __all__
