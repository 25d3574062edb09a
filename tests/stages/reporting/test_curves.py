"""stages/reporting/curves.py: logged points become lines; overflows are counted and named, never drawn (MLF-03)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stages.context import Context
from stages.reporting import curves

LOSS = curves.CurveSpec("sft", (("loss", "train"), ("val_loss", "held out")), "Loss", "nats", "Words.")


def test_curves_are_read_as_the_context_writes_them(tmp_path: Path) -> None:
    ctx = Context.for_test(tmp_path, stage="sft", deps={})
    ctx.log(1, loss=2.5, lr=0.1)
    ctx.log(2, loss=math.inf, lr=0.1)
    ctx.log(2, val_loss=2.0)
    ctx.log(3, loss=math.nan, lr=0.1)
    ctx.write_curves()
    found = curves.read_curves(ctx.out)
    assert found["loss"][:2] == [(1, 2.5), (2, math.inf)] and math.isnan(found["loss"][2][1])
    assert found["val_loss"] == [(2, 2.0)]
    assert found["lr"] == [(1, 0.1), (2, 0.1), (3, 0.1)]
    assert curves.read_curves(tmp_path / "nothing") == {}


def test_mlf_03_overflows_are_left_out_and_named() -> None:
    points = [(1, 2.0), (2, math.inf), (3, 1.7976931348623157e308), (4, math.nan), (5, 1.0)]
    cleaned = [(step, curves.number(value)) for step, value in points]
    html = curves.chart(LOSS, {"loss": cleaned, "val_loss": [(5, 1.5)]}, 100, None)
    assert "train: 2 overflow and 1 not available of 5 values, first at update 2; left out of the line." in html
    assert "1.797" not in html and "inf" not in html and "nan" not in html.replace("nats", "")
    assert curves.table_rows("loss", cleaned) == [{"step": 1, "loss": 2.0}, {"step": 5, "loss": 1.0}]


def test_a_metric_that_was_never_logged_is_said() -> None:
    html = curves.chart(LOSS, {"loss": [(1, 2.0), (2, 1.0)]}, 100, None)
    assert "held out: not available, the stage logged no such value." in html and "<svg" in html
    nothing = curves.chart(LOSS, {}, 100, None)
    assert "<svg" not in nothing and nothing.count("not available") == 2


def test_mlf_03_an_all_overflow_curve_has_no_drawing() -> None:
    html = curves.chart(LOSS, {"loss": [(1, math.inf)], "val_loss": [(1, math.inf)]}, 100, None)
    assert "<svg" not in html and "1 overflow of 1 values" in html


def test_mlf_03_a_baseline_that_overflowed_is_not_drawn() -> None:
    assert "reference" not in curves.chart(LOSS, {"loss": [(1, 2.0)]}, 100, ("unigram", math.inf))
    assert "reference" in curves.chart(LOSS, {"loss": [(1, 2.0)]}, 100, ("unigram", 3.0))


def test_no_metric_is_charted_twice() -> None:
    charted = [(spec.stage, metric) for spec in curves.SPECS for metric, _ in spec.metrics]
    assert len(set(charted)) == len(charted)


@pytest.mark.parametrize("most", [2, 7])
def test_a_long_curve_is_thinned(most: int) -> None:
    html = curves.chart(LOSS, {"loss": [(step, 1.0 + step % 3) for step in range(500)]}, most, None)
    line = html.split('class="curve first"')[0].rsplit('d="', 1)[1]
    assert line.count("L") + line.count("M") == most
    assert 'class="band first"' in html
