"""Gradients of one global batch from several micro-batches.

The loss of a batch is the mean over all its target tokens. Micro-batches hold different numbers of targets, so each contributes its
summed loss divided once by the count of the whole batch, and by nothing else: any cut of the batch gives the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

LossFn = Callable[[], tuple[Tensor, Tensor | int]]
"""Runs the model on one micro-batch: (summed loss, number of targets)."""


def accumulate_gradients(losses: Iterable[LossFn], num_targets: int, grad_average_ranks: int = 1) -> tuple[float, int]:
    """Add d(sum of losses / num_targets) to .grad, one micro-batch at a time; returns (summed loss, targets) of these micro-batches.

    `num_targets` counts the targets of the global batch: all micro-batches on all ranks. `grad_average_ranks` is the number of ranks
    over which the gradients will be averaged afterwards (as DistributedDataParallel does), which it makes up for; 1 when they are
    summed or there is one process. Raises ValueError for no micro-batch, num_targets < 1 (before any work) or more targets than declared.
    """
    if num_targets < 1:
        raise ValueError(f"num_targets: got {num_targets}, expected at least 1; the batch has no supervised token, check its loss mask")
    if grad_average_ranks < 1:
        raise ValueError(f"grad_average_ranks: got {grad_average_ranks}, expected at least 1")
    scale = grad_average_ranks / num_targets
    sums: list[Tensor] = []
    targets: Tensor | int = 0
    for loss_fn in losses:
        loss_sum, count = loss_fn()
        (loss_sum * scale).backward()
        sums.append(loss_sum.detach())
        targets = targets + count
    if not sums:
        raise ValueError("accumulate_gradients: got 0 micro-batches, expected at least 1")
    if int(targets) > num_targets:
        raise ValueError(f"num_targets: got {num_targets}, but the micro-batches hold {int(targets)}; pass the count of the whole batch")
    return sum(float(value) for value in sums), int(targets)
