"""pretrain: packed text tokens -> base model.

A decoder of design section "The model" on packed rows with document isolation; optimizer, schedule and precision of the linear layers
as chosen, gradient clipping. Output: model/, tokenizer/ (a copy), curve.csv, val.csv, samples.txt.
"""

from __future__ import annotations

import shutil
from typing import Literal

from pydantic import Field

from data.loading.prefetch import Prefetched
from data.packing import PackedStream, Shuffled, eval_rows
from data.tokenizer import ChatTokenizer, load_tokenizer
from models import accounting, checkpoint
from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.evaluation.metrics import bits_per_byte
from models.inference.generate import generate
from models.optimizers.factory import describe_groups
from models.precision import apply_precision, describe_precision
from stages.config import Section
from stages.context import Context
from stages.device import pick_device
from stages.optimizing import Optimization
from stages.runner import main
from stages.training import LoopSettings, open_rows, rows_per_step, steps_for, sum_nats, train

SAMPLE_PROMPTS = ("def ", "Return the ", "What is ")


class ModelShape(Section):
    """Shape of the decoder; the vocabulary comes from the tokenizer, the context length from seq_len."""

    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=8)
    intermediate_size: int = Field(ge=8)
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    rope_base: float = Field(gt=1)
    norm_eps: float = Field(gt=0)
    tied_head: bool
    qk_norm: bool
    qkv_bias: bool


class Config(Optimization):
    """Settings of pretraining."""

    model: ModelShape
    precision: Literal["fp32", "bf16", "fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise", "mxfp8", "moss"]
    """Arithmetic of the linear layers; weights and optimizer stay fp32. fp8_tensorwise: a scale for each tensor, of the moment; fp8_delayed:
    from the maxima of earlier steps; fp8_rowwise: for each row; fp8_blockwise: 1x128, weights 128x128; mxfp8: each 32 elements, powers of
    two; moss: those under a scale for each row, and weights whose scale is predicted from AdamW's largest step."""
    seq_len: int = Field(ge=8)
    packing: Literal["sequential", "best_fit", "none"]
    """How documents become rows: data/packing.py."""
    damaged_shards: Literal["fail", "skip"]
    """What a shard does whose content is not what its hash says: stop the stage, or be left out and counted."""
    tokens_per_step: int = Field(ge=8)
    """Global batch in tokens; the device count never changes it."""
    micro_batch_rows: int = Field(ge=1)
    total_tokens: int = Field(ge=1)
    eval_every: int = Field(ge=1)
    eval_rows: int = Field(ge=1)
    """Rows of held-out text scored at each evaluation; the last one scores all of it."""
    checkpoint_every: int = Field(ge=1)
    sample_tokens: int = Field(ge=1)


def decoder_config(cfg: Config, vocab_size: int) -> DecoderConfig:
    """The model's shape for this vocabulary."""
    return DecoderConfig(vocab_size=vocab_size, max_seq_len=cfg.seq_len, **cfg.model.model_dump())


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Sizes for the dry run; the vocabulary is read when tokenize has run, else assumed."""
    tokenizer = ctx.deps["tokenize"] / "tokenizer"
    vocab_size = len(load_tokenizer(tokenizer)) if tokenizer.is_dir() else 32_768
    shape = decoder_config(cfg, vocab_size)
    steps = steps_for(cfg.total_tokens, cfg.tokens_per_step)
    cfg.make_schedule(steps)
    flops = accounting.flops_per_token(shape, cfg.seq_len)
    return {"vocab_size": vocab_size if tokenizer.is_dir() else f"{vocab_size} (assumed: tokenize has not run)", "parameters": accounting.num_params(shape),
            "steps": steps, "tokens": steps * cfg.tokens_per_step, "flops_per_token": flops, "training_flops": flops * steps * cfg.tokens_per_step,
            "peak_memory_bytes": accounting.memory_estimate(shape, rows=cfg.micro_batch_rows, seq_len=cfg.seq_len)}


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Train the base model."""
    tokenize = ctx.dep("tokenize")
    tokenizer = load_tokenizer(tokenize / "tokenizer")
    steps, rows = steps_for(cfg.total_tokens, cfg.tokens_per_step), rows_per_step(cfg.tokens_per_step, cfg.seq_len)
    schedule = cfg.make_schedule(steps)
    model = Decoder(decoder_config(cfg, len(tokenizer)))
    init_weights(model, ctx.seed)
    device = pick_device()
    model.to(device)
    apply_precision(model, cfg.precision)
    optim = cfg.make_optimizer(model)
    documents, held_out = (open_rows(ctx, tokenize / "text" / split, cfg.damaged_shards) for split in ("train", "val"))
    stream = Prefetched(PackedStream(documents, seq_len=cfg.seq_len, rows_per_batch=rows, seed=ctx.seed, policy=cfg.packing))
    val = Shuffled(held_out, ctx.seed)
    rows_of = {cfg.eval_rows: eval_rows(val, cfg.seq_len, cfg.eval_rows), None: eval_rows(val, cfg.seq_len)}

    def evaluate(step: int) -> dict[str, float]:
        rows = rows_of[None if step == steps else cfg.eval_rows]
        nats, _ = sum_nats(model, rows.batch, cfg.micro_batch_rows)
        return {"val_bpb": bits_per_byte(nats, rows.num_bytes)}

    ctx.begin(steps, cfg.tokens_per_step)
    ctx.note(f"{accounting.num_params(model.config):,} parameters, {steps} steps of {cfg.tokens_per_step:,} tokens, "
             f"precision {describe_precision(cfg.precision, device)}, {device}")
    ctx.note(f"{describe_groups(optim)}; schedule {cfg.schedule}")
    skipped = train(ctx, model, optim, stream, LoopSettings(
        total_steps=steps, micro_batch_rows=cfg.micro_batch_rows, peak_lr=cfg.peak_lr, clip_norm=cfg.clip_norm, checkpoint_every=cfg.checkpoint_every,
        eval_every=cfg.eval_every, lr_multiplier=schedule), evaluate)
    final = evaluate(steps)
    packing = stream.report()
    stream.close()
    ctx.note(f"packing {cfg.packing}: {packing}")
    checkpoint.save_model(ctx.out / "model", model.cpu(), {"stage": "pretrain", "config": cfg.model_dump()})
    shutil.copytree(tokenize / "tokenizer", ctx.out / "tokenizer")
    write_samples(ctx, model, tokenizer, cfg.sample_tokens)
    return {**final, "parameters": accounting.num_params(model.config), "tokens": steps * cfg.tokens_per_step,
            "steps": steps, "skipped_updates": skipped, "skipped_rows": documents.skipped_rows + held_out.skipped_rows,
            **{name: packing[name] for name in ("padding_fraction", "cut_fraction", "dropped_fraction")}}


def write_samples(ctx: Context, model: Decoder, tokenizer: ChatTokenizer, max_new_tokens: int) -> None:
    """Greedy continuations of a few fixed prompts, for a reader's eye."""
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in SAMPLE_PROMPTS]
    answers = generate(model, prompts, max_new_tokens=max_new_tokens, temperature=0.0, eos_ids=[tokenizer.eos_token_id], seed=ctx.seed, batch_size=len(prompts))
    texts = [prompt + tokenizer.decode(completion[0].tokens) for prompt, completion in zip(SAMPLE_PROMPTS, answers)]
    (ctx.out / "samples.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    for text in texts:
        ctx.note(f"sample: {text!r}")


if __name__ == "__main__":
    raise SystemExit(main("pretrain", Config, run, plan))
