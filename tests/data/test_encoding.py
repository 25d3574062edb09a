"""Shard tasks: every line once, the same bytes for any number of workers, finished tasks found again and only while they are valid."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import encoding
from data.chat import CHAT_TEMPLATE
from data.encoding import ShardTask, bare_source, clear_drafts, code_fingerprint, columns_of, encode_task, merge_tasks, plan_tasks
from data.pool import Pool, run_tasks
from data.rows import Tally, read_lines, read_records, text_rows
from data.shards import open_mds, verify_mds, write_mds
from data.tokenizer import load_bare, save_tokenizer, train_bpe
from tests.conftest import ROOT
from tests.data.toy_tokens import toy_texts
from tests.test_layering import imports

VOCAB = 420
ONE = Pool(1)
SETTINGS = {"vocab_size": VOCAB, "shard_bytes": 3000, "task_bytes": 4000}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, train_bpe(toy_texts(), VOCAB, 2), CHAT_TEMPLATE)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = random.Random(0)
    words = ["def", "return", "the", "naïve", "漢字", "x=1", "''", "😀", "end"]
    records = [{"id": f"d{i}", "source": f"s{i % 3}", "text": " ".join(rng.choices(words, k=rng.randint(1, 80)))} for i in range(150)]
    records[70]["text"] = "long " * 3000  # a line that spans several tasks' ranges
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def make(tmp_path: Path, corpus: Path, tokenizer: Path, name: str, pool: Pool = ONE, **changes: int) -> tuple[dict[str, bytes], Tally, list[bool]]:
    """(files of the output, counts, freshness of each task)."""
    tasks = plan_tasks("text", corpus, tmp_path / name / "tasks", tokenizer, **{**SETTINGS, **changes})
    done: list = []
    run_tasks(encode_task, [(task,) for task in tasks], pool, done.append)
    shutil.rmtree(tmp_path / name / "out", ignore_errors=True)
    tally = merge_tasks(tasks, tmp_path / name / "out")
    assert sum(result.input_bytes for result in done) == corpus.stat().st_size
    assert (sum(result.rows for result in done), sum(result.tokens for result in done)) == (tally.rows, tally.tokens)
    return {path.name: path.read_bytes() for path in (tmp_path / name / "out").iterdir()}, tally, [result.fresh for result in done]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12), st.booleans(), st.integers(1, 30))
def test_adjoining_ranges_share_out_the_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool, size: int) -> None:
    """DATA-03: whatever bytes a range ends between, each line is read once and whole, the last with or without its line end."""
    data = b"\n".join(lines) + (b"\n" if ends and lines else b"")
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(data)
    found = [pair for start in range(0, max(len(data), 1), size) for pair in read_lines(path, start, min(start + size, len(data)))]
    assert b"".join(line for _, line in found) == data and found == list(read_lines(path))
    assert all(data[offset : offset + len(line)] == line for offset, line in found)


def test_the_merge_holds_every_record_in_order(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    files, tally, _ = make(tmp_path, corpus, tokenizer, "a")
    rows, records = open_mds(tmp_path / "a/out"), list(read_records(corpus))
    expected = Tally(VOCAB)
    for i, row in enumerate(text_rows(records, load_bare(tokenizer), expected)):
        assert {key: rows[i][key] for key in ("id", "source", "num_bytes")} == {key: row[key] for key in ("id", "source", "num_bytes")}
        assert rows[i]["tokens"].tolist() == row["tokens"].tolist()
    assert verify_mds(tmp_path / "a/out") == len(rows) == len(records) == tally.rows
    assert tally.report() == expected.report()
    assert tally.counts_V.tolist() == expected.counts_V.tolist() and tally.first_counts_V.tolist() == expected.first_counts_V.tolist()


def test_one_task_writes_what_write_mds_writes(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    """A corpus that fits a task has the files it would have without tasks."""
    files, _, fresh = make(tmp_path, corpus, tokenizer, "a", task_bytes=1 << 20)
    write_mds(tmp_path / "whole", columns_of("text", VOCAB), text_rows(read_records(corpus), load_bare(tokenizer), Tally(VOCAB)), SETTINGS["shard_bytes"])
    assert fresh == [True] and files == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}


@pytest.mark.parametrize("pool", [Pool(2), Pool(4), Pool(2, "dask")], ids=["two", "four", "dask"])
def test_workers_change_nothing(tmp_path: Path, corpus: Path, tokenizer: Path, pool: Pool) -> None:
    files, tally, fresh = make(tmp_path, corpus, tokenizer, "one")
    assert len(fresh) > 8 and len(files) > 10
    again, counts, _ = make(tmp_path, corpus, tokenizer, "many", pool)
    assert again == files and counts.report() == tally.report()


def test_finished_tasks_are_taken_over_and_broken_ones_are_not(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    """STR-05: after a kill; a draft, a task without its record, a task with a cut shard are made again, to the same bytes."""
    files, _, fresh = make(tmp_path, corpus, tokenizer, "a")
    tasks = sorted((tmp_path / "a/tasks").iterdir())
    shutil.copytree(tasks[0], tasks[0].with_name(tasks[0].name + ".0123.draft"))
    shutil.rmtree(tasks[1])
    (tasks[2] / "task.json").unlink()
    (tasks[4] / "counts.npy").unlink()
    shard = next(tasks[3].glob("*.mds"))
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:-1])
    assert clear_drafts(tmp_path / "a/tasks") == 1
    again, _, freshness = make(tmp_path, corpus, tokenizer, "a")
    assert again == files and freshness == [False, True, True, True, True] + [False] * (len(fresh) - 5)


def test_nothing_is_taken_over_from_other_inputs(tmp_path: Path, corpus: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DATA-12: another text in one line, another tokenizer, another setting, other code, each in the same folder."""
    _, _, fresh = make(tmp_path, corpus, tokenizer, "a")
    assert not any(make(tmp_path, corpus, tokenizer, "a")[2])
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("return", "RETURN", 1), encoding="utf-8")
    assert sum(make(tmp_path, corpus, tokenizer, "a")[2]) == 1
    assert all(make(tmp_path, corpus, tokenizer, "a", shard_bytes=2000)[2])
    other = tmp_path / "other"
    save_tokenizer(other, train_bpe(toy_texts()[:1], VOCAB, 2), CHAT_TEMPLATE)
    assert all(make(tmp_path, corpus, other, "a", shard_bytes=2000)[2])
    monkeypatch.setattr(encoding, "code_fingerprint", lambda: "edited")
    assert all(make(tmp_path, corpus, other, "a", shard_bytes=2000)[2])


def test_two_workers_on_one_task_leave_one_result(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    """A worker thought dead that comes back: the draft of the slower one is dropped."""
    [task] = plan_tasks("text", corpus, tmp_path / "t", tokenizer, **{**SETTINGS, "task_bytes": 1 << 20})
    encode_task(task)
    before = {path.name: path.read_bytes() for path in task.folder.iterdir()}
    draft = tmp_path / "t" / "000000.x.draft"
    shutil.copytree(task.folder, draft)
    encoding._publish(draft, task.folder)
    assert {path.name: path.read_bytes() for path in task.folder.iterdir()} == before and not draft.exists()


def test_an_empty_file_is_one_task_without_rows(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    files, tally, fresh = make(tmp_path, tmp_path / "empty.jsonl", tokenizer, "e")
    assert fresh == [True] and tally.rows == 0 and set(files) == {"index.json"} and len(open_mds(tmp_path / "e/out")) == 0


def test_a_bad_line_is_named_by_its_number_in_the_file(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    with corpus.open("ab") as handle:
        handle.write(b"{broken\n")
    with pytest.raises(ValueError, match="train.jsonl, line 151: not JSON"):
        make(tmp_path, corpus, tokenizer, "a")
    with pytest.raises(ValueError, match="absent.jsonl does not exist"):
        plan_tasks("text", tmp_path / "absent.jsonl", tmp_path, tokenizer, **SETTINGS)


def test_the_code_fingerprint_passes_over_prose(tmp_path: Path) -> None:
    """DATA-12: an edit of code changes it, an edit of a comment or a docstring does not retrain anyone's model."""
    one = 'def f():\n    """Doc."""\n    return "# not a comment"  # a comment\n'
    two = '# head\ndef f():\n    """Another\n\n    text."""\n\n    return "# not a comment"\n'
    assert bare_source(one) == bare_source(two) == 'def f():\n    return "# not a comment"'
    assert bare_source(one.replace("not a", "no")) != bare_source(one)
    assert len(code_fingerprint()) == 64


def test_the_code_fingerprint_covers_what_encoding_imports() -> None:
    """DATA-12: a module that decides ids cannot be left out of the stamp."""
    seen, todo = set(), ["encoding"]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [dotted.split(".")[1] for dotted in imports(ROOT / "data" / f"{name}.py") if dotted.startswith("data.") and (ROOT / "data" / f"{dotted.split('.')[1]}.py").is_file()]
    assert seen == set(encoding._CODE)


GIANT = """
import json, resource, sys, time
from pathlib import Path
from data.encoding import encode_task, plan_tasks
settings = dict(vocab_size=int(sys.argv[4]), shard_bytes=1 << 24, task_bytes=1 << 24)
begun = time.process_time()
for task in plan_tasks("text", Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), **settings):
    encode_task(task)
print(json.dumps([time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("spaced", [True, False], ids=["prose", "no space"])
def test_data11_one_enormous_record_among_small_ones(tmp_path: Path, tokenizer: Path, spaced: bool) -> None:
    """DATA-11: 20 MB in one record: time in proportion to 2 MB, at most 16 bytes of memory for each of its bytes, nothing lost."""
    rng = random.Random(2)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    found, texts = {}, {}
    for size in (2, 20):
        texts[size] = ("" if not spaced else " ").join(rng.choices(words, k=size * 200_000))[: size << 20]
        records = [{"id": f"d{i}", "source": "s", "text": text} for i, text in enumerate(["small one", texts[size], "small two"])]
        path = tmp_path / f"{size}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", GIANT, str(path), str(tmp_path / f"tasks{size}"), str(tokenizer), str(VOCAB)], cwd=ROOT, capture_output=True, text=True, check=True)
        found[size] = json.loads(done.stdout)
    assert found[20][0] < 30 * found[2][0], found
    assert found[20][1] - found[2][1] < 16 * 18, found
    tasks = plan_tasks("text", tmp_path / "20.jsonl", tmp_path / "tasks20", tokenizer, vocab_size=VOCAB, shard_bytes=1 << 24, task_bytes=1 << 24)
    tally = merge_tasks(tasks, tmp_path / "out")
    rows = open_mds(tmp_path / "out")
    assert (len(rows), tally.forced_cuts) == (3, 0) and [rows[i]["id"] for i in range(3)] == ["d0", "d1", "d2"]
    assert load_bare(tokenizer).decode(rows[1]["tokens"][:-1].tolist()) == texts[20]


def test_tasks_travel_to_workers(tmp_path: Path, tokenizer: Path) -> None:
    import pickle

    task = ShardTask(kind="text", path=tmp_path, start=0, stop=1, folder=tmp_path, tokenizer=tokenizer, vocab_size=1, shard_bytes=1)
    assert pickle.loads(pickle.dumps(task)) == task and replace(task, stop=2) != task
