"""Newton-Schulz against the singular value decomposition, Muon against hand-worked updates, another implementation and AdamW."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.architectures.decoder import Decoder
from models.checkpoint import optimizer_tensors, restore_optimizer
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.optimizers.muon import Muon, MuonSettings, muon, newton_schulz, same_shape_batches
from tests.models.toy import TOY, toy_model

PUBLISHED = {"momentum": 0.95, "nesterov": True, "update_rms": 0.18, "fast_steps": 8, "settling_steps": 2, "newton_schulz_dtype": "fp32"}


def make(**changes: object) -> MuonSettings:
    return MuonSettings(**{**PUBLISHED, **changes})


def matrix_with(singular: list[float], rows: int, columns: int) -> Tensor:
    """A rows x columns matrix with these singular values, in float64."""
    generator = torch.Generator().manual_seed(rows * 31 + columns)
    left, right = (torch.linalg.qr(torch.randn(n, len(singular), generator=generator, dtype=torch.float64))[0] for n in (rows, columns))
    return left @ torch.diag(torch.tensor(singular, dtype=torch.float64)) @ right.T


def polar(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left @ right


# newton_schulz


def test_one_step_of_each_kind_by_hand():
    """diag(0.6, 0.8) has Frobenius norm 1. Fast: 3.4445 s - 4.7750 s^3 + 2.0315 s^5; settling: 2 s - 1.5 s^3 + 0.5 s^5.

    s = 0.6: s^3 = 0.216, s^5 = 0.07776: 2.0667 - 1.0314 + 0.15797 = 1.193269 and 1.2 - 0.324 + 0.03888 = 0.91488.
    s = 0.8: s^3 = 0.512, s^5 = 0.32768: 2.7556 - 2.4448 + 0.66568 = 0.976482 and 1.6 - 0.768 + 0.16384 = 0.99584.
    """
    matrix = torch.diag(torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(newton_schulz(matrix, 1, 0), torch.diag(torch.tensor([1.1932694, 0.9764819])), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(newton_schulz(matrix, 0, 1), torch.diag(torch.tensor([0.91488, 0.99584])), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("smallest", "upper"), [(1e-3, 1.0005), (1e-4, 1.002)])
@pytest.mark.parametrize("shape", [(12, 12), (12, 40), (40, 12)])
def test_singular_values_end_in_the_published_window(smallest, upper, shape):
    """Ratios to the Frobenius norm from 1e-3 end in [1, 1.0005], from 1e-4 in [1, 1.002], as published to these digits."""
    spread = torch.logspace(0, math.log10(smallest), 12, dtype=torch.float64)
    spread[-1] = smallest * 1.001 * torch.linalg.vector_norm(spread)
    x = newton_schulz(matrix_with(spread.tolist(), *shape).float())
    values = torch.linalg.svdvals(x.double())
    assert values.min() >= 1 - 1e-5 and values.max() <= upper + 5e-5


def test_five_plain_steps_are_not_enough_and_ten_are():
    """256 x 256 Gaussian: five fast steps leave a smallest singular value below 0.3, eight and two leave none off 1 by 1e-3."""
    matrix = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    values = [torch.linalg.svdvals(newton_schulz(matrix, *steps)) for steps in ((5, 0), (8, 2))]
    assert values[0].min() < 0.3 and values[0].max() < 1.25
    assert values[1].min() > 0.999 and values[1].max() < 1.001


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 5), (5, 3), (33, 17), (64, 64)])
def test_agrees_with_the_svd_for_odd_and_transposed_shapes(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    x = newton_schulz(matrix)
    assert x.shape == matrix.shape and x.dtype == matrix.dtype
    torch.testing.assert_close(x.double(), polar(matrix), rtol=0, atol=1e-3)
    torch.testing.assert_close(newton_schulz(matrix.T), x.T, rtol=0, atol=1e-5)


def test_bf16_is_close_and_keeps_the_type_of_its_input():
    matrix = torch.randn(48, 96, generator=torch.Generator().manual_seed(5))
    rough = newton_schulz(matrix, dtype=torch.bfloat16)
    assert rough.dtype == torch.float32 and newton_schulz(matrix.bfloat16()).dtype == torch.bfloat16
    values = torch.linalg.svdvals(rough)
    assert values.min() > 0.95 and values.max() < 1.05
    assert torch.linalg.vector_norm(rough - newton_schulz(matrix)) / math.sqrt(48) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_gives_zero_and_rank_one_stays_rank_one(dtype):
    assert newton_schulz(torch.zeros(4, 6), dtype=dtype).eq(0).all()
    left, right = torch.tensor([3.0, 4.0]) / 5, torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(newton_schulz(1e-3 * torch.outer(left, right), dtype=dtype), torch.outer(left, right), rtol=0, atol=2e-2)
    assert newton_schulz(torch.zeros(0, 6)).shape == (0, 6)
    with pytest.raises(ValueError, match=r"got shape \(4,\), expected a matrix"):
        newton_schulz(torch.zeros(4))


@settings(deadline=None, max_examples=40)
@given(power=st.integers(-100, 100), rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 99))
def test_scale_changes_no_bit_and_no_element_exceeds_the_bound(power, rows, columns, seed):
    matrix = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).clamp(0.01, 64)
    x = newton_schulz(matrix)
    assert torch.equal(newton_schulz(matrix * 2.0**power), x)
    assert x.abs().max() <= 1.01 and torch.linalg.matrix_norm(x, 2) <= 1.01


def test_a_stack_equals_its_matrices_one_by_one():
    """Whole matrices spread over processes, or over batches, give the same bits as together."""
    stack = torch.randn(5, 24, 40, generator=torch.Generator().manual_seed(7))
    together = newton_schulz(stack)
    assert all(torch.equal(newton_schulz(matrix), x) for matrix, x in zip(stack, together))
    assert torch.equal(newton_schulz(stack[:2]), together[:2])
    assert torch.equal(newton_schulz(stack.view(5, 1, 24, 40)).view(5, 24, 40), together)


# Muon


class Net(nn.Module):
    """Embedding, hidden matrices of both orientations, a norm, biases, stacked experts, an untied head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(8, 4)
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 4, bias=False)
        self.norm = nn.RMSNorm(4)
        self.experts = nn.Parameter(torch.randn(3, 4, 6))
        self.lm_head = nn.Linear(4, 8, bias=False)


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.randn(p.shape, generator=generator)


def names(model: nn.Module, group: dict[str, object]) -> list[str]:
    by_id = {id(p): name for name, p in model.named_parameters()}
    return [by_id[id(p)] for p in group["params"]]


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw():
    model = Net()
    optim = muon(model, 0.1, (0.9, 0.95), 0.1, make())
    assert [(names(model, g), g["weight_decay"]) for g in optim.param_groups] == [
        (["experts", "up.weight", "down.weight"], 0.1), (["embed.weight", "lm_head.weight"], 0.1), (["up.bias", "norm.weight"], 0.0)]
    tied = toy_model()
    groups = [names(tied, g) for g in muon(tied, 0.1, (0.9, 0.95), 0.1, make()).param_groups]
    assert sorted(sum(groups, [])) == sorted(name for name, _ in tied.named_parameters())
    assert groups[1] == ["model.embed_tokens.weight"] and all(name.endswith("_proj.weight") for name in groups[0])


def test_frozen_parameters_are_left_out_and_no_matrix_is_refused():
    model = Net()
    model.up.requires_grad_(False)
    assert names(model, muon(model, 0.1, (0.9, 0.95), 0.1, make()).param_groups[0]) == ["experts", "down.weight"]
    alone = muon(nn.Linear(3, 3, bias=False), 0.1, (0.9, 0.95), 0.1, make())
    assert len(alone.param_groups) == 1
    with pytest.raises(ValueError, match="without a trainable hidden matrix.*use adamw"):
        muon(nn.Embedding(3, 3), 0.1, (0.9, 0.95), 0.1, make())


@pytest.mark.parametrize("nesterov", [True, False])
def test_two_updates_by_hand(nesterov):
    """1 x 1: the orthogonalised update is the sign. W 1, lr 0.1, decay 0.5, rms 0.2, momentum 0.5, gradients 2 then -1.5.

    Step 1: M = 2, sign +: W = 0.95 - 0.02 = 0.93. Step 2: M = 1 - 1.5 = -0.5; U is -0.5 or -1.5 - 0.25, sign -: 0.8835 + 0.02 = 0.9035.
    With gradient -0.7 instead M = 0.3 but U = -0.7 + 0.15 = -0.55: only Nesterov turns: 0.9035 against 0.8835 - 0.02 = 0.8635.
    """
    for second, expected in ((-1.5, 0.9035), (-0.7, 0.9035 if nesterov else 0.8635)):
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optim = muon(model, 0.1, (0.9, 0.95), 0.5, make(momentum=0.5, nesterov=nesterov, update_rms=0.2))
        for grad, weight in ((2.0, 0.93), (second, expected)):
            model.weight.grad = torch.full((1, 1), grad)
            optim.step()
            assert model.weight.item() == pytest.approx(weight, abs=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (96, 32)])
def test_root_mean_square_of_an_update_is_the_setting_to_one_percent(shape):
    model = nn.Linear(shape[1], shape[0], bias=False)
    nn.init.zeros_(model.weight)
    optim = muon(model, 0.5, (0.9, 0.95), 0.1, make())
    give_gradients(model, 1)
    optim.step()
    assert model.weight.square().mean().sqrt().item() / 0.5 == pytest.approx(0.18, rel=0.01)


def test_decay_is_decoupled_and_only_where_it_belongs():
    """Zero gradients: decayed weights shrink by 1 - lr * decay whatever their moments, gains and biases do not move."""
    model = Net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optim = muon(model, 0.1, (0.9, 0.95), 0.5, make())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optim.step()
    for name, p in model.named_parameters():
        factor = 1.0 if name in ("up.bias", "norm.weight") else 0.95
        torch.testing.assert_close(p.detach(), factor * before[name], rtol=1e-6, atol=0)


def test_the_rest_moves_as_under_adamw_alone():
    model, other = Net(), Net()
    pair, alone = muon(model, 0.01, (0.9, 0.95), 0.1, make()), adamw(other, 0.01, (0.9, 0.95), 0.1)
    for seed in range(4):
        for m, optim in ((model, pair), (other, alone)):
            give_gradients(m, seed)
            optim.step()
    for name in ("embed.weight", "lm_head.weight", "up.bias", "norm.weight"):
        assert torch.equal(model.get_parameter(name), other.get_parameter(name))
    assert not torch.equal(model.up.weight, other.up.weight)


def test_five_plain_steps_agree_with_the_implementation_of_torch():
    """It keeps (1 - mu) times the same momentum and rounds its iteration to bf16; the direction is the same."""
    ours, theirs = nn.Linear(24, 16, bias=False), nn.Linear(24, 16, bias=False)
    theirs.load_state_dict(ours.state_dict())
    settings_ = make(fast_steps=5, settling_steps=0, update_rms=0.2, newton_schulz_dtype="bf16")
    mine = muon(ours, 0.02, (0.9, 0.95), 0.1, settings_)
    reference = torch.optim.Muon(theirs.parameters(), lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw")
    for seed in range(5):
        for model, optim in ((ours, mine), (theirs, reference)):
            give_gradients(model, seed)
            optim.step()
    assert torch.linalg.vector_norm(ours.weight - theirs.weight) < 0.02 * torch.linalg.vector_norm(ours.weight)


def test_each_expert_of_a_stack_is_a_matrix_of_its_own():
    model, apart = Net(), [nn.Linear(6, 4, bias=False) for _ in range(3)]
    for expert, layer in zip(model.experts, apart):
        layer.weight.data.copy_(expert)
    optim = muon(model, 0.1, (0.9, 0.95), 0.1, make())
    give_gradients(model, 0)
    grads = model.experts.grad.clone()
    optim.step()
    for expert, layer, grad in zip(model.experts, apart, grads):
        layer.weight.grad = grad
        muon(layer, 0.1, (0.9, 0.95), 0.1, make()).step()
        torch.testing.assert_close(expert, layer.weight, rtol=0, atol=1e-6)


def test_batches_hold_one_shape_either_way_round_and_stay_within_their_bound():
    shapes = [(2, 3), (4, 4), (3, 2), (2, 3), (3, 2)]
    matrices = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    index = {id(p): i for i, p in enumerate(matrices)}

    def cut(limit: int) -> list[list[int]]:
        return [[index[id(p)] for p in batch] for batch in same_shape_batches(matrices, limit)]

    assert cut(100) == [[0, 2, 3, 4], [1]] and cut(12) == [[0, 2], [3, 4], [1]] and cut(1) == [[0], [2], [3], [4], [1]]
    mixed = [nn.Parameter(torch.zeros(2, 2, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    assert len(same_shape_batches(mixed)) == 2


def test_a_matrix_without_gradient_keeps_its_bits_and_has_no_state():
    model = Net()
    optim = muon(model, 0.1, (0.9, 0.95), 0.1, make())
    give_gradients(model, 0)
    model.down.weight.grad = None
    before = model.down.weight.detach().clone()
    optim.step()
    assert torch.equal(model.down.weight, before) and model.down.weight not in optim.state


# Guard, clipping, checkpoints


@pytest.mark.parametrize("where", ["up.weight", "norm.weight"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_fp8_05_a_bad_gradient_changes_no_bit(where, bad):
    model = Net()
    optim = muon(model, 0.1, (0.9, 0.95), 0.1, make())
    give_gradients(model, 0)
    assert not guarded_step(optim, model.parameters(), 1.0).skipped
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy([optim.state[p] for p in model.parameters()])
    give_gradients(model, 1)
    model.get_parameter(where).grad.view(-1)[2] = bad
    assert guarded_step(optim, model.parameters(), 1.0).skipped
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    for p, kept in zip(model.parameters(), state, strict=True):
        assert p.grad is None and all(torch.equal(optim.state[p][key], value) for key, value in kept.items())


def test_clipping_scales_what_enters_the_momentum_and_not_the_first_update():
    """The orthogonalised update has no scale: one clipped step equals the unclipped one, but its momentum weighs less in the next."""
    moved, momenta = [], []
    for clip in (0.5, math.inf):
        model = Net()
        optim = muon(model, 0.1, (0.9, 0.95), 0.1, make())
        give_gradients(model, 0)
        norm = guarded_step(optim, model.parameters(), clip).grad_norm
        moved.append(model.up.weight.detach().clone())
        momenta.append(optim.state[model.up.weight]["momentum"].clone())
    torch.testing.assert_close(moved[0], moved[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(momenta[0], momenta[1] * 0.5 / norm, rtol=1e-5, atol=1e-7)


def test_ckpt_07_restored_state_continues_bit_for_bit():
    model = toy_model()
    optim = muon(model, 0.02, (0.9, 0.95), 0.1, make())
    for seed in range(3):
        give_gradients(model, seed)
        optim.step()
    saved = {name: value.clone() for name, value in optimizer_tensors(optim, model).items()}
    assert {name.rsplit("/", 1)[1] for name in saved if "q_proj" in name} == {"momentum"}
    resumed = Decoder(TOY)
    resumed.load_state_dict(model.state_dict())
    again = muon(resumed, 0.02, (0.9, 0.95), 0.1, make())
    restore_optimizer(again, resumed, saved)
    by_dict = Decoder(TOY)
    by_dict.load_state_dict(model.state_dict())
    third = muon(by_dict, 0.02, (0.9, 0.95), 0.1, make())
    third.load_state_dict(copy.deepcopy(optim.state_dict()))  # torch hands out its tensors, not copies
    for seed in range(3, 6):
        for m, o in ((model, optim), (resumed, again), (by_dict, third)):
            give_gradients(m, seed)
            o.step()
    for one, two, three in zip(model.parameters(), resumed.parameters(), by_dict.parameters(), strict=True):
        assert torch.equal(one, two) and torch.equal(one, three)


def test_ckpt_07_state_of_adamw_is_refused_and_the_other_way_round():
    model = toy_model()
    optims = [muon(model, 0.02, (0.9, 0.95), 0.1, make()), adamw(model, 0.02, (0.9, 0.95), 0.1)]
    for optim in optims:
        give_gradients(model, 0)
        optim.step()
    for saved, other in (optims, optims[::-1]):
        with pytest.raises(ValueError, match="another optimizer"):
            restore_optimizer(other, model, optimizer_tensors(saved, model))


def test_closure_is_called_with_gradients_on():
    model = nn.Linear(2, 2, bias=False)
    optim = muon(model, 0.1, (0.9, 0.95), 0.0, make())

    def closure() -> Tensor:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    assert isinstance(optim, Muon) and optim.step(closure).requires_grad


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1.0}, "muon.momentum: got 1.0"),
        ({"update_rms": 0.0}, "muon.update_rms: got 0.0"),
        ({"update_rms": math.inf}, "muon.update_rms: got inf"),
        ({"fast_steps": -1}, "fast_steps=-1"),
        ({"fast_steps": 0, "settling_steps": 0}, "one of them above 0"),
        ({"newton_schulz_dtype": "fp16"}, "got 'fp16', expected one of fp32, bf16"),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)
