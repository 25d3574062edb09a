"""sft: base model + chats -> chat model.

Assistant-only loss (content and end-of-turn token; the mask comes from tokenize), rows packed with isolation, every weight or a
LoRA adapter that is merged at the end after a parity check. Output: model/, tokenizer/ (a copy), curve.csv, val.csv.
"""

from __future__ import annotations

import shutil
from typing import Literal

import torch
from pydantic import Field

from data.loading.prefetch import Prefetched
from data.packing import PackedStream, eval_rows
from data.tokenizer import check_fingerprint, fingerprint
from models import accounting, checkpoint
from models.adapters.lora import add_lora, merge_lora
from models.architectures.decoder import Decoder
from models.optimizers.factory import describe_groups
from models.precision import apply_precision, describe_precision
from stages.atomic import write_json
from stages.config import Section, StageError
from stages.context import Context
from stages.device import pick_device
from stages.optimizing import Optimization
from stages.runner import main
from stages.training import LoopSettings, open_rows, rows_per_step, sum_nats, train

MERGE_TOLERANCE = 1e-4  # largest allowed logit difference between adapter and merged model, fp32


class Lora(Section):
    """Low-rank adapter (Hu et al. 2021, arXiv 2106.09685)."""

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    targets: list[str] = Field(min_length=1)
    """Names of the linear layers that get an adapter, such as q_proj."""


class Config(Optimization):
    """Settings of supervised fine-tuning."""

    method: Literal["full", "lora"]
    lora: Lora
    precision: Literal["fp32", "bf16", "fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise", "mxfp8", "moss"]
    """Arithmetic of the linear layers, as in pretrain."""
    seq_len: int = Field(ge=8)
    packing: Literal["best_fit", "none"]
    """How chats become rows: data/packing.py."""
    damaged_shards: Literal["fail", "skip"]
    """What a shard does whose content is not what its hash says: stop the stage, or be left out and counted."""
    tokens_per_step: int = Field(ge=8)
    micro_batch_rows: int = Field(ge=1)
    steps: int = Field(ge=1)
    eval_every: int = Field(ge=1)
    checkpoint_every: int = Field(ge=1)


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Sizes for the dry run."""
    check_method(cfg)
    cfg.make_schedule(cfg.steps)
    return {"steps": cfg.steps, "tokens": cfg.steps * cfg.tokens_per_step, "rows_per_step": rows_per_step(cfg.tokens_per_step, cfg.seq_len)}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Fine-tune on chats."""
    check_method(cfg)
    check_fingerprint(ctx.dep("pretrain") / "tokenizer", fingerprint(ctx.dep("tokenize") / "tokenizer"))
    model, _ = checkpoint.load_model(ctx.dep("pretrain") / "model")
    if cfg.seq_len > model.config.max_seq_len:
        raise StageError(f"sft.seq_len={cfg.seq_len} exceeds the base model's context of {model.config.max_seq_len}; "
                         "lower it or pretrain with a longer seq_len")
    schedule = cfg.make_schedule(cfg.steps)
    device = pick_device()
    model.to(device)
    apply_precision(model, cfg.precision)
    if cfg.method == "lora":
        add_lora(model, rank=cfg.lora.rank, alpha=cfg.lora.alpha, targets=tuple(cfg.lora.targets), seed=ctx.seed)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    ctx.note(f"{trained:,} of {accounting.num_params(model.config):,} parameters trained ({cfg.method}), "
             f"precision {describe_precision(cfg.precision, device)}, {device}")
    optim = cfg.make_optimizer(model)
    ctx.note(f"{describe_groups(optim)}; schedule {cfg.schedule}")
    chats = ctx.dep("tokenize") / "chat"
    train_chats, val_chats = (open_rows(ctx, chats / split, cfg.damaged_shards) for split in ("train", "val"))
    rows = rows_per_step(cfg.tokens_per_step, cfg.seq_len)
    stream = Prefetched(PackedStream(train_chats, seq_len=cfg.seq_len, rows_per_batch=rows, seed=ctx.seed, policy=cfg.packing))
    val = eval_rows(val_chats, cfg.seq_len, max_rows=None)

    def evaluate(step: int) -> dict[str, float]:
        nats, targets = sum_nats(model, val.batch, cfg.micro_batch_rows)
        return {"val_loss": nats / max(targets, 1)}

    ctx.begin(cfg.steps, cfg.tokens_per_step)
    skipped = train(ctx, model, optim, stream, LoopSettings(
        total_steps=cfg.steps, micro_batch_rows=cfg.micro_batch_rows, peak_lr=cfg.peak_lr, clip_norm=cfg.clip_norm, checkpoint_every=cfg.checkpoint_every,
        eval_every=cfg.eval_every, lr_multiplier=schedule), evaluate)
    packing = stream.report()
    stream.close()
    ctx.note(f"packing {cfg.packing}: {packing}")
    metrics = {**evaluate(cfg.steps), "trained_parameters": trained, "steps": cfg.steps, "skipped_updates": skipped,
               "skipped_rows": train_chats.skipped_rows + val_chats.skipped_rows,
               **{name: packing[name] for name in ("padding_fraction", "cut_fraction", "dropped_fraction")}}
    model.cpu()
    if cfg.method == "lora":
        metrics["merge_max_logit_difference"] = merge_checked(ctx, model, val.batch.tokens_BT[:4])
    checkpoint.save_model(ctx.out / "model", model, {"stage": "sft", "config": cfg.model_dump()})
    shutil.copytree(ctx.dep("pretrain") / "tokenizer", ctx.out / "tokenizer")
    return metrics


def check_method(cfg: Config) -> None:
    """StageError for an optimizer that the method cannot honour."""
    if cfg.method == "lora" and cfg.optimizer == "muon":
        raise StageError("sft: got method 'lora' with optimizer 'muon', which orthogonalises the change of a whole weight while lora trains two "
                         "thin factors of it; expected optimizer: adamw or method: full")


def merge_checked(ctx: Context, model: Decoder, tokens_BT: object) -> float:
    """Merge the adapter into the weights; RuntimeError when the merged logits differ from the adapter's. Writes merge.json."""
    tokens = torch.from_numpy(tokens_BT)
    apply_precision(model, "fp32")
    with torch.inference_mode():
        before = model(tokens)
    report = merge_lora(model)
    with torch.inference_mode():
        difference = float((model(tokens) - before).abs().max())
    write_json(ctx.out / "merge.json", {"tensors": list(report.merged), "trained_in_full": list(report.trained_in_full), "unchanged": list(report.unchanged),
                                       "max_logit_difference": difference})
    if difference > MERGE_TOLERANCE:
        raise RuntimeError(f"merged model differs from the adapter by {difference:.2e} in a logit, allowed {MERGE_TOLERANCE:.0e}; nothing was published")
    return difference


if __name__ == "__main__":
    raise SystemExit(main("sft", Config, run, plan))
