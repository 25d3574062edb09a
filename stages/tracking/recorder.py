"""The process that writes one stage's run to MLflow, so that training neither imports nor waits for the tracker.

In: JSON messages, one a line, on standard input (stages.tracking.client sends them). Out: one JSON reply a line for every message
but `log` and `final`. When standard input ends without a `close` message the stage was killed, and its run ends FAILED at once. Points are
buffered and written once a second; what the store refuses is kept and tried again.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import sys
import time
from pathlib import Path

import psutil

from stages.tracking.processes import Owner
from stages.tracking.store import MlflowException, Run, Store, TrackingError
from stages.tracking.values import clean_key

FLUSH_SECONDS = 1.0
SYSTEM_SECONDS = 10.0
HEARTBEAT_SECONDS = 60.0
PATIENCE_SECONDS = 30.0  # how long a close waits for a store that refuses to write


class Recorder:
    """One open run: buffers points, drops replayed ones, keeps numbers that are none out of the store."""

    def __init__(self, store: Store, run: Run, owner: Owner, parent: str | None, parent_is_ours: bool) -> None:
        self.store, self.run_id, self.owner = store, run.info.run_id, owner
        self.parent, self.parent_is_ours = parent, parent_is_ours
        self.nonfinite = {key.removeprefix("nonfinite."): parse_nonfinite(text) for key, text in run.data.tags.items() if key.startswith("nonfinite.")}
        self.diverged = set(filter(None, run.data.tags.get("diverged", "").split(",")))
        # of earlier attempts: a resumed stage replays the steps after its checkpoint
        self.last_steps = store.last_steps(run)
        for name, (_, step) in self.nonfinite.items():
            self.last_steps[name] = max(step, self.last_steps.get(name, -1))
        self.max_step = max(self.last_steps.values(), default=0)
        self.latest: dict[str, tuple[int, float]] = {}
        self.points: list[tuple[str, float, int, int]] = []
        self.tags: dict[str, object] = {}
        self.started, self.next_flush, self.next_system, self.next_heartbeat = run.info.start_time / 1000, 0.0, 0.0, 0.0
        psutil.cpu_percent()  # the first call only starts the measurement

    def log(self, step: int, metrics: dict[str, float], milliseconds: int) -> None:
        """Buffer one point per metric."""
        self.max_step = max(self.max_step, step)
        for raw, value in metrics.items():
            name = clean_key(raw)
            if step <= self.last_steps.get(name, -1):
                continue
            self.latest[name] = (step, value)
            if math.isfinite(value):
                self.points.append((name, value, milliseconds, step))
                if name in self.diverged:
                    self._mark(name, False)
            else:
                count = self.nonfinite.get(name, (0, -1))[0] + 1
                self.nonfinite[name] = (count, step)
                self.tags[f"nonfinite.{name}"] = f"{count} times, last at step {step}: {value}"
                self._mark(name, True)

    def _mark(self, name: str, diverged: bool) -> None:
        (self.diverged.add if diverged else self.diverged.discard)(name)
        self.tags["diverged"] = ",".join(sorted(self.diverged))

    def final(self, metrics: dict[str, float], milliseconds: int) -> None:
        """Scalars of the whole stage, at the last step of the curves so that they are the latest values."""
        known = {name for name, value in metrics.items() if self.latest.get(clean_key(name)) == (self.max_step, value)}
        self.log(self.max_step, {name: value for name, value in metrics.items() if name not in known}, milliseconds)

    def tick(self) -> None:
        """Once a second, write what is buffered, plus machine load and a sign of life when due."""
        now = time.time()
        if now < self.next_flush:
            return
        self.next_flush = now + FLUSH_SECONDS
        if now >= self.next_system:
            self.next_system = now + SYSTEM_SECONDS
            step = int((now - self.started) / SYSTEM_SECONDS)  # goes on over attempts
            self.points += [(name, value, int(now * 1000), step) for name, value in system_metrics(self.owner.pid).items()]
        if now >= self.next_heartbeat:
            self.next_heartbeat = now + HEARTBEAT_SECONDS
            self.tags["heartbeat"] = f"{now:.0f}"
            if self.parent:
                self.store.tag(self.parent, {"heartbeat": f"{now:.0f}"})
        self.flush()

    def flush(self) -> None:
        """Write buffered points and tags; on failure they stay buffered and MlflowException passes on."""
        if self.points or self.tags:
            self.store.log_points(self.run_id, self.points, self.tags)
            self.points, self.tags = [], {}

    def register_model(self, folder: Path, name: str, alias: str, tags: dict[str, str]) -> str:
        """Register the folder; a run that ended not-a-number or infinite is never promoted."""
        if self.diverged:
            raise ValueError(f"{sorted(self.diverged)} of this run ended not finite; '{name}' is not registered from a diverged run")
        return self.store.register_model(self.run_id, folder, name, alias, tags)

    def close(self, status: str, reason: str | None) -> None:
        """End run and, when this invocation made it, the parent; unless another attempt has taken the run over meanwhile."""
        with self.store.exclusive():
            run = self.store.get(self.run_id)
            if run is None or run.data.tags.get("owner") != str(self.owner):
                return
            self.store.finish(self.run_id, status, reason)
            if self.parent_is_ours and self.parent:
                self._close_parent(status)

    def _close_parent(self, status: str) -> None:
        parent = self.store.get(self.parent)
        if parent is None:
            return
        if status != "FINISHED":
            self.store.tag(self.parent, {"failed": status})
        self.store.finish(self.parent, "FINISHED" if status == "FINISHED" and "failed" not in parent.data.tags else "FAILED")


def parse_nonfinite(text: str) -> tuple[int, int]:
    """(count, last step) of a "nonfinite." tag."""
    count, last = re.match(r"(\d+) times, last at step (-?\d+)", text).groups()
    return int(count), int(last)


def system_metrics(pid: int) -> dict[str, float]:
    """Load of the machine and memory of the process tree of `pid`, under the names MLflow's system tab shows."""
    memory = psutil.virtual_memory()
    values = {"system/cpu_utilization_percentage": psutil.cpu_percent(), "system/system_memory_usage_megabytes": memory.used / 1e6}
    try:
        process = psutil.Process(pid)
        values["system/stage_memory_megabytes"] = sum(part.memory_info().rss for part in [process, *process.children(recursive=True)]) / 1e6
    except psutil.NoSuchProcess:
        pass  # ended between two samples
    return values


def open_run(message: dict) -> Recorder:
    """Find or make the run of this attempt and its parent. TrackingError when the store cannot be used."""
    store, owner, work = Store.open(Path(message["root"])), Owner(**message["owner"]), Path(message["work"])
    label, tags = message["label"], message["tags"]
    memory = work / "mlflow_run.json"
    with store.exclusive():
        store.sweep()
        parent, ours = _parent(store, message, owner)
        saved = json.loads(memory.read_text(encoding="utf-8")) if memory.is_file() else {}
        run = store.get(saved["run_id"]) if "run_id" in saved else None
        attempt = int(saved.get("attempt", 0)) + 1 if run else 1
        own = {"kind": "stage", "attempt": str(attempt), "owner": str(owner), "heartbeat": f"{time.time():.0f}"}
        if run:
            store.reopen(run.info.run_id, owner)
            store.tag(run.info.run_id, {**tags, **own, "reason": ""})
        else:
            run = store.get(store.start(label, {**tags, **own}, parent))
        _remember(memory, run.info.run_id, attempt)
    store.log_params(run.info.run_id, message["params"], run.data.params)
    return Recorder(store, run, owner, parent, ours)


def _parent(store: Store, message: dict, owner: Owner) -> tuple[str | None, bool]:
    """(parent run id, whether stages open and close it). A pipeline's own parent is closed by the pipeline."""
    given = message["pipeline_run"]
    if given and store.get(given):
        return given, False
    invocation = message["invocation"]
    found = store.find(f"tags.invocation = '{invocation}' and tags.kind = 'invocation'", limit=1)
    if found:
        store.reopen(found[0].info.run_id, owner)
        return found[0].info.run_id, True
    tags = {"kind": "invocation", "invocation": invocation, "owner": str(owner), "heartbeat": f"{time.time():.0f}"}
    return store.start(message["command"], tags), True


def _remember(memory: Path, run_id: str, attempt: int) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    temporary = memory.with_suffix(".tmp")
    temporary.write_text(json.dumps({"attempt": attempt, "run_id": run_id}, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, memory)


class Lines:
    """Complete lines of a file descriptor, waited for with a time limit."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.rest, self.ended = descriptor, b"", False

    def wait(self, seconds: float) -> list[str]:
        """Lines that arrived within `seconds`; sets `ended` at end of input. A cut last line (killed writer) is dropped."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if not ready:
            return []
        chunk = os.read(self.descriptor, 1 << 20)
        if not chunk:
            self.ended = True
            return []
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        return [line.decode("utf-8") for line in lines]


def handle(recorder: Recorder, message: dict) -> dict | None:
    """Do what a message says; the reply, or None for a message without one."""
    kind = message["op"]
    if kind == "log":
        return recorder.log(message["step"], message["metrics"], message["time"])
    if kind == "final":
        return recorder.final(message["metrics"], message["time"])
    try:
        if kind == "artifact":
            recorder.store.artifact(recorder.run_id, Path(message["path"]))
        elif kind == "model":
            recorder.flush()
            return {"version": recorder.register_model(Path(message["folder"]), message["name"], message["alias"], message["tags"])}
        elif kind == "close":
            return {"lost": _close(recorder, message["status"], message["reason"])}
    except (TrackingError, MlflowException, ValueError, OSError) as error:
        return {"error": str(error), "input": isinstance(error, ValueError)}
    return {}


def _close(recorder: Recorder, status: str, reason: str | None) -> int:
    """Flush and end the run; returns how many points the store never took."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            recorder.flush()
            recorder.close(status, reason)
            return 0
        except MlflowException:
            if time.monotonic() > limit:
                return len(recorder.points)
            time.sleep(1)


def main() -> int:
    """Serve one stage until it closes its run or ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not mix with the replies
    lines, recorder, closed = Lines(0), None, False
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    while not (lines.ended or closed):
        for line in lines.wait(FLUSH_SECONDS):
            message = json.loads(line)
            try:
                if recorder is None:
                    recorder = open_run(message)
                    reply = {"run_id": recorder.run_id}
                else:
                    reply = handle(recorder, message)
                    closed = message["op"] == "close"
            except (TrackingError, MlflowException) as error:
                replies.write(json.dumps({"error": str(error)}) + "\n")
                replies.flush()
                return 1
            if reply is not None:
                replies.write(json.dumps(reply) + "\n")
                replies.flush()
        if recorder and not closed:
            _tick(recorder)
    if recorder and not closed:
        _close(recorder, "FAILED", "the stage's process ended without closing its run (killed?)")
    return 0


def _tick(recorder: Recorder) -> None:
    try:
        recorder.tick()
    except MlflowException as error:
        sys.stderr.write(f"tracker: the store refused {len(recorder.points)} points, trying again: {str(error).splitlines()[0]}\n")
        time.sleep(FLUSH_SECONDS)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # everything is written; tearing the interpreter down would keep the stage waiting for seconds
