"""What a killed streaming reader leaves is cleaned; what a living one uses is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from data.loading import leftovers
from data.loading.leftovers import clean_leftovers, numbers_in_use
from data.shards import write_mds

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir() or not Path("/proc/self/maps").is_file(), reason="shared memory is looked up as Linux keeps it")

READER = """
import os, sys, time
from streaming import StreamingDataset
dataset = StreamingDataset(local=sys.argv[1], remote=None, batch_size=1, shuffle=False)
next(iter(dataset))
print(f"{dataset._shm_prefix_int:06}", flush=True)
time.sleep(600)
"""


def start(folder: Path) -> tuple[subprocess.Popen, str]:
    """A process that reads `folder` by StreamingDataset, and its number."""
    child = subprocess.Popen([sys.executable, "-c", READER, str(folder)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    return child, child.stdout.readline().strip()


def blocks(number: str) -> set[str]:
    return {path.name for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())) for path in folder.glob(f"{number}_*")}


def kill(child: subprocess.Popen) -> None:
    """The whole session, with Python's tracker of shared memory, as an out-of-memory kill of a container does."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[list[tuple[subprocess.Popen, str]]]:
    found = []
    for name in ("a", "b"):
        write_mds(tmp_path / name, {"tokens": "ndarray:uint16"}, ({"tokens": np.arange(9, dtype=np.uint16)} for _ in range(5)), 1000)
        found.append(start(tmp_path / name))
    yield found
    for child, _ in found:
        if child.poll() is None:
            kill(child)
    clean_leftovers()


@pytest.mark.slow
def test_a_killed_readers_leftovers_are_cleaned_and_a_living_ones_kept(readers: list[tuple[subprocess.Popen, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of one of two readers: its blocks and lock files go at the next start, the other's stay and it lives."""
    (killed, dead), (living, alive) = readers
    assert dead != alive and {dead, alive} <= numbers_in_use()
    kill(killed)
    left, used = blocks(dead), blocks(alive)
    assert left and used
    monkeypatch.setattr(leftovers, "_YOUNG_SECONDS", 3600.0)
    assert not any(path.name in left for path in clean_leftovers()), "blocks this young may be about to be mapped"
    monkeypatch.setattr(leftovers, "_YOUNG_SECONDS", 0.0)
    time.sleep(0.05)
    removed = {path.name for path in clean_leftovers()}
    assert left <= removed and not blocks(dead)
    assert blocks(alive) == used and living.poll() is None and not removed & used
    assert clean_leftovers() == []


def test_other_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the names that streaming uses; and a number with one block in use or too young keeps all of them."""
    shm, temporary = tmp_path / "shm", tmp_path / "tmp"
    shm.mkdir(), temporary.mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", shm)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for path in (shm / "000004_locals", shm / "000004_other", shm / "psm_1234", shm / "sem.mine", temporary / "000004_cache_filelock", temporary / "000004_notes"):
        path.touch()
    assert clean_leftovers() == []
    monkeypatch.setattr(leftovers, "_YOUNG_SECONDS", -1.0)
    assert {path.name for path in clean_leftovers()} == {"000004_locals", "000004_cache_filelock"}
    assert {path.name for path in shm.iterdir()} == {"000004_other", "psm_1234", "sem.mine"}


def test_a_machine_without_proc_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PROCESSES", tmp_path / "absent")
    assert clean_leftovers() == []
