"""The check on the written files must be able to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.prepared import check_written, held_out_questions, read_jsonl, write_chats, write_jsonl, write_problems
from data.problems import ProblemSource

SOURCE = ProblemSource(seed=1, tasks={"addition": 1.0, "reversal": 2.0}, val_fraction=0.1, test_fraction=0.1)
COUNTS = {"train": 30, "val": 9, "test": 12}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_problems(SOURCE, COUNTS, tmp_path / "problems")
    write_chats(SOURCE, COUNTS, tmp_path / "chat", system_fraction=0.2, multi_turn_fraction=0.2)
    for number, split in enumerate(COUNTS):
        write_jsonl(tmp_path / "text" / f"{split}.jsonl", [{"id": f"{number}", "source": "s", "text": "t"}])
    return tmp_path


def test_facts_add_up(tmp_path: Path) -> None:
    facts = write_problems(SOURCE, COUNTS, tmp_path)
    for split, count in COUNTS.items():
        assert facts[split]["kept"] == count == sum(facts[split]["by_task"].values()) == len(list(read_jsonl(tmp_path / f"{split}.jsonl")))
        assert facts[split]["draws"] == count + facts[split]["dropped"]["repeat"]
        assert facts[split]["by_task"]["reversal"] == 2 * facts[split]["by_task"]["addition"]


def test_clean_files_pass(out: Path) -> None:
    found = check_written(out)
    assert found["documents"] == 3 and found["shared"] == 0 and found["questions"] >= 2 * sum(COUNTS.values())
    assert held_out_questions(out / "problems") == {row["prompt"] for split in ("val", "test") for row in read_jsonl(out / "problems" / f"{split}.jsonl")}


@pytest.mark.parametrize(("kind", "message"), [("text", "text documents"), ("problems", "problem keys"), ("chat", "questions of chats")])
def test_data13_an_overlap_is_found_on_the_files(out: Path, kind: str, message: str) -> None:
    """DATA-13: copy one test record into train."""
    train, test = (out / kind / f"{split}.jsonl" for split in ("train", "test"))
    train.write_bytes(train.read_bytes() + test.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ValueError, match=f"{message}.* is in both train and test"):
        check_written(out)


def test_a_held_out_problem_asked_in_a_training_chat_is_found(out: Path) -> None:
    prompt = next(read_jsonl(out / "problems" / "val.jsonl"))["prompt"]
    chats = [*read_jsonl(out / "chat" / "train.jsonl"), {"id": "x", "source": "s", "messages": [{"role": "user", "content": prompt}]}]
    write_jsonl(out / "chat" / "train.jsonl", chats)
    with pytest.raises(ValueError, match="is in both train and val"):
        check_written(out)


def test_jsonl_keeps_unusual_line_separators(tmp_path: Path) -> None:
    rows = [{"text": "a\u2028b\x85c\r\nd"}, {"text": "é"}]
    write_jsonl(tmp_path / "a.jsonl", rows)
    assert list(read_jsonl(tmp_path / "a.jsonl")) == rows and (tmp_path / "a.jsonl").read_bytes().count(b"\n") == 2
