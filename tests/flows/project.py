"""A tiny real project: git, DVC, and stages that are one small script. What a stage does is decided by params.yaml.

Graph: a -> b@x, b@y;  b@x -> flaky -> late;  b@y, late -> end.
b@x and b@y wait for each other, so they end only side by side. flaky kills itself once. late fails with exit code 2, or waits
beside a child and a grandchild, when its params say so. Each start of a stage adds a line to counts/STAGE.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

DVC_YAML = """
stages:
  a:
    desc: the first
    cmd: python step.py a
    deps: [input.txt]
    params: [shared, a]
    outs: [data/out/a]
    metrics: [metrics/a.json: {cache: false}]
  b:
    matrix: {kind: [x, y]}
    cmd: python step.py b/${item.kind}
    deps: [data/out/a]
    outs: ["data/out/b/${item.kind}"]
  flaky:
    cmd: python step.py flaky
    deps: [data/out/b/x]
    outs: [data/out/flaky]
  late:
    cmd: python step.py late
    deps: [data/out/flaky]
    params: [late]
    outs: [data/out/late]
  end:
    cmd: python step.py end
    deps: [data/out/b/y, data/out/late, metrics/a.json]
    outs: [data/out/end]
"""

STEP = '''
import json, os, signal, subprocess, sys, time
from pathlib import Path
from ruamel.yaml import YAML

name = sys.argv[1]
params = YAML(typ="safe").load(Path("params.yaml").read_text())
count = Path("counts") / name.replace("/", "@")
count.parent.mkdir(exist_ok=True)
with count.open("a") as file:
    file.write(os.environ.get("HEADRACE_PIPELINE_RUN", "none") + "\\n")

def wait_for(path, seconds=60):
    limit = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > limit:
            sys.exit(f"error: {path} never came")
        time.sleep(0.02)

if name.startswith("b/"):
    Path("counts", name[2:] + ".started").touch()
    wait_for(Path("counts", {"x": "y", "y": "x"}[name[2:]] + ".started"))
if name == "flaky" and len(count.read_text().splitlines()) == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if name == "late" and params["late"]["bad"]:
    sys.stderr.write("error: late.bad=1, expected 0\\n")
    sys.exit(2)
if name == "late" and params["late"]["wait"]:
    child = subprocess.Popen([sys.executable, "-c", "import subprocess, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True); print(p.pid, flush=True); time.sleep(300)"], stdout=subprocess.PIPE, text=True)
    Path("counts/pids.tmp").write_text(f"{os.getpid()} {child.pid} {child.stdout.readline()}")
    os.rename("counts/pids.tmp", "counts/pids")
    time.sleep(300)
out = Path("data/out") / name
out.mkdir(parents=True)
out.joinpath("result.txt").write_text(Path("input.txt").read_text() + name + str(params["a"]))
if name == "a":
    Path("metrics").mkdir(exist_ok=True)
    Path("metrics/a.json").write_text(json.dumps({"val_loss": 0.5, "value": params["a"]["value"]}))
'''


@dataclass(frozen=True)
class Project:
    """The folder, and short ways to change and read it."""

    root: Path

    def set(self, section: str, key: str, value: object) -> None:
        path = self.root / "params.yaml"
        params = YAML(typ="safe").load(path.read_text())
        params[section][key] = value
        with path.open("w") as file:
            YAML(typ="safe").dump(params, file)

    def starts(self, label: str) -> list[str]:
        """The parent run of every start of a stage."""
        path = self.root / "counts" / label
        return path.read_text().splitlines() if path.exists() else []

    def dvc(self, *words: str) -> str:
        return subprocess.run([sys.executable, "-m", "dvc", *words], cwd=self.root, capture_output=True, text=True, check=True).stdout


def make_project(root: Path) -> Project:
    """Write the project into an empty folder."""
    root.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=root, check=True)
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "step.py").write_text(STEP)
    (root / "input.txt").write_text("first\n")
    (root / "params.yaml").write_text("shared: {profile: toy, seed: 1}\na: {value: 1}\nlate: {bad: 0, wait: 0}\n")
    return Project(root)
