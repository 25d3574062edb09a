"""A recipe for tests that holds its records, and the two passes over it in one call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.cleaning.contamination import EvaluationIndex
from data.cleaning.policy import Cleaning
from data.corpus import Source, merge, plan_jobs, read_jobs
from data.mixing import BySize, Phase
from data.pool import Pool
from data.problems import ProblemSource
from data.recipes.recipe import Part, Record, Scope
from data.split import SPLITS

PROBLEMS = ProblemSource(seed=0, tasks={"addition": 1.0}, val_fraction=0.2, test_fraction=0.2)


@dataclass(frozen=True)
class Listed:
    """One tuple of (text, group) a part."""

    pieces: tuple[tuple[tuple[str | None, str | None], ...], ...]

    def parts(self, scope: Scope) -> list[Part]:
        return [(str(i),) for i in range(len(self.pieces))]

    def stamp(self, part: Part) -> str:
        return "1"

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        return (Record(text, group) for text, group in self.pieces[int(part[0])])


def source(name: str, *pieces: list[str | None | tuple[str, str]], target: int = 10**9, cleaning: Cleaning | None = None, repeat_cap: int = 1) -> Source:
    """Pieces of texts, or of (text, group)."""
    held = tuple(tuple(record if isinstance(record, tuple) else (record, None) for record in piece) for piece in pieces)
    return Source(name=name, recipe=Listed(held), scope=Scope(target_bytes=target, problems=PROBLEMS), cleaning=cleaning, repeat_cap=repeat_cap)


def build(folder: Path, *sources: Source, workers: int = 1, evaluation: EvaluationIndex | None = None, phases: tuple[Phase, ...] = (),
          by_size: BySize | None = None, held_out: frozenset[str] = frozenset()) -> tuple[dict, dict[str, list[dict]]]:
    """The report, and file name -> rows."""
    jobs = plan_jobs(list(sources), folder / "work")
    read_jobs(jobs, held_out, Pool(workers), lambda: None, evaluation)
    facts = merge(jobs, folder / "out", val_fraction=0.2, test_fraction=0.2, seed=0, phases=phases, by_size=by_size)
    for counts in facts["sources"].values():
        assert counts["records"] == counts["kept"] + sum(counts["dropped"].values())
    return facts, {path.relative_to(folder / "out").with_suffix("").as_posix(): [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
                   for path in sorted((folder / "out").rglob("*.jsonl"))}


def by_text(files: dict[str, list[dict]]) -> dict[str, str]:
    """Text -> file; a text in two files fails."""
    where: dict[str, str] = {}
    for name, rows in files.items():
        for row in rows:
            assert where.setdefault(row["text"], name) == name, f"{row['text']!r} is in {where[row['text']]} and {name}"
    assert set(files) >= set(SPLITS[1:])
    return where
