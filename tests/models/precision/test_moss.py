"""The predicted weight scale: kappa's published values and that it is reached but never passed; the bound's hand-worked steps."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.precision.moss import ROUNDING, adamw_kappa, adamw_reach, advanced_bound, measured_bound


@pytest.mark.parametrize(
    ("betas", "kappa"), [((0.9, 0.95), 1.165), ((0.9, 0.98), 1.70), ((0.9, 0.99), 2.35), ((0.9, 0.999), 7.27), ((0.95, 0.95), 1.0)]
)
def test_kappa_of_common_betas(betas, kappa):
    assert adamw_kappa(*betas) == pytest.approx(kappa, rel=3e-3)


def kappa_at(beta1: float, beta2: float, step: int) -> float:
    """`adamw_kappa` at 1-based update `step`, bias correction included; rises from 1 to `adamw_kappa`."""
    ratio = beta1 * beta1 / beta2
    powers = sum(ratio**k for k in range(step))
    return (1 - beta1) / (1 - beta1**step) * math.sqrt((1 - beta2**step) / (1 - beta2) * powers)


@settings(deadline=None)
@given(beta1=st.floats(0, 0.99), beta2=st.floats(0.01, 0.9999), step=st.integers(1, 400))
def test_kappa_is_above_every_step_of_the_bias_corrected_averages(beta1, beta2, step):
    if beta1 * beta1 < 0.999 * beta2:
        assert kappa_at(beta1, beta2, 1) == pytest.approx(1.0)
        assert kappa_at(beta1, beta2, step) <= adamw_kappa(beta1, beta2) * (1 + 1e-9) + 1e-9


# zero, or large enough that no square leaves the normal range of a float, where it would lose the digits that are compared
SQUARABLE = st.floats(-1e3, 1e3).filter(lambda gradient: gradient == 0 or abs(gradient) > 1e-120)


@settings(deadline=None)
@given(gradients=st.lists(SQUARABLE, min_size=1, max_size=60), betas=st.sampled_from([(0.9, 0.95), (0.9, 0.999), (0.5, 0.3), (0.0, 0.9)]))
def test_no_gradients_pass_kappa(gradients, betas):
    m = v = 0.0
    for step, gradient in enumerate(gradients, 1):
        m, v = betas[0] * m + (1 - betas[0]) * gradient, betas[1] * v + (1 - betas[1]) * gradient**2
        if v > 0:
            update = abs(m / (1 - betas[0] ** step)) / math.sqrt(v / (1 - betas[1] ** step))
            assert update <= kappa_at(*betas, step) * (1 + 1e-9) <= adamw_reach(*betas) * (1 + 1e-9)


def test_the_worst_gradients_reach_kappa():
    """Growing by beta2 / beta1 from step to step (Cauchy-Schwarz with equality), so a smaller constant would not do: with 1 the bound fails."""
    beta1, beta2 = 0.9, 0.999
    m = v = 0.0
    for step in range(1, 4001):
        gradient = (beta2 / beta1) ** (step - 4000)
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
    update = m / (1 - beta1**4000) / math.sqrt(v / (1 - beta2**4000))
    assert 7.1 < update <= adamw_kappa(beta1, beta2)


@pytest.mark.parametrize("betas", [(0.99, 0.95), (1.0, 0.999), (0.9, 1.0), (0.9, 0.81), (-0.1, 0.9)])
def test_betas_without_a_bound_are_refused(betas):
    with pytest.raises(ValueError, match="got betas.*no bound"):
        adamw_kappa(*betas)


def test_bound_on_hand_worked_steps():
    """b = 2, lr 0.1, decay 0.5, kappa 3: 0.95 * 2 + 0.3 = 2.2, plus its allowance for rounding. A frozen weight's bound stays near."""
    assert measured_bound(2.0) == 2 * (1 + ROUNDING)
    assert advanced_bound(2.0, 0.1, 0.5, 3.0) == pytest.approx(2.2, rel=2 * ROUNDING)
    assert advanced_bound(2.0, 0.1, 0.5, 3.0) > 2.2
    assert advanced_bound(1.0, 30.0, 0.1, 1.0) == pytest.approx(32.0, rel=1e-5)  # lr * decay beyond 1 turns the sign, not the size
    assert math.isnan(advanced_bound(math.nan, 0.1, 0.1, 1.0))
