"""8-bit AdamW: near AdamW, a quarter of its state, exact over a checkpoint, refused without its package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from models.checkpoint import load_state, optimizer_tensors, restore_optimizer, save_state
from models.optimizers.adamw import adamw
from models.optimizers.adamw_8bit import adamw_8bit
from models.optimizers.guard import guarded_step

BETAS = (0.9, 0.95)


def test_absent_package_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(ValueError, match="needs torchao .*requirements-8bit.txt.*or optimizer: adamw or muon"):
        adamw_8bit(nn.Linear(2, 2), 0.1, BETAS, 0.1)


class Net(nn.Module):
    """64 x 128: 8-bit state. 64: too few values for it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(128, 64)


def update(model: nn.Module, optim: torch.optim.Optimizer, seeds: range, bad: int | None = None) -> list[bool]:
    skipped = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator) + 0.5
        if seed == bad:
            model.layer.bias.grad[0] = float("nan")
        skipped.append(guarded_step(optim, model.parameters(), 1.0).skipped)
    return skipped


@pytest.fixture
def torchao() -> None:
    pytest.importorskip("torchao", reason="requirements-8bit.txt is not installed")


@pytest.mark.usefixtures("torchao")
def test_moves_as_adamw_does_up_to_its_rounding_with_a_quarter_of_the_state() -> None:
    packed, plain = Net(), Net()
    start = plain.layer.weight.detach().clone()
    optims = adamw_8bit(packed, 0.01, BETAS, 0.1), adamw(plain, 0.01, BETAS, 0.1)
    for model, optim in zip((packed, plain), optims):
        update(model, optim, range(10))
    moved = torch.linalg.vector_norm(plain.layer.weight - start)
    assert 0 < torch.linalg.vector_norm(packed.layer.weight - plain.layer.weight) < 0.03 * moved
    torch.testing.assert_close(packed.layer.bias, plain.layer.bias, rtol=1e-5, atol=1e-6)
    sizes = [sum(t.nbytes for name, t in optimizer_tensors(o, m).items() if "layer.weight/exp_avg" in name and "qmap" not in name)
             for m, o in zip((packed, plain), optims)]
    assert sizes[1] == 2 * 4 * 64 * 128 and sizes[0] == 2 * (64 * 128 + 4 * 64 * 128 // 256)


@pytest.mark.usefixtures("torchao")
def test_the_rate_of_the_schedule_is_the_one_used_and_stays_a_number() -> None:
    model = Net()
    optim = adamw_8bit(model, 0.01, BETAS, 0.0)
    before = model.layer.weight.detach().clone()
    optim.param_groups[0]["lr"] = optim.param_groups[1]["lr"] = 0.0
    update(model, optim, range(1))
    assert torch.equal(model.layer.weight, before) and optim.param_groups[0]["lr"] == 0.0
    optim.param_groups[0]["lr"] = 0.25
    update(model, optim, range(1, 2))
    assert (model.layer.weight - before).abs().max() > 0.1
    assert [group["weight_decay"] for group in adamw_8bit(Net(), 0.01, BETAS, 0.1).param_groups] == [0.1, 0.0]


@pytest.mark.usefixtures("torchao")
def test_ckpt_07_fp8_05_resumed_and_skipped_updates_leave_the_same_bits(tmp_path: Path) -> None:
    model = Net()
    optim = adamw_8bit(model, 0.01, BETAS, 0.1)
    assert update(model, optim, range(4), bad=2) == [False, False, True, False]
    save_state(tmp_path, 3, {**model.state_dict(), **optimizer_tensors(optim, model)}, {})
    update(model, optim, range(10, 13))
    _, tensors, _ = load_state(tmp_path)
    resumed = Net()
    resumed.load_state_dict({name: tensors[name] for name in resumed.state_dict()})
    again = adamw_8bit(resumed, 0.01, BETAS, 0.1)
    restore_optimizer(again, resumed, tensors)
    update(resumed, again, range(10, 13))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), resumed.parameters(), strict=True))
    with pytest.raises(ValueError, match="another optimizer's: got AdamW8bit for AdamW"):
        restore_optimizer(adamw(resumed, 0.01, BETAS, 0.1), resumed, tensors)
