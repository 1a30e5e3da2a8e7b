"""Work over whole data sets: in batches, in shards on disk, resumed after any interruption, by one process or many."""

from relprop.runs.base import Record, Work

__all__ = ["Record", "Work"]
