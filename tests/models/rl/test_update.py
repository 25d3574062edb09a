"""One policy update: gradients against the formula written out, and what may not change them."""

from __future__ import annotations

import pytest
import torch

from models.architectures.decoder import Decoder
from models.rl.aggregation import AGGREGATIONS, Totals
from models.rl.rollout import RolloutBatch, pad_rollouts
from models.rl.update import Objective, policy_gradients, reference_logprobs
from tests.models.toy import toy_model

PROMPTS = [[3, 4, 5], [6, 7], [6, 7], [9, 10, 11, 12]]
COMPLETIONS = [[20, 21, 1], [30, 1], [31, 32, 33, 34, 1], [40, 41, 42]]
ADVANTAGES = [1.5, -0.5, 0.0, -1.0]
OBJECTIVE = dict(aggregation="token_mean", clip_low=0.2, clip_high=0.28, kl_coef=0.0, kl_estimator="k3", temperature=0.8)


@pytest.fixture()
def model() -> Decoder:
    return toy_model()


def batches(cuts: list[list[int]]) -> list[RolloutBatch]:
    return [
        pad_rollouts([PROMPTS[i] for i in cut], [COMPLETIONS[i] for i in cut], [[-1.0] * len(COMPLETIONS[i]) for i in cut],
                     [ADVANTAGES[i] for i in cut], device=torch.device("cpu"))
        for cut in cuts
    ]  # fmt: skip


def totals() -> Totals:
    return Totals(tokens=sum(map(len, COMPLETIONS)), sequences=len(COMPLETIONS), max_len=8)


def gradients(model: Decoder, cuts: list[list[int]], **changes: object) -> dict[str, torch.Tensor]:
    model.zero_grad(set_to_none=True)
    given = {key: changes.pop(key) for key in ("old_lps", "reference_lps") if key in changes}
    policy_gradients(model, batches(cuts), totals(), Objective(**{**OBJECTIVE, **changes}), **given)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert any(value.abs().max() > 1e-4 for value in want.values())
    for name in want:
        torch.testing.assert_close(got[name], want[name], atol=1e-6, rtol=1e-4, msg=name)


def completion_logprobs(model: Decoder, i: int, temperature: float) -> torch.Tensor:
    row = torch.tensor([PROMPTS[i] + COMPLETIONS[i]])
    lp_TV = (model(row)[0] / temperature).log_softmax(-1)
    start = len(PROMPTS[i])
    return torch.stack([lp_TV[t - 1, row[0, t]] for t in range(start, row.shape[1])])


WEIGHTS = {
    "token_mean": lambda n: 1 / 13,
    "seq_mean_token_mean": lambda n: 1 / (4 * n),
    "seq_mean_token_sum": lambda n: 1 / 4,
    "seq_sum_const": lambda n: 1 / 32,
}


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_on_policy_gradient_is_the_weighted_policy_gradient(model, aggregation):
    got = gradients(model, [[0, 1, 2, 3]], aggregation=aggregation)
    model.zero_grad(set_to_none=True)
    loss = sum(
        -ADVANTAGES[i] * WEIGHTS[aggregation](len(COMPLETIONS[i])) * completion_logprobs(model, i, 0.8).sum() for i in range(4)
    )
    loss.backward()
    assert_same(got, {name: parameter.grad for name, parameter in model.named_parameters()})


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("cuts", [[[0], [1], [2], [3]], [[3, 0], [2, 1]], [[2], [0, 1, 3]]])
def test_loss01_the_cut_into_micro_batches_does_not_matter(model, aggregation, cuts):
    assert_same(gradients(model, cuts, aggregation=aggregation), gradients(model, [[0, 1, 2, 3]], aggregation=aggregation))


def test_rows_without_advantage_may_be_left_out(model):
    assert_same(gradients(model, [[0, 1, 3]]), gradients(model, [[0, 1, 2, 3]]))


def test_off_policy_tokens_are_weighted_by_the_ratio_and_clipped(model):
    with torch.no_grad():
        now = completion_logprobs(model, 0, 0.8)
    old = now - torch.tensor([0.1, 0.5, -0.3])  # ratios 1.105 (kept), 1.649 (clipped, A > 0), 0.741 (kept, A > 0)
    old_BT = torch.zeros(1, 6)
    old_BT[0, 3:] = old
    model.zero_grad(set_to_none=True)
    stats = policy_gradients(model, batches([[0]]), totals(), Objective(**OBJECTIVE), old_lps=[old_BT])
    got = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    assert stats.clipped_tokens == 1
    model.zero_grad(set_to_none=True)
    lp = completion_logprobs(model, 0, 0.8)
    ratio = (lp - old).exp()
    (-1.5 / 13 * (ratio[0] + ratio[2])).backward()
    assert_same(got, {name: parameter.grad for name, parameter in model.named_parameters()})


def test_rl07_kl_is_zero_at_the_reference_and_pulls_back_to_it(model):
    cuts = [[0, 1, 2, 3]]
    same = reference_logprobs(model, batches(cuts), 0.8)
    stats = policy_gradients(model, batches(cuts), totals(), Objective(**{**OBJECTIVE, "kl_coef": 0.5}), reference_lps=same)
    assert stats.kl == 0.0
    assert_same(gradients(model, cuts, kl_coef=0.5, reference_lps=same), gradients(model, cuts))

    reference_lps = reference_logprobs(toy_model(seed=7), batches(cuts), 0.8)
    penalty = {"small": 0.1, "large": 10.0}
    pulled = {size: gradients(model, cuts, kl_coef=coef, reference_lps=reference_lps) for size, coef in penalty.items()}
    plain = gradients(model, cuts)
    for name in plain:
        torch.testing.assert_close((pulled["large"][name] - plain[name]) / 100, pulled["small"][name] - plain[name], atol=1e-5, rtol=1e-2)
    before = policy_gradients(model, batches(cuts), totals(), Objective(**{**OBJECTIVE, "kl_coef": 10.0}), reference_lps=reference_lps).kl
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter -= 1e-3 * (pulled["large"][name] - plain[name])
    after = policy_gradients(model, batches(cuts), totals(), Objective(**{**OBJECTIVE, "kl_coef": 10.0}), reference_lps=reference_lps).kl
    assert before > after > 0


def test_a_penalty_without_a_reference_is_refused(model):
    with pytest.raises(ValueError, match="kl_coef"):
        policy_gradients(model, batches([[0]]), totals(), Objective(**{**OBJECTIVE, "kl_coef": 0.1}))


def test_gap_to_the_sampler_is_measured_on_trained_tokens(model):
    [batch] = batches([[0, 1]])
    [lp_BT] = reference_logprobs(model, [batch], 0.8)
    off_BT = lp_BT.clone()
    off_BT[0, 4] += 0.25
    near = RolloutBatch(tokens_BT=batch.tokens_BT, mask_BT=batch.mask_BT, sampler_lp_BT=off_BT, advantages_B=batch.advantages_B)
    stats = policy_gradients(model, [near], totals(), Objective(**OBJECTIVE))
    assert stats.gap_max == pytest.approx(0.25, abs=1e-5)
    assert stats.gap_mean == pytest.approx(0.05, abs=1e-5)
