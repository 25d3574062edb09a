"""The two passes over text: what is dropped is counted, what is kept is the same bytes however it was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from data.cleaning.policy import Cleaning, Contamination
from data.corpus import Job, Source, is_done, merge, plan_jobs, read_job, read_jobs, reject, text_files
from data.dedupe import content_id
from data.mixing import BySize, Phase
from data.pool import Pool
from data.problems import ProblemSource
from data.recipes.recipe import Part, Record, Scope
from data.split import split_of
from tests.data.listed import build as listed_build
from tests.data.listed import by_text
from tests.data.listed import source as listed_source

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
    read_jobs(jobs, held_out, Pool(workers), lambda: None)
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
    assert read_jobs(jobs, frozenset(), Pool(1), lambda: calls.append(1)) == 1 and len(calls) == 2
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
    read_jobs([job], frozenset(), Pool(1), lambda: None)
    assert job.lines.read_bytes() == whole and is_done(job)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_one_piece_stops_the_pass_with_its_message(tmp_path: Path, workers: int) -> None:
    jobs = plan_jobs([listed("a", MANY[:20], MANY[20:])], tmp_path)
    broken = Job(listed("a", ("malformed",)), ("0",), tmp_path / "broken.jsonl")
    with pytest.raises(ValueError, match="part 0: malformed"):
        read_jobs([*jobs, broken], frozenset(), Pool(workers), lambda: None)
    assert not is_done(broken)


LONG_ENOUGH = [f"document {i} " + " ".join(f"w{i}x{j}" for j in range(20)) for i in range(60)]


def split_texts(folder: Path, texts: list[str]) -> dict[str, list[str]]:
    _, files = listed_build(folder, listed_source("a", texts))
    return {name: [row["text"] for row in rows] for name, rows in files.items()}


def test_contamination_by_validation_and_test_text_of_any_source(tmp_path: Path) -> None:
    """A training document that quotes 13 words of a held-out document is dropped, whatever source that one is of."""
    splits = split_texts(tmp_path / "plain", LONG_ENOUGH)
    held = [*splits["val"][:2], *splits["test"][:1]]
    quoting = [f"They wrote: {' '.join(text.split()[4:18])}, number {i}" for i, text in enumerate(held)]
    short = f"They wrote: {' '.join(held[0].split()[4:16])} and no more"
    quoting = [text for i in range(9) for text in (f"{text} take {i}" for text in quoting)]
    in_train = [text for text in quoting if split_of(content_id(text), 0.2, 0.2) == "train"]
    facts, files = listed_build(tmp_path / "b", listed_source("a", LONG_ENOUGH), listed_source("b", [*quoting, short], cleaning=Cleaning(contamination=Contamination())))
    counts = facts["sources"]["b"]
    assert len(in_train) > 5 and counts["dropped"]["contaminated"] == len(in_train) and counts["kept"] == len(quoting) + 1 - len(in_train)
    assert not set(in_train) & {row["text"] for rows in files.values() for row in rows}
    assert len(counts["quotes"]) == 5 and all(quote["items"][0].startswith(("text/val/", "text/test/")) for quote in counts["quotes"])
    assert counts["quotes"][0]["items"][0].split("/")[2] in {content_id(text) for text in LONG_ENOUGH + quoting}
    assert counts["missing_tokens"] == (10**9 - counts["kept_bytes"]) // 4
    assert facts["sources"]["a"]["dropped"]["contaminated"] == 0 and "quotes" not in facts["sources"]["a"]


def test_whole_passes_up_to_the_cap_and_never_of_held_out_text(tmp_path: Path) -> None:
    once = listed_build(tmp_path / "1", listed_source("a", LONG_ENOUGH), listed_source("b", ["only one"]))[1]
    size = sum(len(text) for text in LONG_ENOUGH)
    train = sum(len(row["text"]) for row in once["train"] if row["source"] == "a")
    for cap, target, passes in ((5, size + int(2.9 * train), 3), (2, size + 9 * train, 2), (1, size + 9 * train, 1), (5, size // 2, 1)):
        facts, files = listed_build(tmp_path / f"{cap}-{target}", listed_source("a", LONG_ENOUGH, target=target, repeat_cap=cap), listed_source("b", ["only one"]))
        ids = [row["id"] for row in files["train"] if row["source"] == "a"]
        counts = facts["sources"]["a"]
        assert ids == ids[: len(ids) // passes] * passes and len(set(ids)) == len(ids) // passes
        assert facts["splits"]["train"]["documents"] == len(files["train"]) and (files["val"], files["test"]) == (once["val"], once["test"]) or target == size // 2
        if cap > 1:
            assert (counts["epochs"], counts["repeated_documents"]) == (passes, len(ids) - len(set(ids)))
            assert counts["repeated_tokens"] == (passes - 1) * train // 4 or target == size // 2
            assert counts["missing_tokens"] == (0 if target == size // 2 else (target - size - (passes - 1) * train) // 4)
        else:
            assert "epochs" not in counts
        assert sum(source["share"] for source in facts["sources"].values()) == pytest.approx(1, abs=1e-5)


def test_phases_have_mixtures_of_their_own_and_share_the_held_out_text(tmp_path: Path) -> None:
    """Qwen3's shape: general first, then reasoning-heavy. Every training document is in one phase."""
    other = [f"other {text}" for text in LONG_ENOUGH]
    size, other_size = (sum(map(len, texts)) for texts in (LONG_ENOUGH, other))
    phases = (Phase(name="general", targets={"a": 3 * size // 4, "b": other_size // 4}), Phase(name="reasoning", targets={"a": size // 4, "b": 3 * other_size // 4}))
    sources = [listed_source("a", LONG_ENOUGH, target=size), listed_source("b", other, target=other_size)]
    plain_facts, plain = listed_build(tmp_path / "plain", *sources)
    facts, files = listed_build(tmp_path / "phases", *sources, phases=phases)
    assert set(files) == {"general/train", "reasoning/train", "val", "test"} and files["val"] == plain["val"] and files["test"] == plain["test"]
    assert sorted(by_text(files)) == sorted(by_text(plain)) and facts["splits"] == plain_facts["splits"] and facts["sources"] == plain_facts["sources"]
    assert [path.parent.name for path in text_files(tmp_path / "phases" / "out", "train")] == ["general", "reasoning"]
    for phase, name, share in zip(facts["phases"], ("general", "reasoning"), (0.75, 0.25)):
        rows = files[f"{name}/train"]
        assert phase["name"] == name and sum(source["documents"] for source in phase["sources"].values()) == len(rows)
        assert phase["tokens"] == sum(len(row["text"]) for row in rows) // 4
        assert phase["sources"]["a"]["share"] == pytest.approx(share, abs=0.05) and phase["sources"]["a"]["asked_share"] == pytest.approx(share, abs=0.03)
        assert not any(source["repeated_documents"] for source in phase["sources"].values())


def test_one_phase_is_the_plain_corpus_and_repeats_are_told_by_phase(tmp_path: Path) -> None:
    size = sum(map(len, LONG_ENOUGH))
    plain = listed_build(tmp_path / "plain", listed_source("a", LONG_ENOUGH, target=size))[1]
    facts, files = listed_build(tmp_path / "one", listed_source("a", LONG_ENOUGH, target=size), phases=(Phase(name="all", targets={"a": size}),))
    assert files == plain and [phase["name"] for phase in facts["phases"]] == ["all"]
    halves = (Phase(name="first", targets={"a": 2 * size}), Phase(name="second", targets={"a": 2 * size}))
    facts, files = listed_build(tmp_path / "two", listed_source("a", LONG_ENOUGH, target=4 * size, repeat_cap=9), phases=halves)
    passes = facts["sources"]["a"]["epochs"]
    assert passes >= 4 and len(files["first/train"]) + len(files["second/train"]) == passes * len(plain["train"])
    assert sum(phase["sources"]["a"]["repeated_documents"] for phase in facts["phases"]) == facts["sources"]["a"]["repeated_documents"]
    assert {row["id"] for row in files["first/train"] + files["second/train"]} == {row["id"] for row in plain["train"]}
    with pytest.raises(ValueError, match="phase late has no document; give more or smaller documents or raise its tokens"):
        listed_build(tmp_path / "none", listed_source("a", LONG_ENOUGH, target=size), phases=(Phase(name="early", targets={"a": size}), Phase(name="late", targets={"a": 0})))


def test_shares_by_size(tmp_path: Path) -> None:
    """Temperature 2 draws 9 to 1 together to 3 to 1, of what is left after de-duplication."""
    big, small = [f"{text} {i}" for i in range(9) for text in LONG_ENOUGH], LONG_ENOUGH
    sizes = {"big": sum(map(len, big)), "small": sum(map(len, small))}
    total = sizes["small"] * 2
    facts, _ = listed_build(tmp_path, listed_source("big", big + big), listed_source("small", small), by_size=BySize(total_bytes=total, temperature=2.0))
    targets = BySize(total_bytes=total, temperature=2.0).targets(sizes)
    assert {name: counts["asked_tokens"] for name, counts in facts["sources"].items()} == {name: target // 4 for name, target in targets.items()}
    assert facts["sources"]["small"]["share"] == pytest.approx(0.25, abs=0.02) and facts["sources"]["big"]["dropped"]["duplicate"] == len(big)
