"""The offline environment: absolute places, and the user's own values first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.env import main, missing_env, offline_env
from tests.conftest import ROOT


def test_paths_are_absolute_and_databases_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = offline_env(Path("."))
    assert env["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"
    assert env["PREFECT_HOME"] == str(tmp_path / ".prefect")
    assert env["DO_NOT_TRACK"] == "true"  # MLflow reads no other spelling


def test_values_that_are_set_stay() -> None:
    missing = missing_env(Path("/p"), {"HF_HUB_OFFLINE": "0", "PREFECT_HOME": "/mine"})
    assert "HF_HUB_OFFLINE" not in missing and "PREFECT_HOME" not in missing and missing["DVC_NO_ANALYTICS"] == "1"


def test_command_prints_lines_that_a_shell_can_eval(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    lines = subprocess.run([sys.executable, "-m", "infra.env", str(folder)], env=env, capture_output=True, text=True, check=True).stdout
    got = subprocess.run(["sh", "-c", f'{lines}\nprintf %s "$PREFECT_HOME"'], env=env, capture_output=True, text=True, check=True).stdout
    assert got == str(folder / ".prefect")


def test_wrong_arguments_are_code_2(capsys: pytest.CaptureFixture) -> None:
    assert main(["/no/such/folder"]) == 2 and "is not a folder" in capsys.readouterr().err
    assert main(["a", "b"]) == 2
