"""Run one stage through DVC: `dvc --wait-for-lock repro -s STAGE` under a guard, watched, logged, and judged.

In: a stage label and limits. Out: what DVC did, or a StageFailed that says why and whether trying again can help. No Prefect here:
flows.chain wraps this in a task. DVC alone decides whether the stage's command runs.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.guard import Guarded

LINES_PER_SECOND = 20
BAD_INPUT = 2  # exit code of a stage that refuses its input or configuration
NOISE = re.compile(
    r"^(To track the changes with git|\tgit add |To enable auto staging|\tdvc config core\.autostage|Use `dvc push`"
    r"|(Generat|Updat)ing lock file|Data and pipelines are up to date)"
)
EXIT = re.compile(r"failed to run: .*, exited with (-?\d+)")
BUSY = re.compile(r"Unable to acquire lock|is busy, it is being blocked by|another process is running this stage|database is locked")
MEMORY = re.compile(r"out of memory|MemoryError|can't allocate memory|Cannot allocate memory", re.IGNORECASE)
DID = ((re.compile(r"^Running stage '"), "ran"), (re.compile(r"^Stage '.*' is cached - "), "restored"), (re.compile(r"^Stage '.*' didn't change"), "unchanged"))


class StageFailed(RuntimeError):
    """A stage did not reach its end. `retryable` says whether another attempt can help."""

    def __init__(self, stage: str, code: int, reason: str, retryable: bool, log: Path) -> None:
        super().__init__(f"stage '{stage}' failed: {reason} (log: {log})")
        self.stage, self.code, self.reason, self.retryable, self.log = stage, code, reason, retryable, log

    def __reduce__(self) -> tuple:
        return StageFailed, (self.stage, self.code, self.reason, self.retryable, self.log)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a stage may take, and how long it may take to stop (seconds)."""

    deadline: float | None = None
    grace: float = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a stage: "ran", "restored" (from DVC's run cache), "unchanged" or "cached" (known up to date)."""

    stage: str
    did: str
    seconds: float


class Tail:
    """What the last lines of a stage's output say about its end."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=200)
        self.did = "unchanged"
        self.code: int | None = None

    def add(self, line: str) -> None:
        self.lines.append(line)
        self.did = next((did for pattern, did in DID if pattern.search(line)), self.did)
        if found := EXIT.search(line):
            self.code = int(found[1])

    def says(self, pattern: re.Pattern[str]) -> bool:
        return any(pattern.search(line) for line in self.lines)

    def error(self) -> str:
        """The line that explains a failure best: the stage's own error, else DVC's, else the last one."""
        for mark in ("error: ", "ERROR: "):
            for line in reversed(self.lines):
                if line.startswith(mark):
                    return line.removeprefix(mark)
        return next((line for line in reversed(self.lines) if line.strip()), "no output")


def run_stage(
    root: Path, stage: str, *, say: Callable[[str], None], stop: threading.Event, limits: Limits, env: Mapping[str, str], lock: int | None = None
) -> Outcome:
    """Run the stage and return what DVC did.

    StageFailed when it fails, passes its deadline, or `stop` is set; its whole process tree is gone by then. Output goes line by
    line to `say` (bounded in rate) and whole to data/work/logs/STAGE.log. `lock` is a descriptor that the guard keeps open.
    """
    log = log_file(root, stage)
    log.parent.mkdir(parents=True, exist_ok=True)
    started, started_at = time.monotonic(), time.time()
    argv = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", stage]
    guarded = Guarded(argv, grace=limits.grace, cwd=root, env=env, output=subprocess.PIPE, keep_open=() if lock is None else (lock,))
    mark = f"[{stage}] "  # stages put it before their own lines; the logger names the stage already
    tail, stopped = _watch(guarded, log, lambda line: say(line.removeprefix(mark)), stop, started, limits)
    seconds = time.monotonic() - started
    if stopped or guarded.poll() != 0:
        raise _failure(stage, stopped, guarded.poll(), tail, last_attempt(root, stage, started_at), log)
    return Outcome(stage, tail.did, seconds)


def log_file(root: Path, stage: str) -> Path:
    """Where the whole output of a stage's newest attempt is."""
    return root / "data/work/logs" / f"{stage}.log"


def _watch(guarded: Guarded, log: Path, say: Callable[[str], None], stop: threading.Event, started: float, limits: Limits) -> tuple[Tail, str | None]:
    """Follow the output to its end; (its tail, why we stopped the stage or None)."""
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read_lines, args=(guarded, lines), daemon=True)
    reader.start()
    tail, stopped, speaker = Tail(), None, Speaker(say, log)
    with log.open("w", encoding="utf-8") as file:
        while True:
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                line = ""
            if line is None:
                break
            if line:
                file.write(line + "\n")
                file.flush()
                tail.add(line)
                speaker.line(line)
            if stopped is None:
                late = limits.deadline is not None and time.monotonic() - started > limits.deadline
                stopped = "stopped on request" if stop.is_set() else f"passed its limit of {limits.deadline:g} s" if late else None
                if stopped:
                    say(f"{stopped}; it has {limits.grace:g} s to save and stop")
                    guarded.stop()
    speaker.end()
    guarded.wait()
    guarded.stop()
    return tail, stopped


def _read_lines(guarded: Guarded, lines: queue.Queue[str | None]) -> None:
    with guarded.process.stdout as stream:
        for raw in stream:
            lines.put(raw.decode("utf-8", errors="replace").rstrip("\r\n").rpartition("\r")[2])
    lines.put(None)


class Speaker:
    """Passes lines on, at most LINES_PER_SECOND on average with bursts of ten times that; says how many only the file has."""

    def __init__(self, say: Callable[[str], None], log: Path) -> None:
        self.say, self.log = say, log
        self.credit, self.updated, self.held = 10.0 * LINES_PER_SECOND, time.monotonic(), 0

    def line(self, line: str) -> None:
        now = time.monotonic()
        self.credit, self.updated = min(10.0 * LINES_PER_SECOND, self.credit + (now - self.updated) * LINES_PER_SECOND), now
        if not line.strip() or NOISE.search(line):
            return
        if self.credit < 1:
            self.held += 1
            return
        self.end()
        self.credit -= 1
        self.say(line)

    def end(self) -> None:
        if self.held:
            self.say(f"... {self.held} more lines in {self.log}")
            self.held = 0


def last_attempt(root: Path, stage: str, since: float) -> dict:
    """The runner's record of the stage's last attempt, or {} when it has none newer than `since` (seconds since 1970)."""
    path = root / "data/work/last" / f"{stage}.json"
    if not path.is_file() or path.stat().st_mtime < since - 1:
        return {}
    return json.loads(path.read_text(encoding="utf-8"))


def _failure(stage: str, stopped: str | None, guard_code: int, tail: Tail, record: dict, log: Path) -> StageFailed:
    """Judge a failure. Trying again helps after a lock, a signal or lack of memory, never after bad input or an ordinary error."""
    if stopped:
        return StageFailed(stage, 1, stopped, False, log)
    code = record.get("exit_code", tail.code) if tail.code is not None else None
    if code == BAD_INPUT:
        return StageFailed(stage, BAD_INPUT, record.get("reason") or tail.error(), False, log)
    if code is None:
        retry = tail.says(BUSY) or 128 < guard_code < 255  # DVC's own error code is 255
        return StageFailed(stage, 1, f"DVC: {tail.error()}", retry, log)
    if code < 0 or code > 128:
        return StageFailed(stage, 1, f"ended by signal {-code if code < 0 else code - 128} (killed, or out of memory)", True, log)
    retry = record.get("status") == "KILLED" or tail.says(MEMORY) or tail.says(BUSY)
    return StageFailed(stage, 1, f"exit code {code}: {record.get('reason') or tail.error()}", retry, log)
