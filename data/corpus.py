"""Many sources -> one clean corpus of JSONL text in three splits, in two passes.

Pass 1 (any number of processes, one piece of a source at a time): read, drop what is empty, undecodable or quotes a held-out
question, write the rest to the work folder with its ids and sizes. A finished piece survives kill -9 and is not read again.
Pass 2 (one process, ids and sizes only in memory): de-duplicate over all sources in a fixed order, fill each source's share of the
budget, split by content, copy lines to the output. So the result is the same bytes whatever the number of processes or restarts.
Records in = kept + dropped by reason, for every source.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from data.dedupe import content_id, fill_budget, first_occurrences
from data.recipes.recipe import Part, Recipe, Scope
from data.split import SPLITS, split_of

BYTES_PER_TOKEN = 4
"""Rule of thumb for budgets before a tokenizer exists; tokenize reports the true counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One named entry of the mixture."""

    name: str
    recipe: Recipe
    scope: Scope


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of one source, and where its result goes. Picklable, so that a worker process can run it."""

    source: Source
    part: Part
    lines: Path
    """JSONL of the usable records."""

    @property
    def index(self) -> Path:
        """Counts, ids and sizes; written last, so its existence says that `lines` is complete."""
        return self.lines.with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Entry:
    """A usable record on disk."""

    id: str
    lines: Path
    offset: int
    length: int
    size: int
    """UTF-8 bytes of its text."""
    group: str
    """What decides its split."""


def plan_jobs(sources: list[Source], folder: Path) -> list[Job]:
    """Every piece of every source in order. ValueError (naming the source) when a source has none."""
    jobs = []
    for source in sources:
        parts = source.recipe.parts(source.scope)
        if not parts:
            raise ValueError(f"source '{source.name}' has nothing to read")
        jobs += [Job(source, part, folder / source.name / f"{number:05d}.jsonl") for number, part in enumerate(parts)]
    return jobs


def read_jobs(jobs: list[Job], held_out: frozenset[str], workers: int, advance: Callable[[], object]) -> int:
    """Pass 1 over all jobs; returns how many were already done by an earlier attempt. `advance` is called after each and may raise."""
    open_jobs = [job for job in jobs if not is_done(job)]
    for _ in range(len(jobs) - len(open_jobs)):
        advance()
    if workers == 1 or len(open_jobs) < 2:
        for job in open_jobs:
            read_job(job, held_out)
            advance()
        return len(jobs) - len(open_jobs)
    # spawn, not fork: the parent has threads (the tracker's), and a forked child may inherit their locks in a held state
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        for future in as_completed([pool.submit(read_job, job, held_out) for job in open_jobs]):
            future.result()
            advance()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # after a stop or an error, pieces not yet begun must not run on
    return len(jobs) - len(open_jobs)


def _start_worker() -> None:
    """Leave Ctrl-C and SIGTERM to the parent, which stops between pieces; end at once if the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def is_done(job: Job) -> bool:
    """Whether an earlier attempt finished this very piece, unchanged since."""
    if not job.index.is_file():
        return False
    index = json.loads(job.index.read_text(encoding="utf-8"))
    return index["part"] == list(job.part) and index["stamp"] == job.source.recipe.stamp(job.part)


def read_job(job: Job, held_out: frozenset[str]) -> None:
    """Pass 1 over one piece."""
    stamp = job.source.recipe.stamp(job.part)
    counts, entries, offset = Counter(), [], 0
    job.lines.parent.mkdir(parents=True, exist_ok=True)
    job.index.unlink(missing_ok=True)
    temporary = job.lines.with_suffix(".tmp")
    with temporary.open("wb") as handle:
        for text, group in job.source.recipe.read(job.part, job.source.scope):
            counts["records"] += 1
            reason = reject(text, held_out)
            if reason:
                counts[reason] += 1
                continue
            key = content_id(text)
            line = json.dumps({"id": key, "source": job.source.name, "text": text}, ensure_ascii=False, sort_keys=True).encode() + b"\n"
            handle.write(line)
            entries.append([key, offset, len(line), len(text.encode()), group or key])
            offset += len(line)
        _sync(handle)
    os.replace(temporary, job.lines)
    with temporary.open("w", encoding="utf-8") as handle:
        json.dump({"part": list(job.part), "stamp": stamp, "counts": counts, "entries": entries}, handle)
        _sync(handle)
    os.replace(temporary, job.index)


def _sync(handle: object) -> None:
    handle.flush()
    os.fsync(handle.fileno())


def reject(text: str | None, held_out: frozenset[str]) -> str | None:
    """Why a record is unusable, or None. A line that equals a held-out question would let training see the exam."""
    if text is None:
        return "undecodable"
    if not text.strip():
        return "empty"
    if held_out and not held_out.isdisjoint(line.strip() for line in text.split("\n")):
        return "contaminated"
    return None


def merge(jobs: list[Job], out: Path, *, val_fraction: float, test_fraction: float, seed: int) -> dict[str, object]:
    """Pass 2: write out/{train,val,test}.jsonl and return the counts per source and per split.

    ValueError when a source has nothing usable, or a split ends up empty.
    """
    seen: set[str] = set()
    facts: dict[str, dict] = {}
    splits = {split: Counter(documents=0, bytes=0) for split in SPLITS}
    out.mkdir(parents=True)
    handles = {split: (out / f"{split}.jsonl").open("wb") for split in SPLITS}
    try:
        for source, group in _by_source(jobs):
            kept, facts[source.name] = _choose(source, group, seen, seed)
            for entry, line in _lines(kept):
                split = split_of(entry.group, val_fraction, test_fraction)
                handles[split].write(line)
                splits[split].update(documents=1, bytes=entry.size)
    finally:
        for handle in handles.values():
            handle.close()
    empty = [split for split in SPLITS if not splits[split]["documents"]]
    if empty:
        total = sum(counts["documents"] for counts in splits.values())
        raise ValueError(f"text split {' and '.join(empty)} is empty ({total:,} documents in all); give more or smaller documents or raise its fraction")
    return {"sources": _with_shares(facts), "splits": {split: {**counts, "tokens": counts["bytes"] // BYTES_PER_TOKEN} for split, counts in splits.items()}}


def _by_source(jobs: list[Job]) -> Iterator[tuple[Source, list[Job]]]:
    names = list(dict.fromkeys(job.source.name for job in jobs))
    for name in names:
        group = [job for job in jobs if job.source.name == name]
        yield group[0].source, group


def _choose(source: Source, jobs: list[Job], seen: set[str], seed: int) -> tuple[list[Entry], dict]:
    """The source's entries that are new and fit its budget, in reading order, and its counts."""
    counts: Counter = Counter()
    usable: list[Entry] = []
    for job in jobs:
        index = json.loads(job.index.read_text(encoding="utf-8"))
        counts.update(index["counts"])
        usable += [Entry(key, job.lines, offset, length, size, group) for key, offset, length, size, group in index["entries"]]
    if not usable:
        raise ValueError(f"source '{source.name}' has no usable text: {counts['records']:,} records, of which "
                         + (", ".join(f"{counts[reason]:,} {reason}" for reason in ("empty", "undecodable", "contaminated") if counts[reason]) or "none"))
    new = [entry for entry, is_new in zip(usable, first_occurrences((e.id for e in usable), seen)) if is_new]
    fits = fill_budget([e.id for e in new], [e.size for e in new], source.scope.target_bytes, seed)
    kept = [entry for entry, fit in zip(new, fits) if fit]
    size = sum(entry.size for entry in kept)
    dropped = {reason: counts[reason] for reason in ("empty", "undecodable", "contaminated")}
    dropped |= {"duplicate": len(usable) - len(new), "over_budget": len(new) - len(kept)}
    assert counts["records"] == len(kept) + sum(dropped.values()), f"source '{source.name}': {counts} in, {len(kept)} kept, dropped {dropped}"
    asked = source.scope.target_bytes
    return kept, {"records": counts["records"], "kept": len(kept), "dropped": dropped, "kept_bytes": size, "tokens": size // BYTES_PER_TOKEN,
                  "asked_tokens": asked // BYTES_PER_TOKEN, "missing_tokens": 0 if dropped["over_budget"] else (asked - size) // BYTES_PER_TOKEN}


def _lines(entries: list[Entry]) -> Iterator[tuple[Entry, bytes]]:
    """The stored line of each entry; entries come in file order, so each file is opened once and read forwards."""
    handle, path = None, None
    try:
        for entry in entries:
            if entry.lines != path:
                if handle is not None:
                    handle.close()
                handle, path = entry.lines.open("rb"), entry.lines
            handle.seek(entry.offset)
            yield entry, handle.read(entry.length)
    finally:
        if handle is not None:
            handle.close()


def _with_shares(facts: Mapping[str, dict]) -> dict[str, dict]:
    """Add each source's asked and realised share of all text."""
    size, asked = sum(f["kept_bytes"] for f in facts.values()), sum(f["asked_tokens"] for f in facts.values())
    return {name: {**f, "share": round(f["kept_bytes"] / size, 6), "asked_share": round(f["asked_tokens"] / asked, 6)} for name, f in facts.items()}
