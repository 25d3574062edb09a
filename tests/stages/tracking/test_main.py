"""The command line of the tracker."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stages.tracking.__main__ import main
from stages.tracking.store import Store


@pytest.fixture
def call(root: Path, capsys: pytest.CaptureFixture):
    def run(*words: str) -> tuple[int, str]:
        code = main(["--root", str(root), *words])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_pipelines_parent_from_begin_to_end(call, store: Store, tmp_path: Path) -> None:
    code, out = call("begin", "--name", "pipeline smoke", "--owner-pid", str(os.getpid()), "--tag", "overrides=rl.steps=5")
    parent = out.strip()
    assert code == 0 and store.get(parent).info.status == "RUNNING" and store.get(parent).data.tags["overrides"] == "rl.steps=5"
    links = tmp_path / "links.json"
    links.write_text(json.dumps([{"stage": "prepare", "item": None, "fingerprint": "p"}, {"stage": "export", "item": "bf16", "fingerprint": "e"}]))
    assert call("end", parent, "--status", "FAILED", "--reason", "stage 'rl' failed", "--links", str(links)) == (0, "")
    assert store.get(parent).info.status == "FAILED" and store.get(parent).data.tags["reason"] == "stage 'rl' failed"
    children = {run.info.run_name for run in store.find(f"tags.`mlflow.parentRunId` = '{parent}'")}
    assert children == {"prepare (up to date)", "export@bf16 (up to date)"}
    _, shown = call("show", "--last", "50")
    assert "pipeline smoke" in shown and "  export@bf16 (up to date)" in shown


def test_link_prints_the_run_it_made(call, store: Store) -> None:
    _, parent = call("begin", "--name", "p")
    code, out = call("link", "--parent", parent.strip(), "--stage", "evaluate", "--item", "base", "--fingerprint", "x")
    assert code == 0 and store.get(out.strip()).data.tags["item"] == "base"
    call("end", parent.strip(), "--status", "FINISHED")


def test_sweep_ends_a_pipeline_whose_process_is_dead(call, store: Store) -> None:
    run_id = store.start("pipeline", {"kind": "pipeline", "owner": f"{os.uname().nodename}:{2**22 + 1}:1.0"})
    _, out = call("sweep")
    assert run_id in out and store.get(run_id).info.status == "FAILED"


def test_best_names_the_run(call, store: Store) -> None:
    run_id = store.start("rl", {"kind": "stage", "stage": "cli"})
    store.log_points(run_id, [("reward", 0.75, 1, 1)], {})
    store.finish(run_id, "FINISHED")
    assert call("best", "--metric", "reward", "--mode", "max", "--stage", "cli") == (0, f"{run_id} rl reward=0.75\n")
    code, out = call("best", "--metric", "nothing", "--mode", "max")
    assert code == 2 and "no finished stage run has a finite 'nothing'" in out


def test_wrong_input_is_code_2_and_says_what_is_expected(call) -> None:
    code, out = call("end", "0123", "--status", "FINISHED")
    assert code == 2 and "an id that `begin` printed" in out
    code, out = call("begin", "--name", "x", "--owner-pid", str(2**22 + 1))
    assert code == 2 and "does not exist" in out


def test_init_prints_the_address(call, root: Path) -> None:
    assert call("init") == (0, f"sqlite:///{root.resolve() / 'mlflow.db'}\n")
