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
    with pytest.raises(ValueError, match="leave the row out"):
        plots.write_csv(tmp_path / "a.csv", ["step", "loss"], [{"step": 1, "loss": value}])
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("row", [{"step": 1}, {"step": 1, "loss": ""}, {"step": 1, "loss": None}, {"step": 1, "loss": 1.0, "val": 2.0}])
def test_mlf_03_no_cell_is_empty(tmp_path: Path, row: dict) -> None:
    with pytest.raises(ValueError, match="leave the row out"):
        plots.write_csv(tmp_path / "a.csv", ["step", "loss"], [row])


def test_csv_bytes(tmp_path: Path) -> None:
    plots.write_csv(tmp_path / "a.csv", ["step", "loss"], [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 1 / 3}])
    assert (tmp_path / "a.csv").read_bytes() == b"step,loss\n1,0.1\n2,0.3333333333333333\n"


def test_accuracy_rows_carry_the_interval() -> None:
    scores = {model: comparisons.score(model, rows) for model, rows in ALL.items()}
    rows = plots.accuracy_rows(scores)
    assert [row["model"] for row in rows] == ["base", "sft", "rl"]
    assert rows[1]["accuracy"] == 0.6 and rows[1]["low"] < 0.6 < rows[1]["high"] and rows[1]["num_problems"] == 20


def test_mlf_03_an_export_with_an_overflow_is_left_out_of_the_divergence_file_alone(tmp_path: Path) -> None:
    exports = [Export("int8", 100.0, 8.0, math.inf, 0.1, 0.9, 1.0, 10.0), Export("bf16", 200.0, 16.0, 0.001, 0.01, 0.99, 1.0, 10.0)]
    plots.write_csv(tmp_path / "d.csv", plots.DIVERGENCE_COLUMNS, plots.divergence_rows(exports))
    rows = list(csv.DictReader((tmp_path / "d.csv").open(encoding="utf-8")))
    assert [(row["format"], row["kl_mean"], row["top1"]) for row in rows] == [("bf16", "0.001", "0.99")]
    scores = {name: comparisons.score(name, BASE) for name in ("int8", "bf16")}
    plots.write_csv(tmp_path / "a.csv", plots.EXPORT_COLUMNS, plots.export_rows(exports, scores))
    assert len((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()) == 3
