"""Which model is better, and how sure that is.

In: the per-problem records of each evaluated model. Out: accuracies with Wilson intervals, and paired comparisons of neighbours
in the pipeline: each trained model with the one before it, each export with the last trained model. The formulas live in
models/evaluation/statistics.py; several comparisons of one family are corrected together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.evaluation.statistics import Comparison, Interval, compare, holm, mcnemar, wilson
from stages.reporting.values import NARROW_SPACE, p_value, percent, points

SIGNIFICANCE = 0.05
Records = Sequence[Mapping]


@dataclass(frozen=True, slots=True)
class Score:
    """Greedy accuracy of one model over `num_problems` problems."""

    model: str
    num_correct: int
    num_problems: int
    interval: Interval

    @property
    def text(self) -> str:
        return f"{percent(self.interval.estimate)} ({percent(self.interval.low)} to {percent(self.interval.high)})"


@dataclass(frozen=True, slots=True)
class Change:
    """Model `after` against model `before`; `adjusted_p` is corrected for the whole family of changes in the report."""

    before: str
    after: str
    comparison: Comparison
    adjusted_p: float

    @property
    def direction(self) -> str:
        """ "better", "worse" or "unclear" at the 5 % level."""
        if self.adjusted_p >= SIGNIFICANCE or self.comparison.greedy_difference == 0:
            return "unclear"
        return "better" if self.comparison.greedy_difference > 0 else "worse"

    @property
    def interval_text(self) -> str:
        return f"{points(self.comparison.greedy_low).removesuffix('points').rstrip(NARROW_SPACE)} to {points(self.comparison.greedy_high)}"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task: its size, each model's score, and the corrected p-value of the last trained model against the first."""

    task: str
    num_problems: int
    scores: Mapping[str, Score]
    adjusted_p: float


def score(model: str, records: Records) -> Score:
    """Accuracy of the greedy answers. ValueError for no records."""
    num_correct = sum(bool(record["correct"]) for record in records)
    return Score(model, num_correct, len(records), wilson(num_correct, len(records)))


def neighbours(trained: Sequence[str], exports: Sequence[str]) -> list[tuple[str, str]]:
    """(before, after) pairs: along the trained models, then from the last of them to each export."""
    return [*zip(trained, trained[1:], strict=False), *((trained[-1], name) for name in exports)]


def changes(records: Mapping[str, Records], pairs: Sequence[tuple[str, str]], seed: int) -> list[Change]:
    """Compare the pairs on the same problems. ValueError when two models were evaluated on different problems."""
    compared = {f"{before}>{after}": compare(records[before], records[after], seed=seed) for before, after in pairs}
    adjusted = holm({name: result.greedy_p_value for name, result in compared.items()})
    return [Change(before, after, compared[f"{before}>{after}"], adjusted[f"{before}>{after}"]) for before, after in pairs]


def by_task(records: Mapping[str, Records], before: str, after: str) -> list[TaskRow]:
    """Scores of every model per task, largest task first, names breaking ties."""
    tasks = sorted({record["task"] for record in records[before]})
    split = {model: {task: [r for r in rows if r["task"] == task] for task in tasks} for model, rows in records.items()}
    adjusted = holm({task: _paired_p(split[before][task], split[after][task]) for task in tasks})
    rows = [
        TaskRow(task, len(split[before][task]), {model: score(model, split[model][task]) for model in records}, adjusted[task])
        for task in tasks
    ]
    return sorted(rows, key=lambda row: (-row.num_problems, row.task))


def _paired_p(before: Records, after: Records) -> float:
    right = {record["id"]: bool(record["correct"]) for record in before}
    only_after = sum(bool(record["correct"]) and not right[record["id"]] for record in after)
    only_before = sum(not record["correct"] and right[record["id"]] for record in after)
    return mcnemar(only_before, only_after)


def sentence_of_change(change: Change) -> str:
    """What changed, in words that claim no more than the test supports."""
    difference = change.comparison.greedy_difference
    size = points(abs(difference)).removeprefix("+")
    words = (
        f"as many as after {change.before}"
        if difference == 0
        else f"{size} {'more' if difference > 0 else 'fewer'} than after {change.before}"
    )
    doubt = ", which these problems cannot tell from chance" if change.direction == "unclear" and difference else ""
    equals = "" if change.adjusted_p < 0.001 else "= "
    return f"{words}{doubt} (adjusted p {equals}{p_value(change.adjusted_p)})"
