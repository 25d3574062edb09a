"""One SQLite store for the tests of this folder: making its schema takes seconds, and runs do not meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.tracking.store import Store


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with an open store."""
    folder = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        Store.open(folder)
    return folder


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker or pipeline of the person who runs the tests leaks in."""
    for name in ("MLFLOW_TRACKING_URI", "HEADRACE_PIPELINE_RUN", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def store(root: Path) -> Store:
    """The session's store, opened for one test."""
    return Store.open(root)
