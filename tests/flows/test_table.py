"""The table of results: one row a stage, from what lies on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.plan import Plan
from flows.stage_task import Outcome, StageFailed
from flows.table import console_table, duration, headline, markdown_table, next_steps, number, rows_of


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "dvc.yaml").write_text("stages: {prepare: {desc: clean text, cmd: p}, export: {desc: a | b, matrix: {f: [int8]}, cmd: e}, rl: {cmd: r}, report: {cmd: r}}")
    (tmp_path / "metrics/export").mkdir(parents=True)
    (tmp_path / "metrics/prepare.json").write_text(json.dumps({"text_tokens": 2199964.0, "zeta": 1, "dropped": 3}))
    (tmp_path / "metrics/export/int8.json").write_text(json.dumps({"kl": "overflow", "alpha": 0.123456}))
    (tmp_path / "data/work/last").mkdir(parents=True)
    (tmp_path / "data/work/last/export@int8.json").write_text(json.dumps({"seconds": 93.2}))
    return Plan(tmp_path, {"prepare": (), "export@int8": (), "rl": (), "report": ("rl",)}, frozenset(), "run", "toy")


def test_rows_say_what_happened(plan: Plan) -> None:
    outcomes = {"prepare": Outcome("prepare", "ran", 19.4), "export@int8": Outcome("export@int8", "cached", 0.0)}
    failure = StageFailed("rl", 1, "why", False, Path("log"))
    rows = [row.cells() for row in rows_of(plan, outcomes, failure)]
    assert rows == [
        ("prepare", "clean text", "made", "text_tokens 2,199,964", "19s"),
        ("export@int8", "a | b", "up to date", "alpha 0.1235, kl overflow", "(1m33s)"),
        ("rl", "", "FAILED", "", ""),
        ("report", "", "not started", "", ""),
    ]


def test_console_columns_line_up_and_markdown_escapes_bars(plan: Plan) -> None:
    rows = rows_of(plan, {"export@int8": Outcome("export@int8", "ran", 1.0)}, None)
    lines = console_table(rows).splitlines()
    assert lines[0].index("what it makes") == lines[3].index("a | b")
    assert len(lines) == 2 + 4
    assert "| export@int8 | a \\| b | made | alpha 0.1235, kl overflow | 1s |" in markdown_table(rows)


@pytest.mark.parametrize(("value", "text"), [(2.0, "2"), (1234567, "1,234,567"), (0.000123456, "0.0001235"), (1e20, "1e+20"), ("not a number", "not a number")])
def test_numbers(value: object, text: str) -> None:
    assert number(value) == text


def test_headline_prefers_results_over_counts() -> None:
    assert headline({"steps": 5, "val_bpb": 2.25, "tokens": 100}) == "val_bpb 2.25, tokens 100"
    assert headline({}) == ""


def test_durations_and_next_steps(tmp_path: Path) -> None:
    assert [duration(seconds) for seconds in (0.2, 59.6, 3600)] == ["0s", "1m00s", "1h00m"]
    assert "report.html" not in next_steps(tmp_path) and "make ui" in next_steps(tmp_path)
    (tmp_path / "data/out/report").mkdir(parents=True)
    (tmp_path / "data/out/report/report.html").touch()
    assert "data/out/report/report.html" in next_steps(tmp_path)
