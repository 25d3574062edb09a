"""Plot data: tidy CSV files beside the page, one observation a row, for `dvc plots` and for anyone's own tools.

In: rows as mappings. Out: UTF-8 CSV with a header. Every cell holds a measurement: plotting tools draw an empty cell as 0, so a
row that lacks one is left out, and the page says what is missing.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from stages.reporting.comparisons import Score, TaskRow
from stages.reporting.inputs import Export
from stages.reporting.values import STORED_INFINITY

Row = Mapping[str, object]
SCORE_COLUMNS = ("accuracy", "low", "high", "num_correct", "num_problems")
EXPORT_COLUMNS = ("format", "file_bytes", *SCORE_COLUMNS)
DIVERGENCE_COLUMNS = ("format", "file_bytes", "bits_per_weight", "kl_mean", "kl_p99", "top1", "ppl_ratio", "num_tokens")


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write `rows` under `columns`. ValueError for a row with other columns, an empty cell or a number that is no measurement."""
    for row in rows:
        bad = {name: value for name, value in row.items() if not _measured(value)}
        if bad or row.keys() != set(columns):
            raise ValueError(f"{path.name} got {dict(row)}; expected a measurement for each of {list(columns)}: leave the row out instead")
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _measured(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and abs(value) < STORED_INFINITY
    return value not in (None, "")


def accuracy_rows(scores: Mapping[str, Score]) -> list[Row]:
    """One row per model."""
    return [{"model": model, **_score(score)} for model, score in scores.items()]


def task_rows(rows: Sequence[TaskRow]) -> list[Row]:
    """One row per task and model."""
    return [{"task": row.task, "model": model, **_score(score)} for row in rows for model, score in row.scores.items()]


def export_rows(exports: Sequence[Export], scores: Mapping[str, Score]) -> list[Row]:
    """Size and accuracy of each export."""
    return _complete([{"format": export.name, "file_bytes": export.file_bytes, **_score(scores[export.name])} for export in exports])


def divergence_rows(exports: Sequence[Export]) -> list[Row]:
    """Size and divergence of each export."""
    return _complete([{"format": row.pop("name"), **row} for row in map(asdict, exports)])


def _complete(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if all(_measured(value) for value in row.values())]


def _score(score: Score) -> Row:
    return {
        "accuracy": score.interval.estimate,
        "low": score.interval.low,
        "high": score.interval.high,
        "num_correct": score.num_correct,
        "num_problems": score.num_problems,
    }
