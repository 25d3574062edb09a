"""Micro-batches: any cut of a batch gives the same loss, gradient, norm and weights; also over two processes."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from models.losses.accumulation import accumulate_gradients
from models.losses.cross_entropy import IGNORE, cross_entropy_sum
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.optimizers.muon import MuonSettings, muon

VOCAB, WIDTH = 11, 8


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, VOCAB))


OPTIMIZERS = {
    "adamw": lambda model: adamw(model, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
    "muon": lambda model: muon(model, 0.01, (0.9, 0.95), 0.1, MuonSettings(momentum=0.95, nesterov=True, update_rms=0.18, fast_steps=8, settling_steps=2,
                                                                            newton_schulz_dtype="fp32")),
}


def cut(sizes: tuple[int, ...]) -> list[slice]:
    """Consecutive micro-batches of these numbers of rows."""
    edges = [0, *itertools.accumulate(sizes)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def make_batch(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight rows whose numbers of targets run from 0 to 7, 28 in all: every cut is uneven."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (8, 7), generator=generator)
    targets = torch.randint(VOCAB, (8, 7), generator=generator)
    for row in range(8):
        targets[row, row:] = IGNORE
    return tokens, targets


def losses(model, tokens, targets, cuts):
    return [lambda rows=rows: cross_entropy_sum(model(tokens[rows]), targets[rows]) for rows in cuts]


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_by_hand():
    """d/dw of sum w * x over targets 1, 2 | 6, three targets in all: (1 + 2 + 6) / 3 = 3; a mean of means would give 3.75."""
    w = torch.tensor(1.0, requires_grad=True)
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([6.0])]
    loss_sum, count = accumulate_gradients([lambda x=x: ((w * x).sum(), len(x)) for x in parts], 3)
    assert (loss_sum, count, w.grad.item()) == (9.0, 3, pytest.approx(3.0))


def test_loss_01_ten_targets_as_one_batch_and_as_two_and_eight():
    tokens, targets = make_batch()
    order = torch.tensor([2, 1, 7])  # 2 + 1 + 7 = 10 targets; rows of 2 first, then 8
    tokens, targets = tokens[order], targets[order]
    results = []
    for cuts in ([slice(0, 3)], [slice(0, 1), slice(1, 3)], [slice(0, 1), slice(1, 2), slice(2, 3)]):
        model = make_model()
        assert accumulate_gradients(losses(model, tokens, targets, cuts), 10)[1] == 10
        results.append(gradient(model))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(1,) * 8, (2,) * 4, (4, 4), (3, 5), (1, 6, 1), (5, 2, 1), (4, 0, 4)], ids=str)
def test_loss_01_04_no_cut_of_the_batch_changes_loss_norm_or_weights(sizes, optimizer):
    """Three updates with micro-batches of these rows against three with all eight. The first row has no target, (1, 6, 1) and (1,) * 8
    give it a micro-batch of its own; (4, 0, 4) has one without any row. Orthogonalising magnifies rounding in the directions that a
    gradient hardly has, hence Muon's wider tolerance."""

    def run(sizes):
        model = make_model()
        optim = OPTIMIZERS[optimizer](model)
        seen = []
        for seed in range(3):
            tokens, targets = make_batch(seed + 1)
            loss_sum, count = accumulate_gradients(losses(model, tokens, targets, cut(sizes)), 28)
            seen += [loss_sum / count, guarded_step(optim, list(model.parameters()), 0.5).grad_norm]
        return seen, torch.cat([p.detach().flatten() for p in model.parameters()])

    whole, parts = run((8,)), run(sizes)
    tolerance = 1e-4 if optimizer == "muon" else 1e-5
    assert parts[0] == pytest.approx(whole[0], rel=tolerance)
    torch.testing.assert_close(parts[1], whole[1], rtol=tolerance, atol=tolerance)


def test_micro_batch_without_targets_changes_nothing():
    tokens, targets = make_batch()
    with_empty, without = make_model(), make_model()
    accumulate_gradients(losses(with_empty, tokens, targets, [slice(0, 1), slice(1, 8)]), 28)
    accumulate_gradients(losses(without, tokens, targets, [slice(1, 8)]), 28)
    torch.testing.assert_close(gradient(with_empty), gradient(without), rtol=0, atol=0)


def _rank_gradient(rank: int, rendezvous: str) -> torch.Tensor:
    """One of two ranks: its rows only, the global target count, gradients averaged as DistributedDataParallel averages them."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    tokens, targets = make_batch()
    rows = slice(0, 3) if rank == 0 else slice(3, 8)
    model = make_model()
    count = (targets[rows] != IGNORE).sum()
    dist.all_reduce(count)
    accumulate_gradients(losses(model, tokens[rows], targets[rows], cut((1, rows.stop - rows.start - 1))), int(count), grad_average_ranks=2)
    mine = gradient(model) / 2
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine


def _second_rank(_: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    _rank_gradient(1, rendezvous)


def test_loss_01_over_two_processes(tmp_path):
    tokens, targets = make_batch()
    model = make_model()
    accumulate_gradients(losses(model, tokens, targets, [slice(0, 8)]), 28)
    rendezvous = str(tmp_path / "rendezvous")
    second = mp.spawn(_second_rank, args=(rendezvous,), nprocs=1, join=False)
    averaged = _rank_gradient(0, rendezvous)
    second.join()
    torch.testing.assert_close(averaged, gradient(model), rtol=1e-6, atol=1e-6)


def test_bad_counts_are_refused():
    model = make_model()
    tokens, targets = make_batch()

    def untouched():
        raise AssertionError("no micro-batch may run")

    with pytest.raises(ValueError, match="num_targets: got 0.*check its loss mask"):
        accumulate_gradients([untouched], 0)
    with pytest.raises(ValueError, match="got 0 micro-batches"):
        accumulate_gradients([], 3)
    with pytest.raises(ValueError, match="grad_average_ranks: got 0"):
        accumulate_gradients([untouched], 3, grad_average_ranks=0)
    with pytest.raises(ValueError, match="got 27, but the micro-batches hold 28"):
        accumulate_gradients(losses(model, tokens, targets, [slice(0, 8)]), 27)
