"""The results of a pipeline run as a table: one row a stage, for the console and for Prefect.

In: a plan, its outcomes, dvc.yaml (what a stage makes), metrics/*.json (its numbers), data/work/last/*.json (how long it took).
Out: text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from flows.graph import describe, read_bodies
from flows.plan import Plan
from flows.stage_task import Outcome, StageFailed

HEADER = ("stage", "what it makes", "result", "key numbers", "time")
# The first two of these that a stage measures are its key numbers.
HEADLINES = (
    "val_bpb", "val_loss", "greedy_accuracy", "val_accuracy", "val_reward", "bits_per_byte", "bits_per_weight", "accuracy_rl", "accuracy_*",
    "*reward*", "*accuracy*", "text_tokens", "bytes_per_token", "problems_train", "*tokens*",
)  # fmt: skip
WORDS = {"ran": "made", "restored": "restored", "unchanged": "up to date", "cached": "up to date"}


@dataclass(frozen=True, slots=True)
class Row:
    """One stage: its label, what it makes, what happened, its key numbers, and how long making the output took."""

    stage: str
    makes: str
    result: str
    numbers: str
    time: str

    def cells(self) -> tuple[str, ...]:
        return self.stage, self.makes, self.result, self.numbers, self.time


def rows_of(plan: Plan, outcomes: Mapping[str, Outcome], failure: StageFailed | None) -> list[Row]:
    """Rows in pipeline order; stages without an outcome failed or were not started."""
    bodies = read_bodies(plan.root)
    rows = []
    for label in plan.graph:
        makes = describe(bodies[label.partition("@")[0]])
        outcome = outcomes.get(label)
        if outcome is None:
            failed = failure is not None and failure.stage == label
            rows.append(Row(label, makes, "FAILED" if failed else "not started", "", ""))
            continue
        record = _read(plan.root / "data/work/last" / f"{label}.json")
        numbers = _read(plan.root / "metrics" / f"{label.replace('@', '/')}.json")
        seconds = outcome.seconds if outcome.did == "ran" else record.get("seconds")
        time = "" if seconds is None else duration(seconds) if outcome.did == "ran" else f"({duration(seconds)})"
        rows.append(Row(label, makes, WORDS[outcome.did], headline(numbers), time))
    return rows


def headline(metrics: Mapping[str, object]) -> str:
    """The one or two numbers a reader wants first."""
    names = [name for pattern in HEADLINES for name in sorted(metrics) if fnmatchcase(name, pattern)]
    chosen = list(dict.fromkeys(names or sorted(metrics)))[:2]
    return ", ".join(f"{name} {number(metrics[name])}" for name in chosen)


def number(value: object) -> str:
    """Whole numbers with separators, others to four digits, words as they are."""
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """90 -> "1m30s"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def console_table(rows: Sequence[Row]) -> str:
    """Columns aligned with spaces; times in brackets are of the run that made an output now reused."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def markdown_table(rows: Sequence[Row]) -> str:
    """The same rows for Prefect."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def next_steps(root: Path) -> str:
    """What a person would do after a run."""
    report = root / "data/out/report/report.html"
    lines = [f"report           {report.relative_to(root)}"] if report.is_file() else []
    lines += [
        "look at the runs  make ui",
        "change a value    make demo SET='rl.steps=50', or dvc exp run -S rl.steps=50; the keys are in params.yaml",
        "keep this run     dvc exp save -n first; dvc exp show then lists it beside what you try next",
        "what is stale     dvc status",
    ]
    return "\n".join(lines)


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
