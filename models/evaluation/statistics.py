"""How far to trust an evaluation number, and whether two models differ.

In: outcomes per problem. Out: intervals, p-values, unbiased pass@k. Exact where a closed form exists, seeded where it resamples;
no hidden randomness. Sources: Wilson 1927; McNemar 1947 (exact form); Holm 1979; Efron and Tibshirani 1993 (percentile bootstrap);
Chen et al. 2021, arXiv 2107.03374 (pass@k); Miller 2024, arXiv 2411.00640 (paired comparison of language models);
Wang et al. 2022, arXiv 2203.11171 (majority vote).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

RESAMPLE_CHUNK = 500
"""Bootstrap resamples drawn at once: bounds memory; part of the random stream, so it is a constant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with the two ends of its confidence interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class BootstrapDifference:
    """Mean of b - a over paired items, its percentile interval, and the two-sided p-value that agrees with the interval."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Model b against model a on the same problems. ``greedy_*`` is about the greedy answer, ``sampled_*`` about the share of
    sampled answers that were right; differences are b - a, so above 0 means b is better."""

    num_problems: int
    greedy_a: float
    greedy_b: float
    greedy_difference: float
    greedy_low: float
    greedy_high: float
    greedy_p_value: float
    only_a_correct: int
    only_b_correct: int
    sampled_difference: float
    sampled_low: float
    sampled_high: float
    sampled_p_value: float


def wilson(num_correct: int, num_items: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion: never zero-width, never outside [0, 1], right down to one item.

    centre = (p + z^2/2n) / (1 + z^2/n), half-width = z sqrt(p(1-p)/n + z^2/4n^2) / (1 + z^2/n).
    Raises ValueError for no items or a count outside 0..num_items.
    """
    if num_items < 1 or not 0 <= num_correct <= num_items:
        raise ValueError(f"wilson got {num_correct} correct of {num_items}; expected 0 <= correct <= items and at least 1 item")
    z = _normal_quantile(confidence)
    p, shrink = num_correct / num_items, 1 + z * z / num_items
    centre = (p + z * z / (2 * num_items)) / shrink
    half = z * math.sqrt(p * (1 - p) / num_items + z * z / (4 * num_items**2)) / shrink
    low = 0.0 if num_correct == 0 else max(0.0, centre - half)
    high = 1.0 if num_correct == num_items else min(1.0, centre + half)
    return Interval(estimate=p, low=low, high=high)


def standard_error(scores: Sequence[float]) -> float | None:
    """Standard error of the mean, sqrt(sum (s - mean)^2 / (n (n - 1))). None for fewer than two items: it does not exist."""
    if len(scores) < 2:
        return None
    values = np.asarray(scores, dtype=np.float64)
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that k of n samples hold a right one: 1 - C(n-c, k)/C(n, k) = 1 - prod_{i=n-c+1..n} (1 - k/i).

    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= num_samples or not 0 <= num_correct <= num_samples:
        raise ValueError(
            f"pass_at_k got n={num_samples}, c={num_correct}, k={k}; expected 1 <= k <= n and 0 <= c <= n: draw more samples or lower k"
        )
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - math.prod(1 - k / i for i in range(num_samples - num_correct + 1, num_samples + 1))


def majority_index(answers: Sequence[str | None]) -> int | None:
    """Index of the first sample that gives the most frequent answer; ties go to the answer seen first; None if there is none.

    Samples without an answer do not vote.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return None
    return list(answers).index(counts.most_common(1)[0][0])


def mcnemar(only_a_correct: int, only_b_correct: int) -> float:
    """Exact two-sided McNemar p-value: min(1, 2 P[Binomial(b + c, 1/2) <= min(b, c)]); 1 when no pair is discordant.

    Computed in whole numbers, so it does not underflow before the final division.
    """
    if only_a_correct < 0 or only_b_correct < 0:
        raise ValueError(f"mcnemar got counts {only_a_correct} and {only_b_correct}; expected counts of at least 0")
    total, smaller = only_a_correct + only_b_correct, min(only_a_correct, only_b_correct)
    term = tail = 1
    for i in range(smaller):
        term = term * (total - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**total)


def paired_bootstrap(
    scores_a: Sequence[float], scores_b: Sequence[float], seed: int = 0, num_resamples: int = 10_000, confidence: float = 0.95
) -> BootstrapDifference:
    """Percentile bootstrap of mean(b - a) over paired items (the same resampled items for both models).

    p = 2 min(P*[d <= 0], P*[d >= 0]) with one added to both counts of draws, so it is never 0. Deterministic for a seed.
    Raises ValueError when the two lists differ in length or are empty.
    """
    if len(scores_a) != len(scores_b) or not len(scores_a):
        raise ValueError(f"paired_bootstrap got {len(scores_a)} and {len(scores_b)} scores; expected the same items, at least one")
    differences_N = np.asarray(scores_b, dtype=np.float64) - np.asarray(scores_a, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = []
    for start in range(0, num_resamples, RESAMPLE_CHUNK):
        picks_RN = rng.integers(0, len(differences_N), size=(min(RESAMPLE_CHUNK, num_resamples - start), len(differences_N)))
        means.append(differences_N[picks_RN].mean(axis=1))
    means_R = np.concatenate(means)
    low, high = np.quantile(means_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    tail = min((means_R <= 0).sum(), (means_R >= 0).sum())
    p_value = min(1.0, 2 * (int(tail) + 1) / (num_resamples + 1))
    return BootstrapDifference(difference=float(differences_N.mean()), low=float(low), high=float(high), p_value=p_value)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm step-down adjusted p-values, by name: compare them with the level for the whole family.

    Sorted ascending, p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)).
    """
    adjusted, running = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: (p_values[name], name))):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def compare(records_a: Sequence[Mapping], records_b: Sequence[Mapping], seed: int = 0, num_resamples: int = 10_000) -> Comparison:
    """Compare two models from their per-problem records: keys ``id``, ``correct`` (bool), ``n`` samples, ``c`` right ones.

    Greedy: exact McNemar p and paired bootstrap interval. Sampled: paired bootstrap of c/n (the greedy outcome where n is 0).
    Raises ValueError unless both hold the same problem ids exactly once, with the same answers: anything else is not a comparison.
    """
    a, b = _by_id(records_a), _by_id(records_b)
    if a.keys() != b.keys():
        example = sorted(a.keys() ^ b.keys())[0]
        raise ValueError(f"compare got different problems ({len(a)} and {len(b)}; '{example}' is in one only): evaluate both on one set")
    changed = [key for key in a if a[key].get("answer") != b[key].get("answer")]
    if changed:
        raise ValueError(f"compare got different reference answers for {len(changed)} problems, first '{changed[0]}': evaluate both again")
    ids = sorted(a)
    right_a, right_b = ([float(side[key]["correct"]) for key in ids] for side in (a, b))
    greedy = paired_bootstrap(right_a, right_b, seed, num_resamples)
    sampled = paired_bootstrap([_sampled_score(a[key]) for key in ids], [_sampled_score(b[key]) for key in ids], seed, num_resamples)
    only_a = sum(x > y for x, y in zip(right_a, right_b, strict=True))
    only_b = sum(y > x for x, y in zip(right_a, right_b, strict=True))
    return Comparison(
        num_problems=len(ids),
        greedy_a=sum(right_a) / len(ids),
        greedy_b=sum(right_b) / len(ids),
        greedy_difference=greedy.difference,
        greedy_low=greedy.low,
        greedy_high=greedy.high,
        greedy_p_value=mcnemar(only_a, only_b),
        only_a_correct=only_a,
        only_b_correct=only_b,
        sampled_difference=sampled.difference,
        sampled_low=sampled.low,
        sampled_high=sampled.high,
        sampled_p_value=sampled.p_value,
    )


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} must lie between 0 and 1, for example 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _by_id(records: Sequence[Mapping]) -> dict[str, Mapping]:
    by_id = {record["id"]: record for record in records}
    if len(by_id) != len(records) or not records:
        raise ValueError(f"compare got {len(records)} records with {len(by_id)} different ids; expected each problem once, at least one")
    return by_id


def _sampled_score(record: Mapping) -> float:
    return record["c"] / record["n"] if record["n"] else float(record["correct"])
