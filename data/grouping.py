"""Near-duplicates over the pieces of pass 1: which documents to drop, and whose splits hang together.

In: the finished pieces of the sources that look for near-duplicates. Out: dropped id -> id of the survivor, and group -> group for
what decides the split. All those sources are compared with each other. The survivor is the longest text, then the smallest id, so the
result is a function of the set of documents, not of their order or of the number of workers. Whatever shared a split with any member
of a group, such as a module's documentation, shares it with all of them.
Memory: about 100 bytes a document while it runs; signatures stay on disk (504 bytes a document with the default settings).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data.cleaning.minhash import choose_bands
from data.cleaning.near_duplicates import Groups, find_groups
from data.cleaning.policy import NearDuplicates
from data.cleaning.words import shingles
from data.pieces import Job, shared_setting


@dataclass(frozen=True, slots=True)
class NearResult:
    """What was found; empty when nobody looked."""

    dropped: Mapping[str, str] = field(default_factory=dict)
    """Id -> id of the document that stays instead."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Group -> the group that decides its split; absent: itself."""
    facts: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    """The distinct documents, sorted by id: columns of N."""

    ids: np.ndarray
    sizes: np.ndarray
    pieces: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray
    """Position within the piece."""


def near_duplicates(jobs: list[Job]) -> NearResult:
    """Look for them among the sources that ask for it. ValueError when those disagree about what a near-duplicate is."""
    jobs = [job for job in jobs if job.source.cleaning and job.source.cleaning.near_duplicates]
    if not jobs:
        return NearResult()
    settings = shared_setting([job.source for job in jobs], "near_duplicates")
    table = _read_table(jobs)
    bands, rows = choose_bands(settings.threshold, settings.num_perm)
    path = jobs[0].lines.parents[1] / "signatures.u32"
    try:
        signatures_BNR = _collect_signatures(jobs, table, path, bands, rows)
        groups = find_groups(signatures_BNR, settings.threshold, lambda i: shingles(_text(jobs[table.pieces[i]], table, i), settings.ngram))
        del signatures_BNR
    finally:
        path.unlink(missing_ok=True)
    return _result(jobs, table, groups, settings, bands, rows)


def _read_table(jobs: list[Job]) -> _Table:
    columns: list[tuple[np.ndarray, ...]] = []
    for number, job in enumerate(jobs):
        entries = json.loads(job.index.read_text(encoding="utf-8"))["entries"]
        ids = np.array([entry[0] for entry in entries], "S32")
        offsets, lengths, sizes = (np.array([entry[column] for entry in entries], np.int64) for column in (1, 2, 3))
        columns.append((ids, sizes, np.full(len(entries), number, np.int32), offsets, lengths, np.arange(len(entries), dtype=np.int32)))
    whole = [np.concatenate(parts) for parts in zip(*columns)]
    _, first = np.unique(whole[0], return_index=True)
    return _Table(*(column[first] for column in whole))


def _collect_signatures(jobs: list[Job], table: _Table, path: Path, bands: int, rows: int) -> np.ndarray:
    """(B, N, R) uint32 on disk, band by band, so that each band is read in one stretch."""
    if not len(table.ids):
        return np.empty((bands, 0, rows), np.uint32)
    signatures_BNR = np.memmap(path, np.uint32, "w+", shape=(bands, len(table.ids), rows))
    order = np.argsort(table.pieces, kind="stable")
    bounds = np.searchsorted(table.pieces[order], np.arange(len(jobs) + 1))
    for number, job in enumerate(jobs):
        documents = order[bounds[number] : bounds[number + 1]]
        stored = np.fromfile(job.signatures, np.uint32).reshape(-1, bands, rows)
        signatures_BNR[:, documents, :] = stored[table.rows[documents]].transpose(1, 0, 2)
    return signatures_BNR


def _text(job: Job, table: _Table, document: int) -> str:
    with job.lines.open("rb") as handle:
        handle.seek(table.offsets[document])
        return json.loads(handle.read(table.lengths[document]))["text"]


def _result(jobs: list[Job], table: _Table, groups: Groups, settings: NearDuplicates, bands: int, rows: int) -> NearResult:
    found = groups.joined()
    ids = [[table.ids[i].decode() for i in members] for members in found]
    survivors = [table.ids[min(members, key=lambda i: (-table.sizes[i], table.ids[i]))].decode() for members in found]
    dropped = {key: survivor for members, survivor in zip(ids, survivors) for key in members if key != survivor}
    facts = {"threshold": settings.threshold, "ngram": settings.ngram, "bands": bands, "rows": rows, "documents": len(table.ids), "groups": len(found),
             "in_groups": sum(map(len, ids)), "largest_group": max(map(len, ids), default=0)}
    splits = _linked_splits(jobs, {key: number for number, members in enumerate(ids) for key in members})
    return NearResult(dropped if settings.keep == "one" else {}, splits, facts)


def _linked_splits(jobs: list[Job], number_of: Mapping[str, int]) -> dict[str, str]:
    """Groups that near-duplicates tie together -> the first of them in order; a group on its own is not listed."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    seen: dict[int, str] = {}
    for job in jobs:
        for key, _, _, _, group in json.loads(job.index.read_text(encoding="utf-8"))["entries"]:
            if key in number_of:
                first, second = sorted((root(group), root(seen.setdefault(number_of[key], group))))
                parent[second] = first
    return {name: leader for name in parent if (leader := root(name)) != name}
