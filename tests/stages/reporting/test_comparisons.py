"""stages/reporting/comparisons.py: who is compared with whom, corrected together, and words that claim no more than the test."""

from __future__ import annotations

import pytest

from models.evaluation.statistics import holm, mcnemar, wilson
from stages.reporting import comparisons


def records(verdicts: str, task: str = "sums") -> list[dict]:
    """ "1101" -> four records, 1 is right."""
    return [
        {"id": f"{task}{index}", "task": task, "answer": "1", "correct": mark == "1", "n": 0, "c": 0} for index, mark in enumerate(verdicts)
    ]


BASE, SFT, RL = records("0" * 20), records("1" * 12 + "0" * 8), records("1" * 13 + "0" * 7)
ALL = {"base": BASE, "sft": SFT, "rl": RL}


@pytest.mark.parametrize(("right", "total"), [(0, 25), (25, 25), (0, 1), (7, 20)])
def test_eval_04_interval_is_not_zero_width_at_the_ends(right: int, total: int) -> None:
    score = comparisons.score("m", records("1" * right + "0" * (total - right)))
    assert (score.num_correct, score.num_problems) == (right, total)
    assert score.interval == wilson(right, total)
    assert score.interval.low < score.interval.high


def test_each_trained_model_meets_the_one_before_and_each_export_the_last() -> None:
    assert comparisons.neighbours(["base", "sft", "rl"], ["bf16", "int8"]) == [
        ("base", "sft"),
        ("sft", "rl"),
        ("rl", "bf16"),
        ("rl", "int8"),
    ]
    assert comparisons.neighbours(["base"], []) == []


def test_changes_are_paired_and_corrected_together() -> None:
    first, second = comparisons.changes(ALL, [("base", "sft"), ("sft", "rl")], seed=3)
    assert first.comparison.greedy_p_value == mcnemar(0, 12) and second.comparison.greedy_p_value == mcnemar(0, 1) == 1.0
    assert first.adjusted_p == holm({"a": mcnemar(0, 12), "b": 1.0})["a"] == pytest.approx(2 * 2 / 2**12)
    assert (first.direction, second.direction) == ("better", "unclear")
    assert comparisons.changes(ALL, [("sft", "base")], seed=3)[0].direction == "worse"


def test_different_problems_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different problems"):
        comparisons.changes({"base": BASE, "sft": SFT[:-1]}, [("base", "sft")], seed=0)


def test_the_sentence_claims_a_change_only_when_the_test_does() -> None:
    first, second = comparisons.changes(ALL, [("base", "sft"), ("sft", "rl")], seed=3)
    assert comparisons.sentence_of_change(first) == "60.0\u202fpoints more than after base (adjusted p <\u202f0.001)"
    assert (
        comparisons.sentence_of_change(second)
        == "5.0\u202fpoints more than after sft, which these problems cannot tell from chance (adjusted p = 1.00)"
    )
    worse = comparisons.changes(ALL, [("sft", "base")], seed=3)[0]
    assert comparisons.sentence_of_change(worse).startswith("60.0\u202fpoints fewer than after sft (")
    same = comparisons.changes({"a": SFT, "b": SFT}, [("a", "b")], seed=3)[0]
    assert comparisons.sentence_of_change(same) == "as many as after a (adjusted p = 1.00)"


def test_tasks_are_paired_by_problem_and_corrected_for_all_tasks() -> None:
    before = records("0" * 10, "sums") + records("1" * 4, "sorting")
    after = records("1" * 10, "sums") + records("1110", "sorting")
    rows = comparisons.by_task({"base": before, "rl": after}, "base", "rl")
    assert [(row.task, row.num_problems) for row in rows] == [("sums", 10), ("sorting", 4)]
    assert rows[0].adjusted_p == pytest.approx(2 * mcnemar(0, 10))
    assert rows[1].adjusted_p == 1.0
    assert rows[1].scores["rl"].num_correct == 3
