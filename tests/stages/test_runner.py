"""The contract of a stage, through real processes, the real tracker and real DVC."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.stages.toy import ToyProject


@pytest.fixture
def toy(tmp_path: Path) -> ToyProject:
    return ToyProject(tmp_path / "project")


def run_statuses(toy: ToyProject) -> list[str]:
    with sqlite3.connect(toy.folder / "mlflow.db") as db:
        return [status for (status,) in db.execute("select status from runs")]


def wait_for_step(toy: ToyProject, process, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = list(toy.folder.glob("data/work/count/*/state.json"))
        if states and json.loads(states[0].read_text())[0] >= step:
            return
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in a minute")


def test_a_stage_publishes_output_manifest_metrics_and_record(toy: ToyProject) -> None:
    done = toy.stage("count")
    assert done.returncode == 0, done.stderr
    out = toy.folder / "data/out/count"
    assert (out / "total.txt").read_text() == f"{3 * 15}\n"
    assert (out / "curve.csv").read_text().splitlines()[0] == "step,total"
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["params"]["count"]["steps"] == 5  # DVC-02: the artefact itself says which settings made it
    assert set(manifest["files"]) == {"total.txt", "curve.csv"}
    assert json.loads((toy.folder / "metrics/count.json").read_text()) == {"total": 45.0}
    last = json.loads((toy.folder / "data/work/last/count.json").read_text())
    assert (last["status"], last["exit_code"]) == ("FINISHED", 0)
    assert run_statuses(toy) and "RUNNING" not in run_statuses(toy)


def test_identical_runs_give_identical_bytes(toy: ToyProject) -> None:
    def read() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted((toy.folder / "data/out/count").iterdir())}

    assert toy.stage("count").returncode == 0
    first = read()
    assert toy.stage("count").returncode == 0
    assert read() == first


@pytest.mark.parametrize(("old", "new", "expected"), [
    ("steps: 5", "stesp: 5", "count.stesp: unknown parameter"),
    ("steps: 5, ", "", "count.steps: missing"),
    ("steps: 5", "steps: five", "count.steps: got 'five' (str), expected: Input should be a valid integer"),
    ("steps: 5", "steps: -5", "count.steps: got -5 (int), expected: Input should be greater than or equal to 1"),
    ("steps: 5", "steps: 5.5", "count.steps: got 5.5 (float)"),
    ("seed: 3", "seed: 3, extra: 1", "shared.extra: unknown parameter"),
    ("count: {steps", "conut: {steps", "params have no section 'count'"),
    ("count: {steps", "count: [steps", "not valid YAML"),
])
def test_bad_params_exit_2_before_any_work(toy: ToyProject, old: str, new: str, expected: str) -> None:
    toy.set_param(old, new)
    done = toy.stage("count")
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert not (toy.folder / "data").exists() and not (toy.folder / "mlflow.db").exists()


def test_missing_or_damaged_input_exits_2(toy: ToyProject) -> None:
    done = toy.stage("double")
    assert done.returncode == 2 and "does not exist" in done.stderr
    assert toy.stage("count").returncode == 0
    (toy.folder / "data/out/count/total.txt").write_text("4")
    done = toy.stage("double")
    assert done.returncode == 2 and "its manifest says 3" in done.stderr
    (toy.folder / "data/out/count/manifest.json").unlink()
    done = toy.stage("double")
    assert done.returncode == 2 and "not a finished output" in done.stderr


def test_dry_run_touches_nothing(toy: ToyProject) -> None:
    done = toy.stage("count", "--dry-run")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["config"] == {"steps": 5, "pause": 0.0, "fail_at": -1}
    assert facts["outputs"] == ["data/out/count", "metrics/count.json"]
    assert sorted(p.name for p in toy.folder.iterdir()) == [".gitignore", "dvc.yaml", "params.yaml", "toy"]


def test_nan_metric_never_shows_as_zero(toy: ToyProject) -> None:
    """MLF-01."""
    assert toy.stage("count").returncode == 0 and toy.stage("double").returncode == 0
    assert json.loads((toy.folder / "metrics/double.json").read_text()) == {"double": 90.0, "diverged": "not a number"}
    with sqlite3.connect(toy.folder / "mlflow.db") as db:
        assert db.execute("select count(*) from metrics where key = 'diverged' and value = 0").fetchone() == (0,)


def test_exception_leaves_no_output_and_a_failed_run(toy: ToyProject) -> None:
    toy.set_param("fail_at: -1", "fail_at: 3")
    done = toy.stage("count")
    assert done.returncode == 1 and "asked to fail" in done.stderr
    assert not (toy.folder / "data/out/count").exists()
    assert not list(toy.folder.glob("data/out/.*.partial"))
    assert json.loads((toy.folder / "data/work/last/count.json").read_text())["status"] == "FAILED"
    assert "RUNNING" not in run_statuses(toy)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_interrupted_run_continues_to_the_same_result(toy: ToyProject, tmp_path: Path, sig: signal.Signals) -> None:
    """MLF-06: one tracked run, every step once."""
    toy.set_param("steps: 5, pause: 0.0", "steps: 30, pause: 0.02")
    process = toy.start("python", "-m", "toy.count")
    wait_for_step(toy, process, 7)
    process.send_signal(sig)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 2), output
    assert not (toy.folder / "data/out/count").exists()
    if sig != signal.SIGKILL:
        assert "RUNNING" not in run_statuses(toy)
    again = toy.stage("count")
    assert again.returncode == 0, again.stderr
    assert "continuing an interrupted run" in again.stdout
    assert (toy.folder / "data/out/count/total.txt").read_text() == f"{3 * 465}\n"
    rows = (toy.folder / "data/out/count/curve.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, 31))
    assert "RUNNING" not in run_statuses(toy)
    with sqlite3.connect(toy.folder / "mlflow.db") as db:
        steps = [step for (step,) in db.execute("select step from metrics where key = 'total' and step > 0 order by step")]
        assert steps == sorted(set(steps)), "a step was logged twice"


def test_changed_settings_start_clean_and_say_so(toy: ToyProject) -> None:
    toy.set_param("fail_at: -1", "fail_at: 3")
    assert toy.stage("count").returncode == 1
    toy.set_param("fail_at: 3", "fail_at: -1")
    done = toy.stage("count")
    assert done.returncode == 0
    assert "starting clean" in done.stdout and "1 unfinished run(s) of other settings" in done.stdout


def test_input_changed_while_running_is_refused(toy: ToyProject) -> None:
    """DVC-01."""
    toy.set_param("steps: 5, pause: 0.0", "steps: 30, pause: 0.05")
    process = toy.start("python", "-m", "toy.count")
    wait_for_step(toy, process, 3)
    toy.set_param("steps: 30", "steps: 31")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "changed while it ran" in output
    assert not (toy.folder / "data/out/count").exists()


def test_two_runs_of_the_same_stage_do_not_collide(toy: ToyProject) -> None:
    toy.set_param("steps: 5, pause: 0.0", "steps: 20, pause: 0.1")
    process = toy.start("python", "-m", "toy.count")
    wait_for_step(toy, process, 1)
    second = toy.stage("count")
    assert second.returncode == 1 and "is busy" in second.stderr
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_dvc_repro_twice_then_one_param(toy: ToyProject) -> None:
    """Acceptance 1 and DVC-04: the second run does nothing, status is clean, one change reruns what depends on it."""
    toy.init_dvc()
    first = toy.run("dvc", "--wait-for-lock", "repro")
    assert first.returncode == 0, first.stdout + first.stderr
    second = toy.run("dvc", "repro")
    assert "Running stage" not in second.stdout
    assert "up to date" in toy.run("dvc", "status").stdout
    toy.set_param("factor: 2.0", "factor: 1e-4")
    third = toy.run("dvc", "repro")
    assert "Running stage 'double'" in third.stdout and "Running stage 'count'" not in third.stdout
    assert "up to date" in toy.run("dvc", "status").stdout
