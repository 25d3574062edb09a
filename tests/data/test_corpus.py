"""The two passes over text: what is dropped is counted, what is kept is the same bytes however it was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from data.corpus import Job, Source, is_done, merge, plan_jobs, read_job, read_jobs, reject
from data.dedupe import content_id
from data.problems import ProblemSource
from data.recipes.recipe import Part, Record, Scope
from data.split import split_of

PROBLEMS = ProblemSource(seed=0, tasks={"addition": 1.0}, val_fraction=0.2, test_fraction=0.2)


@dataclass(frozen=True)
class Listed:
    """A recipe that holds its records: one tuple a part."""

    pieces: tuple[tuple[str | None, ...], ...]
    version: str = "1"

    def parts(self, scope: Scope) -> list[Part]:
        return [(str(i),) for i in range(len(self.pieces))]

    def stamp(self, part: Part) -> str:
        return self.version

    def read(self, part: Part, scope: Scope) -> Iterator[Record]:
        """A text "group: ..." belongs to that group; a text "malformed" is not readable."""
        if "malformed" in self.pieces[int(part[0])]:
            raise ValueError(f"part {part[0]}: malformed")
        return (Record(text, text.split(":")[0] if text and ":" in text else None) for text in self.pieces[int(part[0])])


def listed(name: str, *pieces: tuple[str | None, ...], target: int = 10**6, version: str = "1") -> Source:
    return Source(name=name, recipe=Listed(pieces, version), scope=Scope(target_bytes=target, problems=PROBLEMS))


def build(tmp_path: Path, *sources: Source, held_out: frozenset[str] = frozenset(), workers: int = 1) -> tuple[dict, dict[str, list[dict]]]:
    jobs = plan_jobs(list(sources), tmp_path / "work")
    read_jobs(jobs, held_out, workers, lambda: None)
    facts = merge(jobs, tmp_path / "out", val_fraction=0.2, test_fraction=0.2, seed=0)
    return facts, {split: [json.loads(line) for line in (tmp_path / "out" / f"{split}.jsonl").read_bytes().splitlines()] for split in ("train", "val", "test")}


MANY = tuple(f"document number {i}" for i in range(40))


def test_data01_empty_and_undecodable_records_are_counted_not_written(tmp_path: Path) -> None:
    """DATA-01: first, middle and last record are empty."""
    facts, splits = build(tmp_path, listed("a", ("", *MANY[:20], " \n\t", None, *MANY[20:], "\u3000")))
    counts = facts["sources"]["a"]
    assert counts["records"] == 44 and counts["kept"] == 40
    assert counts["dropped"] == {"empty": 3, "undecodable": 1, "contaminated": 0, "duplicate": 0, "over_budget": 0}
    rows = [row for split in splits.values() for row in split]
    assert sorted(row["text"] for row in rows) == sorted(MANY)
    assert all(row == {"id": content_id(row["text"]), "source": "a", "text": row["text"]} for row in rows)


def test_data01_nothing_usable_is_a_plain_refusal(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source 'b' has no usable text: 3 records, of which 2 empty, 1 undecodable"):
        build(tmp_path, listed("a", MANY), listed("b", ("", None), (" ",)))
    with pytest.raises(ValueError, match="source 'c' has nothing to read"):
        plan_jobs([listed("c")], tmp_path)


def test_data13_duplicates_fall_on_one_side_and_the_first_in_order_survives(tmp_path: Path) -> None:
    """DATA-13: ten copies in two sources and one long document; splits are by whole document."""
    long = "a line of a long document\n" * 5000
    facts, splits = build(tmp_path, listed("a", (MANY[0],) * 5 + MANY, (long,)), listed("b", (MANY[0],) * 5 + ("only b",)))
    assert facts["sources"]["a"]["dropped"]["duplicate"] == 5 and facts["sources"]["b"]["dropped"]["duplicate"] == 5
    rows = [row for split in splits.values() for row in split]
    assert len(rows) == len({row["text"] for row in rows}) == 42
    assert [row["source"] for row in rows if row["text"] == MANY[0]] == ["a"]
    assert sum(row["text"] == long for row in rows) == 1
    assert {split: (c["documents"], c["bytes"]) for split, c in facts["splits"].items()} == {
        split: (len(rows), sum(len(row["text"].encode()) for row in rows)) for split, rows in splits.items()}


def test_data13_documents_of_a_group_share_a_split(tmp_path: Path) -> None:
    """DATA-13: a module's documentation is quoted from its code, so they must not face each other across a split."""
    pairs = [f"module{i}: {part}" for i in range(30) for part in ("code", "documentation")]
    _, splits = build(tmp_path, listed("a", tuple(pairs[::2])), listed("b", tuple(pairs[1::2])))
    where = {row["text"]: split for split, rows in splits.items() for row in rows}
    assert all(where[code] == where[docs] == split_of(code.split(":")[0], 0.2, 0.2) for code, docs in zip(pairs[::2], pairs[1::2]))
    assert set(where.values()) == {"train", "val", "test"}


def test_a_held_out_question_in_the_text_is_dropped(tmp_path: Path) -> None:
    quoting = "An exam.\n  What is 47 + 5?  \nThe answer is 52."
    facts, splits = build(tmp_path, listed("a", (*MANY, quoting)), held_out=frozenset({"What is 47 + 5?"}))
    assert facts["sources"]["a"]["dropped"]["contaminated"] == 1
    assert all("47 + 5" not in row["text"] for split in splits.values() for row in split)
    assert reject("He asked: What is 47 + 5? Well.", frozenset({"What is 47 + 5?"})) is None


def test_budget_shares_and_shortfall_are_stated(tmp_path: Path) -> None:
    sizes = [len(text) for text in MANY]
    facts, _ = build(tmp_path, listed("big", MANY, target=sum(sizes) // 2), listed("small", tuple(f"s{text}" for text in MANY), target=4000))
    big, small = facts["sources"]["big"], facts["sources"]["small"]
    assert big["kept_bytes"] <= sum(sizes) // 2 and big["dropped"]["over_budget"] == 40 - big["kept"] > 0 and big["missing_tokens"] == 0
    assert small["kept"] == 40 and small["missing_tokens"] == (4000 - sum(sizes) - 40) // 4 > 0
    assert big["share"] + small["share"] == pytest.approx(1, abs=1e-5)
    assert big["share"] == pytest.approx(big["kept_bytes"] / (big["kept_bytes"] + small["kept_bytes"]), abs=1e-6)
    assert small["asked_share"] == pytest.approx(4000 / (4000 + sum(sizes) // 2), abs=1e-3)


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"text split (train|val|test) and (val|test) is empty \(1 documents in all\)"):
        build(tmp_path, listed("a", ("one",)))


def test_output_does_not_depend_on_workers(tmp_path: Path) -> None:
    sources = [listed("a", *[tuple(f"{i} {text}" for text in MANY[i:]) for i in range(6)]), listed("b", MANY, MANY)]
    outputs = []
    for workers in (1, 2, 4):
        build(tmp_path / str(workers), *sources, workers=workers)
        outputs.append({p.name: p.read_bytes() for p in sorted((tmp_path / str(workers) / "out").iterdir())})
    assert outputs[0] == outputs[1] == outputs[2] and len(outputs[0]["train.jsonl"]) > 1000


def test_a_finished_piece_is_not_read_again_unless_it_changed(tmp_path: Path) -> None:
    source = listed("a", MANY[:20], MANY[20:])
    jobs = plan_jobs([source], tmp_path)
    read_job(jobs[0], frozenset())
    assert is_done(jobs[0]) and not is_done(jobs[1])
    before = jobs[0].lines.stat().st_mtime_ns
    calls: list[int] = []
    assert read_jobs(jobs, frozenset(), 1, lambda: calls.append(1)) == 1 and len(calls) == 2
    assert jobs[0].lines.stat().st_mtime_ns == before
    changed = plan_jobs([listed("a", MANY[:20], MANY[20:], version="2")], tmp_path)
    assert not any(map(is_done, changed))


def test_a_piece_without_its_index_counts_as_unread(tmp_path: Path) -> None:
    """STR-05: killed between the two renames."""
    (job,) = plan_jobs([listed("a", MANY)], tmp_path)
    read_job(job, frozenset())
    whole = job.lines.read_bytes()
    job.index.unlink()
    job.lines.write_bytes(whole[:100])
    assert not is_done(job)
    read_jobs([job], frozenset(), 1, lambda: None)
    assert job.lines.read_bytes() == whole and is_done(job)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_one_piece_stops_the_pass_with_its_message(tmp_path: Path, workers: int) -> None:
    jobs = plan_jobs([listed("a", MANY[:20], MANY[20:])], tmp_path)
    broken = Job(listed("a", ("malformed",)), ("0",), tmp_path / "broken.jsonl")
    with pytest.raises(ValueError, match="part 0: malformed"):
        read_jobs([*jobs, broken], frozenset(), workers, lambda: None)
    assert not is_done(broken)
