"""Cross-entropy of next-token targets, summed, with the number of targets beside it.

In: logits, or hidden states with the head matrix; targets aligned with them (position t is scored against targets[t]: the caller has
shifted, nothing here shifts again). Out: the float32 sum over supervised positions and their count. A mean is never taken here:
what to divide by depends on the whole batch (see `accumulation.py`).

`chunked_cross_entropy_sum` never builds all logits. Its forward pass visits the positions in chunks, and each chunk leaves its share of
the gradients behind before its logits are dropped, so nothing is computed twice and peak memory holds one chunk of logits.

Shapes: B rows, T positions, N = supervised positions, H hidden width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100
"""Target of a position that is not scored."""


def cross_entropy_sum(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """(-sum log softmax(logits)[target], number of targets) over positions whose target is not -100.

    Computed in float32 (float64 stays); the count is a 0-dim int64 tensor. Any leading shape. Raises ValueError when shapes do not match.
    """
    if logits_BTV.shape[:-1] != targets_BT.shape:
        raise ValueError(f"cross_entropy_sum: got targets {tuple(targets_BT.shape)}, expected {tuple(logits_BTV.shape[:-1])}, those of the logits")
    logits_NV = _at_least_float32(logits_BTV).flatten(0, -2)
    loss_sum = F.cross_entropy(logits_NV, targets_BT.flatten(), ignore_index=IGNORE, reduction="sum")
    return loss_sum, (targets_BT != IGNORE).sum()


def chunked_cross_entropy_sum(
    hidden_BTH: Tensor, weight_VH: Tensor, targets_BT: Tensor, chunk_size: int = 512
) -> tuple[Tensor, Tensor]:
    """`cross_entropy_sum(hidden @ weight^T, targets)` with at most `chunk_size` rows of logits in memory at a time.

    Equal to the plain loss and its gradients to float32 rounding (1e-6 relative). Unsupervised positions are left out before the head
    product, so a masked batch costs what its targets cost. Hidden is cast to the weight's dtype, as a head does. Differentiable once, with
    respect to hidden and weight. Raises ValueError when shapes do not match or chunk_size < 1.
    """
    if hidden_BTH.shape[:-1] != targets_BT.shape or hidden_BTH.shape[-1] != weight_VH.shape[-1]:
        raise ValueError(
            f"chunked_cross_entropy_sum: got hidden {tuple(hidden_BTH.shape)}, weight {tuple(weight_VH.shape)}, targets "
            f"{tuple(targets_BT.shape)}; expected (..., H), (V, H), (...)"
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size: got {chunk_size}, expected at least 1 position")
    targets = targets_BT.flatten()
    hidden_NH = hidden_BTH.flatten(0, -2).to(weight_VH.dtype)
    supervised = targets != IGNORE
    if not bool(supervised.all()):
        targets, hidden_NH = targets[supervised], hidden_NH[supervised]
    loss_sum = _ChunkedCrossEntropy.apply(hidden_NH, weight_VH, targets, chunk_size)
    return loss_sum, torch.tensor(targets.numel(), device=targets.device)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss in the forward pass together with d loss / d hidden and d loss / d weight; backward only scales them."""

    @staticmethod
    def forward(ctx, hidden_NH, weight_VH, targets_N, chunk_size):  # noqa: D102
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        accumulate = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
        loss_sum = torch.zeros((), dtype=accumulate, device=hidden_NH.device)
        grad_hidden = torch.empty_like(hidden_NH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=accumulate) if needs_weight else None
        for start in range(0, targets_N.numel(), chunk_size):
            rows = slice(start, start + chunk_size)
            chunk = hidden_NH[rows]
            loss, grad_logits = _chunk_loss(chunk, weight_VH, targets_N[rows], needs_hidden or needs_weight)
            loss_sum += loss
            if needs_hidden:
                torch.mm(grad_logits, weight_VH, out=grad_hidden[rows])
            if needs_weight:
                _add_product(grad_weight, grad_logits.t(), chunk)
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight_VH.dtype
        return loss_sum

    @staticmethod
    def backward(ctx, grad_loss):  # noqa: D102
        grad_hidden, grad_weight = ctx.saved_tensors
        grad_hidden = None if grad_hidden is None else (grad_hidden * grad_loss).to(grad_hidden.dtype)
        grad_weight = None if grad_weight is None else (grad_weight * grad_loss).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None


def _chunk_loss(hidden_CH: Tensor, weight_VH: Tensor, targets_C: Tensor, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """Loss sum of one chunk and d loss / d logits = softmax - onehot, in the hidden dtype for the products that follow."""
    logits_CV = _at_least_float32(hidden_CH @ weight_VH.t())
    log_probs_CV = F.log_softmax(logits_CV, dim=-1)
    loss = F.nll_loss(log_probs_CV, targets_C, reduction="sum")
    if not with_gradient:
        return loss, None
    grad_CV = log_probs_CV.exp_()
    grad_CV[torch.arange(targets_C.numel(), device=targets_C.device), targets_C] -= 1.0
    return loss, grad_CV.to(hidden_CH.dtype)


def _add_product(total_VH: Tensor, a_VC: Tensor, b_CH: Tensor) -> None:
    """total += a @ b, kept in total's dtype when the operands are narrower."""
    if total_VH.dtype == a_VC.dtype:
        total_VH.addmm_(a_VC, b_CH)
    else:
        total_VH += a_VC @ b_CH


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
