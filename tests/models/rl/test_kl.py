"""RL-07: KL estimators against exact values and finite differences, and a penalty that has its effect."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.rl.kl import KL_ESTIMATORS, k1, k2, k3, kl_loss_fn

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)


def exact_kl(logits: torch.Tensor) -> torch.Tensor:
    lp = logits.log_softmax(0)
    return (lp.exp() * (lp - REFERENCE.log())).sum()


def expected_gradient(estimator, logits: torch.Tensor) -> torch.Tensor:
    """Gradient to the logits of the estimator as a loss, in expectation over tokens drawn from the (fixed) policy."""
    logits = logits.clone().requires_grad_()
    lp = logits.log_softmax(0)
    (lp.exp().detach() * estimator(lp, REFERENCE.log())).sum().backward()
    return logits.grad


def finite_differences(fn, x: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    steps = torch.eye(len(x), dtype=x.dtype) * step
    return torch.stack([(fn(x + d) - fn(x - d)) / (2 * step) for d in steps])


@pytest.mark.parametrize(("estimator", "value"), [(k1, 0.025267), (k2, 0.024862), (k3, 0.025267)])
def test_expectations(estimator, value):
    assert (POLICY * estimator(POLICY.log(), REFERENCE.log())).sum().item() == pytest.approx(value, abs=1e-6)


def test_swapped_ratio_would_be_seen():
    swapped = (POLICY * k3(REFERENCE.log(), POLICY.log())).sum().item()
    assert swapped == pytest.approx(0.024733, abs=1e-6)


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [(k1, [0.0, 0.0, 0.0]), (k2, [0.0989, -0.0939, -0.0051]), (k3, [0.1, -0.1, 0.0])],
)
def test_gradients_as_losses(estimator, gradient):
    got = expected_gradient(estimator, POLICY.log())
    torch.testing.assert_close(got, torch.tensor(gradient, dtype=torch.float64), atol=6e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_rl07_k2_has_the_gradient_of_the_reverse_kl_and_k3_of_the_forward_kl(logits):
    logits = torch.tensor(logits, dtype=torch.float64)

    def forward_kl(x: torch.Tensor) -> torch.Tensor:
        return (REFERENCE * (REFERENCE.log() - x.log_softmax(0))).sum()

    torch.testing.assert_close(expected_gradient(k2, logits), finite_differences(exact_kl, logits), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(expected_gradient(k3, logits), finite_differences(forward_kl, logits), atol=1e-7, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.floats(-30, 0), st.floats(-30, 0))
def test_rl07_k3_is_never_negative_and_zero_at_equality(lp, lp_ref):
    lp, lp_ref = torch.tensor([[lp]]), torch.tensor([[lp_ref]])
    assert k3(lp, lp_ref).item() >= 0
    for estimator in KL_ESTIMATORS.values():
        assert estimator(lp, lp).item() == 0


def test_k3_keeps_precision_near_equality():
    lp = torch.tensor([-1.0])
    assert k3(lp, lp + 1e-3).item() == pytest.approx(5.0e-7, rel=0.1)


def test_the_reference_is_a_constant():
    lp, lp_ref = torch.tensor([0.1], requires_grad=True), torch.tensor([0.4], requires_grad=True)
    for estimator in KL_ESTIMATORS.values():
        estimator(lp, lp_ref).sum().backward()
    assert lp_ref.grad is None and lp.grad is not None


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_rl07_a_larger_coefficient_ends_nearer_the_reference(name):
    """Two arms, arm 0 is rewarded; exact expected gradients; the policy starts at the reference."""
    reference = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    distances = []
    for coefficient in (0.0, 0.5, 5.0):
        logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        for _ in range(60):
            lp = logits.log_softmax(0)
            loss = (lp.exp().detach() * (-torch.tensor([1.0, 0.0]) * lp + coefficient * kl_loss_fn(name)(lp, reference))).sum()
            (grad,) = torch.autograd.grad(loss, logits)
            logits = (logits - 0.2 * grad).detach().requires_grad_()
        lp = logits.log_softmax(0)
        distances.append((lp.exp() * (lp - reference)).sum().item())
    assert distances[0] > 1.5 * distances[1] > 3 * distances[2] > 0


def test_k1_is_refused_as_a_loss():
    with pytest.raises(ValueError, match="zero in expectation"):
        kl_loss_fn("k1")
    with pytest.raises(ValueError, match=r"'k1', 'k2', 'k3'"):
        kl_loss_fn("k4")
