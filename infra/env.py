"""Environment of every process we start: no telemetry, no network by accident, one place for state.

In: the project's root folder. Out: a dict of environment variables, or `export NAME='value'` lines from `python -m infra.env`.
The values are defaults: a variable that the user has set keeps the user's value (`missing_env`).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

GPU_CONTROL = Path("/dev/nvidiactl")


def offline_env(root: Path) -> dict[str, str]:
    """Variables that keep DVC, Prefect, MLflow, Hugging Face libraries and DeepSpeed quiet, local and offline.

    Paths are absolute, because a queued DVC experiment runs in a copy of the workspace but must report to the original.
    """
    root = root.resolve()
    env = {
        "DVC_NO_ANALYTICS": "1",
        "DVC_STUDIO_OFFLINE": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(root / ".prefect"),
        # the first start migrates a database: 13 to 75 s have been seen
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}",
        "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
        "DO_NOT_TRACK": "true",  # MLflow accepts no other spelling
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    if not GPU_CONTROL.exists():
        env["DS_ACCELERATOR"] = "cpu"
    return env


def missing_env(root: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of `offline_env` that `environ` (default: this process's environment) does not set already."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in offline_env(root).items() if name not in environ}


def main(argv: list[str]) -> int:
    """`python -m infra.env [ROOT]` prints lines for `eval`; ROOT defaults to the current folder."""
    if len(argv) > 1:
        sys.stderr.write("usage: python -m infra.env [ROOT]\n")
        return 2
    root = Path(argv[0]) if argv else Path.cwd()
    if not root.is_dir():
        sys.stderr.write(f"error: {root} is not a folder; give the project's root\n")
        return 2
    sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in missing_env(root).items())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
