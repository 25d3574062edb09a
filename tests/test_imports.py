"""The chosen libraries live together in one interpreter, streaming beside newer releases than it pins included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TOGETHER = """
import importlib, json, pathlib, sys
names = ["torch", "torchvision", "transformers", "tokenizers", "streaming", "prefect", "dvc", "mlflow", "deepspeed", "hydra"]
modules = {name: importlib.import_module(name) for name in names}
import numpy as np
from data.shards import open_mds, verify_mds, write_mds
rows = [{"tokens": np.arange(n, dtype=np.uint16), "id": f"d{n}"} for n in range(1, 40)]
folder = pathlib.Path(sys.argv[1])
write_mds(folder, {"tokens": "ndarray:uint16", "id": "str"}, rows, 1000)
assert verify_mds(folder) == len(rows)
back = open_mds(folder)
assert all(back[i]["id"] == row["id"] and back[i]["tokens"].tolist() == row["tokens"].tolist() for i, row in enumerate(rows))
state = modules["torch"].ones(2, 3) @ modules["torch"].ones(3, 1)
assert state.tolist() == [[3.0], [3.0]]
print(json.dumps({name: getattr(module, "__version__", "") for name, module in modules.items()}))
"""


@pytest.mark.slow
def test_all_libraries_in_one_interpreter_with_a_shard_round_trip(tmp_path: Path) -> None:
    """Import smoke test of torch, transformers, streaming, prefect, dvc, mlflow and deepspeed together, offline and on CPU."""
    quiet = {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "DVC_NO_ANALYTICS": "1",
             "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_HOME": str(tmp_path / "prefect"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "mds")]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    versions = json.loads(done.stdout.splitlines()[-1])
    assert versions["streaming"] and versions["transformers"].split(".")[0] >= "5", versions
