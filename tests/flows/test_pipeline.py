"""The whole command on a tiny project, with real DVC, Prefect and MLflow: one story in five runs.

1 a transient failure and a bad parameter; 2 a cancel; 3 a kill; 4 the same workspace again at once, with a changed input;
5 nothing to do. Each test is one chapter and needs the ones before it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from stages.tracking.store import Store
from tests.conftest import ROOT
from tests.flows.project import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # seconds each on a quiet machine, minutes on a crowded one
FAST = ("--retry-delay", "0.1", "--grace", "2")


def ask(api_url: str, path: str, body: dict | None = None) -> list[dict]:
    request = urllib.request.Request(f"{api_url}/{path}/filter", data=json.dumps(body or {}).encode(), headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def newest_run(api_url: str) -> dict:
    return ask(api_url, "flow_runs", {"sort": "START_TIME_DESC", "limit": 1})[0]


def states(api_url: str, flow_run: dict) -> dict[str, str]:
    """Task name -> state name, once the server has recorded every task of a finished run."""
    body = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    limit = time.monotonic() + 30
    while True:
        found = {task["name"]: task["state_name"] for task in ask(api_url, "task_runs", body)}
        if "Running" not in found.values() or time.monotonic() > limit:
            return found
        time.sleep(0.2)


def store_of(project: Project) -> Store:
    return Store.open(project.root)


def parent_run(project: Project):
    return store_of(project).find("tags.kind = 'pipeline'", limit=1)[0]


def family_when_waiting(project: Project, process: subprocess.Popen) -> list[psutil.Process]:
    """Every process of the pipeline, once stage `late` waits beside its child and grandchild."""
    limit = time.monotonic() + 900
    while not (project.root / "counts/pids").exists():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit, "stage 'late' did not start"
        time.sleep(0.1)
    found = psutil.Process(process.pid).children(recursive=True)
    numbers = {int(word) for word in (project.root / "counts/pids").read_text().split()}
    (project.root / "counts/pids").unlink()
    assert numbers <= {part.pid for part in found}
    return found


def still_alive(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [part for part in alive if part.status() != psutil.STATUS_ZOMBIE]


def test_1_a_transient_failure_is_retried_and_bad_input_is_not(project: Project, launch, api_url: str) -> None:
    """PRE-01: Failed, exit code 2, stage named. PRE-02: a retry repeats nothing else. b@x and b@y end only side by side."""
    project.set("late", "bad", 1)
    run = launch("pipeline", *FAST, PREFECT_API_URL=api_url)
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 2, out
    assert "error: stage 'late' failed: late.bad=1, expected 0" in out
    assert {label: len(project.starts(label)) for label in ("a", "b@x", "b@y", "flaky", "late", "end")} == {"a": 1, "b@x": 1, "b@y": 1, "flaky": 2, "late": 1, "end": 0}
    flow_run = newest_run(api_url)
    assert flow_run["state_type"] == "FAILED" and "stage 'late' failed" in flow_run["state"]["message"]
    assert states(api_url, flow_run) == {"a": "Completed", "b@x": "Completed", "b@y": "Completed", "flaky": "Completed", "late": "Failed"}
    parent = parent_run(project)
    assert parent.info.status == "FAILED" and parent.info.run_name == "pipeline toy" and "late.bad=1" in parent.data.tags["reason"]
    assert set(project.starts("a") + project.starts("flaky")) == {parent.info.run_id}  # stages are told which run they belong to
    rows = {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in ("a", "late", "end")}
    assert "made" in rows["a"] and "val_loss 0.5" in rows["a"] and "FAILED" in rows["late"] and "not started" in rows["end"]


def test_2_a_cancel_leaves_no_process_and_repeats_no_stage(project: Project, launch, api_url: str) -> None:
    """PRE-06, with a grandchild that left the session."""
    project.set("late", "bad", 0)
    project.set("late", "wait", 1)
    run = launch("pipeline", *FAST, PREFECT_API_URL=api_url)
    everything = family_when_waiting(project, run)
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 1 and "stopped on request" in out and "go on from their last checkpoint" in out
    assert still_alive(everything, 10) == []
    flow_run = newest_run(api_url)
    assert flow_run["state_type"] in ("CRASHED", "CANCELLED")
    assert parent_run(project).info.status == "KILLED"
    assert len(project.starts("a")) == 1 and len(project.starts("flaky")) == 2


def test_3_a_killed_pipeline_takes_its_stages_along(project: Project, launch, api_url: str) -> None:
    run = launch("pipeline", *FAST, PREFECT_API_URL=api_url)
    everything = family_when_waiting(project, run)
    run.kill()
    run.wait()
    assert still_alive(everything, 30) == []
    assert parent_run(project).info.status == "RUNNING"  # the next user of the store ends it


def test_4_the_next_run_takes_over_and_redoes_what_changed(project: Project, launch, api_url: str) -> None:
    """DVC-06, PRE-03 and PRE-04: the input's content changes but keeps name, size and time stamp. With a server of its own."""
    project.set("late", "wait", 0)
    before = (project.root / "input.txt").stat()
    (project.root / "new").write_text("other\n")
    os.utime(project.root / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(project.root / "new", project.root / "input.txt")
    assert (project.root / "input.txt").stat().st_size == before.st_size
    killed = parent_run(project).info.run_id
    run = launch("pipeline", *FAST, "--targets", "end")
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 0, out
    assert "took over the workspace from process" in out and "what is stale" in out
    assert {label: len(project.starts(label)) for label in ("a", "b@y", "flaky", "end")} == {"a": 2, "b@y": 2, "flaky": 3, "end": 1}
    assert (project.root / "data/out/end/result.txt").read_text().startswith("other\n")
    assert "starting ..." in out and "Traceback" not in out and "database is locked" not in out
    assert store_of(project).get(killed).info.status == "FAILED" and parent_run(project).info.status == "FINISHED"


def test_5_nothing_runs_again_but_a_vanished_output_comes_back(project: Project, launch, api_url: str) -> None:
    """PRE-04: DVC restores what was deleted; everything is linked to the run that made it, none repeated."""
    for file in (project.root / "data/out/flaky").iterdir():
        file.unlink()
    counts = {label: project.starts(label) for label in ("a", "b@x", "b@y", "flaky", "late", "end")}
    run = launch("pipeline", *FAST, PREFECT_API_URL=api_url)
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 0, out
    assert {label: project.starts(label) for label in counts} == counts
    assert (project.root / "data/out/flaky/result.txt").exists()
    flow_run = newest_run(api_url)
    assert states(api_url, flow_run) == {"a": "Cached", "b@x": "Cached", "b@y": "Cached", "flaky": "Restored", "late": "Unchanged", "end": "Unchanged"}
    assert flow_run["state_type"] == "COMPLETED" and flow_run["state"]["message"] == "0 of 6 stages ran"
    links = store_of(project).find(f"tags.`mlflow.parentRunId` = '{parent_run(project).info.run_id}'")
    assert {link.data.tags["kind"] for link in links} == {"link"} and len(links) == 6
    artifact = ask(api_url, "artifacts", {"sort": "CREATED_DESC", "limit": 1})[0]
    assert artifact["key"] == "headrace-results" and "| a | the first | up to date | val_loss 0.5 |" in artifact["data"]


FORGOTTEN = """
import dataclasses, pathlib, sys
from flows.chain import Settings, run_pipeline
from flows.plan import make_plan
from flows.workspace import exclusive

with exclusive(pathlib.Path.cwd(), print) as lock:
    plan = make_plan(pathlib.Path.cwd(), None, [], [])
    result = run_pipeline(dataclasses.replace(plan, graph={**plan.graph, "end": ("ghost",)}), Settings(), lock)
print(result.failure)
"""


def test_pre01_a_stage_that_is_never_scheduled_fails_the_flow(project: Project, api_url: str) -> None:
    project.set("late", "bad", 0)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": api_url}
    done = subprocess.run([sys.executable, "-c", FORGOTTEN], cwd=project.root, env=env, capture_output=True, text=True, timeout=900, check=True)
    assert "stage 'end' failed: never started; it waits for ghost" in done.stdout
    flow_run = newest_run(api_url)
    assert flow_run["state_type"] == "FAILED" and "stage 'end' failed" in flow_run["state"]["message"]


def test_wrong_options_are_code_2_before_anything_runs(project: Project, launch, api_url: str) -> None:
    for words, text in ((("--targets", "nothing"), "no stage 'nothing'; expected one of a"), (("--concurrency", "0"), "expected a number above 0")):
        run = launch("pipeline", *words, PREFECT_API_URL=api_url)
        out, _ = run.communicate(timeout=900)
        assert run.returncode == 2 and text in out


def test_a_server_that_does_not_answer_is_named_before_anything_runs(project: Project, launch) -> None:
    run = launch("pipeline", PREFECT_API_URL="http://127.0.0.1:1/api")
    out, _ = run.communicate(timeout=900)
    assert run.returncode == 1 and "no Prefect server answers at PREFECT_API_URL=http://127.0.0.1:1/api" in out
