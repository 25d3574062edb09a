"""A two-stage project in a temporary folder, run through the real runner, tracker and DVC, for tests of the machinery."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import ROOT

COUNT = '''
"""count: adds up numbers slowly enough to be killed."""
import json, os, sys, time
from pydantic import Field
from stages.config import Section, StageError
from stages.context import Interrupted
from stages.runner import main

class Config(Section):
    steps: int = Field(ge=1)
    pause: float = Field(ge=0)
    fail_at: int

def run(cfg, ctx):
    state = ctx.work / "state.json"
    step, total = json.loads(state.read_text()) if state.is_file() else (0, 0)
    ctx.resume_at(step)
    ctx.begin(cfg.steps)
    while step < cfg.steps:
        step += 1
        total += step * ctx.seed
        time.sleep(cfg.pause)
        ctx.log(step, total=total)
        if step == cfg.fail_at:
            raise RuntimeError("asked to fail")
        temporary = state.with_suffix(".tmp")
        temporary.write_text(json.dumps([step, total]))
        os.replace(temporary, state)
        if ctx.should_stop():
            raise Interrupted(f"saved at {step}")
    (ctx.out / "total.txt").write_text(f"{total}\\n")
    return {"total": total}

if __name__ == "__main__":
    raise SystemExit(main("count", Config, run))
'''

DOUBLE = '''
"""double: reads count."""
from stages.config import Section, StageError
from stages.runner import main

class Config(Section):
    factor: float

def run(cfg, ctx):
    total = int((ctx.dep("count") / "total.txt").read_text())
    if total > 10**9:
        raise StageError("total too large; lower count.steps")
    (ctx.out / "double.txt").write_text(f"{total * cfg.factor}\\n")
    return {"double": total * cfg.factor, "diverged": float("nan")}

if __name__ == "__main__":
    raise SystemExit(main("double", Config, run))
'''

DVC_YAML = """
stages:
  count:
    cmd: python -m toy.count
    params: [shared, count]
    deps: [toy/count.py]
    outs: [data/out/count]
    metrics: [metrics/count.json]
  double:
    cmd: python -m toy.double
    params: [shared, double]
    deps: [toy/double.py, data/out/count]
    outs: [data/out/double]
    metrics: [metrics/double.json]
"""

PARAMS = """
shared: {profile: nano, seed: 3}
count: {steps: 5, pause: 0.0, fail_at: -1}
double: {factor: 2.0}
"""


class ToyProject:
    """The folder and how to run commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "toy").mkdir(parents=True)
        for name, text in {"toy/__init__.py": "", "toy/count.py": COUNT, "toy/double.py": DOUBLE, "dvc.yaml": DVC_YAML, "params.yaml": PARAMS,
                           ".gitignore": "data/\nmetrics/\nmlflow.db*\nmlartifacts/\n__pycache__/\n"}.items():
            (folder / name).write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")

    def env(self) -> dict[str, str]:
        bin_folder = str(Path(sys.executable).parent)
        drop = ("DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME", "MLFLOW_TRACKING_URI", "HEADRACE_PIPELINE_RUN")
        kept = {k: v for k, v in os.environ.items() if k not in drop}
        return {**kept, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": f"{self.folder}:{ROOT}", "DVC_NO_ANALYTICS": "1"}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(list(command), cwd=self.folder, env=self.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(list(command), cwd=self.folder, env=self.env(), capture_output=True, text=True, timeout=300, check=False)

    def stage(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", f"toy.{name}", *args)

    def set_param(self, old: str, new: str) -> None:
        path = self.folder / "params.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in params.yaml"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def init_dvc(self) -> None:
        for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["git", "add", "-A"],
                        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start"]):
            done = self.run(*command)
            assert done.returncode == 0, done.stderr
