"""Every real file is ingested by an entry of a few lines, its format detected, and its counts add up to the records in the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from data.chat import render
from data.tasks import is_correct
from stages.config import parse_section
from stages.context import Context
from stages.prepare import Config, run

ENTRIES = """
shakespeare:
  recipe: local
  licence: public domain
  weight: 1.0
  options: {paths: [raw/tinyshakespeare.txt], documents: paragraph}
wiki:
  recipe: local
  licence: CC BY-SA
  weight: 1.0
  options: {paths: [raw/wiki_demo.txt], documents: line}
web:
  recipe: local
  licence: ODC-BY
  weight: 1.0
  options: {paths: [raw/c4_demo.jsonl]}
alpaca:
  recipe: local
  licence: Apache-2.0
  options: {paths: [raw/alpaca_en_demo.json]}
pairs:
  recipe: local
  licence: Apache-2.0
  options: {paths: [raw/dpo_en_demo.json]}
labels:
  recipe: local
  licence: Apache-2.0
  options: {paths: [raw/kto_en_demo.json]}
gsm8k:
  recipe: local
  licence: MIT
  options: {paths: [raw/train.jsonl]}
gsm8k_test:
  recipe: local
  licence: MIT
  split: test
  options: {paths: [raw/test.jsonl]}
gsm8k_chat:
  recipe: local
  licence: MIT
  kind: chat
  cap_records: 2000
  options: {paths: [raw/train.jsonl]}
"""
FILES = {"shakespeare": "text/tinyshakespeare.txt", "wiki": "text/wiki_demo.txt", "web": "web/c4_demo.jsonl", "alpaca": "chat/alpaca_en_demo.json",
         "pairs": "preference/dpo_en_demo.json", "labels": "preference/kto_en_demo.json", "gsm8k": "gsm8k/train.jsonl", "gsm8k_test": "gsm8k/test.jsonl",
         "gsm8k_chat": "gsm8k/train.jsonl"}
FORMATS = {"shakespeare": "text", "wiki": "text", "web": "text", "alpaca": "alpaca", "pairs": "sharegpt_preference", "labels": "kto", "gsm8k": "gsm8k",
           "gsm8k_test": "gsm8k", "gsm8k_chat": "gsm8k"}
KINDS = {"alpaca": "chat", "pairs": "preference", "labels": "preference", "gsm8k": "prompts", "gsm8k_test": "prompts", "gsm8k_chat": "chat"}


def paragraphs(raw: bytes) -> int:
    return sum(1 for block in raw.decode().replace("\r\n", "\n").split("\n\n") if block.strip())


COUNTERS: dict[str, Callable[[bytes], int]] = {  # each file's records, counted without a reader of ours
    "shakespeare": paragraphs,
    "wiki": lambda raw: raw.count(b"\n") + (not raw.endswith(b"\n")),
    "web": lambda raw: sum(1 for line in raw.split(b"\n") if line.strip()),
    "alpaca": lambda raw: len(json.loads(raw)),
    "pairs": lambda raw: len(json.loads(raw)),
    "labels": lambda raw: len(json.loads(raw)),
    "gsm8k": lambda raw: raw.count(b'{"question": '),
    "gsm8k_test": lambda raw: raw.count(b'{"question": '),
    "gsm8k_chat": lambda raw: raw.count(b'{"question": '),
}


def entries() -> dict[str, dict]:
    return YAML(typ="safe").load(ENTRIES)


@pytest.fixture(scope="module")
def made(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, dict, list[str]]:
    """(output, report, metrics, log) of prepare on all files at once, no built-in chats or problems beside them."""
    root = tmp_path_factory.mktemp("real")
    (root / "raw").mkdir()
    for file in FILES.values():
        if not (root / "raw" / Path(file).name).exists():
            (root / "raw" / Path(file).name).symlink_to(shared_data / file)
    (root / "dvc.yaml").write_text("stages: {prepare: {cmd: x, deps: [raw], params: [prepare], outs: [data/out/prepare]}}\n")
    section = {"text_tokens": 3_000_000, "mixture": entries(), "mixing": {"temperature": 1.0}, "phases": [], "tasks": {"addition": 1.0}, "num_problems": {"train": 0, "val": 0, "test": 0}, "num_chats": 0,
               "system_fraction": 0.0, "multi_turn_fraction": 0.0, "val_fraction": 0.05, "test_fraction": 0.05, "workers": 1,
               "executor": "processes", "dask_address": None}
    notes: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        ctx = Context.for_test(root / "a", "prepare", {}, 17)
        ctx.note = notes.append
        metrics = run(parse_section(Config, "prepare", {"prepare": section}), ctx)
    return ctx.out, json.loads((ctx.out / "report.json").read_text()), metrics, notes


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def all_rows(out: Path, kind: str, name: str) -> list[dict]:
    return [row for split in ("train", "val", "test") for row in rows(out / kind / f"{split}.jsonl") if row.get("source", row.get("task")) == name]


def test_each_entry_is_under_15_lines() -> None:
    blocks = ["", *ENTRIES.strip().split("\n")]
    starts = [number for number, line in enumerate(blocks) if line and not line.startswith(" ")] + [len(blocks)]
    assert len(starts) == len(FILES) + 1 and max(b - a for a, b in zip(starts, starts[1:])) < 15


@pytest.mark.parametrize("name", FILES)
def test_must_show_1_format_detected_and_counts_exact(made, shared_data: Path, name: str) -> None:
    out, report, _, notes = made
    source = report["sources"][name]
    assert source["format"] == FORMATS[name] and source["kind"] == KINDS.get(name, "text") and source["licence"] == entries()[name]["licence"]
    assert any(note.startswith(f"source '{name}' holds {source['kind']}") for note in notes)
    assert source["detected_from"] == 20 and source["places"] == {}
    assert source["records"] == COUNTERS[name]((shared_data / FILES[name]).read_bytes())
    assert source["records"] == source["kept"] + sum(source["dropped"].values())
    folder = {"text": "text", "chat": "chat", "preference": "preference", "prompts": "problems"}[source["kind"]]
    written = all_rows(out, folder, name)
    assert len(written) == source["kept"] == (sum(source["splits"].values()) if "splits" in source else source["kept"])
    assert not {reason for reason, count in source["dropped"].items() if count} - {"duplicate", "over_cap", "over_budget", "empty", "contaminated"}


def test_duplicates_are_the_equal_records_of_the_file(made, shared_data: Path) -> None:
    _, report, _, _ = made
    for name in ("alpaca", "pairs", "labels"):
        records = json.loads((shared_data / FILES[name]).read_bytes())
        distinct = {json.dumps([record[key].strip() if isinstance(record[key], str) else record[key] for key in sorted(record)]) for record in records}
        assert report["sources"][name]["dropped"]["duplicate"] == len(records) - len(distinct), name
    assert report["sources"]["gsm8k_chat"]["kept"] == 2000 and report["sources"]["gsm8k_test"]["splits"]["train"] == 0


def test_chats_render_and_answers_are_right(made, shared_data: Path) -> None:
    out, _, _, _ = made
    for name in ("alpaca", "gsm8k_chat"):
        assert all(render(row["messages"]) for row in all_rows(out, "chat", name))
    for row in all_rows(out, "preference", "pairs"):
        assert all(render([*row["prompt_messages"], {"role": "assistant", "content": row[answer]}]) for answer in ("chosen", "rejected"))
    assert {row["label"] for row in all_rows(out, "preference", "labels")} == {True, False}
    gold = {}
    for name in ("gsm8k", "gsm8k_test"):
        gold |= {record["question"]: record["answer"] for record in map(json.loads, (shared_data / FILES[name]).read_text().splitlines())}
    prompts = all_rows(out, "problems", "gsm8k") + all_rows(out, "problems", "gsm8k_test")
    assert all(is_correct(gold[row["prompt"]], row["answer"]) and row["answer"] == gold[row["prompt"]].rsplit("#### ", 1)[1] for row in prompts)


def test_no_question_is_on_two_sides(made) -> None:
    """DATA-13: the report's own check, and the test questions against every training chat."""
    out, report, metrics, _ = made
    assert report["overlap"]["shared"] == 0 and metrics["problems_test"] >= 1319
    exam = {row["prompt"] for row in rows(out / "problems" / "test.jsonl")}
    assert not exam & {message["content"] for row in rows(out / "chat" / "train.jsonl") for message in row["messages"]}
