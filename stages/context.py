"""What a running stage may touch: its inputs, its output folder, its resume area, and the log.

The runner builds a Context; tests build one with Context.for_test, with neither tracker nor DVC. A stage never writes outside
`out` and `work`, and never reads an input that dvc.yaml does not declare.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stages.config import StageError


class Interrupted(Exception):
    """A stop was asked for (SIGTERM, Ctrl-C) and the stage has saved what it needs to continue."""


class Sink:
    """Where curve points and remarks go besides the output folder. The default keeps nothing."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def volatile(self, metrics: dict[str, float]) -> None: ...


@dataclass
class Context:
    """One stage attempt. See the module docstring; paths are absolute."""

    stage: str
    item: str | None
    seed: int
    out: Path
    work: Path
    deps: Mapping[str, Path]
    sink: Sink = field(default_factory=Sink)
    stop_requested: Callable[[], bool] = lambda: False
    volatiles: dict[str, float] = field(default_factory=dict)
    quiet: bool = False
    _points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    _pace: Pace | None = None
    _curve_file: Path | None = None

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        self._curve_file = self.work / "curve.jsonl"
        if self._curve_file.is_file():
            self._points = _read_points(self._curve_file)

    @classmethod
    def for_test(cls, tmp_path: Path, stage: str, deps: Mapping[str, Path], seed: int = 0, item: str | None = None) -> Context:
        """A Context without runner, tracker or DVC."""
        return cls(stage=stage, item=item, seed=seed, out=tmp_path / "out", work=tmp_path / "work", deps=dict(deps), quiet=True)

    @classmethod
    def for_plan(cls, stage: str, item: str | None, seed: int, deps: Mapping[str, Path]) -> Context:
        """A Context for a dry run: it has inputs but may write nowhere."""
        nowhere = Path(os.devnull)
        plan = cls.__new__(cls)
        plan.stage, plan.item, plan.seed, plan.out, plan.work, plan.deps, plan.quiet = stage, item, seed, nowhere, nowhere, dict(deps), True
        return plan

    @property
    def label(self) -> str:
        return self.stage if self.item is None else f"{self.stage}@{self.item}"

    def dep(self, name: str) -> Path:
        """Folder of a finished upstream output, such as "tokenize" or "export/int8". StageError when undeclared or incomplete."""
        if name not in self.deps:
            raise StageError(f"stage '{self.label}' reads '{name}' but dvc.yaml declares only {sorted(self.deps)}; add it to the stage's deps")
        folder = self.deps[name]
        if not folder.is_dir():
            raise StageError(f"input {folder} does not exist; make it with `dvc repro {name.replace('/', '@')}`")
        return folder

    def begin(self, total_steps: int, tokens_per_step: int | None = None) -> None:
        """Declare the length of the step loop, so that log lines show the rate and the time left."""
        self._pace = Pace(total_steps, tokens_per_step)

    def log(self, step: int, /, **metrics: float) -> None:
        """One point of the curves: tracker, resume area, output's CSV, and one console line."""
        values = {name: float(value) for name, value in metrics.items()}
        self._points.append((step, values))
        with self._curve_file.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps([step, values]) + "\n")
        self.sink.log(step, values)
        total, pace = (self._pace.of_total(), self._pace.columns(step)) if self._pace else ("", "")
        self._say(f"step {step}{total}  " + "  ".join(f"{k} {v:.4g}" for k, v in values.items()) + pace)

    def resume_at(self, step: int) -> None:
        """Forget logged points after `step`; call right after a checkpoint of that step is restored."""
        self._points = [point for point in self._points if point[0] <= step]
        temporary = self._curve_file.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(list(point)) + "\n" for point in self._points), encoding="utf-8")
        os.replace(temporary, self._curve_file)
        if self._pace:
            self._pace.start_at(step)

    def note(self, text: str) -> None:
        """One line for the reader of the log."""
        self._say(text)

    def volatile(self, **metrics: float) -> None:
        """Timings and speeds: they go to the tracker and the work area, never into an output that is hashed."""
        values = {name: float(value) for name, value in metrics.items()}
        self.volatiles.update(values)
        self.sink.volatile(values)

    def progress(self, total: int, unit: str, label: str = "") -> Progress:
        """Progress of countable work with rate and time left."""
        return Progress(total=total, unit=unit, label=label or self.label, say=self._say, stop_requested=self.stop_requested)

    def should_stop(self) -> bool:
        """True once SIGTERM or Ctrl-C arrived: save into `work`, then raise Interrupted."""
        return self.stop_requested()

    def write_curves(self) -> None:
        """Write curve.csv (training points) and val.csv (points whose names start with val_) into the output."""
        for filename, wanted in (("curve.csv", lambda name: not name.startswith("val_")), ("val.csv", lambda name: name.startswith("val_"))):
            rows = [(step, {k: v for k, v in values.items() if wanted(k)}) for step, values in self._points]
            rows = [(step, values) for step, values in rows if values]
            if rows:
                _write_csv(self.out / filename, rows)

    def _say(self, text: str) -> None:
        if not self.quiet:
            sys.stdout.write(f"[{self.label}] {text}\n")
            sys.stdout.flush()


class Pace:
    """Rate and time left of a step loop, averaged over the steps of this process."""

    def __init__(self, total_steps: int, tokens_per_step: int | None) -> None:
        self.total_steps = total_steps
        self.tokens_per_step = tokens_per_step
        self.process = psutil.Process()
        self.start_at(0)

    def start_at(self, step: int) -> None:
        self.first_step, self.started = step, time.monotonic()

    def of_total(self) -> str:
        return f"/{self.total_steps}"

    def columns(self, step: int) -> str:
        elapsed, done = time.monotonic() - self.started, step - self.first_step
        if done <= 0 or elapsed <= 0:
            return ""
        rate = f"{done * self.tokens_per_step / elapsed:,.0f} tok/s" if self.tokens_per_step else f"{done / elapsed:.2f} steps/s"
        left = (self.total_steps - step) * elapsed / done
        return f"  | {rate}  rss {self.process.memory_info().rss >> 20} MiB  left {format_seconds(left)}"


@dataclass
class Progress:
    """Counts work; prints a line at most every two seconds."""

    total: int
    unit: str
    label: str
    say: Callable[[str], None]
    stop_requested: Callable[[], bool]
    done: int = 0
    others: dict[str, int] = field(default_factory=dict)
    """What else was counted, by unit, for its rate."""
    _started: float = field(default_factory=time.monotonic)
    _printed: float = field(default_factory=time.monotonic)

    def advance(self, n: int = 1, **others: int) -> None:
        """Count `n` more, and other things by unit. Raises Interrupted when a stop was asked for, so call it only where finished parts are safe on disk."""
        self.done += n
        for unit, count in others.items():
            self.others[unit] = self.others.get(unit, 0) + count
        now = time.monotonic()
        if now - self._printed >= 2 or (self.done >= self.total and now - self._started >= 2):
            self._printed = now
            elapsed = max(now - self._started, 1e-9)
            rate = self.done / elapsed
            rates = "".join(f"  {count / elapsed:,.0f} {unit}/s" for unit, count in self.others.items())
            left = format_seconds((self.total - self.done) / rate) if rate > 0 and self.total >= self.done else "?"
            self.say(f"{self.label}: {self.done:,}/{self.total:,} {self.unit}  {rate:,.0f} {self.unit}/s{rates}  left {left}")
        if self.stop_requested():
            raise Interrupted(f"{self.label} stopped after {self.done:,} of {self.total:,} {self.unit}")


def format_seconds(seconds: float) -> str:
    """90 -> "1m30s"."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _read_points(path: Path) -> list[tuple[int, dict[str, float]]]:
    """Points of an interrupted run; a half-written last line (kill -9) is dropped, the resumed run writes it again."""
    points = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            step, values = json.loads(line)
        except json.JSONDecodeError:
            break
        points.append((step, values))
    return points


def _write_csv(path: Path, rows: list[tuple[int, dict[str, float]]]) -> None:
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["step", *names])
        writer.writerows([step, *[repr(values[name]) if name in values else "" for name in names]] for step, values in rows)
