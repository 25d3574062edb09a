"""Exported formats: what each costs in size and what it loses.

In: sizes and fidelity from the exports, accuracies and paired changes from the evaluations. Out: one section. Divergence is an
alarm for damage, the paired test on problems decides (arXiv 2407.09141: accuracy alone hides answers that flip both ways).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stages.reporting.charts import Axis, Dot, scatter_chart
from stages.reporting.comparisons import Change, Score
from stages.reporting.inputs import Export
from stages.reporting.markup import Markup, join, tag
from stages.reporting.page import Column, Part, figures, numeric, remark, table, titled
from stages.reporting.values import count, decimal, percent, points, significant, size

WIDTH, HEIGHT = 390.0, 236.0
MIB = 2.0**20


def section(exports: Sequence[Export], scores: Mapping[str, Score], changes: Mapping[str, Change], source: str, margin: float) -> Part:
    """Charts of size against quality, and the table. `changes` holds each export's change against `source`."""
    pictures = [_accuracy_chart(exports, scores, source), _divergence_chart(exports)]
    note = (
        f"Every export is made from {source} and compared with it: the next-token distributions on held-out text and chats, "
        "and the answers to the same problems. An export keeps the accuracy when the 95 % interval of its change stays above "
        f"{points(-margin)}; with few problems that may be impossible to show."
    )
    body = [figures([picture for picture in pictures if picture]), _table(exports, scores, changes, source, margin)]
    return Part("exports", "Exports: size against quality", note, join(body))


def keeps_accuracy(change: Change, margin: float) -> bool:
    """Non-inferiority: the whole interval of the change lies above -margin."""
    return change.comparison.greedy_low > -margin


def _table(exports: Sequence[Export], scores: Mapping[str, Score], changes: Mapping[str, Change], source: str, margin: float) -> Markup:
    size_heads, divergence_heads = ("size", "bits per weight"), ("mean KL, nats", "99th percentile", "same top token", "perplexity ratio")
    columns = [
        Column("format"),
        *numeric(*size_heads, *divergence_heads, "accuracy", f"against {source}", "answers flipped"),
        Column("keeps accuracy"),
    ]
    rows = [[*_cost(export), *_quality(scores[export.name], changes[export.name], margin)] for export in exports]
    tokens = ", ".join(f"{export.name}: {count(export.num_tokens)}" for export in exports)
    closing = remark(f"Held-out tokens compared: {tokens}. KL is from {source} to the export, per token.")
    return join([table(f"Each export against {source}", columns, rows), closing])


def _cost(export: Export) -> list[str]:
    divergence = [significant(export.kl_mean), significant(export.kl_p99), percent(export.top1, 2), decimal(export.ppl_ratio, 4)]
    return [export.name, size(export.file_bytes), decimal(export.bits_per_weight, 2), *divergence]


def _quality(score: Score, change: Change, margin: float) -> list[str]:
    found = change.comparison
    difference = join([points(found.greedy_difference), tag("span", change.interval_text, class_="sub")])
    flipped = f"{count(found.only_a_correct + found.only_b_correct)} of {count(found.num_problems)}"
    return [percent(score.interval.estimate), difference, flipped, "yes" if keeps_accuracy(change, margin) else "not shown"]


def _accuracy_chart(exports: Sequence[Export], scores: Mapping[str, Score], source: str) -> Markup | None:
    dots = [
        Dot(
            export.name,
            export.file_bytes / MIB,
            100 * scores[export.name].interval.estimate,
            100 * scores[export.name].interval.low,
            100 * scores[export.name].interval.high,
            f"{export.name}: {size(export.file_bytes)}, {scores[export.name].text}",
        )
        for export in exports
        if math.isfinite(export.file_bytes)
    ]
    if not dots:
        return None
    drawing = scatter_chart(
        "Size and accuracy",
        Axis("weights, MiB", include_zero=True),
        Axis("problems answered right, %"),
        dots,
        WIDTH,
        HEIGHT,
        (f"{source}, before export", 100 * scores[source].interval.estimate),
    )
    return titled("Accuracy", drawing, f"Accuracy with 95 % intervals. The dashed line is {source} in full precision.")


def _divergence_chart(exports: Sequence[Export]) -> Markup | None:
    usable = [export for export in exports if math.isfinite(export.file_bytes) and math.isfinite(export.kl_mean) and export.kl_mean > 0]
    left_out = [export.name for export in exports if export not in usable]
    if not usable:
        return None
    dots = [
        Dot(
            export.name,
            export.file_bytes / MIB,
            export.kl_mean,
            export.kl_mean,
            export.kl_mean,
            f"{export.name}: {size(export.file_bytes)}, mean KL {significant(export.kl_mean)}",
        )
        for export in usable
    ]
    drawing = scatter_chart(
        "Size and divergence",
        Axis("weights, MiB", include_zero=True),
        Axis("mean KL, nats per token (log scale)", log=True),
        dots,
        WIDTH,
        HEIGHT,
    )
    remark = f" Not drawn, because zero or not measured: {', '.join(left_out)}." if left_out else ""
    return titled("Divergence", drawing, "How far the next-token distribution moved; lower is closer to the original." + remark)
