"""One Prefect server and one tiny project for the whole folder: starting either takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.env import offline_env
from infra.server import free_port, start_prefect
from tests.conftest import ROOT
from tests.flows.project import Project, make_project


@pytest.fixture(scope="session")
def api_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a real Prefect server on loopback, with scheduler, in a home of its own."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home))
        server = start_prefect(home, free_port(), full=True)
    server.wait_ready(900)
    yield f"{server.url}/api"
    server.stop()


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the person who runs the tests: no telemetry, no server, no tracker, no profile of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("PREFECT_", "MLFLOW_", "HEADRACE_", "DVC_")):
                patch.delenv(name)
        quiet = offline_env(tmp_path_factory.mktemp("state"))
        for name in quiet.keys() - {"MLFLOW_TRACKING_URI"}:
            patch.setenv(name, quiet[name])
        patch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A fresh tiny project per test module."""
    return make_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def launch(project: Project) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start a module of flows/ in the project; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen] = []

    def run(module: str, *words: str, **env: str) -> subprocess.Popen:
        full = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env}
        argv = [sys.executable, "-m", f"flows.{module}", *words]
        started.append(subprocess.Popen(argv, cwd=project.root, env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
