"""stages/reporting/plots.py: tidy files; a number that is no measurement never reaches a plot (MLF-03)."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

from stages.reporting import comparisons, plots
from stages.reporting.inputs import Export
from tests.stages.reporting.test_comparisons import ALL, BASE


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, sys.float_info.max])
def test_mlf_03_non_measurements_are_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="expected measurements only"):
        plots.write_csv(tmp_path / "a.csv", ["step", "loss"], [{"step": 1, "loss": value}])
    assert not (tmp_path / "a.csv").exists()


def test_csv_round_trip(tmp_path: Path) -> None:
    plots.write_csv(tmp_path / "a.csv", ["step", "loss", "val"], [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 1 / 3, "val": 2.0}])
    assert (tmp_path / "a.csv").read_bytes() == b"step,loss,val\n1,0.1,\n2,0.3333333333333333,2.0\n"


def test_accuracy_rows_carry_the_interval() -> None:
    scores = {model: comparisons.score(model, rows) for model, rows in ALL.items()}
    rows = plots.accuracy_rows(scores)
    assert [row["model"] for row in rows] == ["base", "sft", "rl"]
    assert rows[1]["accuracy"] == 0.6 and rows[1]["low"] < 0.6 < rows[1]["high"] and rows[1]["num_problems"] == 20


def test_mlf_03_export_rows_leave_overflow_empty(tmp_path: Path) -> None:
    export = Export("int8", 100.0, 8.0, math.inf, math.nan, 0.9, 1.0, 10.0)
    plots.write_csv(tmp_path / "e.csv", plots.EXPORT_COLUMNS, plots.export_rows([export], {"int8": comparisons.score("int8", BASE)}))
    row = next(csv.DictReader((tmp_path / "e.csv").open(encoding="utf-8")))
    assert row["kl_mean"] == row["kl_p99"] == "" and row["top1_agreement"] == "0.9" and row["accuracy"] == "0.0"
