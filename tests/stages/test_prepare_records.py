"""The prepare stage with sources of chats, preferences and prompts, and with text that does not fit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest

from data.split import SPLITS
from stages.config import StageError, parse_section
from stages.context import Context, Interrupted
from stages.prepare import Config, plan, run
from tests.stages.test_prepare import BASE, SLOW_CHILD, rows, tree

NONE = {"train": 0, "val": 0, "test": 0}
CHATS = {"recipe": "local", "options": {"paths": ["raw/chats"]}, "licence": "CC0-1.0"}
PROMPTS = {"recipe": "local", "options": {"paths": ["raw/prompts.jsonl"]}}
PAIRS = {"recipe": "local", "options": {"paths": ["raw/pairs.json"]}, "cap_records": 50}
MIXTURE = {"problems": BASE["mixture"]["problems"], "chats": CHATS, "prompts": PROMPTS, "pairs": PAIRS}


def config(**changes: object) -> Config:
    return parse_section(Config, "prepare", {"prepare": {**BASE, "mixture": MIXTURE, **changes}})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Forty small files of chats, prompts and pairs of one's own, declared in dvc.yaml."""
    raw = tmp_path / "raw"
    (raw / "chats").mkdir(parents=True)
    for i in range(40):
        chats = [{"conversations": [{"from": "human", "value": f"hello {i} {j}"}, {"from": "gpt", "value": "hi"}]} for j in range(5)]
        (raw / "chats" / f"{i:02d}.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (raw / "prompts.jsonl").write_text("".join(json.dumps({"question": f"{i} + 1?", "answer": f"#### {i + 1}"}) + "\n" for i in range(200)))
    (raw / "pairs.json").write_text(json.dumps([{"prompt": f"p{i}", "chosen": "a", "rejected": "b"} for i in range(80)]))
    (tmp_path / "dvc.yaml").write_text("stages: {prepare: {cmd: x, deps: [raw], params: [prepare], outs: [data/out/prepare]}}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(folder: Path, cfg: Config) -> dict[str, float]:
    return run(cfg, Context.for_test(folder, "prepare", {}, 7))


def report(folder: Path) -> dict:
    return json.loads((folder / "out" / "report.json").read_text())


def test_records_stand_beside_the_built_in_ones(project: Path) -> None:
    metrics = prepare(project / "a", config())
    sources, out = report(project / "a")["sources"], project / "a" / "out"
    assert {name: (source["kind"], source["format"], source["detected_from"]) for name, source in sources.items()} == {
        "problems": ("text", "text", None), "chats": ("chat", "sharegpt", 20), "prompts": ("prompts", "gsm8k", 20), "pairs": ("preference", "preference_texts", 20)}
    assert {name: (source["records"], source["kept"]) for name, source in sources.items() if name != "problems"} == {"chats": (200, 200), "prompts": (200, 200), "pairs": (80, 50)}
    assert sources["chats"]["licence"] == "CC0-1.0" and sources["problems"]["records"] == sources["problems"]["kept"] + sum(sources["problems"]["dropped"].values())
    for split in SPLITS:
        names = [row["source"] for row in rows(out / "chat" / f"{split}.jsonl")]
        assert names == sorted(names, key=lambda name: name == "chats") and metrics[f"chats_{split}"] == len(names), "built-in ones first, in their own order"
        assert metrics[f"problems_{split}"] == len(rows(out / "problems" / f"{split}.jsonl")) and metrics[f"preferences_{split}"] == len(rows(out / "preference" / f"{split}.jsonl"))
    assert report(project / "a")["overlap"]["questions"] >= 200 + 200 + 50 + BASE["num_chats"] + sum(BASE["num_problems"].values())


def test_built_in_ones_can_be_switched_off(project: Path) -> None:
    prepare(project / "a", config(num_chats=0, num_problems=NONE))
    out = project / "a" / "out"
    for split in SPLITS:
        assert {row["source"] for row in rows(out / "chat" / f"{split}.jsonl")} == {"chats"} and {row["task"] for row in rows(out / "problems" / f"{split}.jsonl")} == {"prompts"}


@pytest.mark.parametrize(("changes", "message"), [
    ({"mixture": {"problems": MIXTURE["problems"]}, "num_chats": 0}, "prepare.mixture has no source of chat; add one, or let built-in ones do .prepare.num_chats"),
    ({"mixture": {"problems": MIXTURE["problems"]}, "num_problems": {**BASE["num_problems"], "val": 0}}, "has no source of prompts"),
    ({"mixture": {"chats": CHATS}}, "prepare.mixture has no source of text; add one$"),
    ({"mixture": {**MIXTURE, "chats": {**CHATS, "weight": 1.0}}}, "prepare.mixture.chats holds chat, which takes no weight; remove it, or name another kind"),
    ({"mixture": {**MIXTURE, "problems": {**MIXTURE["problems"], "cap_records": 3, "split": "train"}}}, "problems holds text, which takes no cap_records and no split; remove"),
    ({"mixture": {**MIXTURE, "problems": {"recipe": "problems", "options": {"problems_per_document": 4}}}}, "prepare: source problems makes as much as it is asked for, so it has no size to follow: give every source a weight"),
    ({"mixture": {**MIXTURE, "chats": {**CHATS, "cleaning": {"unicode": "nfc"}, "repeat_cap": 2}}}, "holds chat, which takes no cleaning and no repeat_cap"),
    ({"mixture": {**MIXTURE, "problems": {**MIXTURE["problems"], "weight": None}}, "phases": [{"name": "x", "tokens": 20_000, "weights": {"chats": 1.0}}]},
     "prepare: phase 'x': weights above zero of sources in the mixture .problems."),
    ({"mixture": {**MIXTURE, "addition": PROMPTS}}, "prepare.mixture.addition holds prompts under the name of a built-in task"),
    ({"mixture": {**MIXTURE, "other": {**CHATS, "options": {"paths": ["dvc.yaml"], "format": "jsonl"}, "kind": "chat"}}}, "reads dvc.yaml, which is not among the deps"),
])
def test_what_does_not_suit_is_refused_before_anything_is_read(project: Path, changes: dict, message: str) -> None:
    with pytest.raises(StageError, match=message):
        prepare(project / "a", config(**changes))
    assert not (project / "a" / "out" / "text").exists()


@pytest.mark.parametrize(("entry", "message"), [
    ({**CHATS, "kind": "dialogue"}, "prepare.mixture.chats.kind: got 'dialogue'"),
    ({**CHATS, "record_format": "chatml"}, "prepare.mixture.chats: .*no format 'chatml' of kind auto"),
    ({**CHATS, "max_bad_fraction": 1.0}, "prepare.mixture.chats.max_bad_fraction: got 1.0"),
    ({**CHATS, "options": {"paths": ["x"], "encoding": "utf-9"}}, "prepare.mixture.chats.options: .*option `encoding`: got 'utf-9'"),
    ({**CHATS, "recipe": "hub", "options": {"dataset": "a/b", "split": "train"}}, "prepare.mixture.chats.options: .*revision: Field required"),
])
def test_entry_mistakes_are_named(entry: dict, message: str) -> None:
    with pytest.raises(StageError, match=message):
        config(mixture={**MIXTURE, "chats": entry})


def test_an_empty_split_is_refused(project: Path) -> None:
    few = {**MIXTURE, "prompts": {**PROMPTS, "cap_records": 2}}
    with pytest.raises(StageError, match="problems split .* is empty; give the sources of problems more records"):
        prepare(project / "a", config(mixture=few, num_problems=NONE))


def test_the_dry_run_states_the_formats(project: Path) -> None:
    assert plan(config(), Context.for_plan("prepare", None, 7, {}))["records"] == {"chats": "sharegpt (chat)", "pairs": "preference_texts (preference)", "prompts": "gsm8k (prompts)"}


def test_too_many_misfits_stop_the_stage_with_places(project: Path) -> None:
    path = project / "raw" / "chats" / "07.jsonl"
    path.write_text(path.read_text() + '{"conversations": [{"from": "narrator", "value": "x"}]}\n{"conversations": \n')
    with pytest.raises(StageError, match=r"prepare: source 'chats': 2 of 202 records do not fit, above max_bad_fraction=0.0: 1 not valid JSON \(at raw/chats/07.jsonl:7\); "
                                         r"1 unknown role \(at raw/chats/07.jsonl:6\)"):
        prepare(project / "a", config())
    prepare(project / "b", config(mixture={**MIXTURE, "chats": {**CHATS, "max_bad_fraction": 0.01}}))
    source = report(project / "b")["sources"]["chats"]
    assert source["kept"] == 200 and source["dropped"]["not valid JSON"] == source["dropped"]["unknown role"] == 1
    assert source["places"] == {"not valid JSON": ["raw/chats/07.jsonl:7"], "unknown role": ["raw/chats/07.jsonl:6"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_text_that_does_not_fit_is_counted_across_files(project: Path, workers: int) -> None:
    """Without a fraction the first malformed line stops the stage, as the chain tests pin; with one it is counted like any misfit."""
    for i in range(3):
        (project / "raw" / f"t{i}.jsonl").write_text("".join(json.dumps({"text": f"note {i} {j}"}) + "\n" for j in range(30)) + '{"text": \n{"body": "x"}\n{"text": 3}\n')
    text = {"recipe": "local", "weight": 1.0, "options": {"paths": ["raw/t*.jsonl"], "field": "text"}}
    with pytest.raises(StageError, match="prepare: raw/t0.jsonl:31: not valid JSON .*correct or remove the line"):
        prepare(project / "a", config(mixture={**MIXTURE, "notes": text}))
    with pytest.raises(StageError, match=r"source 'notes': 9 of 99 records do not fit, above max_bad_fraction=0.05: 3 field 'text' holds int, expected text \(at raw/t0.jsonl:33, "):
        prepare(project / "b", config(mixture={**MIXTURE, "notes": {**text, "max_bad_fraction": 0.05}}, workers=workers))
    prepare(project / "c", config(mixture={**MIXTURE, "notes": {**text, "max_bad_fraction": 0.1}}, workers=workers))
    source = report(project / "c")["sources"]["notes"]
    assert (source["records"], source["kept"]) == (99, 90) and source["dropped"]["no field 'text'"] == 3
    assert source["places"]["not valid JSON"] == ["raw/t0.jsonl:31", "raw/t1.jsonl:31", "raw/t2.jsonl:31"]


def test_the_same_bytes_whatever_the_workers_and_the_order_of_keys(project: Path) -> None:
    prepare(project / "a", config())
    prepare(project / "b", config(workers=2, mixture=dict(reversed(MIXTURE.items()))))
    assert tree(project / "a" / "out") == tree(project / "b" / "out")


def test_a_stop_request_between_parts_of_records_is_obeyed(project: Path) -> None:
    ctx = Context.for_test(project / "stopped", "prepare", {}, 7)
    ctx.stop_requested = lambda: (project / "stopped" / "work" / "records").is_dir()
    with pytest.raises(Interrupted, match="stopped after 1 of 42 parts"):
        run(config(), ctx)


def test_killed_while_records_are_read_and_rerun_gives_the_same_bytes(project: Path, repo_root: Path) -> None:
    """STR-05: SIGKILL half-way through the forty files of chats."""
    (project / "child.py").write_text(SLOW_CHILD)
    (project / "params.json").write_text(json.dumps({**BASE, "mixture": MIXTURE}))
    prepare(project / "whole", config())

    def start(pause: float) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "child.py", str(repo_root), "broken", str(pause)], cwd=project)

    child, done = start(0.1), project / "broken" / "work" / "records" / "chats"
    deadline = time.monotonic() + 120
    while len(list(done.glob("*.json"))) < 5 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (project / "broken" / "out" / "text").exists()
    before = {path.name: path.stat().st_mtime_ns for path in done.glob("*.json")}
    assert 5 <= len(before) < 40
    shutil.rmtree(project / "broken" / "out")  # as the runner does before every attempt
    again = Context.for_test(project / "broken", "prepare", {}, 7)
    notes: list[str] = []
    again.note = notes.append
    run(config(), again)
    assert f"{len(before)} of 42 parts of records were already read by an interrupted run" in notes
    assert tree(project / "broken" / "out") == tree(project / "whole" / "out") and not (project / "broken" / "work" / "records").exists()


def test_dvc03_a_saved_copy_must_be_declared_too(project: Path) -> None:
    datasets.Dataset.from_list([{"text": f"saved {i}"} for i in range(60)]).save_to_disk(project / "elsewhere")
    saved = {"recipe": "saved", "weight": 1.0, "options": {"path": "elsewhere"}}
    with pytest.raises(StageError, match="reads elsewhere/state.json, which is not among the deps"):
        prepare(project / "a", config(mixture={**MIXTURE, "saved": saved}))
    shutil.move(project / "elsewhere", project / "raw" / "saved")
    prepare(project / "b", config(mixture={**MIXTURE, "saved": {**saved, "options": {"path": "raw/saved"}}}))
    source = report(project / "b")["sources"]["saved"]
    assert source["kept"] == 60 and source["revision"].startswith("fingerprint ")
