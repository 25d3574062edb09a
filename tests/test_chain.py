"""The whole chain at smoke size through DVC in a fresh clone: every stage, twice, then one change; experiments; real public text."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

STAGES_AFTER_RL = {"rl", "export@bf16", "export@int8", "evaluate@rl", "evaluate@bf16", "evaluate@int8", "report"}


class Clone:
    """A clone of this checkout's tracked files, with its own tracker and DVC state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        files = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, files.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / ".dvc/tmp").mkdir(exist_ok=True)
        for command in (["git", "init", "-q"], ["git", "add", "-A"], ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start"]):
            self.run(*command)

    def env(self) -> dict[str, str]:
        drop = ("DVC_ROOT", "DVC_STAGE", "DVC_EXP_NAME", "MLFLOW_TRACKING_URI", "HEADRACE_PIPELINE_RUN", "PREFECT_HOME")
        kept = {k: v for k, v in os.environ.items() if k not in drop}
        return kept | {"DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, *command: str, expect: int = 0) -> str:
        done = subprocess.run(list(command), cwd=self.folder, env=self.env(), capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == expect, f"{command} exited {done.returncode}:\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def ran(self, output: str) -> set[str]:
        return {line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage '")}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    made = Clone(tmp_path_factory.mktemp("chain"))
    made.run("python", "-m", "data.recipes.stdlib")
    made.run("python", "-m", "stages.params", "--profile", "smoke")
    made.first = made.run("dvc", "--wait-for-lock", "repro")
    return made


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_stage_runs_once_and_leaves_its_output(clone: Clone) -> None:
    stages = clone.run("dvc", "stage", "list", "--name-only").split()
    assert clone.ran(clone.first) == set(stages) and len(stages) == 13
    report = (clone.folder / "data/out/report/report.html").read_text()
    assert "<html" in report and "http://" not in report.replace("http://www.w3.org", "")
    assert json.loads((clone.folder / "metrics/report.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_second_repro_does_nothing_and_status_is_clean(clone: Clone) -> None:
    """DVC-04, acceptance 1."""
    assert clone.ran(clone.run("dvc", "repro")) == set()
    assert "up to date" in clone.run("dvc", "status")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_experiment_reruns_only_what_depends_on_the_change(clone: Clone) -> None:
    clone.run("dvc", "exp", "save", "-n", "first-rate")
    output = clone.run("dvc", "exp", "run", "-S", "profile=smoke", "-S", "rl.lr=1e-4", "-n", "other-rate")
    # At this size no answer earns a reward, so the weights, and with them the exports' bytes, may not move: then DVC keeps their evaluations.
    assert {"rl", "export@bf16", "export@int8", "evaluate@rl", "report"} <= clone.ran(output) <= STAGES_AFTER_RL
    shown = clone.run("dvc", "exp", "show", "--csv")
    assert "other-rate" in shown and "first-rate" in shown
    assert "rl.lr" in clone.run("dvc", "params", "diff")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_dvc_views_work(clone: Clone) -> None:
    assert "rl" in clone.run("dvc", "dag")
    assert "greedy_accuracy" in clone.run("dvc", "metrics", "show")
    clone.run("git", "add", "-A")
    clone.run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "smoke")
    assert "index.html" in clone.run("dvc", "plots", "show", "-o", "plots")
    assert "greedy_accuracy" in clone.run("dvc", "metrics", "diff", "--all")
    assert clone.ran(clone.run("dvc", "repro", "-s", "rl")) == set()
    store = clone.folder.parent / f"{clone.folder.name}-store"
    clone.run("dvc", "remote", "add", "-d", "store", str(store))
    clone.run("dvc", "push")
    before = (clone.folder / "data/out/rl/manifest.json").read_bytes()
    for command in (["rm", "-rf", "data/out", ".dvc/cache"], ["dvc", "pull"]):
        clone.run(*command)
    assert (clone.folder / "data/out/rl/manifest.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", ["prepare", "pretrain", "sft", "rl"])
def test_kill_9_at_random_moments_then_rerun_gives_the_same_bytes(clone: Clone, stage: str) -> None:
    """Acceptance 2, CKPT-01, CKPT-05: the manifest holds the hash of every file, weights included."""
    clone.run("python", "-m", "stages.params", "--profile", "smoke")
    clone.run("dvc", "repro", stage)
    manifest = clone.folder / "data/out" / stage / "manifest.json"
    unbroken = manifest.read_bytes()
    clone.run("dvc", "commit", "-f", stage)  # dvc.lock is newer than the finished run, so the next one starts from nothing
    rng = random.Random(f"{stage} drill")
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-m", f"stages.{stage}"], cwd=clone.folder, env=clone.env(), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        for _ in range(3 + rng.randrange(6)):  # the kill falls somewhere after the stage has said this much
            if not process.stdout.readline():
                break
        time.sleep(rng.random() * 0.5)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert not manifest.is_file() or manifest.read_bytes() == unbroken, "a half-written output was taken for complete"
    output = clone.run("python", "-m", f"stages.{stage}")
    assert manifest.read_bytes() == unbroken, output[-2000:]


LOCAL = "+prepare.mixture.mine={recipe: local, weight: 1.0, options: {paths: [data/raw/FILE], format: auto, field: text, documents: file}}"
WRONG = {
    "missing file": ("prepare", [LOCAL.replace("FILE", "absent.jsonl")], None, "absent.jsonl"),
    "bad JSON line in the middle": ("prepare", [LOCAL.replace("FILE", "bad.jsonl")], ("bad.jsonl", '{"text": "a"}\n{"text": \n{"text": "c"}\n'), "bad.jsonl:2: not valid JSON"),
    "empty corpus": ("prepare", [LOCAL.replace("FILE", "empty.jsonl")], ("empty.jsonl", '{"text": ""}\n{"text": "  "}\n'), "source 'mine' has no usable text: 2 records, of which 2 empty"),
    "unknown param": ("pretrain", ["+pretrain.learning_rate=0.1"], None, "pretrain.learning_rate: unknown parameter"),
    "wrong type": ("pretrain", ["pretrain.peak_lr=fast"], None, "pretrain.peak_lr: got 'fast' (str)"),
    "negative steps": ("sft", ["sft.steps=-5"], None, "sft.steps: got -5 (int), expected: Input should be greater than or equal to 1"),
    "corpus smaller than one batch": ("pretrain", ["pretrain.tokens_per_step=1280000", "pretrain.total_tokens=2560000", "pretrain.warmup_steps=0"], None,
                                      "do not fill one batch"),
    "vocabulary larger than the corpus supports": ("tokenize", ["tokenize.vocab_size=60000"], None, "vocab_size=60000, but the training sample supports only"),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("stage", "overrides", "file", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_a_clear_message_and_exit_code_2(clone: Clone, stage: str, overrides: list[str], file: tuple[str, str] | None, message: str) -> None:
    if file:
        (clone.folder / "data/raw" / file[0]).write_text(file[1])
    clone.run("python", "-m", "stages.params", "--profile", "smoke", *[part for override in overrides for part in ("--set", override)])
    output = clone.run("python", "-m", f"stages.{stage}", expect=2)
    assert message in output, output[-3000:]
    assert "Traceback" not in output, output[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_real_public_text_end_to_end(clone: Clone, shared_data: Path) -> None:
    """The `local` recipe over plays (text, by paragraph) and web pages (JSONL), every stage after it."""
    for name in ("text/tinyshakespeare.txt", "web/c4_demo.jsonl"):
        shutil.copy(shared_data / name, clone.folder / "data/raw")
    plays = "{recipe: local, weight: 1.0, options: {paths: [data/raw/tinyshakespeare.txt], format: auto, field: null, documents: paragraph}}"
    pages = "{recipe: local, weight: 1.0, options: {paths: [data/raw/c4_demo.jsonl], format: auto, field: text, documents: file}}"
    clone.run("python", "-m", "stages.params", "--profile", "smoke", "--set", "~prepare.mixture.code", "--set", "~prepare.mixture.docs",
              "--set", f"+prepare.mixture.plays={plays}", "--set", f"+prepare.mixture.pages={pages}")
    clone.run("dvc", "--wait-for-lock", "repro")
    report = json.loads((clone.folder / "data/out/prepare/report.json").read_text())
    assert {"plays", "pages", "problems"} <= set(report["text"]["sources"])
    assert json.loads((clone.folder / "metrics/report.json").read_text())["problems"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_queued_experiments_run(clone: Clone) -> None:
    clone.run("dvc", "exp", "run", "--queue", "-S", "profile=smoke", "-S", "rl.lr=2e-4,4e-4")
    clone.run("dvc", "queue", "start", "-j", "1")
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline:
        status = clone.run("dvc", "queue", "status")
        assert "Failed" not in status, status + clone.run("dvc", "queue", "logs", status.split("Failed")[0].split()[-2])
        if status.count("Success") == 2:
            break
        time.sleep(3)
    assert status.count("Success") == 2, status
    shown = clone.run("dvc", "exp", "show", "--csv")
    assert "0.0002" in shown and "0.0004" in shown
    clone.run("dvc", "queue", "stop", "--kill")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_flow_over_a_finished_chain_runs_nothing_and_prints_the_table(clone: Clone) -> None:
    clone.run("python", "-m", "stages.params", "--profile", "smoke")
    clone.run("dvc", "repro")
    output = clone.run("python", "-m", "flows.pipeline", "--profile", "smoke")
    assert clone.ran(output) == set()
    assert "evaluate@int8" in output and "make ui" in output
