"""Many sources -> one clean corpus of JSONL text in three splits, in two passes.

Pass 1 (data/pieces.py; any number of processes, one piece of a source at a time): read, clean, write what is usable to the work
folder with its ids and sizes. Pass 2 (here; one process, ids and sizes only in memory): near-duplicates, de-duplication over all
sources in a fixed order, each source's share of the budget, splits by content, repeats and phases; then copy lines to the output. So
the result is the same bytes whatever the number of processes or restarts. Records in = kept + dropped by reason, for every source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import tee
from pathlib import Path

from data.cleaning.contamination import EvaluationIndex, build_index, is_contaminated, overlap
from data.dedupe import fill_budget, first_occurrences
from data.grouping import NearResult, near_duplicates
from data.mixing import BySize, Phase, deal, whole_passes
from data.parts import is_done, stored_lines
from data.pieces import QUOTES_SHOWN, Entry, Job, Source, plan_jobs, read_job, read_jobs, reject, shared_setting
from data.sources.faults import Faults
from data.split import SPLITS, split_of

__all__ = ["BYTES_PER_TOKEN", "DROPS", "Entry", "Job", "Source", "is_done", "merge", "plan_jobs", "read_job", "read_jobs", "reject", "text_files"]

BYTES_PER_TOKEN = 4
"""Rule of thumb for budgets before a tokenizer exists; tokenize reports the true counts."""
DROPS = ("empty", "undecodable", "contaminated", "duplicate", "over_budget")
"""Reasons that every source reports; the others appear where they occur."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """What one source gives, before anything is written."""

    source: Source
    kept: list[Entry]
    counts: Counter
    """Records, and those dropped so far by reason."""
    changed: Counter
    quoted: list[dict]
    places: dict[str, list[str]]
    """Where the first records that do not fit stand, by reason."""
    target: int
    """Bytes wanted."""
    num_quoting: int = 0
    """Of the contaminated, those found after the budget was filled; what they leave free is not filled again."""


@dataclass(frozen=True, slots=True)
class _Split:
    """How a document's split follows from its group."""

    val_fraction: float
    test_fraction: float
    linked: Mapping[str, str]

    def of(self, entry: Entry) -> str:
        return split_of(self.linked.get(entry.group, entry.group), self.val_fraction, self.test_fraction)


@dataclass(slots=True)
class _Tally:
    """What was written of one source."""

    documents: Counter = field(default_factory=Counter)
    """(file, repeated?) -> documents."""
    bytes: Counter = field(default_factory=Counter)
    """The same in UTF-8 bytes of text."""

    def add(self, file: str, entry: Entry, repeated: bool) -> None:
        self.documents[file, repeated] += 1
        self.bytes[file, repeated] += entry.size

    def size(self, repeated: bool) -> int:
        return sum(size for (_, again), size in self.bytes.items() if again == repeated)


def text_files(folder: Path, split: str) -> list[Path]:
    """The files of a split: one, or for train one a phase, in order of name, when there are phases."""
    return [folder / f"{split}.jsonl"] if split != "train" or (folder / "train.jsonl").is_file() else sorted(folder.glob("*/train.jsonl"))


def merge(jobs: list[Job], out: Path, *, val_fraction: float, test_fraction: float, seed: int, phases: Sequence[Phase] = (),
          by_size: BySize | None = None) -> dict[str, object]:
    """Pass 2: write out/{train,val,test}.jsonl (with several phases out/<phase>/train.jsonl) and return the counts.

    ValueError when a source has nothing usable, or a split or a phase ends up empty.
    """
    near = near_duplicates(jobs)
    targets = {source.name: source.scope.target_bytes for source, _ in _by_source(jobs)}
    if by_size:
        targets = by_size.targets({choice.source.name: sum(e.size for e in choice.kept) for choice in _choices(jobs, near, None, seed)})
    split = _Split(val_fraction, test_fraction, near.splits)
    held_out = _held_out_text(jobs, _choices(jobs, near, targets, seed), split)
    out.mkdir(parents=True)
    files = ["train"] if len(phases) < 2 else [f"{phase.name}/train" for phase in phases]
    facts: dict[str, dict] = {}
    tallies: dict[str, _Tally] = {}
    with ExitStack() as stack:
        handles = {}
        for name in (*files, *SPLITS[1:]):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            handles[name] = stack.enter_context((out / f"{name}.jsonl").open("wb"))
        for choice in _choices(jobs, near, targets, seed):
            choice = _without_quotes(choice, split, held_out)
            placed, again = tee(_place(choice, split, files, phases, seed))
            tally = tallies[choice.source.name] = _Tally()
            for (_, file, repeated), (entry, line) in zip(placed, stored_lines(entry for entry, _, _ in again)):
                handles[file].write(line)
                tally.add(file, entry, repeated)
            facts[choice.source.name] = _facts(choice, tally)
    written = _written(tallies, files)
    _refuse_empty(written, files)
    report = {"sources": _with_shares(facts), "splits": {name: written[name] for name in SPLITS}}
    if near.facts:
        report["near_duplicates"] = dict(near.facts)
    if phases:
        report["phases"] = [_phase_facts(phase, file, tallies) for phase, file in zip(phases, files)]
    return report


def _by_source(jobs: list[Job]) -> Iterator[tuple[Source, list[Job]]]:
    names = list(dict.fromkeys(job.source.name for job in jobs))
    for name in names:
        group = [job for job in jobs if job.source.name == name]
        yield group[0].source, group


def _choices(jobs: list[Job], near: NearResult, targets: Mapping[str, int] | None, seed: int) -> Iterator[_Choice]:
    """Source by source, so that one source's entries are in memory at a time. Without targets nothing is over budget."""
    seen: set[str] = set()
    for source, group in _by_source(jobs):
        yield _choose(source, group, near, seen, None if targets is None else targets[source.name], seed)


def _choose(source: Source, jobs: list[Job], near: NearResult, seen: set[str], target: int | None, seed: int) -> _Choice:
    """The source's entries that are new and fit its budget, in reading order, and its counts."""
    counts, changed, quoted, usable, faults = Counter(), Counter(), [], [], Faults()
    for job in jobs:
        index = json.loads(job.index.read_text(encoding="utf-8"))
        counts.update(index["counts"])
        changed.update(index["changed"])
        quoted += index["quoted"]
        faults.extend(index["faults"])
        usable += [Entry(key, job.lines, offset, length, size, group) for key, offset, length, size, group in index["entries"]]
    faults.check(source.name, counts["records"], source.max_bad_fraction)
    counts.update(faults.counts)
    if not usable:
        raise ValueError(f"source '{source.name}' has no usable text: {counts['records']:,} records, of which "
                         + (", ".join(f"{count:,} {reason}" for reason, count in _ordered(counts) if count and reason != "records") or "none"))
    # dropped for a longer one before copies are counted, so that a copy of a dropped document is not what is left of it
    if near.dropped and source.cleaning and source.cleaning.near_duplicates:
        single = [entry for entry in usable if entry.id not in near.dropped]
        counts["near_duplicate"] = len(usable) - len(single)
        usable = single
    new = [entry for entry, is_new in zip(usable, first_occurrences((e.id for e in usable), seen)) if is_new]
    counts["duplicate"] = len(usable) - len(new)
    if target is not None and new:
        fits = fill_budget([e.id for e in new], [e.size for e in new], target, seed)
        counts["over_budget"] = fits.count(False)
        new = [entry for entry, fit in zip(new, fits) if fit]
    return _Choice(source=source, kept=new, counts=counts, changed=changed, quoted=quoted[:QUOTES_SHOWN], places=faults.places, target=target or 0)


def _ordered(counts: Counter) -> list[tuple[str, int]]:
    """Known reasons first."""
    return sorted(counts.items(), key=lambda item: (DROPS.index(item[0]) if item[0] in DROPS else len(DROPS), item[0]))


def _held_out_text(jobs: list[Job], choices: Iterator[_Choice], split: _Split) -> EvaluationIndex | None:
    """The n-grams of the validation and test documents of all sources, when a source is to be free of them."""
    settings = shared_setting((job.source for job in jobs), "contamination")
    if settings is None:
        return None
    held = ((f"text/{name}/{entry.id}", json.loads(line)["text"]) for choice in choices
            for entry, line in stored_lines(entry for entry in choice.kept if split.of(entry) != "train") for name in (split.of(entry),))
    return build_index(held, settings.ngram)


def _without_quotes(choice: _Choice, split: _Split, held_out: EvaluationIndex | None) -> _Choice:
    """Without the training documents that quote a validation or test document."""
    settings = choice.source.cleaning and choice.source.cleaning.contamination
    if held_out is None or settings is None:
        return choice
    kept, quoted = [], list(choice.quoted)
    for entry, line in stored_lines(choice.kept):
        found = overlap(json.loads(line)["text"], held_out) if split.of(entry) == "train" else None
        if found is None or not is_contaminated(found, settings.min_matches):
            kept.append(entry)
        else:
            quoted.append({"id": entry.id, "items": list(found.items[:3])})
    num_quoting = len(choice.kept) - len(kept)
    counts = choice.counts + Counter(contaminated=num_quoting)
    return replace(choice, kept=kept, counts=counts, quoted=quoted[:QUOTES_SHOWN], num_quoting=num_quoting)


def _place(choice: _Choice, split: _Split, files: list[str], phases: Sequence[Phase], seed: int) -> Iterator[tuple[Entry, str, bool]]:
    """(entry, file, repeated?) for everything that is written of a source: one pass in reading order, then the repeats."""
    splits = [split.of(entry) for entry in choice.kept]
    train = [entry for entry, name in zip(choice.kept, splits) if name == "train"]
    held_bytes = sum(entry.size for entry, name in zip(choice.kept, splits) if name != "train")
    passes = whole_passes(sum(entry.size for entry in train), choice.target - held_bytes, choice.source.repeat_cap)
    weights = [phase.targets.get(choice.source.name, 0) for phase in phases] if len(files) > 1 else [1]
    dealt = deal([entry.id for entry in train], [entry.size for entry in train], weights, passes, seed)
    numbers = iter(dealt[0])
    for entry, name in zip(choice.kept, splits):
        yield entry, files[next(numbers)] if name == "train" else name, False
    for row in dealt[1:]:
        yield from ((entry, files[number], True) for entry, number in zip(train, row))


def _facts(choice: _Choice, tally: _Tally) -> dict:
    """The report of one source. Keys that only cleaning or repeats can fill appear only where they are set."""
    source, counts, size, again = choice.source, choice.counts, tally.size(False), tally.size(True)
    dropped = {reason: counts[reason] for reason in DROPS} | {reason: count for reason, count in counts.items() if count and reason != "records"}
    assert counts["records"] == len(choice.kept) + sum(dropped.values()), f"source '{source.name}': {counts} in, {len(choice.kept)} kept, dropped {dropped}"
    missing = 0 if dropped["over_budget"] and not choice.num_quoting else choice.target - size - again
    facts = {"records": counts["records"], "kept": len(choice.kept), "dropped": dropped, "kept_bytes": size, "tokens": size // BYTES_PER_TOKEN,
             "asked_tokens": choice.target // BYTES_PER_TOKEN, "missing_tokens": missing // BYTES_PER_TOKEN, "places": choice.places}
    if source.cleaning:
        facts |= {"changed": dict(choice.changed), "quotes": choice.quoted}
    if source.repeat_cap > 1:
        repeats = sum(count for (_, repeated), count in tally.documents.items() if repeated)
        once = sum(count for (file, repeated), count in tally.documents.items() if not repeated and file not in ("val", "test"))
        facts |= {"epochs": 1 + repeats // once if once else 1, "repeated_documents": repeats, "repeated_tokens": again // BYTES_PER_TOKEN}
    return facts


def _written(tallies: Mapping[str, _Tally], files: list[str]) -> dict[str, dict[str, int]]:
    """Documents, bytes and estimated tokens of every split, and of every training file, repeats included."""
    found = {name: Counter(documents=0, bytes=0) for name in (*files, *SPLITS)}
    for tally in tallies.values():
        for (file, repeated), count in tally.documents.items():
            for name in {file, "train" if file in files else file}:
                found[name].update(documents=count, bytes=tally.bytes[file, repeated])
    return {name: {**counts, "tokens": counts["bytes"] // BYTES_PER_TOKEN} for name, counts in found.items()}


def _refuse_empty(written: Mapping[str, Mapping[str, int]], files: list[str]) -> None:
    empty = [split for split in SPLITS if not written[split]["documents"]]
    if empty:
        total = sum(written[split]["documents"] for split in SPLITS)
        raise ValueError(f"text split {' and '.join(empty)} is empty ({total:,} documents in all); give more or smaller documents or raise its fraction")
    without = [file.split("/")[0] for file in files if not written[file]["documents"]]
    if without:
        raise ValueError(f"phase {' and '.join(without)} has no document; give more or smaller documents or raise its tokens")


def _with_shares(facts: Mapping[str, dict]) -> dict[str, dict]:
    """Add each source's asked and realised share of all text, repeats included."""
    sizes = {name: f["kept_bytes"] + f.get("repeated_tokens", 0) * BYTES_PER_TOKEN for name, f in facts.items()}
    size, asked = sum(sizes.values()), sum(f["asked_tokens"] for f in facts.values())
    return {name: {**f, "share": round(sizes[name] / size, 6), "asked_share": round(f["asked_tokens"] / asked, 6)} for name, f in facts.items()}


def _phase_facts(phase: Phase, file: str, tallies: Mapping[str, _Tally]) -> dict:
    """The mixture of one phase as it came out, in its training file; what it asks for includes the held-out documents' part."""
    asked, sizes = sum(phase.targets.values()), {name: tally.bytes[file, False] + tally.bytes[file, True] for name, tally in tallies.items()}
    whole = sum(sizes.values())
    sources = {name: {"documents": tally.documents[file, False] + tally.documents[file, True], "repeated_documents": tally.documents[file, True],
                      "tokens": sizes[name] // BYTES_PER_TOKEN, "share": round(sizes[name] / whole, 6),
                      "asked_share": round(phase.targets.get(name, 0) / asked, 6)} for name, tally in tallies.items()}
    return {"name": phase.name, "asked_tokens": asked // BYTES_PER_TOKEN, "tokens": whole // BYTES_PER_TOKEN, "sources": sources}
