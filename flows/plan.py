"""What a pipeline run will do, settled before its first stage: parameters, order, what is up to date, and the tracked parent run.

In: the options of one run. Out: a Plan. Every tool is asked through its command line: `stages.params` composes params.yaml,
`dvc status` says what is stale, `stages.tracking` opens the parent run. BadInput is raised for what the user must correct.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flows.graph import Graph, read_graph, select
from infra.env import offline_env
from stages.config import StageError, read_params
from stages.identity import fingerprint
from stages.tracking import PIPELINE_RUN

CODE = Path(__file__).resolve().parents[1]


class BadInput(ValueError):
    """A wrong option, parameter or pipeline file; nothing has run."""


class ToolFailed(RuntimeError):
    """DVC or the tracker failed before the first stage."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in order with their upstream, those known to be up to date, and the parent run in MLflow."""

    root: Path
    graph: Graph
    clean: frozenset[str]
    parent_run: str
    profile: str


def find_root(start: Path) -> Path:
    """The folder with dvc.yaml at or above `start`."""
    for folder in (start, *start.parents):
        if (folder / "dvc.yaml").is_file():
            return folder
    raise BadInput(f"no dvc.yaml in {start} or above it; run this inside the project")


def child_env(root: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of every command we start: offline defaults, this interpreter's `python` and `dvc` first, lines unbuffered."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    modules = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(CODE)]))
    return {**offline_env(root), **os.environ, "PATH": path, "PYTHONPATH": modules, "PYTHONUNBUFFERED": "1", **extra}


def make_plan(root: Path, profile: str | None, overrides: Sequence[str], targets: Sequence[str]) -> Plan:
    """Compose parameters if asked to, read the graph, and ask DVC and the tracker, side by side."""
    if profile or overrides:
        compose(root, profile, overrides)
    try:
        graph = select(read_graph(root), targets)
        shared = read_params(root / "params.yaml").get("shared")
    except StageError as error:
        raise BadInput(str(error)) from error
    name = str(shared.get("profile", "pipeline")) if isinstance(shared, dict) else "pipeline"
    with ThreadPoolExecutor(2) as pool:
        stale = pool.submit(stale_stages, root)
        parent = pool.submit(begin_run, root, name, overrides)
        return Plan(root, graph, frozenset(graph) - stale.result(), parent.result(), name)


def compose(root: Path, profile: str | None, overrides: Sequence[str]) -> None:
    """Write params.yaml from a profile and overrides, as `dvc exp run -S` would."""
    options = (["--profile", profile] if profile else []) + [word for override in overrides for word in ("--set", override)]
    done = _run(root, [sys.executable, "-m", "stages.params", *options])
    if done.returncode != 0:
        raise BadInput(done.stderr.strip().removeprefix("error: ") or f"stages.params ended with exit code {done.returncode}")


def stale_stages(root: Path) -> frozenset[str]:
    """Labels of stages that DVC would have to look at: changed, missing, or always to be run."""
    done = _run(root, [sys.executable, "-m", "dvc", "--wait-for-lock", "status", "--json"])
    if done.returncode != 0:
        raise ToolFailed(f"dvc status failed: {done.stderr.strip()}")
    start = done.stdout.find("{")
    return frozenset(json.loads(done.stdout[start:])) if start >= 0 else frozenset()


def begin_run(root: Path, name: str, overrides: Sequence[str]) -> str:
    """Open the pipeline's parent run in MLflow; its id."""
    tags = ["--tag", f"overrides={' '.join(overrides)}"] if overrides else []
    done = _track(root, ["begin", "--name", f"pipeline {name}", "--owner-pid", str(os.getpid()), *tags])
    if done.returncode != 0:
        raise ToolFailed(f"the tracker cannot start: {done.stderr.strip()}")
    return done.stdout.strip().splitlines()[-1]


def end_run(plan: Plan, status: str, reason: str | None, skipped: Iterable[str]) -> None:
    """Link the skipped stages to the runs that made their outputs and close the parent run."""
    links = [{"stage": stage, "item": item or None, "fingerprint": fingerprint(plan.root, stage, item or None)}
             for stage, _, item in (label.partition("@") for label in skipped)]
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(links, file)
        file.flush()
        words = ["end", plan.parent_run, "--status", status, "--links", file.name, *(["--reason", reason] if reason else [])]
        done = _track(plan.root, words)
    if done.returncode != 0:
        raise ToolFailed(f"the tracker cannot close the pipeline's run: {done.stderr.strip()}")


def stage_env(plan: Plan, flow_run_id: str) -> dict[str, str]:
    """Environment of a stage: its tracked run belongs to this pipeline."""
    return child_env(plan.root, {PIPELINE_RUN: plan.parent_run, "PREFECT__FLOW_RUN_ID": flow_run_id})


def _track(root: Path, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return _run(root, [sys.executable, "-m", "stages.tracking", "--root", str(root), *words])


def _run(root: Path, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=root, env=child_env(root, {}), capture_output=True, text=True, check=False)
