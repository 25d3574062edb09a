"""What a stage may touch, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.config import StageError
from stages.context import Context, Interrupted, format_seconds


def make(tmp_path: Path, **deps: Path) -> Context:
    return Context.for_test(tmp_path, "rl", deps)


def test_undeclared_or_absent_input_is_refused(tmp_path: Path) -> None:
    ctx = make(tmp_path, tokenize=tmp_path / "nowhere")
    with pytest.raises(StageError, match="dvc.yaml declares only"):
        ctx.dep("prepare")
    with pytest.raises(StageError, match="does not exist"):
        ctx.dep("tokenize")


def test_curves_split_training_and_validation_points(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    ctx.log(1, loss=2.5, lr=0.1)
    ctx.log(2, loss=2.0, lr=0.1)
    ctx.log(2, val_bpb=1.25)
    ctx.write_curves()
    assert (tmp_path / "out/curve.csv").read_text() == "step,loss,lr\n1,2.5,0.1\n2,2.0,0.1\n"
    assert (tmp_path / "out/val.csv").read_text() == "step,val_bpb\n2,1.25\n"


def test_resume_forgets_later_points_and_survives_a_torn_line(tmp_path: Path) -> None:
    """MLF-06: points after the checkpoint are logged again by the resumed run, once."""
    ctx = make(tmp_path)
    for step in range(1, 6):
        ctx.log(step, loss=float(step))
    with (tmp_path / "work/curve.jsonl").open("a") as handle:
        handle.write('[6, {"lo')
    again = make(tmp_path)
    again.resume_at(3)
    again.log(4, loss=4.5)
    again.write_curves()
    assert (tmp_path / "out/curve.csv").read_text() == "step,loss\n1,1.0\n2,2.0\n3,3.0\n4,4.5\n"


def test_infinite_values_reach_the_curve_as_they_are(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    ctx.log(1, loss=float("inf"), grad_norm=float("nan"))
    again = make(tmp_path)
    again.write_curves()
    assert (tmp_path / "out/curve.csv").read_text() == "step,loss,grad_norm\n1,inf,nan\n"


def test_progress_stops_where_work_is_safe(tmp_path: Path) -> None:
    ctx = make(tmp_path)
    stop = False
    ctx.stop_requested = lambda: stop
    progress = ctx.progress(10, "documents")
    progress.advance(3)
    stop = True
    with pytest.raises(Interrupted, match="after 4 of 10 documents"):
        progress.advance()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.6, "1m00s"), (90, "1m30s"), (3725, "1h02m"), (float("inf"), "?")])
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
