"""models/evaluation/summary.py: totals recomputed by hand, and the small and one-sided sets of EVAL-04."""

import pytest

from models.evaluation.summary import summarise


def record(task: str, correct: bool, n: int = 4, c: int = 0, majority: bool = False) -> dict:
    return {"task": task, "correct": correct, "n": n, "c": c, "majority_correct": majority}


def test_per_task_and_total():
    records = [record("add", True, c=4, majority=True), record("add", False, c=1), record("mul", False, c=0)]
    result = summarise(records, pass_k=[1, 2])
    assert set(result) == {"add", "mul", "total"}
    assert result["total"]["greedy_accuracy"] == pytest.approx(1 / 3)
    assert result["total"]["sampled_accuracy"] == result["total"]["pass_at_1"] == pytest.approx(5 / 12)
    assert result["total"]["pass_at_2"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert result["total"]["majority_accuracy"] == pytest.approx(1 / 3)
    assert result["add"]["problems"] == 2 and result["add"]["greedy_accuracy"] == 0.5
    assert result["mul"]["greedy_interval"][0] == 0.0 and result["mul"]["greedy_interval"][1] > 0.79


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("num_items", [1, 25])
def test_eval_04_one_item_all_right_all_wrong(num_items, correct):
    """EVAL-04: no crash, no zero-width interval, and no standard error where there is none."""
    block = summarise([record("t", correct, c=4 * correct)] * num_items, pass_k=[1])["total"]
    low, high = block["greedy_interval"]
    assert high - low > 0.1
    assert (block["greedy_standard_error"] is None) == (num_items == 1)


def test_without_samples_only_greedy_is_reported():
    assert set(summarise([record("t", True, n=0)], pass_k=[])["t"]) == {
        "problems", "greedy_accuracy", "greedy_interval", "greedy_standard_error"}  # fmt: skip


def test_no_records_or_a_reserved_task_name_is_refused():
    with pytest.raises(ValueError, match="at least one record"):
        summarise([], [1])
    with pytest.raises(ValueError, match="no task named 'total'"):
        summarise([record("total", True)], [1])
