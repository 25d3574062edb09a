"""The whole chain at smoke size through DVC in a fresh clone: every stage, twice, then one change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

STAGES_AFTER_RL = {"rl", "export@bf16", "export@int8", "evaluate@rl", "evaluate@bf16", "evaluate@int8", "report"}


class Clone:
    """A clone of this checkout's tracked files, with its own tracker and DVC state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, files.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / ".dvc/tmp").mkdir(exist_ok=True)
        for command in (["git", "init", "-q"], ["git", "add", "-A"], ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start"]):
            self.run(*command)

    def run(self, *command: str, expect: int = 0) -> str:
        drop = ("DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME", "MLFLOW_TRACKING_URI", "HEADRACE_PIPELINE_RUN", "PREFECT_HOME")
        env = {k: v for k, v in os.environ.items() if k not in drop} | {"DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(list(command), cwd=self.folder, env=env, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == expect, f"{command} exited {done.returncode}:\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def ran(self, output: str) -> set[str]:
        return {line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    made = Clone(tmp_path_factory.mktemp("chain"))
    made.run("python", "-m", "data.recipes.stdlib")
    made.run("python", "-m", "stages.params", "--profile", "smoke")
    made.first = made.run("dvc", "--wait-for-lock", "repro")
    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stage_runs_once_and_leaves_its_output(clone: Clone) -> None:
    stages = clone.run("dvc", "stage", "list", "--name-only").split()
    assert clone.ran(clone.first) == set(stages) and len(stages) == 13
    report = (clone.folder / "data/out/report/report.html").read_text()
    assert "<html" in report and "http://" not in report.replace("http://www.w3.org", "")
    assert json.loads((clone.folder / "metrics/report.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_second_repro_does_nothing_and_status_is_clean(clone: Clone) -> None:
    """DVC-04, acceptance 1."""
    assert clone.ran(clone.run("dvc", "repro")) == set()
    assert "up to date" in clone.run("dvc", "status")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_dvc_views_work(clone: Clone) -> None:
    assert "rl" in clone.run("dvc", "dag")
    assert "greedy_accuracy" in clone.run("dvc", "metrics", "show")
    clone.run("git", "add", "-A")
    clone.run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "smoke")
    assert "index.html" in clone.run("dvc", "plots", "show", "-o", "plots")
    store = clone.folder.parent / f"{clone.folder.name}-store"
    clone.run("dvc", "remote", "add", "-d", "store", str(store))
    clone.run("dvc", "push")
    before = (clone.folder / "data/out/rl/manifest.json").read_bytes()
    for command in (["rm", "-rf", "data/out", ".dvc/cache"], ["dvc", "pull"]):
        clone.run(*command)
    assert (clone.folder / "data/out/rl/manifest.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_experiment_reruns_only_what_depends_on_the_change(clone: Clone) -> None:
    output = clone.run("dvc", "exp", "run", "-S", "profile=smoke", "-S", "rl.peak_lr=3e-4", "-n", "other-rate")
    assert clone.ran(output) == STAGES_AFTER_RL
    assert "other-rate" in clone.run("dvc", "exp", "show", "--no-pager")
    assert "rl.peak_lr" in clone.run("dvc", "params", "diff")
