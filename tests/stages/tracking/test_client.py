"""A stage's tracked run end to end: real recorder processes, real store, kills."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stages.tracking import StageRun, TrackerFailed
from stages.tracking.store import Store
from tests.conftest import ROOT

KILLED_AT_17 = """
import os, signal, sys, time
from pathlib import Path
from stages.tracking import StageRun
root, work = map(Path, sys.argv[1:])
run = StageRun.open(root=root, stage="rl", item=None, fingerprint="f1", params={"rl.steps": 20}, tags={}, work=work)
run.run_id
for step in range(18):
    run.log(step, {"reward": step / 20})
os.kill(os.getpid(), signal.SIGKILL)
"""


def opened(root: Path, work: Path, stage: str = "sft", **params: object) -> StageRun:
    return StageRun.open(root=root, stage=stage, item=None, fingerprint="f0", params=params, tags={"git.sha": "c0ffee"}, work=work)


def wait_for(condition, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.1)


def test_one_run_from_open_to_close(root: Path, store: Store, tmp_path: Path) -> None:
    run = opened(root, tmp_path / "w", lr=1e-4, targets={"v", "q"})
    for step in range(50):
        run.log(step, {"loss": math.nan if step == 3 else 1 / (step + 1)})
    run.final({"val_loss": 0.25})
    (tmp_path / "report.json").write_text("{}")
    run.artifact(tmp_path / "report.json")
    run.close("FINISHED")
    run.close("FAILED", "a second close does nothing")
    stored = store.get(run.run_id)
    assert stored.info.status == "FINISHED" and stored.info.run_name == "sft"
    assert stored.data.params == {"lr": "0.0001", "targets": '["q", "v"]'}
    assert stored.data.metrics["loss"] == 0.02 and stored.data.metrics["val_loss"] == 0.25
    assert [m.step for m in store.client.get_metric_history(run.run_id, "loss")] == [step for step in range(50) if step != 3]
    assert stored.data.tags["nonfinite.loss"].startswith("1 times") and stored.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert [entry.path for entry in store.client.list_artifacts(run.run_id)] == ["report.json"]
    assert store.get(stored.data.tags["mlflow.parentRunId"]).info.status == "FINISHED"
    with pytest.raises(ValueError, match="does not exist"):
        run.artifact(tmp_path / "missing")


@pytest.mark.slow
def test_mlf06_a_killed_stage_ends_failed_at_once_and_its_next_attempt_goes_on(root: Path, store: Store, tmp_path: Path) -> None:
    """SIGKILL at step 17 with a checkpoint at 10: one run, each step once, attempt 2."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_17, str(root), str(tmp_path / "w")], env=env, check=False)
    assert killed.returncode == -signal.SIGKILL
    (run_id,) = [run.info.run_id for run in store.find("tags.fingerprint = 'f1'")]
    wait_for(lambda: store.get(run_id).info.status == "FAILED")
    assert "killed" in store.get(run_id).data.tags["reason"]
    again = StageRun.open(root=root, stage="rl", item=None, fingerprint="f1", params={"rl.steps": 20}, tags={}, work=tmp_path / "w")
    for step in range(11, 21):
        again.log(step, {"reward": step / 20})
    again.close("FINISHED")
    assert again.run_id == run_id
    assert [m.step for m in store.client.get_metric_history(run_id, "reward")] == list(range(21))
    assert store.get(run_id).info.status == "FINISHED" and store.get(run_id).data.tags["attempt"] == "2"


@pytest.mark.slow
def test_mlf05_two_stages_in_threads_and_a_retry_after_a_failure_keep_apart(root: Path, store: Store, tmp_path: Path) -> None:
    ids: dict[str, str] = {}

    def stage(name: str, value: float) -> None:
        run = opened(root, tmp_path / name, stage=name)
        try:
            for step in range(20):
                run.log(step, {"loss": value})
            if value < 0:
                raise RuntimeError("stage failed")
            run.close("FINISHED")
        except RuntimeError as error:
            run.close("FAILED", str(error))
        ids[name] = run.run_id

    threads = [threading.Thread(target=stage, args=args) for args in (("pretrain", 1.0), ("sft", -1.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = ids["sft"]
    assert store.get(failed).info.status == "FAILED" and store.get(failed).data.tags["reason"] == "stage failed"
    stage("sft", 2.0)
    assert {name: store.get(run_id).data.metrics["loss"] for name, run_id in ids.items()} == {"pretrain": 1.0, "sft": -1.0}
    assert ids["sft"] == failed and store.get(failed).info.status == "FINISHED"  # same inputs: the same run, continued; replayed steps are not logged twice


def test_a_store_that_cannot_be_opened_stops_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/file/mlflow.db")
    (tmp_path / "file").write_text("not a folder")
    run = opened(tmp_path, tmp_path / "w")
    with pytest.raises(TrackerFailed, match="cannot open the tracking store"):
        wait_for(lambda: run.log(0, {"loss": 1.0}))
    run._end()


def test_a_recorder_that_dies_later_is_reported_once_and_training_goes_on(root: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = opened(root, tmp_path / "w")
    run_id = run.run_id
    run._process.kill()
    run._process.wait()
    for step in range(3):
        run.log(step, {"loss": 1.0})
    run.close("FINISHED")
    assert capsys.readouterr().err.count("it has stopped") == 1
    assert store.get(run_id).info.status == "RUNNING"  # its owner, this test, is alive; a sweep ends it once the owner is gone
    store.finish(run_id, "FAILED")


def test_unknown_status_is_refused(root: Path, tmp_path: Path) -> None:
    run = StageRun(subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE), "x")
    with pytest.raises(ValueError, match="FINISHED, FAILED or KILLED"):
        run.close("DONE")
    run._end()
