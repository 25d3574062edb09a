"""Pass 1 over text: read each piece of each source, clean it, write what is usable to the work folder.

In: sources of the mixture and the held-out questions. Out: for each piece a JSONL of usable records, an index of their ids, sizes and
groups with the counts of what was dropped and changed, and, where near-duplicates are looked for, a file of MinHash signatures. Any
number of processes; a finished piece survives kill -9 and is not read again.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.cleaning.contamination import EvaluationIndex
from data.cleaning.minhash import choose_bands, signature
from data.cleaning.policy import Cleaned, Cleaning, Contamination, NearDuplicates, clean
from data.cleaning.words import shingles
from data.dedupe import content_id
from data.parts import PartJob, run_open, sync, write_index
from data.pool import Pool
from data.recipes.recipe import Part, Recipe, Scope
from data.sources.faults import Faults

QUOTES_SHOWN = 5
"""Contaminated documents that are reported with the items they quote, for each source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One named entry of the mixture."""

    name: str
    recipe: Recipe
    scope: Scope
    cleaning: Cleaning | None = None
    """None: only what is empty, undecodable or quotes a held-out question is dropped, and nothing is changed."""
    repeat_cap: int = 1
    """Most passes over a source that has less than its share."""
    max_bad_fraction: float = 0.0
    """Records that may not fit the source's format; at 0 the first one stops the stage at once."""

    def stamp(self, part: Part) -> str:
        """Which version of a part is there."""
        return self.recipe.stamp(part)


@dataclass(frozen=True, slots=True)
class Job(PartJob):
    """One part of one source of text."""

    @property
    def signatures(self) -> Path:
        """uint32 MinHash signatures of the records in order, when near-duplicates are looked for."""
        return self.lines.with_suffix(".minhash")


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
    """Every piece of every source in order. ValueError (naming the source) when a source has none, or when sources that are compared
    with each other are to be compared differently."""
    shared_setting(sources, "near_duplicates")
    shared_setting(sources, "contamination")
    jobs = []
    for source in sources:
        parts = source.recipe.parts(source.scope)
        if not parts:
            raise ValueError(f"source '{source.name}' has nothing to read")
        jobs += [Job(source, part, folder / source.name / f"{number:05d}.jsonl") for number, part in enumerate(parts)]
    return jobs


def shared_setting(sources: Iterable[Source], name: Literal["near_duplicates", "contamination"]) -> NearDuplicates | Contamination | None:
    """The one value of a cleaning setting among the sources that have it. ValueError when there are several."""
    values = {source.name: value for source in sources if source.cleaning and (value := getattr(source.cleaning, name))}
    if len(set(values.values())) > 1:
        raise ValueError(f"cleaning.{name} differs between sources ({', '.join(f'{source}: {value}' for source, value in values.items())}); "
                         "expected the same settings, because these sources are compared with each other")
    return next(iter(values.values()), None)


def read_jobs(jobs: list[Job], held_out: frozenset[str], pool: Pool, advance: Callable[[], object], evaluation: EvaluationIndex | None = None) -> int:
    """Pass 1 over all jobs; returns how many were already done by an earlier attempt. `advance` is called after each and may raise.

    `evaluation` holds the items that contamination is judged against, for sources that ask for it.
    """
    return run_open(read_job, jobs, pool, advance, held_out, evaluation)


def read_job(job: Job, held_out: frozenset[str], evaluation: EvaluationIndex | None = None) -> None:
    """Pass 1 over one piece."""
    stamp, near = job.source.stamp(job.part), job.source.cleaning and job.source.cleaning.near_duplicates
    num_minima = math.prod(choose_bands(near.threshold, near.num_perm)) if near else 0
    counts, changed, faults, quoted, entries, signatures, offset = Counter(), Counter(), Faults(), [], [], bytearray(), 0
    job.lines.parent.mkdir(parents=True, exist_ok=True)
    job.index.unlink(missing_ok=True)
    temporary = job.lines.with_suffix(".tmp")
    with temporary.open("wb") as handle:
        for text, group, fault, place in job.source.recipe.read(job.part, job.source.scope):
            counts["records"] += 1
            if fault is not None:
                if not job.source.max_bad_fraction:
                    raise ValueError(fault.at(place))
                faults.add(fault, place)
                continue
            result = screen(text, held_out, job.source.cleaning, evaluation)
            changed += result.changed
            if result.reason:
                counts[result.reason] += 1
                if result.quoted and len(quoted) < QUOTES_SHOWN:
                    quoted.append({"id": content_id(result.text), "items": result.quoted[:3]})
                continue
            key = content_id(result.text)
            line = json.dumps({"id": key, "source": job.source.name, "text": result.text}, ensure_ascii=False, sort_keys=True).encode() + b"\n"
            handle.write(line)
            entries.append([key, offset, len(line), len(result.text.encode()), group or key])
            offset += len(line)
            if near:
                signatures += signature(shingles(result.text, near.ngram), num_minima).tobytes()
        sync(handle)
    os.replace(temporary, job.lines)
    if near:
        with temporary.open("wb") as handle:
            handle.write(signatures)
            sync(handle)
        os.replace(temporary, job.signatures)
    write_index(job, stamp, {"counts": counts, "changed": changed, "faults": faults.to_dict(), "quoted": quoted, "entries": entries})


def screen(text: str | None, held_out: frozenset[str], cleaning: Cleaning | None, evaluation: EvaluationIndex | None) -> Cleaned:
    """The text as it will be used, or why it is not. What is empty as read is "empty"; what cleaning leaves empty has its reason."""
    reason = reject(text, held_out)
    if reason or cleaning is None:
        return Cleaned(text or "", reason, Counter(), ())
    result = clean(text, cleaning, evaluation)
    if result.reason is None and not result.text.strip():
        return result._replace(reason="empty")
    if result.reason is None and (reason := reject(result.text, held_out)):
        return result._replace(reason=reason)
    return result


def reject(text: str | None, held_out: frozenset[str]) -> str | None:
    """Why a record is unusable, or None. A line that equals a held-out question would let training see the exam."""
    if text is None:
        return "undecodable"
    if not text.strip():
        return "empty"
    if held_out and not held_out.isdisjoint(line.strip() for line in text.split("\n")):
        return "contaminated"
    return None
