"""One pipeline per workspace; a dead owner's lock is taken over, a living one's is respected (DVC-05, DVC-06)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.workspace import Busy, exclusive
from tests.conftest import ROOT

# Holds the workspace; as "guarded" it starts a child that keeps the lock after its death, as a stage's guard does.
HOLD = """
import subprocess, sys, time
from pathlib import Path
from flows.workspace import exclusive
with exclusive(Path(sys.argv[1]), print) as lock:
    if sys.argv[2] == "guarded":
        subprocess.Popen(["sleep", "1.5"], pass_fds=[lock])
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def hold(tmp_path: Path):
    started: list[subprocess.Popen] = []

    def run(mode: str = "plain") -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path), mode], cwd=ROOT, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_dvc05_a_second_pipeline_is_told_who_runs(tmp_path: Path, hold) -> None:
    owner = hold()
    with pytest.raises(Busy, match=rf"process {owner.pid}, since 20"), exclusive(tmp_path, print):
        pass


def test_dvc06_a_killed_owner_is_replaced_and_this_is_said(tmp_path: Path, hold) -> None:
    owner = hold()
    owner.kill()
    owner.wait()
    said: list[str] = []
    with exclusive(tmp_path, said.append):
        assert said == [f"took over the workspace from process {owner.pid}, which ended without releasing it"]


def test_dvc06_a_killed_owners_stages_are_waited_for(tmp_path: Path, hold) -> None:
    owner = hold("guarded")
    owner.kill()
    owner.wait()
    said: list[str] = []
    started = time.monotonic()
    with exclusive(tmp_path, said.append):
        assert said[0] == f"process {owner.pid} was killed; waiting for its stages to save and stop" and "took over" in said[1]
        assert time.monotonic() - started > 0.1


def test_a_released_workspace_has_no_owner(tmp_path: Path) -> None:
    for _ in range(2):
        said: list[str] = []
        with exclusive(tmp_path, said.append):
            assert json.loads((tmp_path / "data/work/pipeline.lock").read_text())["pid"]
        assert said == [] and (tmp_path / "data/work/pipeline.lock").read_text() == ""
