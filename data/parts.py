"""Pass 1 of prepare, whatever it reads: a job for each part of a source, whose result waits in the work folder.

In: jobs and the function that does one. Out: for each a JSONL of what is usable and an index with the counts. The index is written last
and names the part and the stamp that the source had for it, so a finished job survives kill -9 and is not done again, and a part that
changed since is. Any number of processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO, TypeVar

from data.pool import Pool, run_tasks
from data.recipes.recipe import Part


class Stamped(Protocol):
    """A source that says which version of a part is there."""

    name: str

    def stamp(self, part: Part) -> str: ...


@dataclass(frozen=True, slots=True)
class PartJob:
    """One part of one source, and where its result goes. Picklable, so that any process can do it."""

    source: Stamped
    part: Part
    lines: Path
    """JSONL of the usable records."""

    @property
    def index(self) -> Path:
        """Counts, ids and places of the records; written last, so its existence says that the other files are complete."""
        return self.lines.with_suffix(".json")


class Stored(Protocol):
    """A record in a job's JSONL."""

    lines: Path
    offset: int
    length: int


Item = TypeVar("Item", bound=Stored)


def run_open(function: Callable, jobs: Sequence[PartJob], pool: Pool, advance: Callable[[], object], *more: object) -> int:
    """function(job, *more) for every job that is not done; returns how many were. `advance` is called for each job and may raise."""
    left = [job for job in jobs if not is_done(job)]
    for _ in range(len(jobs) - len(left)):
        advance()
    run_tasks(function, [(job, *more) for job in left], pool, lambda _: advance())
    return len(jobs) - len(left)


def is_done(job: PartJob) -> bool:
    """Whether an earlier attempt finished this very part, unchanged since."""
    if not (job.index.is_file() and job.lines.is_file()):
        return False
    index = json.loads(job.index.read_text(encoding="utf-8"))
    return index["part"] == list(job.part) and index["stamp"] == job.source.stamp(job.part)


def write_index(job: PartJob, stamp: str, facts: Mapping[str, object]) -> None:
    """Finish a job whose other files are on disk. `stamp`: the source's before the part was read."""
    temporary = job.lines.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as handle:
        json.dump({"part": list(job.part), "stamp": stamp, **facts}, handle)
        sync(handle)
    os.replace(temporary, job.index)


def sync(handle: BinaryIO | TextIO) -> None:
    """Everything written so far to disk."""
    handle.flush()
    os.fsync(handle.fileno())


def stored_lines(entries: Iterable[Item]) -> Iterator[tuple[Item, bytes]]:
    """Each entry with its line; entries come in reading order, so each file is opened once and read forwards."""
    for path, group in groupby(entries, key=lambda entry: entry.lines):
        with path.open("rb") as handle:
            for entry in group:
                handle.seek(entry.offset)
                yield entry, handle.read(entry.length)
