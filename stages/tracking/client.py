"""A stage's side of its tracked run: messages to the recorder process, which alone talks to MLflow.

In: parameters, curve points, artifacts of one stage attempt. Out: one MLflow run. The recorder runs beside the stage, so MLflow's
import (seconds) and its database writes cost the stage nothing, and it outlives a killed stage to mark the run FAILED. A tracker
that cannot open its store stops the stage; one that fails later is reported once and training goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

from stages.tracking.processes import Owner, invocation
from stages.tracking.values import clean_key, describe

PIPELINE_RUN = "HEADRACE_PIPELINE_RUN"
PROJECT = Path(__file__).resolve().parents[2]
PIPE_BYTES = 1 << 20  # thousands of points fit while the recorder starts; a full pipe would block the stage
OPEN_SECONDS = 300
REPLY_SECONDS = 1800  # copying a large export into the store


class TrackerFailed(RuntimeError):
    """The tracker could not open the run, or could not register a model."""


class StageRun:
    """One MLflow run of one stage, continued by later attempts on the same inputs. Safe to use from several threads."""

    def __init__(self, process: subprocess.Popen[bytes], label: str) -> None:
        self._process, self._label = process, label
        self._lock = threading.RLock()
        self._buffer = b""
        self._run_id: str | None = None
        self._broken = self._closed = False

    @classmethod
    def open(cls, *, root: Path, stage: str, item: str | None, fingerprint: str, params: dict[str, object], tags: dict[str, str], work: Path) -> StageRun:
        """Start recording and return at once; `work`/mlflow_run.json leads a later attempt back to the same run.

        The parent is the run named by HEADRACE_PIPELINE_RUN, else one per `dvc` invocation (or per process without DVC).
        """
        label = stage if item is None else f"{stage}@{item}"
        owner, command = invocation()
        named = {"stage": stage, "fingerprint": fingerprint} | ({"item": item} if item else {})
        if "git.sha" in tags:
            named["mlflow.source.git.commit"] = tags["git.sha"]
        message = {
            "op": "open", "root": str(root), "work": str(work), "label": label, "owner": dataclasses.asdict(Owner.of()),
            "params": {key: describe(value) for key, value in params.items()},
            "tags": {**{clean_key(key): str(value) for key, value in tags.items()}, **named, "mlflow.source.name": f"python -m stages.{stage}"},
            "pipeline_run": os.environ.get(PIPELINE_RUN), "invocation": str(owner), "command": command,
        }
        paths = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "stages.tracking.recorder"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=PIPE_BYTES,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # signals to the stage's group must not cut off its last points
        )
        run = cls(process, label)
        run._send(message)
        return run

    @property
    def run_id(self) -> str:
        """MLflow's id of the run; waits for the recorder. TrackerFailed when the run could not be opened."""
        with self._lock:
            if self._run_id is None:
                self._run_id = self._reply(OPEN_SECONDS)["run_id"]
            return self._run_id

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """One point per metric. Steps that an earlier attempt logged are skipped; NaN and infinity are counted in a tag instead."""
        self._measure({"op": "log", "step": int(step)}, metrics)

    def final(self, metrics: dict[str, float]) -> None:
        """Scalars of the whole stage, treated as `log` treats points."""
        self._measure({"op": "final"}, metrics)

    def artifact(self, path: Path) -> None:
        """Copy a file or folder into the run. ValueError when it does not exist."""
        if not path.exists():
            raise ValueError(f"artifact {path} does not exist; expected a file or folder")
        self._ask({"op": "artifact", "path": str(path.resolve())})

    def register_model(self, folder: Path, name: str, alias: str, tags: dict[str, str]) -> None:
        """Copy an exported folder into the registry as a version of `name` and move `alias` to it (no pickle, no model import).

        ValueError for a reserved alias, a missing folder or a diverged run; TrackerFailed when the store refuses, and then no
        half-registered version remains. Registering equal content again only moves the alias.
        """
        if not folder.is_dir():
            raise ValueError(f"model folder {folder} does not exist; expected an exported folder")
        texts = {key: str(value) for key, value in tags.items()}
        reply = self._ask({"op": "model", "folder": str(folder.resolve()), "name": name, "alias": alias, "tags": texts})
        if "error" in reply or not reply:
            error = reply.get("error", "the tracker has stopped")
            raise ValueError(error) if reply.get("input") else TrackerFailed(f"{error}")

    def close(self, status: str, reason: str | None = None) -> None:
        """Write what is left and end the run as FINISHED, FAILED or KILLED. A second call does nothing."""
        if status not in ("FINISHED", "FAILED", "KILLED"):
            raise ValueError(f"status={status!r}, expected FINISHED, FAILED or KILLED")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                lost = self._ask({"op": "close", "status": status, "reason": reason}).get("lost", 0)
                if lost:
                    self._warn(f"{lost} points were never stored")
            finally:
                self._end()

    def _measure(self, message: dict[str, object], metrics: dict[str, float]) -> None:
        with self._lock:
            self._send({**message, "metrics": {name: float(value) for name, value in metrics.items()}, "time": time.time_ns() // 1_000_000})
            self._check_opened()

    def _end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended first
            self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, message: dict[str, object]) -> dict:
        """Send a message and return its reply; {} once the recorder is gone. Errors are reported, and returned for the caller to judge."""
        with self._lock:
            _ = self.run_id
            self._send(message)
            reply = self._reply(REPLY_SECONDS) if not self._broken else {}
            if "error" in reply and message["op"] != "model":
                self._warn(reply["error"])
            return reply

    def _send(self, message: dict[str, object]) -> None:
        if self._broken:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            _ = self.run_id  # says why, if it could not be opened
            self._lose()

    def _check_opened(self) -> None:
        """Stop early, without waiting, when the recorder has said that it cannot open the run."""
        if self._run_id is None and select.select([self._process.stdout], [], [], 0)[0]:
            _ = self.run_id

    def _reply(self, seconds: float) -> dict:
        limit = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, limit - time.monotonic()))
            chunk = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self._lose()
                return {}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if self._run_id is None and "error" in reply:
            self._broken = True
            raise TrackerFailed(reply["error"])
        return reply

    def _lose(self) -> None:
        self._broken = True
        if self._run_id is None:
            raise TrackerFailed(f"the tracker of '{self._label}' ended (exit code {self._process.poll()}) before its run was open; its message is above")
        self._warn("it has stopped; the stage goes on untracked and the run ends FAILED at the next sweep")

    def _warn(self, text: str) -> None:
        sys.stderr.write(f"tracker of '{self._label}': {text}\n")
