"""The answer of the report: how good each model is, what each stage changed, and how sure that is.

In: evaluations, comparisons and exports. Out: the summary at the top of the page and the sections on accuracy and tasks. Words
follow the tests: a difference that the problems cannot tell from chance is never called a gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.reporting.charts import Level, LevelGroup, level_chart, mark, share_track
from stages.reporting.comparisons import Change, Score, TaskRow, sentence_of_change
from stages.reporting.inputs import Evaluation, Export
from stages.reporting.markup import Markup, join, tag
from stages.reporting.page import Column, Part, facts, figure, numeric, remark, table
from stages.reporting.svg import drawing
from stages.reporting.values import count, decimal, p_value, percent, points, size, unusable

TRACK_WIDTH = 150.0
MARK_STYLES = ("hollow", "half", "full")
READINGS = {"better": "better", "worse": "worse", "unclear": "no clear difference"}


def summary(
    scores: Mapping[str, Score],
    changes: Sequence[Change],
    evaluations: Mapping[str, Evaluation],
    exports: Sequence[Export],
    trained: Sequence[str],
    num_parameters: int,
    num_tasks: int,
) -> Markup:
    """The verdict in a sentence, the chart of all models, and the key figures."""
    final = scores[trained[-1]]
    last = next((change for change in changes if change.after == final.model and change.before in trained), None)
    verdict = [
        f"After {final.model} the model answers ",
        tag("b", percent(final.interval.estimate)),
        f" of {count(final.num_problems)} held-out problems right",
        f", {sentence_of_change(last)}." if last else ".",
    ]
    groups = [LevelGroup("trained, each from the one before", _levels([scores[model] for model in trained], changes))]
    if exports:
        groups.append(LevelGroup(f"exports of {final.model}", _levels([scores[export.name] for export in exports], ())))
    chart = [
        level_chart("Accuracy by model", "problems answered right, %", groups, width, height) for width, height in ((1136, 320), (358, 280))
    ]
    caption = (
        "Greedy answers to the same held-out problems. Whiskers are 95 % Wilson intervals; p is corrected for all comparisons of this page."
    )
    return join(
        [
            tag("p", verdict, class_="verdict"),
            figure(chart[0], caption, narrow=chart[1]),
            facts(_key_figures(evaluations[trained[0]], final, exports, num_parameters, num_tasks)),
        ]
    )


def _levels(scores: Sequence[Score], changes: Sequence[Change]) -> list[Level]:
    doubts = {"unclear": ", unclear"}
    rises = {
        change.after: (points(change.comparison.greedy_difference), f"p {p_value(change.adjusted_p)}{doubts.get(change.direction, '')}")
        for change in changes
    }
    return [
        Level(
            score.model,
            score.interval.estimate,
            score.interval.low,
            score.interval.high,
            percent(score.interval.estimate),
            f"{score.model} {score.text}",
            rises.get(score.model, ()),
        )
        for score in scores
    ]


def _key_figures(
    base: Evaluation, final: Score, exports: Sequence[Export], num_parameters: int, num_tasks: int
) -> list[tuple[str, str, str]]:
    smallest = min((export for export in exports if not unusable(export.file_bytes)), key=lambda export: export.file_bytes, default=None)
    left_out = f", {count(base.too_long)} left out as too long" if base.too_long else ""
    figures = [
        (f"Bits per byte of unseen text, {base.model}", decimal(base.bits_per_byte, 3), _against_unigram(base)),
        ("Parameters", count(num_parameters), "in every model of this report"),
        ("Problems per model", count(final.num_problems), f"from {count(num_tasks)} tasks{left_out}"),
    ]
    if smallest is not None:
        figures.append(
            ("Smallest export", size(smallest.file_bytes), f"{smallest.name}, {decimal(smallest.bits_per_weight, 2)} bits per weight")
        )
    return figures


def _against_unigram(base: Evaluation) -> str:
    """Fewer bits are better; an overflow is no comparison."""
    alone, gain = decimal(base.unigram_bpb, 3), base.unigram_bpb - base.bits_per_byte
    if unusable(gain):
        return f"token frequencies alone need {alone}"
    return f"{decimal(abs(gain), 2)} {'better' if gain > 0 else 'worse'} than token frequencies alone ({alone})"


def accuracy(scores: Mapping[str, Score], changes: Sequence[Change], evaluations: Mapping[str, Evaluation]) -> Part:
    """Scores of every model, and the paired comparison of neighbours."""
    models = table(
        "Each model on the same problems and text",
        [Column("model"), *numeric("right", "accuracy", "95 % interval", "sampled answers right", "gave an answer", "bits per byte")],
        [_model_row(score, evaluations[model]) for model, score in scores.items()],
    )
    compared = table(
        "Each model against the one it was made from, problem by problem",
        [
            Column("change"),
            *numeric("accuracy", "95 % interval", "only new one right", "only old one right", "p", "adjusted p"),
            Column("reading"),
        ],
        [_change_row(change) for change in changes],
    )
    note = (
        "A change counts only where the same problems get different verdicts. p is McNemar\u2019s exact test on those; "
        "adjusted p is corrected for all comparisons of the table (Holm). Intervals of a change come from a paired "
        "bootstrap and are not corrected: where few answers differ, trust the test."
    )
    return Part("accuracy", "Accuracy, stage by stage", note, join([models, compared]))


def _model_row(score: Score, evaluation: Evaluation) -> list[str]:
    right = f"{count(score.num_correct)} of {count(score.num_problems)}"
    interval = f"{percent(score.interval.low)} to {percent(score.interval.high)}"
    sampled, answered = percent(evaluation.sampled_accuracy), percent(evaluation.share("answered"))
    return [score.model, right, percent(score.interval.estimate), interval, sampled, answered, decimal(evaluation.bits_per_byte, 3)]


def _change_row(change: Change) -> list[str]:
    found = change.comparison
    only_one = [count(found.only_b_correct), count(found.only_a_correct)]
    certainty = [p_value(found.greedy_p_value), p_value(change.adjusted_p), READINGS[change.direction]]
    return [f"{change.before} to {change.after}", points(found.greedy_difference), change.interval_text, *only_one, *certainty]


def tasks(rows: Sequence[TaskRow], trained: Sequence[str], exports: Sequence[str]) -> Part:
    """Every task with every model's accuracy and a small drawing of the trained models."""
    models = (*trained, *exports)
    drawn = list(zip(trained[-3:], MARK_STYLES[-len(trained[-3:]) :], strict=True))
    body = [
        [row.task, count(row.num_problems), *(_share(row.scores[model]) for model in models), p_value(row.adjusted_p), _track(row, drawn)]
        for row in rows
    ]
    columns = [Column("task"), *numeric("problems", *models, "adjusted p"), Column("0 to 100 %")]
    key = join([join([drawing(18, 18, f"mark of {model}", [mark(9, 9, style)], "key"), f"{model} "]) for model, style in drawn])
    note = (
        "Accuracy by kind of problem, with the 95 % interval under it. Adjusted p compares "
        f"{trained[-1]} with {trained[0]} on the task, corrected for all tasks."
    )
    return Part("tasks", "By task", note, join([remark(join(["Marks: ", key])), table("Share of problems answered right", columns, body)]))


def _share(score: Score) -> Markup:
    low, high = (percent(end, 0).removesuffix("%").strip() for end in (score.interval.low, score.interval.high))
    return join([percent(score.interval.estimate), tag("span", f"{low} to {high}", class_="sub")])


def _track(row: TaskRow, shown: Sequence[tuple[str, str]]) -> Markup:
    label = "; ".join(f"{model} {percent(row.scores[model].interval.estimate)}" for model, _ in shown)
    return share_track(label, [(row.scores[model].interval.estimate, style) for model, style in shown], TRACK_WIDTH)
