"""Per-problem records -> accuracies with intervals, per task and in total.

In: records with ``task``, ``correct`` (greedy), ``n`` samples of which ``c`` right, ``majority_correct``. Out: plain numbers, each
recomputable from the records. One item or all right or all wrong never gives a zero-width interval or a made-up standard error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models.evaluation.statistics import pass_at_k, standard_error, wilson


def summarise(records: Sequence[Mapping], pass_k: Sequence[int], confidence: float = 0.95) -> dict[str, dict[str, object]]:
    """One block per task under its name and one under ``total``. Raises ValueError for no records or a task named ``total``."""
    tasks = sorted({record["task"] for record in records})
    if not records or "total" in tasks:
        raise ValueError(f"summarise got {len(records)} records of tasks {tasks}; expected at least one record and no task named 'total'")
    blocks = {task: summarise_block([r for r in records if r["task"] == task], pass_k, confidence) for task in tasks}
    return {**blocks, "total": summarise_block(records, pass_k, confidence)}


def summarise_block(records: Sequence[Mapping], pass_k: Sequence[int], confidence: float) -> dict[str, object]:
    """Accuracy of the greedy answers (Wilson interval), mean accuracy of the samples, unbiased pass@k and majority vote."""
    greedy = wilson(sum(bool(r["correct"]) for r in records), len(records), confidence)
    block: dict[str, object] = {
        "problems": len(records),
        "greedy_accuracy": greedy.estimate,
        "greedy_interval": [greedy.low, greedy.high],
        "greedy_standard_error": standard_error([float(r["correct"]) for r in records]),
    }
    if pass_k:
        shares = [r["c"] / r["n"] for r in records]
        block["sampled_accuracy"] = sum(shares) / len(shares)
        block["sampled_standard_error"] = standard_error(shares)
        block["majority_accuracy"] = sum(bool(r["majority_correct"]) for r in records) / len(records)
        for k in pass_k:
            block[f"pass_at_{k}"] = sum(pass_at_k(r["n"], r["c"], k) for r in records) / len(records)
    return block
