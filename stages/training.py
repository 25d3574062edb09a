"""The optimisation loop that pretrain and sft share.

In: a Decoder, its optimizer, an endless stream of packed batches, a schedule. Out: the trained model, curves through the context.
A step is: global batch in tokens, gradients summed over micro-batches and divided once by the batch's target count, clip, guarded
update. Checkpoints hold weights, optimizer, the precision's scales, stream position and random state, so a run that is killed
anywhere continues bit for bit on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data.layout import PackedBatch
from data.shards import Damaged, MdsFolder, open_mds, verify_mds
from models import checkpoint
from models.architectures.decoder import Decoder
from models.losses.accumulation import accumulate_gradients
from models.losses.cross_entropy import chunked_cross_entropy_sum
from models.optimizers.guard import guarded_step
from models.precision import cast_totals, counted_casts, follow_optimizer, hold_weights, precision_state, restore_precision_state
from models.precision.state import has_precision_state
from stages.config import StageError
from stages.context import Context, Interrupted

MAX_SKIPPED_IN_A_ROW = 3


class Stream(Protocol):
    """An endless, restorable source of batches."""

    def next(self) -> PackedBatch: ...

    def state(self) -> dict[str, object]: ...

    def restore(self, state: dict[str, object]) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopSettings:
    """Numbers of one run of the loop."""

    total_steps: int
    micro_batch_rows: int
    peak_lr: float
    lr_multiplier: Callable[[int], float]
    """Update index (0-based) -> share of peak_lr."""
    clip_norm: float
    checkpoint_every: int
    eval_every: int


def train(ctx: Context, model: Decoder, optim: torch.optim.Optimizer, stream: Stream, settings: LoopSettings,
          evaluate: Callable[[int], dict[str, float]]) -> int:
    """Run the loop to its end, from the newest intact checkpoint if there is one. Returns the number of skipped updates.

    Raises Interrupted after a stop request (state saved), RuntimeError after three non-finite gradients in a row.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    step, skipped, skipped_in_a_row = _resume(ctx, model, optim, stream)
    follow_optimizer(model, optim)
    begun, waited = time.perf_counter(), 0.0
    while step < settings.total_steps:
        for group in optim.param_groups:
            group["lr"] = settings.peak_lr * settings.lr_multiplier(step)
        lr = optim.param_groups[0]["lr"]
        asked = time.perf_counter()
        batch = stream.next()
        waited += time.perf_counter() - asked
        with counted_casts(model, (step + 1) % settings.eval_every == 0):  # looking at every cast costs time
            loss_sum, targets = backward(model, batch, settings.micro_batch_rows)
        result = guarded_step(optim, params, settings.clip_norm)
        step += 1
        skipped += result.skipped
        skipped_in_a_row = skipped_in_a_row + 1 if result.skipped else 0
        ctx.log(step, loss=loss_sum / max(targets, 1), lr=lr, grad_norm=result.grad_norm, skipped=skipped, **cast_totals(model))
        if skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RuntimeError(f"gradients were not finite for {skipped_in_a_row} updates in a row (step {step}); weights are those before them. "
                               f"Lower peak_lr (now {settings.peak_lr}), lengthen warmup_steps, or use precision: fp32")
        if step % settings.eval_every == 0 or step == settings.total_steps:
            ctx.log(step, **evaluate(step))
        if step % settings.checkpoint_every == 0 or step == settings.total_steps or ctx.should_stop():
            _save(ctx, model, optim, stream, step, skipped, skipped_in_a_row)
        if ctx.should_stop():
            raise Interrupted(f"checkpoint saved at step {step} of {settings.total_steps}")
    ctx.volatile(data_wait_fraction=waited / (time.perf_counter() - begun))
    return skipped


def backward(model: Decoder, batch: PackedBatch, micro_batch_rows: int) -> tuple[float, int]:
    """Fill .grad with the gradient of the batch's mean target loss. Returns (summed loss in nats, number of targets)."""
    device = next(model.parameters()).device

    def losses() -> Iterator[Callable[[], tuple[Tensor, int]]]:
        for rows in micro_batches(batch, micro_batch_rows, device):
            yield lambda rows=rows: micro_loss(model, rows)

    with hold_weights(model):  # the weights do not change between micro-batches, so each is rounded once
        return accumulate_gradients(losses(), batch.num_targets)


def micro_loss(model: Decoder, rows: MicroBatch) -> tuple[Tensor, Tensor]:
    """(summed loss in nats, number of targets), without ever holding the logits of all positions."""
    hidden_BTH = model.hidden(rows.tokens_BT, rows.positions_BT, rows.segments_BT)
    return chunked_cross_entropy_sum(hidden_BTH, model.head_weight, rows.targets_BT)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of a PackedBatch as tensors."""

    tokens_BT: Tensor
    targets_BT: Tensor
    positions_BT: Tensor
    segments_BT: Tensor


def micro_batches(batch: PackedBatch, rows: int, device: torch.device) -> Iterator[MicroBatch]:
    """Cut a packed batch into groups of at most `rows` rows, as tensors on `device`."""
    if rows < 1:
        raise StageError(f"micro_batch_rows={rows} must be at least 1")
    for start in range(0, batch.tokens_BT.shape[0], rows):
        part = slice(start, start + rows)
        arrays = (batch.tokens_BT, batch.targets_BT, batch.positions_BT, batch.segments_BT)
        yield MicroBatch(*(torch.from_numpy(np.ascontiguousarray(array[part])).to(device) for array in arrays))


@torch.no_grad()
def sum_nats(model: Decoder, batch: PackedBatch, rows_per_forward: int) -> tuple[float, int]:
    """Summed loss in nats (accumulated in fp64) and target count over evaluation rows."""
    total, count = 0.0, 0
    with hold_weights(model):
        for micro in micro_batches(batch, rows_per_forward, next(model.parameters()).device):
            loss_sum, targets = micro_loss(model, micro)
            total += float(loss_sum)
            count += int(targets)
    return total, count


def open_rows(ctx: Context, folder: Path, damaged: Damaged) -> MdsFolder:
    """A split, every shard of it hashed before training. damaged="fail": ValueError names bad shards; "skip": they are left out and noted."""
    if damaged == "fail":
        verify_mds(folder)
    dataset = open_mds(folder, damaged)
    for fault in dataset.skipped:
        ctx.note(f"left out a damaged shard of {folder.parent.name}/{folder.name}: {fault}")
    return dataset


def steps_for(tokens: int, tokens_per_step: int) -> int:
    """Number of whole steps that `tokens` make; StageError when it is none."""
    if tokens < tokens_per_step:
        raise StageError(f"total_tokens={tokens} is less than one step of {tokens_per_step} tokens; raise it or lower tokens_per_step")
    return tokens // tokens_per_step


def rows_per_step(tokens_per_step: int, seq_len: int) -> int:
    """Rows of one global batch; StageError unless seq_len divides it."""
    if tokens_per_step % seq_len:
        raise StageError(f"tokens_per_step={tokens_per_step} must be a multiple of seq_len={seq_len}; "
                         f"nearest above: {-(-tokens_per_step // seq_len) * seq_len}")
    return tokens_per_step // seq_len


def _save(ctx: Context, model: Decoder, optim: torch.optim.Optimizer, stream: Stream, step: int, skipped: int, in_a_row: int) -> Path:
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    tensors |= checkpoint.optimizer_tensors(optim, model) | checkpoint.rng_tensors() | precision_state(model)
    return checkpoint.save_state(ctx.work / "state", step, tensors, {"stream": stream.state(), "skipped": skipped, "skipped_in_a_row": in_a_row})


def _resume(ctx: Context, model: Decoder, optim: torch.optim.Optimizer, stream: Stream) -> tuple[int, int, int]:
    found = checkpoint.load_state(ctx.work / "state", note=ctx.note)
    if found is None:
        ctx.resume_at(0)
        return 0, 0, 0
    step, tensors, meta = found
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model/{name}"])
    checkpoint.restore_optimizer(optim, model, tensors)
    checkpoint.restore_rng(tensors)
    if precision_state(model) and not has_precision_state(tensors):
        ctx.note("the checkpoint holds no precision state: scales are taken from the weights and tensors as they come")
    else:
        restore_precision_state(model, tensors)
    stream.restore(meta["stream"])
    ctx.resume_at(step)
    ctx.note(f"resumed at step {step}")
    return step, meta["skipped"], meta["skipped_in_a_row"]
