"""Plot data: tidy CSV files beside the page, one observation a row, for `dvc plots` and for anyone's own tools.

In: rows as mappings. Out: UTF-8 CSV with a header. A value that is no measurement is left out as a whole row or an empty cell
by whoever builds the rows; it is refused here, because a plot would draw it as 0 or as a huge number.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from stages.reporting.comparisons import Score, TaskRow
from stages.reporting.inputs import Export
from stages.reporting.values import STORED_INFINITY

Row = Mapping[str, object]


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write `rows` under `columns`. ValueError for a number that is not finite or a row with another column."""
    for row in rows:
        bad = {
            name: value
            for name, value in row.items()
            if isinstance(value, float) and not (math.isfinite(value) and abs(value) < STORED_INFINITY)
        }
        if bad:
            raise ValueError(f"{path.name} got {bad}; expected measurements only: leave the row out and say so on the page")
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def accuracy_rows(scores: Mapping[str, Score]) -> list[Row]:
    """One row per model."""
    return [{"model": model, **_score(score)} for model, score in scores.items()]


def task_rows(rows: Sequence[TaskRow]) -> list[Row]:
    """One row per task and model."""
    return [{"task": row.task, "model": model, **_score(score)} for row in rows for model, score in row.scores.items()]


def export_rows(exports: Sequence[Export], scores: Mapping[str, Score]) -> list[Row]:
    """One row per export; a cell is empty where the export stage has no measurement."""
    rows = []
    for export in exports:
        numbers = {
            "file_bytes": export.file_bytes,
            "bits_per_weight": export.bits_per_weight,
            "kl_mean": export.kl_mean,
            "kl_p99": export.kl_p99,
            "top1_agreement": export.top1,
            "ppl_ratio": export.ppl_ratio,
        }
        rows.append(
            {
                "format": export.name,
                **{name: value for name, value in numbers.items() if math.isfinite(value)},
                **_score(scores[export.name]),
            }
        )
    return rows


SCORE_COLUMNS = ("accuracy", "low", "high", "num_correct", "num_problems")
EXPORT_COLUMNS = ("format", "file_bytes", "bits_per_weight", "kl_mean", "kl_p99", "top1_agreement", "ppl_ratio", *SCORE_COLUMNS)


def _score(score: Score) -> Row:
    return {
        "accuracy": score.interval.estimate,
        "low": score.interval.low,
        "high": score.interval.high,
        "num_correct": score.num_correct,
        "num_problems": score.num_problems,
    }
