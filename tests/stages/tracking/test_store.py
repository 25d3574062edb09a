"""The store: first use, links, registered models, the best run, dead owners, a project that moved."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.tracking.processes import Owner
from stages.tracking.store import Store, TrackingError, best_run, folder_digest
from tests.conftest import ROOT


def stage_run(store: Store, stage: str, points: list[tuple[str, float]], tags: dict[str, str] | None = None, status: str = "FINISHED") -> str:
    run_id = store.start(stage, {"kind": "stage", "stage": stage, "owner": str(Owner.of()), **(tags or {})})
    store.log_points(run_id, [(name, value, step, step) for step, (name, value) in enumerate(points)], {})
    store.finish(run_id, status)
    return run_id


@pytest.mark.slow
def test_three_concurrent_first_users_and_the_leavings_of_a_killed_one(tmp_path: Path) -> None:
    """One database, one experiment, no error; half a database from a kill is no obstacle."""
    (tmp_path / ".mlflow.db.new").write_bytes(b"SQLite format 3\0 half of it")
    (tmp_path / "mlflow.db").touch()
    users = [subprocess.Popen([sys.executable, "-m", "stages.tracking", "--root", str(tmp_path), "begin", "--name", f"user {n}"], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for n in range(3)]
    ended = [(*user.communicate(), user.returncode) for user in users]
    assert [code for _, _, code in ended] == [0, 0, 0], ended
    store = Store.open(tmp_path)
    assert {run.info.run_id for run in store.find("")} == {out.strip() for out, _, _ in ended}
    assert len(store.client.search_experiments(filter_string="name = 'headrace'")) == 1


def test_artifacts_lie_beside_the_database_and_a_moved_project_starts_a_new_experiment(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "mlflow.db", tmp_path / "mlflow.db")
    moved = Store.open(tmp_path)
    assert moved.client.get_experiment(moved.experiment_id).artifact_location == (tmp_path / "mlartifacts").as_uri()
    again = Store.open(tmp_path)
    assert again.experiment_id == moved.experiment_id
    run_id = moved.start("x", {"kind": "stage"})
    (tmp_path / "note.txt").write_text("hello")
    moved.artifact(run_id, tmp_path / "note.txt")
    assert list((tmp_path / "mlartifacts").rglob("note.txt"))


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database, but it is not empty either" * 100)
    with pytest.raises(TrackingError, match="move a damaged database away"):
        Store.open(tmp_path)


def test_runs_of_dead_owners_end_failed_and_others_stay(store: Store) -> None:
    mine = store.start("alive", {"kind": "stage", "owner": str(Owner.of())})
    dead = store.start("dead", {"kind": "stage", "owner": str(Owner(Owner.of().host, 2**22 + 1, 1.0))})
    silent = store.start("silent", {"kind": "stage", "owner": "another-host:1:1.0", "heartbeat": str(time.time() - 10_000)})
    heard = store.start("heard", {"kind": "stage", "owner": "another-host:1:1.0", "heartbeat": str(time.time())})
    foreign = store.start("foreign", {})
    swept = store.sweep()
    assert {dead, silent} <= set(swept) and not {mine, heard, foreign} & set(swept)
    assert store.get(dead).info.status == "FAILED" and "ended without closing" in store.get(dead).data.tags["reason"]
    assert store.get(mine).info.status == "RUNNING"
    for run_id in (mine, heard, foreign):
        store.finish(run_id, "FINISHED")


def test_a_link_points_at_the_newest_finished_run_that_made_the_output(store: Store) -> None:
    old = stage_run(store, "sft", [], {"fingerprint": "abc"})
    made = stage_run(store, "sft", [], {"fingerprint": "abc"})
    stage_run(store, "sft", [], {"fingerprint": "abc"}, status="FAILED")
    parent = store.start("pipeline", {"kind": "pipeline"})
    link = store.get(store.link(parent, "sft", None, "abc"))
    assert link.data.tags["made_by"] == made != old
    assert made in link.data.tags["mlflow.note.content"] and link.data.tags["mlflow.parentRunId"] == parent and link.info.status == "FINISHED"
    unknown = store.get(store.link(parent, "export", "int8", "never seen"))
    assert "made_by" not in unknown.data.tags and unknown.info.run_name == "export@int8 (up to date)"
    store.finish(parent, "FINISHED")


def test_mlf01_mlf03_the_best_run_is_never_a_diverged_one(store: Store, root: Path) -> None:
    half = stage_run(store, "best", [("score", 0.5)])
    stage_run(store, "best", [], {"diverged": "score", "nonfinite.score": "1 times, last at step 0: nan"})
    stage_run(store, "best", [("score", 0.1)], {"diverged": "score"})
    stage_run(store, "best", [("score", 0.2)], status="FAILED")
    stage_run(store, "best", [("score", math.nan)])  # logged by other tools, as MLflow stores them
    stage_run(store, "best", [("score", -math.inf)])
    assert best_run(root, "score", "min", "best") == half
    assert store.best_run("score", "max", "best")[1] == 0.5
    assert best_run(root, "never measured", "min") is None
    with pytest.raises(ValueError, match="'min' or 'max'"):
        best_run(root, "score", "lowest")


def test_a_registered_model_is_the_folder_under_an_alias(store: Store, tmp_path: Path) -> None:
    import mlflow

    folder = tmp_path / "bf16"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer" / "tokenizer.json").write_text("[]")
    run_id = stage_run(store, "export", [])
    assert store.register_model(run_id, folder, "headrace-a", "newest", {"fingerprint": "f"}) == "1"
    got = Path(mlflow.artifacts.download_artifacts("models:/headrace-a@newest", dst_path=str(tmp_path / "got")))
    assert folder_digest(got) == folder_digest(folder)
    version = store.client.get_model_version_by_alias("headrace-a", "newest")
    assert version.run_id == run_id and version.tags["fingerprint"] == "f"


def test_pre02_equal_content_keeps_its_version_and_changed_content_gets_the_next(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "w").write_text("1")
    run_id = stage_run(store, "export", [])
    assert [store.register_model(run_id, folder, "headrace-b", "newest", {}) for _ in range(2)] == ["1", "1"]
    (folder / "w").write_text("2")
    assert store.register_model(run_id, folder, "headrace-b", "newest", {}) == "2"
    (folder / "w").write_text("1")
    assert store.register_model(run_id, folder, "headrace-b", "newest", {}) == "1"
    assert str(store.client.get_model_version_by_alias("headrace-b", "newest").version) == "1"


def test_mlf02_a_failed_registration_leaves_nothing_and_can_be_redone(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "w").write_text("1")
    (folder / "broken").symlink_to(tmp_path / "nowhere")
    run_id = stage_run(store, "export", [("loss", math.nan)])
    with pytest.raises(TrackingError, match="run the stage again"):
        store.register_model(run_id, folder, "headrace-c", "newest", {})
    assert not store.client.search_model_versions("name = 'headrace-c'")
    assert not [model for model in store.client.search_logged_models([store.experiment_id]) if model.name == "headrace-c"]
    (folder / "broken").unlink()
    assert store.register_model(run_id, folder, "headrace-c", "newest", {}) == "1"


@pytest.mark.parametrize("alias", ["latest", "Latest", "v3", "7"])
def test_reserved_aliases_are_refused_before_anything_is_copied(store: Store, tmp_path: Path, alias: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        store.register_model("no run", tmp_path, "headrace-d", alias, {})
