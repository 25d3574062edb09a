"""Everything that prepare can do at once, killed ten times at random moments, and with any number of workers: the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stages.config import parse_section
from stages.context import Context
from stages.prepare import Config, run
from tests.stages.test_prepare import BASE, SLOW_CHILD, local, project, tree, write_notes  # noqa: F401

CLEANING = {"unicode": "nfc", "near_duplicates": {"threshold": 0.8}, "contamination": {"ngram": 8}, "pii": ["email"]}


def everything(workers: int) -> dict:
    """Text that is cleaned, made text, and chats of one's own."""
    notes = {**local()["notes"], "cleaning": CLEANING}
    chats = {"recipe": "local", "options": {"paths": ["raw/chats"]}}
    return {**BASE, "workers": workers, "mixture": {"notes": notes, "problems": BASE["mixture"]["problems"], "chats": chats}}


@pytest.fixture
def filled(project: Path) -> Path:  # noqa: F811
    """Thirty files of notes, thirty of chats."""
    write_notes(project / "raw", files=30, records=10)
    (project / "raw/chats").mkdir()
    for i in range(30):
        chats = [{"messages": [{"role": "user", "content": f"hello {i} {j}"}, {"role": "assistant", "content": "hi"}]} for j in range(5)]
        (project / "raw/chats" / f"{i:02d}.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return project


def output(folder: Path, section: dict) -> dict[str, bytes]:
    run(parse_section(Config, "prepare", {"prepare": section}), Context.for_test(folder, "prepare", {}, 7))
    return tree(folder / "out")


@pytest.mark.slow
def test_one_two_and_four_workers_give_the_same_bytes(filled: Path) -> None:
    alone = output(filled / "1", everything(1))
    assert output(filled / "2", everything(2)) == alone
    assert output(filled / "4", everything(4)) == alone


@pytest.mark.slow
def test_str05_killed_ten_times_and_run_again_gives_the_bytes_of_an_unbroken_run(filled: Path, repo_root: Path) -> None:
    """STR-05, PRE-06: what was finished is kept, no worker survives, nothing is published in between."""
    unbroken = output(filled / "whole", everything(1))
    (filled / "child.py").write_text(SLOW_CHILD)
    (filled / "params.json").write_text(json.dumps(everything(2)))
    broken, rng, kept = filled / "broken", random.Random("ten kills"), []
    for _ in range(10):
        child = subprocess.Popen([sys.executable, "child.py", str(repo_root), "broken", "0.1"], cwd=filled)
        time.sleep(rng.uniform(0.3, 4.0))
        family = psutil.Process(child.pid).children(recursive=True) if child.poll() is None else []
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
        assert not psutil.wait_procs(family, timeout=60)[1], "a worker outlived its parent"
        assert child.wait() == -signal.SIGKILL, "the kill came too late to test anything"
        assert not (broken / "out" / "report.json").exists()
        kept.append(len(list((broken / "work").rglob("*.json"))))
        shutil.rmtree(broken / "out", ignore_errors=True)  # as the runner does before every attempt
    assert kept == sorted(kept) and kept[-1] > 0, f"finished parts were lost, or every kill came before the first one: {kept}"
    shutil.rmtree(broken / "out", ignore_errors=True)
    assert subprocess.run([sys.executable, "child.py", str(repo_root), "broken", "0"], cwd=filled, check=False).returncode == 0
    assert tree(broken / "out") == unbroken
