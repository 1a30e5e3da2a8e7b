"""Work over whole data sets: in batches, in shards on disk, resumed after any interruption, by one process or many."""

from relprop.runs.base import Record, Work
from relprop.runs.fingerprint import fingerprint

__all__ = ["Record", "Work", "fingerprint"]
