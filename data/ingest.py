"""Conversations, preferences and prompts from sources of records -> chat/, preference/ and problems/, in three disjoint splits.

Pass 1, piece by piece: read, convert to the kind's one form, put what fits into the work folder with an index; a finished piece
survives kill -9 and is not read again. Pass 2, ids only in memory: drop exact duplicates within a kind, drop records that ask what
another split holds, choose up to the source's cap, append to the output. Each source is taken whole, nothing is repeated. Records
in = kept + dropped by reason, for every source; the first few places of every fault are reported, and too large a fraction of faults
stops the stage. The bytes depend on content and seed alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from data.dedupe import content_id
from data.formats.index import Format, rename
from data.formats.misfit import Empty, Misfit
from data.parts import PartJob, run_open, stored_lines, sync, write_index
from data.pool import Pool
from data.recipes.recipe import Location, Part
from data.sources.faults import Faults
from data.sources.readers import Row
from data.split import SPLITS, split_of

FOLDERS = {"prompts": "problems", "preference": "preference", "chat": "chat"}
"""Kind -> folder of the output, in the order in which they are written: chats must not ask what a held-out prompt asks."""
_TURN = ("test", "val", "train", "content")
"""Sources that are held out whole go first, so that what they ask is dropped elsewhere and not they."""
REASONS = ("empty", "undecodable", "duplicate", "contaminated", "over_cap")
"""Drops that are no faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """One entry of the mixture that holds records."""

    name: str
    location: Location
    format: Format
    fields: Mapping[str, str]
    """Our field name -> the record's."""
    cap_records: int | None
    max_bad_fraction: float
    split: str
    """"content": each record by its first question; or the split that takes all of them."""

    def stamp(self, part: Part) -> str:
        """Which version of a part is there."""
        return self.location.stamp(part)


@dataclass(slots=True)
class Entry:
    """A record that fits, in the work folder."""

    id: str
    lines: Path
    offset: int
    length: int
    opening: str
    """Digest of its first question, which decides its split: the same question never lands on two sides."""
    later: tuple[str, ...]
    """Digests of further questions of the conversation."""


def plan_pieces(sources: list[RecordSource], work: Path) -> list[PartJob]:
    """Every piece of every source, in reading order."""
    return [PartJob(source, part, work / source.name / f"{number:05d}.jsonl") for source in sources for number, part in enumerate(source.location.pieces())]


def read_pieces(pieces: list[PartJob], pool: Pool, advance: Callable[[], object]) -> int:
    """Pass 1; returns how many pieces an earlier attempt had done. `advance` is called after each and may raise."""
    return run_open(read_piece, pieces, pool, advance)


def read_piece(piece: PartJob) -> None:
    """Pass 1 over one piece: the records that fit, then the index of them and of the rest."""
    source, stamp = piece.source, piece.source.stamp(piece.part)
    counts, unused, faults, entries, offset = Counter(), Counter(), Faults(), [], 0
    piece.lines.parent.mkdir(parents=True, exist_ok=True)
    piece.index.unlink(missing_ok=True)
    with piece.lines.open("wb") as handle:
        for row in source.location.rows(piece.part):
            counts["records"] += 1
            try:
                made = _convert(row, source)
                line = (json.dumps(made, ensure_ascii=False, sort_keys=True) + "\n").encode()
            except Misfit as misfit:
                faults.add(misfit.fault, row.place)
                continue
            except Empty:
                counts["empty"] += 1
                continue
            except UnicodeEncodeError:
                counts["undecodable"] += 1
                continue
            unused.update(name for name in rename(row.value, source.fields) if name not in source.format.fields)
            handle.write(line)
            opening, *later = [question_digest(text) for text in questions(made)]
            entries.append([made["id"], offset, len(line), opening, later])
            offset += len(line)
        sync(handle)
    write_index(piece, stamp, {"counts": counts, "faults": faults.to_dict(), "unused": unused, "entries": entries})


def ingest(pieces: list[PartJob], out: Path, asked: Mapping[str, str], *, val_fraction: float, test_fraction: float, seed: int) -> dict[str, dict]:
    """Pass 2: append every source to its kind's files below `out`; returns facts per source. `asked`: question digest -> split that owns it.

    ValueError when a source is unfit or has nothing usable.
    """
    sources = {piece.source.name: piece.source for piece in pieces}
    asked, openings, facts = dict(asked), {}, {}
    for kind, folder in FOLDERS.items():
        seen: set[str] = set()
        of_kind = sorted((s for s in sources.values() if s.format.kind == kind), key=lambda s: (_TURN.index(s.split), s.name))
        if kind == "preference" and of_kind:
            for split in SPLITS:
                _append(out / folder / f"{split}.jsonl", [])
        for source in of_kind:
            entries, counts, faults, unused = _gather(source, [piece for piece in pieces if piece.source.name == source.name])
            placed = [(entry, split_of(entry.opening, val_fraction, test_fraction) if source.split == "content" else source.split) for entry in entries]
            chosen = choose(placed, seen, asked, openings, counts, source.cap_records, seed)
            owners = {entry.opening: split for entry, split in chosen}
            openings |= owners
            if kind == "prompts":
                asked |= owners
            of_split = {split: [entry for entry, where in chosen if where == split] for split in SPLITS}
            splits = {split: _append(out / folder / f"{split}.jsonl", (line for _, line in stored_lines(of_split[split]))) for split in SPLITS}
            facts[source.name] = _facts(counts, faults, unused, splits)
    return facts


def _gather(source: RecordSource, pieces: list[PartJob]) -> tuple[list[Entry], Counter[str], Faults, Counter[str]]:
    """All of a source's entries in reading order, its counts, faults and unused fields."""
    counts, unused, faults, entries = Counter(), Counter(), Faults(), []
    for piece in pieces:
        index = json.loads(piece.index.read_text(encoding="utf-8"))
        counts.update(index["counts"])
        unused.update(index["unused"])
        faults.extend(index["faults"])
        entries += [Entry(key, piece.lines, offset, length, opening, tuple(later)) for key, offset, length, opening, later in index["entries"]]
    faults.check(source.name, counts["records"], source.max_bad_fraction)
    if not entries:
        dropped = ", ".join(f"{counts[reason]:,} {reason}" for reason in REASONS if counts[reason])
        raise ValueError(f"source '{source.name}' has no usable record: {counts['records']:,} records, of which {dropped or 'none'}")
    return entries, counts, faults, unused


def choose(placed: list[tuple[Entry, str]], seen: set[str], asked: Mapping[str, str], openings: Mapping[str, str], counts: Counter[str], cap: int | None,
           seed: int) -> list[tuple[Entry, str]]:
    """The entries to keep with their splits, in reading order; the rest is added to `counts` by reason, what is kept to `seen`.

    asked: owner of each question with a checkable answer, which no other split may ask anywhere; openings: owner of each first
    question. A cap keeps the first in an order shuffled by (seed, id), so that it does not matter where a record stands.
    """
    usable = []
    for entry, split in placed:
        if entry.id in seen:
            counts["duplicate"] += 1
        elif openings.get(entry.opening, split) != split or any(asked.get(question, split) != split for question in (entry.opening, *entry.later)):
            counts["contaminated"] += 1
        else:
            usable.append((entry, split))
            seen.add(entry.id)
    if cap is None or len(usable) <= cap:
        return usable
    order = sorted(usable, key=lambda pair: hashlib.sha256(f"{seed}/{pair[0].id}".encode()).digest())
    over = {entry.id for entry, _ in order[cap:]}
    counts["over_cap"] += len(over)
    seen -= over  # over this source's cap only: another source may hold them too
    return [pair for pair in usable if pair[0].id not in over]


def questions(made: Mapping[str, object]) -> list[str]:
    """What a record asks, in order: a prompt, or everything the user says."""
    if "prompt" in made:
        return [made["prompt"]]
    return [message["content"] for message in made.get("messages", made.get("prompt_messages")) if message["role"] == "user"]


def question_digest(text: str) -> str:
    """32 hex digits of a question, surrounding white space aside."""
    return content_id(text.strip())


def _convert(row: Row, source: RecordSource) -> dict[str, object]:
    """The row of the output file."""
    if row.fault is not None:
        raise Misfit(row.fault.reason, row.fault.detail)
    if not isinstance(row.value, dict):
        raise Misfit(f"got {type(row.value).__name__}, expected an object")
    made = source.format.convert(rename(row.value, source.fields))
    if source.format.kind == "prompts":  # the same question twice, whatever the answers, is a duplicate
        return {"id": question_digest(made["prompt"]), "task": source.name, **made}
    text = "\0".join(f"{m['role']}\0{m['content']}" for m in made.get("messages", made.get("prompt_messages")))
    further = "".join(f"\0{made[name]}" for name in ("chosen", "rejected", "label") if name in made)
    return {"id": content_id(text + further), "source": source.name, **made}


def _append(path: Path, lines: Iterator[bytes] | list[bytes]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("ab") as handle:
        for line in lines:
            handle.write(line)
            count += 1
    return count


def _facts(counts: Counter[str], faults: Faults, unused: Counter[str], splits: dict[str, int]) -> dict[str, object]:
    """The source's part of the report. Records in = kept + dropped, which is asserted."""
    kept = sum(splits.values())
    dropped = {**{reason: counts[reason] for reason in REASONS}, **dict(sorted(faults.counts.items()))}
    assert counts["records"] == kept + sum(dropped.values()), f"{counts} in, {kept} kept, dropped {dropped}"
    return {"records": counts["records"], "kept": kept, "dropped": dropped, "splits": splits, "unused_fields": dict(sorted(unused.items())),
            "places": {reason: places for reason, places in sorted(faults.places.items())}}
