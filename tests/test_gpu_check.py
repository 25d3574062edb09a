"""The GPU script refuses a machine without a device, needs models/ only, and every check runs where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests import gpu_check
from tests.conftest import ROOT
from tests.test_layering import imports


def test_imports_models_and_torch_only() -> None:
    tops = {name.split(".")[0] for name in imports(ROOT / "tests/gpu_check.py")}
    assert tops - {"models", "torch"} <= {"__future__", "argparse", "collections", "json", "pathlib", "sys", "time"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--out", str(tmp_path / "report.json")]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not (tmp_path / "report.json").exists()


@pytest.mark.gpu
def test_all_checks_pass(tmp_path: Path) -> None:
    assert gpu_check.main(["--quick", "--out", str(tmp_path / "report.json")]) == 0
    assert all(found["ok"] for found in json.loads((tmp_path / "report.json").read_text())["checks"].values())
