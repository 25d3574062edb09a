"""Training curves: reading what a stage logged, thinning it for a chart, setting overflows aside.

In: curve.csv and val.csv of a training stage (one row per logged step, a cell empty where a metric was not logged). Out: charts
with captions, and rows for plots. A value that is not finite is left out of the line, counted, and named under the chart.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stages.reporting.charts import Axis, Series, line_chart
from stages.reporting.markup import Markup, tag
from stages.reporting.page import Part, figures, titled
from stages.reporting.scales import thin
from stages.reporting.values import number, significant

Points = Sequence[tuple[int, float]]
CHART_WIDTH, CHART_HEIGHT = 390.0, 236.0
STYLES = ("first", "second")


@dataclass(frozen=True, slots=True)
class CurveSpec:
    """One chart: which logged metrics of which stage, and the words around them."""

    stage: str
    metrics: tuple[tuple[str, str], ...]
    """(metric name in the CSV, name at the curve)."""
    heading: str
    unit: str
    caption: str
    include_zero: bool = False


HELD_OUT_REMARK = "The last point scores all held-out text, the others a part of it."
KL_REMARK = "Estimated on sampled answers; logged only with a KL penalty (rl.kl_coef above 0)."
WASTE_REMARK = "Cut off: answers that reached the length limit. No signal: problems whose answers all earned the same."
LOSSES = (("loss", "train"), ("val_loss", "held out"))
ACCURACIES = (("accuracy", "train"), ("val_accuracy", "held out"))
WASTE = (("truncated_fraction", "cut off"), ("no_signal_fraction", "no signal"))
SPECS = (
    CurveSpec("pretrain", (("loss", "train"),), "Pretraining loss", "nats per token", "Mean over each batch."),
    CurveSpec("pretrain", (("val_bpb", "held out"),), "Pretraining, held-out text", "bits per byte", HELD_OUT_REMARK),
    CurveSpec(
        "pretrain",
        (("grad_norm", "norm"),),
        "Pretraining gradient norm",
        "before clipping",
        "Over all weights; spikes show as a tall band.",
    ),
    CurveSpec("sft", LOSSES, "Fine-tuning loss", "nats per supervised token", "Assistant turns only."),
    CurveSpec("rl", (("reward", "reward"),), "RL reward", "mean per answer", "Sampled answers to training problems.", include_zero=True),
    CurveSpec(
        "rl",
        ACCURACIES,
        "RL accuracy",
        "share of answers right",
        "Train: sampled answers. Held out: greedy answers to other problems.",
        include_zero=True,
    ),
    CurveSpec(
        "rl", (("entropy", "entropy"),), "RL entropy", "nats per token", "Of the sampling; a fall to zero means that exploration ended."
    ),
    CurveSpec("rl", (("kl", "KL"),), "RL divergence from sft", "nats per token", KL_REMARK),
    CurveSpec("rl", (("length_mean", "tokens"),), "RL answer length", "tokens", "Mean over sampled answers."),
    CurveSpec("rl", WASTE, "RL answers that teach nothing", "share", WASTE_REMARK, include_zero=True),
)
UNIGRAM = "token frequencies alone"


def section(curves: Mapping[str, Mapping[str, Points]], most: int, unigram_bpb: Mapping[str, float]) -> Part:
    """All charts; the unigram baseline is drawn where bits per byte are."""
    pictures = []
    for spec in SPECS:
        reference = (UNIGRAM, unigram_bpb.get("val", math.nan)) if spec.metrics[0][0] == "val_bpb" else None
        pictures.append(chart(spec, curves[spec.stage], most, reference))
    note = (
        f"One update is one step of the optimizer. Curves with more than {most} points are averaged in groups; "
        "the pale band is the range inside a group."
    )
    return Part("curves", "Training curves", note, figures(pictures))


def read_curves(folder: Path) -> dict[str, Points]:
    """Metric name -> its logged points in step order, overflows included. Empty when the stage logged nothing."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in ("curve.csv", "val.csv"):
        path = folder / name
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", newline="") as handle:
            for row in csv.DictReader(handle):
                step = int(row.pop("step"))
                for metric, text in row.items():
                    if text:
                        curves.setdefault(metric, []).append((step, number(text)))
    return curves


def measured(points: Points) -> list[tuple[int, float]]:
    """The points that are measurements."""
    return [(step, value) for step, value in points if math.isfinite(value)]


def chart(spec: CurveSpec, curves: Mapping[str, Points], most: int, reference: tuple[str, float] | None) -> Markup:
    """The chart of one spec, or a line of text that says why there is none."""
    shown = [(name, curves[metric]) for metric, name in spec.metrics if measured(curves.get(metric, ()))]
    remarks = [_remark(name, curves.get(metric, ())) for metric, name in spec.metrics]
    caption = " ".join([spec.caption, *filter(None, remarks)])
    if not shown:
        return tag("div", [tag("h3", spec.heading), tag("p", caption, class_="remark")])
    series = [
        Series(name, thin(measured(points), most), style, significant(measured(points)[-1][1]))
        for (name, points), style in zip(shown, STYLES, strict=False)
    ]
    usable = reference if reference and math.isfinite(reference[1]) else None
    drawing = line_chart(
        spec.heading, Axis("update", whole=True), Axis(spec.unit, spec.include_zero), series, CHART_WIDTH, CHART_HEIGHT, usable
    )
    return titled(spec.heading, drawing, caption)


def _remark(name: str, points: Points) -> str:
    """What a reader must know about points that are not on the line."""
    if not points:
        return f"{name}: not available, the stage logged no such value."
    left_out = len(points) - len(measured(points))
    if not left_out:
        return ""
    kinds = [
        f"{count} {word}"
        for word, count in (("overflow", sum(math.isinf(v) for _, v in points)), ("not available", sum(math.isnan(v) for _, v in points)))
        if count
    ]
    steps = [step for step, value in points if not math.isfinite(value)]
    return f"{name}: {' and '.join(kinds)} of {len(points)} values, first at update {steps[0]}; left out of the line."


def table_rows(metric: str, points: Points) -> list[dict[str, object]]:
    """Rows of a plot file: step and value, measurements only."""
    return [{"step": step, metric: value} for step, value in measured(points)]
