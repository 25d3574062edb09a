"""The prepare stage: what it refuses, what it counts, and the same bytes after any interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data.recipes import stdlib
from data.split import SPLITS
from data.tasks import is_correct
from stages.config import StageError, parse_section
from stages.context import Context, Interrupted
from stages.prepare import Config, plan, run

BASE = {
    "text_tokens": 20_000,
    "mixture": {
        "notes": {"recipe": "local", "weight": 1.0, "options": {"paths": ["raw/*.jsonl"], "format": "auto", "field": "text", "documents": "file"}},
        "problems": {"recipe": "problems", "weight": 3.0, "options": {"problems_per_document": 4}},
    },
    "mixing": {"temperature": 1.0},
    "phases": [],
    "tasks": {"addition": 1.0, "sorting": 1.0},
    "num_problems": {"train": 40, "val": 10, "test": 20},
    "num_chats": 60,
    "system_fraction": 0.3,
    "multi_turn_fraction": 0.1,
    "val_fraction": 0.1,
    "test_fraction": 0.1,
    "workers": 1,
    "executor": "processes",
    "dask_address": None,
}


def config(**changes: object) -> Config:
    return parse_section(Config, "prepare", {"prepare": {**BASE, **changes}})


def local(**options: object) -> dict:
    return {**BASE["mixture"], "notes": {**BASE["mixture"]["notes"], "options": {**BASE["mixture"]["notes"]["options"], **options}}}


def write_notes(folder: Path, files: int = 3, records: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        rows = [{"text": f"note {j} of file {i}: " + "words " * (j % 7)} for j in range(records)]
        (folder / f"{i:02d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root with three note files and a dvc.yaml that declares them."""
    write_notes(tmp_path / "raw")
    (tmp_path / "dvc.yaml").write_text("stages: {prepare: {cmd: x, deps: [raw], params: [prepare], outs: [data/out/prepare]}}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(folder: Path, cfg: Config, seed: int = 7) -> dict[str, float]:
    return run(cfg, Context.for_test(folder, "prepare", {}, seed))


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def test_files_and_report_agree(project: Path) -> None:
    metrics = prepare(project / "a", config())
    out = project / "a" / "out"
    assert sorted(tree(out)) == sorted([f"{kind}/{split}.jsonl" for kind in ("chat", "problems", "text") for split in SPLITS] + ["report.json"])
    report = json.loads((out / "report.json").read_text())
    for name, source in report["text"]["sources"].items():
        assert source["records"] == source["kept"] + sum(source["dropped"].values()), name
    for split in SPLITS:
        text, chat, problems = (rows(out / kind / f"{split}.jsonl") for kind in ("text", "chat", "problems"))
        assert all(set(row) == {"id", "source", "text"} for row in text) and all(set(row) == {"id", "source", "messages"} for row in chat)
        assert all(set(row) == {"id", "task", "prompt", "answer"} for row in problems)
        assert report["text"]["splits"][split] == {"documents": len(text), "bytes": (size := sum(len(r["text"].encode()) for r in text)), "tokens": size // 4}
        assert len(chat) == report["chat"][split]["kept"] == metrics[f"chats_{split}"]
        assert len(problems) == report["problems"][split]["kept"] == BASE["num_problems"][split]
        assert all(is_correct(chat_row["messages"][-1]["content"], chat_row["messages"][-1]["content"].split("#### ")[1]) for chat_row in chat)
    assert report["interpreter"] is None and report["text"]["sources"]["notes"]["missing_tokens"] > 0
    assert metrics["text_documents"] == sum(report["text"]["splits"][split]["documents"] for split in SPLITS)
    assert all(isinstance(value, int) for value in metrics.values())


def test_the_same_bytes_whatever_the_workers_and_the_order_of_keys(project: Path) -> None:
    outputs = []
    for number, workers in enumerate((1, 2, 4)):
        mixture = dict(sorted(BASE["mixture"].items(), reverse=number % 2 == 1))
        prepare(project / str(number), config(workers=workers, mixture=mixture))
        outputs.append(tree(project / str(number) / "out"))
    assert outputs[0] == outputs[1] == outputs[2]


def test_another_seed_gives_other_problems(project: Path) -> None:
    prepare(project / "a", config(), seed=1)
    prepare(project / "b", config(), seed=2)
    assert tree(project / "a" / "out")["problems/test.jsonl"] != tree(project / "b" / "out")["problems/test.jsonl"]


def test_data03_crlf_input_gives_the_same_output(project: Path) -> None:
    """DATA-03: a CRLF copy of the corpus, one text with an escaped CRLF inside."""
    (project / "raw" / "crlf.jsonl").write_text(json.dumps({"text": "inside\r\nkept"}) + "\n")
    prepare(project / "a", config())
    for path in (project / "raw").iterdir():
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    prepare(project / "b", config())
    assert tree(project / "a" / "out") == tree(project / "b" / "out")
    assert any(row["text"] == "inside\r\nkept" for split in SPLITS for row in rows(project / "a" / "out" / "text" / f"{split}.jsonl"))


def test_data01_empty_records_are_counted(project: Path) -> None:
    path = project / "raw" / "00.jsonl"
    path.write_bytes(b'{"text": ""}\n' + path.read_bytes() + b'{"text": " \\n"}\n{"text": "\xff"}\n')
    metrics = prepare(project / "a", config())
    assert metrics["dropped_empty"] == 2 and metrics["dropped_undecodable"] == 1


def test_data11_a_20_megabyte_record_is_one_document(project: Path) -> None:
    (project / "raw" / "huge.jsonl").write_text(json.dumps({"text": "x" * 20_000_000}) + "\n")
    mixture = {"notes": BASE["mixture"]["notes"], "problems": {**BASE["mixture"]["problems"], "weight": 0.002}}
    metrics = prepare(project / "a", config(text_tokens=6_000_000, mixture=mixture))
    assert metrics["text_tokens"] > 5_000_000 and metrics["text_missing_tokens"] > 0


@pytest.mark.parametrize(("content", "message"), [
    ('{"text": "a"}\n{"text": \n{"text": "c"}\n', r"prepare: raw/00\.jsonl:2: not valid JSON"),
    ('{"body": "a"}\n', r"prepare: raw/00\.jsonl:1: no field 'text' \(got body\)"),
])
def test_malformed_files_are_named(project: Path, content: str, message: str) -> None:
    (project / "raw" / "00.jsonl").write_text(content)
    with pytest.raises(StageError, match=message):
        prepare(project / "a", config(workers=2))


def test_missing_and_empty_corpora_are_refused(project: Path) -> None:
    with pytest.raises(StageError, match="no file matches 'raw/none.txt'"):
        prepare(project / "a", config(mixture=local(paths=["raw/none.txt"])))
    (project / "raw" / "blank.txt").write_text("\n \n")
    with pytest.raises(StageError, match="source 'notes' has no usable text: 2 records, of which 2 empty"):
        prepare(project / "b", config(mixture=local(paths=["raw/blank.txt"], field=None, documents="line")))


def test_an_exhausted_task_is_refused(project: Path) -> None:
    with pytest.raises(StageError, match="task 'multiplication' gave only .* lower prepare.num_problems.train"):
        prepare(project / "a", config(tasks={"multiplication": 1.0}, num_problems={"train": 900, "val": 5, "test": 5}))


def test_dvc03_only_declared_files_are_read(project: Path) -> None:
    """DVC-03: a file that dvc.yaml does not name could change without a rerun."""
    outside = project / "elsewhere"
    write_notes(outside, files=1)
    with pytest.raises(StageError, match="prepare.mixture reads elsewhere/00.jsonl, which is not among the deps"):
        prepare(project / "a", config(mixture=local(paths=["elsewhere/00.jsonl"])))
    (project / "raw" / "linked").symlink_to(outside)
    with pytest.raises(StageError, match="reads raw/linked/00.jsonl"):
        prepare(project / "b", config(mixture=local(paths=["raw/linked/*.jsonl"])))
    (project / "raw" / "linked").unlink()
    (project / "raw" / "link.jsonl").symlink_to(outside / "00.jsonl")
    prepare(project / "c", config(mixture=local(paths=["raw/link.jsonl"])))


def test_another_python_is_refused_only_where_its_library_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = project / "interpreter.json"
    record.write_text(json.dumps({**stdlib.identity(), "python": "3.0.1"}))
    monkeypatch.setattr(stdlib, "RECORD", record)
    prepare(project / "a", config())
    with_library = {"code": {"recipe": "stdlib", "weight": 1.0, "options": {"kind": "code"}}}
    with pytest.raises(StageError, match="python: 3.0.1 -> .*record it with `python -m data.recipes.stdlib`, then run `dvc repro`"):
        prepare(project / "b", config(mixture=with_library))
    assert stdlib.main([], record) == 0
    prepare(project / "c", config(mixture=with_library, text_tokens=100_000))
    assert json.loads((project / "c" / "out" / "report.json").read_text())["interpreter"] == stdlib.identity()


@pytest.mark.parametrize(("changes", "message"), [
    ({"tasks": {"additon": 1.0}}, "prepare.tasks: .*unknown task 'additon'"),
    ({"tasks": {"addition": 0.0}}, "weights of at least zero, one of them above it"),
    ({"val_fraction": 0.5, "test_fraction": 0.5}, r"val_fraction \+ test_fraction below 1"),
    ({"mixture": {"a b": BASE["mixture"]["problems"]}}, r"letters, digits, - and _ only, not \['a b'\]"),
    ({"mixture": {"a": {"recipe": "web", "weight": 1.0, "options": {}}}}, "prepare.mixture.a.options: .*unknown recipe 'web'; expected one of bucket, hub, local"),
    ({"mixture": {"a": {"recipe": "stdlib", "weight": 1.0, "options": {"kind": "both"}}}}, "recipe 'stdlib': kind: Input should be 'code' or 'docs'"),
    ({"mixture": {"a": {"recipe": "stdlib", "weight": 1.0, "options": {}}}}, "options of recipe 'stdlib': kind: Field required"),
    ({"mixture": {"a": {"recipe": "problems", "weight": 1.0, "options": {"problems_per_document": "4"}}}}, "Input should be a valid integer"),
    ({"mixture": local(path="x")}, "options of recipe 'local': path: Unexpected keyword argument"),
    ({"mixture": {}}, "prepare.mixture: got {}"),
    ({"workers": 0}, "prepare.workers: got 0"),
])
def test_config_mistakes_are_named(changes: dict, message: str) -> None:
    with pytest.raises(StageError, match=message):
        config(**changes)


def test_too_few_chats_for_three_splits_are_refused_in_the_dry_run(project: Path) -> None:
    ctx = Context.for_plan("prepare", None, 7, {})
    assert plan(config(), ctx) == {"text_tokens": {"notes": 5_000, "problems": 15_000}, "chats": {"train": 48, "val": 6, "test": 6}}
    with pytest.raises(StageError, match="prepare.num_chats=3 gives .*expected at least one chat a split"):
        plan(config(num_chats=3), ctx)


def test_a_stop_request_is_obeyed_between_parts_and_the_next_attempt_continues(project: Path) -> None:
    prepare(project / "whole", config())
    ctx = Context.for_test(project / "stopped", "prepare", {}, 7)
    ctx.stop_requested = lambda: len(list((project / "stopped" / "work").rglob("*.json"))) >= 2
    with pytest.raises(Interrupted, match="stopped after 2 of"):
        run(config(), ctx)
    first = next((project / "stopped" / "work").rglob("00000.jsonl"))
    before = first.stat().st_mtime_ns
    notes: list[str] = []
    again = Context.for_test(project / "again", "prepare", {}, 7)
    again.work = project / "stopped" / "work"
    again.note = notes.append
    assert first.stat().st_mtime_ns == before
    run(config(), again)
    assert any(note.startswith("2 of ") for note in notes)
    assert tree(project / "again" / "out") == tree(project / "whole" / "out")


SLOW_CHILD = """
import json, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from stages.config import parse_section
from stages.context import Context
from stages.prepare import Config, run


class Slow(Context):
    def progress(self, total, unit, label=""):
        inner = super().progress(total, unit, label)
        plain = inner.advance
        inner.advance = lambda: (time.sleep(float(sys.argv[3])), plain())
        return inner


if __name__ == "__main__":
    cfg = parse_section(Config, "prepare", {"prepare": json.loads(Path("params.json").read_text())})
    ctx = Slow(stage="prepare", item=None, seed=7, out=Path(sys.argv[2]) / "out", work=Path(sys.argv[2]) / "work", deps={}, quiet=True)
    run(cfg, ctx)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_str05_killed_and_rerun_gives_the_bytes_of_an_unbroken_run(project: Path, repo_root: Path, workers: int) -> None:
    """STR-05, PRE-06: SIGKILL while parts are being read; no worker survives; the rerun's output is byte-identical."""
    write_notes(project / "raw", files=40, records=10)
    (project / "child.py").write_text(SLOW_CHILD)
    (project / "params.json").write_text(json.dumps({**BASE, "workers": workers}))
    prepare(project / "whole", config())

    def start(pause: float) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "child.py", str(repo_root), "broken", str(pause)], cwd=project)

    child = start(0.1)
    parts = project / "broken" / "work" / "text"
    deadline = time.monotonic() + 120
    while len(list(parts.rglob("*.json"))) < 5 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    family = psutil.Process(child.pid).children(recursive=True)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL and not (project / "broken" / "out" / "report.json").exists()
    assert bool(family) == (workers > 1) and not psutil.wait_procs(family, timeout=60)[1]
    assert len(list(parts.rglob("*.json"))) < 41 or workers > 1, "the kill came too late to test anything"
    shutil.rmtree(project / "broken" / "out")  # as the runner does before every attempt
    assert start(0.0).wait() == 0
    assert tree(project / "broken" / "out") == tree(project / "whole" / "out")


def test_smoke_runs_in_a_small_corpus_of_every_recipe(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = project / "interpreter.json"
    stdlib.main([], record)
    monkeypatch.setattr(stdlib, "RECORD", record)
    mixture = {**BASE["mixture"], "code": {"recipe": "stdlib", "weight": 4.0, "options": {"kind": "code"}}}
    metrics = prepare(project / "a", config(mixture=mixture, text_tokens=60_000))
    report = json.loads((project / "a" / "out" / "report.json").read_text())
    assert metrics["text_tokens"] > 40_000 and set(report["text"]["sources"]) == {"code", "notes", "problems"}
    assert report["text"]["sources"]["code"]["asked_share"] == 0.5
