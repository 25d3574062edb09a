"""models/evaluation/metrics.py: uniform model, hand-worked likelihoods, a model against itself, EVAL-05."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.evaluation import metrics


def random_logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


class TestBitsPerByte:
    def test_uniform_bytes_cost_eight_bits(self):
        assert metrics.bits_per_byte(100 * math.log(256), 100) == pytest.approx(8.0)

    def test_no_bytes_is_refused(self):
        with pytest.raises(ValueError, match="held-out set is empty"):
            metrics.bits_per_byte(1.0, 0)


class TestPerplexity:
    def test_uniform_model_has_the_vocabulary_size(self):
        targets = torch.randint(0, 37, (3, 11), generator=torch.Generator().manual_seed(1))
        nll = metrics.token_nll(torch.zeros(3, 11, 37), targets).sum().item()
        assert metrics.perplexity(nll, 33) == pytest.approx(37)

    def test_overflow_is_infinity(self):
        assert metrics.perplexity(1e6, 1) == math.inf

    def test_no_token_is_refused(self):
        with pytest.raises(ValueError, match="at least 1"):
            metrics.perplexity(0.0, 0)


class TestTokenNll:
    def test_hand_worked(self):
        """Logits (0, ln 3): the second token has probability 3/4."""
        logits = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)]]])
        nll = metrics.token_nll(logits, torch.tensor([[1, 0]]))
        assert nll.dtype is torch.float64
        assert nll.tolist()[0] == pytest.approx([math.log(4 / 3), math.log(4)], rel=1e-6)

    def test_eval_05_unscored_positions_add_nothing(self):
        """EVAL-05: a short document beside a long one scores as it does alone, whatever stands in the padding."""
        logits, targets = random_logits(2, 9, 13), torch.randint(0, 13, (2, 9), generator=torch.Generator().manual_seed(2))
        targets[0, 4:] = metrics.IGNORE
        logits[0, 4:] = float("nan")
        together = metrics.token_nll(logits, targets).sum(dim=1)
        apart = [metrics.token_nll(logits[i : i + 1, :n], targets[i : i + 1, :n]).sum() for i, n in ((0, 4), (1, 9))]
        assert together.tolist() == pytest.approx([t.item() for t in apart], abs=1e-12)

    def test_all_ignored_is_zero(self):
        nll = metrics.token_nll(random_logits(1, 3, 5), torch.full((1, 3), metrics.IGNORE))
        assert nll.tolist() == [[0.0, 0.0, 0.0]]

    def test_many_positions_equal_one_by_one(self):
        logits = random_logits(1, 2500, 7)
        targets = torch.randint(0, 7, (1, 2500), generator=torch.Generator().manual_seed(3))
        expected = torch.nn.functional.cross_entropy(logits[0].double(), targets[0], reduction="none")
        assert torch.allclose(metrics.token_nll(logits, targets)[0], expected, atol=1e-12)


class TestFidelity:
    def measure(self, ref, other, targets) -> dict[str, float]:
        meter = metrics.FidelityMeter()
        meter.update(ref, other, targets)
        return meter.result()

    def test_model_against_itself(self):
        logits, targets = random_logits(2, 5, 9), torch.zeros(2, 5, dtype=torch.int64)
        result = self.measure(logits, logits.clone(), targets)
        assert result["kl_mean"] == result["kl_max"] == 0.0
        assert result["top1_agreement"] == result["ppl_ratio"] == 1.0
        assert result["num_tokens"] == 10

    def test_hand_worked(self):
        """p = (1/2, 1/2), q = (3/4, 1/4): KL = ln(2/sqrt 3); target 0 has NLL ln 2 and ln 4/3, so the ratio is 2/3."""
        result = self.measure(torch.zeros(1, 1, 2), torch.tensor([[[math.log(3), 0.0]]]), torch.zeros(1, 1, dtype=torch.int64))
        assert result["kl_mean"] == pytest.approx(math.log(2 / math.sqrt(3)), rel=1e-6)
        assert result["ppl_ratio"] == pytest.approx(2 / 3, rel=1e-6)
        assert result["prob_rms"] == pytest.approx(0.25, rel=1e-6)

    def test_one_changed_position_shows_in_max_and_agreement(self):
        ref, targets = random_logits(1, 200, 6), torch.zeros(1, 200, dtype=torch.int64)
        other = ref.clone()
        other[0, 17] = -ref[0, 17]
        result = self.measure(ref, other, targets)
        assert result["top1_agreement"] == 0.995
        assert result["kl_max"] == pytest.approx(200 * result["kl_mean"])
        assert result["kl_p99"] == 0.0

    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 10_000), cut=st.integers(1, 3))
    def test_batching_does_not_matter(self, seed, cut):
        ref, other = random_logits(4, 6, 8, seed=seed), random_logits(4, 6, 8, seed=seed + 1)
        targets = torch.randint(-1, 8, (4, 6), generator=torch.Generator().manual_seed(seed))
        targets[targets == -1] = metrics.IGNORE
        meter = metrics.FidelityMeter()
        for rows in (slice(0, cut), slice(cut, 4)):
            meter.update(ref[rows], other[rows], targets[rows])
        assert meter.result() == pytest.approx(self.measure(ref, other, targets), rel=1e-12)

    def test_kl_is_not_negative(self):
        ref = random_logits(64, 500)
        assert (metrics.kl_divergence(ref, ref + 1e-6 * random_logits(64, 500, seed=1)) > -1e-12).all()

    def test_different_vocabularies_are_refused(self):
        with pytest.raises(ValueError, match="share tokenizer and vocabulary"):
            self.measure(random_logits(1, 2, 5), random_logits(1, 2, 6), torch.zeros(1, 2, dtype=torch.int64))

    def test_no_tokens_is_refused(self):
        with pytest.raises(ValueError, match="no tokens"):
            metrics.FidelityMeter().result()
