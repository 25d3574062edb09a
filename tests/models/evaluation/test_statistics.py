"""models/evaluation/statistics.py: hand-worked values, enumeration, A/A rejection rates."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.evaluation import statistics as stats


def record(key: str, correct: bool, n: int = 0, c: int = 0, answer: str = "1") -> dict:
    return {"id": key, "answer": answer, "correct": correct, "n": n, "c": c}


class TestWilson:
    def test_hand_worked_8_of_10(self):
        """z = 1.959964: centre (0.8 + 0.19207) / 1.38415 = 0.71674, half 0.22658."""
        interval = stats.wilson(8, 10)
        assert interval.estimate == 0.8
        assert interval.low == pytest.approx(0.49016, abs=1e-5)
        assert interval.high == pytest.approx(0.94332, abs=1e-5)

    @pytest.mark.parametrize("num_correct", [0, 25])
    def test_eval_04_ends_are_not_zero_width(self, num_correct):
        """EVAL-04: 25 all wrong or all right; the open end is z^2 / (n + z^2) = 0.13319 away."""
        interval = stats.wilson(num_correct, 25)
        assert interval.high - interval.low == pytest.approx(0.13319, abs=1e-5)
        assert (interval.low, interval.high)[num_correct > 0] == num_correct / 25

    @pytest.mark.parametrize("num_correct", [0, 1])
    def test_eval_04_one_item(self, num_correct):
        """EVAL-04: one item has no standard error, and an interval that says how little is known."""
        interval = stats.wilson(num_correct, 1)
        assert interval.high - interval.low > 0.79
        assert stats.standard_error([float(num_correct)]) is None

    @settings(deadline=None)
    @given(n=st.integers(1, 500), share=st.floats(0, 1))
    def test_interval_holds_the_estimate_and_mirrors(self, n, share):
        c = round(n * share)
        interval, mirror = stats.wilson(c, n), stats.wilson(n - c, n)
        assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
        assert interval.low < interval.high
        assert interval.low == pytest.approx(1 - mirror.high, abs=1e-12)

    def test_covers_the_truth(self):
        """95 % intervals for p = 0.1, n = 40 hold p with probability near 0.95, summed exactly over the binomial."""
        p, n = 0.1, 40
        chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
        covered = sum(w for c, w in enumerate(chance) if stats.wilson(c, n).low <= p <= stats.wilson(c, n).high)
        assert 0.93 < covered < 0.98

    @pytest.mark.parametrize("c, n", [(0, 0), (3, 2), (-1, 2)])
    def test_impossible_counts_are_refused(self, c, n):
        with pytest.raises(ValueError, match="at least 1 item"):
            stats.wilson(c, n)

    @pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
    def test_impossible_confidence_is_refused(self, confidence):
        with pytest.raises(ValueError, match="between 0 and 1"):
            stats.wilson(1, 2, confidence)


class TestStandardError:
    def test_hand_worked(self):
        """0, 0, 1, 1: mean 0.5, squares sum to 1, sqrt(1 / (4 * 3)) = 0.288675."""
        assert stats.standard_error([0, 0, 1, 1]) == pytest.approx(0.288675, abs=1e-6)


class TestPassAtK:
    def test_hand_worked(self):
        """n = 4, c = 1: k = 1 gives 1/4, k = 2 gives 1 - C(3,2)/C(4,2) = 1/2."""
        assert stats.pass_at_k(4, 1, 1) == pytest.approx(0.25)
        assert stats.pass_at_k(4, 1, 2) == pytest.approx(0.5)
        assert stats.pass_at_k(4, 0, 4) == 0.0
        assert stats.pass_at_k(4, 3, 2) == 1.0

    @settings(max_examples=60, deadline=None)
    @given(n=st.integers(1, 9), data=st.data())
    def test_equals_enumeration(self, n, data):
        c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
        outcomes = [i < c for i in range(n)]
        draws = list(itertools.combinations(outcomes, k))
        assert stats.pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)

    @pytest.mark.parametrize("n, c, k", [(4, 1, 5), (4, 5, 1), (4, 1, 0), (4, -1, 1)])
    def test_impossible_arguments_are_refused(self, n, c, k):
        with pytest.raises(ValueError, match="1 <= k <= n"):
            stats.pass_at_k(n, c, k)


class TestMajority:
    @pytest.mark.parametrize(
        "answers, expected",
        [(["a", "b", "b"], 1), (["a", "b"], 0), ([None, None, "c"], 2), ([None], None), ([], None), (["b", "a", "a", "b"], 0)],
    )
    def test_first_sample_of_the_most_frequent_answer(self, answers, expected):
        assert stats.majority_index(answers) == expected


class TestMcNemar:
    def test_hand_worked(self):
        """b = 1, c = 5: 2 (C(6,0) + C(6,1)) / 2^6 = 14/64."""
        assert stats.mcnemar(1, 5) == stats.mcnemar(5, 1) == 14 / 64

    def test_no_discordant_pair_or_a_tie_gives_one(self):
        assert stats.mcnemar(0, 0) == stats.mcnemar(3, 3) == 1.0

    def test_thousands_of_pairs_neither_overflow_nor_underflow(self):
        assert 0 < stats.mcnemar(2400, 2600) < 0.01
        assert stats.mcnemar(0, 1000) == pytest.approx(2.0**-999)

    @settings(deadline=None)
    @given(b=st.integers(0, 60), c=st.integers(0, 60))
    def test_equals_the_sum_over_outcomes_no_likelier(self, b, c):
        """The binomial test by its definition: all splits of b + c coin tosses that are at most as likely as the one seen."""
        ways = [math.comb(b + c, i) for i in range(b + c + 1)]
        assert stats.mcnemar(b, c) == pytest.approx(sum(w for w in ways if w <= ways[b]) / 2 ** (b + c), rel=1e-12)

    def test_negative_count_is_refused(self):
        with pytest.raises(ValueError, match="at least 0"):
            stats.mcnemar(-1, 2)


class TestPairedBootstrap:
    def test_no_difference_has_zero_width_and_p_one(self):
        result = stats.paired_bootstrap([0, 1, 1, 0], [0, 1, 1, 0])
        assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)

    def test_constant_difference(self):
        result = stats.paired_bootstrap([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], num_resamples=999)
        assert result.difference == result.low == result.high == 0.5
        assert result.p_value == pytest.approx(2 / 1000)

    def test_known_standard_deviation(self):
        """Interval of a mean of 400 unit normals is close to +-1.96/20."""
        noise = np.random.default_rng(1).standard_normal(400)
        result = stats.paired_bootstrap(np.zeros(400), noise, num_resamples=4000)
        half = (result.high - result.low) / 2
        assert half == pytest.approx(1.96 * noise.std() / 20, rel=0.05)

    def test_seed_fixes_the_result(self):
        a, b = np.random.default_rng(2).random((2, 50))
        one = stats.paired_bootstrap(a, b, seed=7, num_resamples=700)
        assert one == stats.paired_bootstrap(a, b, seed=7, num_resamples=700)
        assert one != stats.paired_bootstrap(a, b, seed=8, num_resamples=700)

    def test_swapping_the_models_mirrors(self):
        a, b = np.random.default_rng(3).random((2, 50))
        one, other = stats.paired_bootstrap(a, b), stats.paired_bootstrap(b, a)
        assert one.difference == -other.difference
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low))

    @pytest.mark.parametrize("a, b", [([], []), ([1.0], [1.0, 2.0])])
    def test_unpaired_scores_are_refused(self, a, b):
        with pytest.raises(ValueError, match="the same items"):
            stats.paired_bootstrap(a, b)


class TestSameModelTwice:
    """A/A: two sampling seeds of one model must be called different about 5 % of the time, and a real gain must be seen."""

    NUM_TRIALS = 400

    def draw(self, rng, rate_a: float, rate_b: float, problems: int = 150) -> tuple[np.ndarray, np.ndarray]:
        difficulty = rng.random(problems)
        return rng.random(problems) < rate_a * 2 * difficulty, rng.random(problems) < rate_b * 2 * difficulty

    def test_rejection_rates(self):
        rng = np.random.default_rng(5)
        by_bootstrap = by_mcnemar = 0
        for _ in range(self.NUM_TRIALS):
            a, b = self.draw(rng, 0.4, 0.4)
            by_bootstrap += stats.paired_bootstrap(a, b, num_resamples=400).p_value < 0.05
            by_mcnemar += stats.mcnemar(int((a & ~b).sum()), int((b & ~a).sum())) < 0.05
        assert 0.02 <= by_bootstrap / self.NUM_TRIALS <= 0.085
        assert 0.01 <= by_mcnemar / self.NUM_TRIALS <= 0.06  # the exact test is conservative

    def test_a_real_gain_is_found(self):
        rng = np.random.default_rng(6)
        found = sum(
            stats.mcnemar(int((a & ~b).sum()), int((b & ~a).sum())) < 0.05 for a, b in (self.draw(rng, 0.2, 0.45) for _ in range(100))
        )
        assert found > 90


class TestHolm:
    def test_hand_worked(self):
        """0.01, 0.04, 0.03 -> 3 * 0.01, then 2 * 0.03, then max(0.06, 1 * 0.04)."""
        adjusted = stats.holm({"a": 0.01, "b": 0.04, "c": 0.03})
        assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
        assert list(adjusted) == ["a", "b", "c"]

    def test_never_above_one_and_empty_is_empty(self):
        assert stats.holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
        assert stats.holm({}) == {}


class TestCompare:
    def test_hand_worked(self):
        """Six problems: a alone right on 1, b alone right on 5 gives p = 14/64; order of records does not matter."""
        a = [record(str(i), i == 0, n=2, c=1) for i in range(6)]
        b = [record(str(i), i != 0, n=2, c=2) for i in reversed(range(6))]
        result = stats.compare(a, b)
        assert result.num_problems == 6
        assert (result.only_a_correct, result.only_b_correct, result.greedy_p_value) == (1, 5, 14 / 64)
        assert result.greedy_difference == pytest.approx(4 / 6)
        assert result.greedy_a == pytest.approx(1 / 6) and result.greedy_b == pytest.approx(5 / 6)
        assert result.greedy_low <= result.greedy_difference <= result.greedy_high
        assert result.sampled_difference == result.sampled_low == result.sampled_high == 0.5

    def test_without_samples_the_greedy_outcome_counts(self):
        result = stats.compare([record("x", False)], [record("x", True)])
        assert result.sampled_difference == 1.0

    def test_other_problems_are_refused(self):
        with pytest.raises(ValueError, match="'y' is in one only"):
            stats.compare([record("x", True)], [record("x", True), record("y", True)])

    def test_other_reference_answers_are_refused(self):
        with pytest.raises(ValueError, match="different reference answers for 1 problems, first 'x'"):
            stats.compare([record("x", True)], [record("x", True, answer="2")])

    def test_repeated_or_no_records_are_refused(self):
        with pytest.raises(ValueError, match="each problem once"):
            stats.compare([record("x", True)] * 2, [record("x", True)])
        with pytest.raises(ValueError, match="at least one"):
            stats.compare([], [])
