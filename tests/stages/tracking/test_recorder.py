"""The recorder's rules in one process: resume, numbers that are none, parents, and who may close a run."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from stages.tracking.processes import Owner
from stages.tracking.recorder import Lines, handle, open_run, parse_nonfinite
from stages.tracking.store import PARENT_TAG, Store

DEAD = Owner(Owner.of().host, 2**22 + 1, 1.0)


def message(root: Path, work: Path, *, owner: Owner | None = None, params: dict | None = None, stage: str = "sft", invocation: str = "test", pipeline: str | None = None) -> dict:
    return {
        "op": "open", "root": str(root), "work": str(work), "label": stage, "owner": dataclasses.asdict(owner or Owner.of()), "params": params or {"sft.steps": "20"},
        "tags": {"stage": stage, "fingerprint": work.name}, "pipeline_run": pipeline, "invocation": invocation, "command": "dvc repro",
    }  # fmt: skip


def steps(store: Store, run_id: str, name: str) -> list[int]:
    return [metric.step for metric in store.client.get_metric_history(run_id, name)]


def test_mlf06_a_resumed_run_is_the_same_run_and_has_each_step_once(root: Path, store: Store, tmp_path: Path) -> None:
    """Log every step, checkpoint at 10, killed at 17, resume from 10."""
    first = open_run(message(root, tmp_path / "w", owner=DEAD))
    for step in range(18):
        first.log(step, {"loss": 1 / (step + 1)}, 1000 + step)
    first.flush()
    second = open_run(message(root, tmp_path / "w"))
    assert second.run_id == first.run_id
    for step in range(11, 21):
        second.log(step, {"loss": 1 / (step + 1)}, 2000 + step)
    second.flush()
    assert steps(store, first.run_id, "loss") == list(range(21))
    assert store.get(first.run_id).data.tags["attempt"] == "2"
    second.close("FINISHED", None)


def test_mlf04_changed_params_on_resume_keep_the_first_value_and_are_recorded(root: Path, store: Store, tmp_path: Path) -> None:
    open_run(message(root, tmp_path / "w", owner=DEAD, params={"steps": "20", "host": "a"}))
    again = open_run(message(root, tmp_path / "w", params={"steps": "40", "host": "a", "new": "1"}))
    run = store.get(again.run_id)
    assert run.data.params == {"steps": "20", "host": "a", "new": "1"}
    assert run.data.tags["param_changed.steps"] == "40" and "param_changed.host" not in run.data.tags
    again.close("FINISHED", None)


def test_mlf01_mlf03_numbers_that_are_none_never_reach_the_store(root: Path, store: Store, tmp_path: Path) -> None:
    run = open_run(message(root, tmp_path / "w"))
    for step, value in enumerate([1.0, math.nan, 0.5, math.inf, -math.inf]):
        run.log(step, {"loss": value, "ok": 1.0}, step)
    run.flush()
    data = store.get(run.run_id).data
    assert data.metrics["loss"] == 0.5 and steps(store, run.run_id, "loss") == [0, 2]
    assert data.tags["nonfinite.loss"] == "3 times, last at step 4: -inf" and data.tags["diverged"] == "loss"
    run.log(5, {"loss": 0.4}, 5)
    run.flush()
    assert store.get(run.run_id).data.tags["diverged"] == ""
    run.close("FINISHED", None)


def test_counts_of_numbers_that_are_none_go_on_after_a_resume(root: Path, store: Store, tmp_path: Path) -> None:
    first = open_run(message(root, tmp_path / "w", owner=DEAD))
    first.log(1, {"loss": math.nan}, 1)
    first.log(2, {"loss": math.nan}, 2)
    first.flush()
    second = open_run(message(root, tmp_path / "w"))
    second.log(2, {"loss": math.nan}, 3)  # replayed
    second.log(3, {"loss": math.nan}, 4)
    second.flush()
    assert parse_nonfinite(store.get(second.run_id).data.tags["nonfinite.loss"]) == (3, 3)
    second.close("FINISHED", None)


def test_final_values_are_the_latest_and_do_not_repeat_a_curve_point(root: Path, store: Store, tmp_path: Path) -> None:
    run = open_run(message(root, tmp_path / "w"))
    run.log(10, {"val": 2.0}, 1)
    run.final({"val": 2.0, "seconds": 7.0}, 2)
    run.final({"val": 3.0}, 3)
    run.flush()
    assert [(m.step, m.value) for m in store.client.get_metric_history(run.run_id, "val")] == [(10, 2.0), (10, 3.0)]
    assert store.get(run.run_id).data.metrics == {"val": 3.0, "seconds": 7.0}
    run.close("FINISHED", None)


def test_stages_of_one_invocation_share_a_parent_that_is_never_left_running(root: Path, store: Store, tmp_path: Path) -> None:
    first = open_run(message(root, tmp_path / "w1", invocation="one"))
    parent = store.get(first.run_id).data.tags[PARENT_TAG]
    assert store.get(parent).info.status == "RUNNING"
    first.close("FINISHED", None)
    assert store.get(parent).info.status == "FINISHED"
    second = open_run(message(root, tmp_path / "w2", invocation="one", stage="rl"))
    assert store.get(second.run_id).data.tags[PARENT_TAG] == parent and store.get(parent).info.status == "RUNNING"
    second.close("FAILED", "no")
    third = open_run(message(root, tmp_path / "w3", invocation="one", stage="export"))
    third.close("FINISHED", None)
    assert store.get(parent).info.status == "FAILED"
    other = open_run(message(root, tmp_path / "w4", invocation="two"))
    assert store.get(other.run_id).data.tags[PARENT_TAG] != parent
    other.close("FINISHED", None)


def test_a_pipelines_parent_is_left_to_the_pipeline(root: Path, store: Store, tmp_path: Path) -> None:
    parent = store.start("pipeline", {"kind": "pipeline", "owner": str(Owner.of())})
    run = open_run(message(root, tmp_path / "w", pipeline=parent))
    run.close("FAILED", None)
    assert store.get(run.run_id).data.tags[PARENT_TAG] == parent and store.get(parent).info.status == "RUNNING"
    store.finish(parent, "FINISHED")


def test_an_attempt_that_lost_its_run_to_the_next_one_does_not_close_it(root: Path, store: Store, tmp_path: Path) -> None:
    old = open_run(message(root, tmp_path / "w", owner=DEAD))
    new = open_run(message(root, tmp_path / "w"))
    old.close("FAILED", "killed")
    assert store.get(new.run_id).info.status == "RUNNING"
    new.close("FINISHED", None)
    assert store.get(new.run_id).info.status == "FINISHED"


def test_a_diverged_run_is_never_promoted(root: Path, tmp_path: Path) -> None:
    """MLF-01: the model of a run whose loss ended as NaN is not registered."""
    run = open_run(message(root, tmp_path / "w"))
    run.log(0, {"loss": math.nan}, 0)
    (tmp_path / "export").mkdir()
    reply = handle(run, {"op": "model", "folder": str(tmp_path / "export"), "name": "never", "alias": "newest", "tags": {}})
    assert reply["input"] and "diverged" in reply["error"]
    assert not run.store.client.search_registered_models("name = 'never'")
    run.close("FAILED", None)


def test_points_that_the_store_refuses_are_kept_and_written_later(root: Path, store: Store, tmp_path: Path) -> None:
    run = open_run(message(root, tmp_path / "w"))
    healthy = run.store.client

    class Refusing:
        def log_batch(self, *args: object, **more: object) -> None:
            raise MlflowException("database is locked")

    run.log(0, {"loss": 1.0}, 0)
    run.store.client = Refusing()
    with pytest.raises(MlflowException):
        run.flush()
    run.store.client = healthy
    run.log(1, {"loss": 0.5}, 1)
    run.flush()
    assert steps(store, run.run_id, "loss") == [0, 1]
    run.close("FINISHED", None)


def test_tick_writes_load_and_a_sign_of_life(root: Path, store: Store, tmp_path: Path) -> None:
    run = open_run(message(root, tmp_path / "w"))
    before = time.time()
    run.tick()
    data = store.get(run.run_id).data
    assert data.metrics["system/stage_memory_megabytes"] > 1 and 0 <= data.metrics["system/cpu_utilization_percentage"] <= 100
    assert float(data.tags["heartbeat"]) >= math.floor(before)
    run.close("FINISHED", None)


def test_half_a_line_waits_for_its_rest_and_is_dropped_at_the_end() -> None:
    read, write = os.pipe()
    lines = Lines(read)
    os.write(write, b'{"a": 1}\n{"b"')
    assert lines.wait(1) == ['{"a": 1}']
    os.write(write, b": 2}\n{")
    assert lines.wait(1) == ['{"b": 2}']
    os.close(write)
    assert lines.wait(1) == [] and lines.ended
    os.close(read)
