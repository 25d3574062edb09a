"""rl: chat model + prompts + a verifier -> a model that answers right more often. Group relative policy optimisation (GRPO).

A step draws prompts, samples a group of completions of each from the current weights, scores them, turns each group's rewards
into advantages and makes clipped policy-gradient updates (Shao et al. 2024, arXiv 2402.03300). The parts are independent choices:
advantage, clip, KL estimator, aggregation. Everything random is a function of (seed, step), so a checkpoint is weights, optimizer
and counters, and a run that is killed anywhere continues bit for bit. Output: model/, tokenizer/ (a copy), curve.csv, val.csv,
report.json.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from data.tokenizer import END_OF_TEXT, TURN_END, check_fingerprint, control_ids, fingerprint, load_tokenizer
from models import accounting, checkpoint
from models.architectures.decoder import Decoder
from models.optimizers.adamw import adamw
from models.optimizers.guard import guarded_step
from models.optimizers.schedules import constant
from models.precision import apply_precision, describe_precision
from models.rl.advantages import advantage_fn
from models.rl.aggregation import Totals, aggregation_fn
from models.rl.kl import kl_loss_fn
from models.rl.rollout import RolloutBatch, micro_batches, pad_rollouts
from models.rl.update import Objective, policy_gradients, reference_logprobs
from stages.atomic import write_json
from stages.config import Section
from stages.context import Context, Interrupted
from stages.device import pick_device
from stages.rollouts import Decoding, Rollout, greedy_accuracy, prompt_numbers, read_problems, roll_out, rollout_seed, verified_rewards
from stages.runner import main

MAX_SKIPPED_IN_A_ROW = 3
LAST_STEPS = 10  # the final mean reward is over this many steps
NAMED_CHOICES = {"advantage": advantage_fn, "aggregation": aggregation_fn, "kl_estimator": kl_loss_fn}


class Config(Section):
    """Settings of reinforcement learning."""

    steps: int = Field(ge=1)
    """Rollouts; each is followed by updates_per_rollout updates."""
    prompts_per_step: int = Field(ge=1)
    samples_per_prompt: int = Field(ge=2)
    """Size of a group. A group of one has no baseline."""
    max_new_tokens: int = Field(ge=1)
    """Longest completion; one that is cut there is unfinished and earns nothing."""
    temperature: float = Field(gt=0)
    """Of the rollouts, and of every log-probability in the loss."""
    generation_batch: int = Field(ge=1)
    """Completions under way at once."""
    advantage: str
    """grpo, dr_grpo or rloo."""
    aggregation: str
    """token_mean, seq_mean_token_mean, seq_mean_token_sum or seq_sum_const (its constant is max_new_tokens)."""
    clip_low: float = Field(ge=0, lt=1)
    clip_high: float = Field(ge=0)
    kl_coef: float = Field(ge=0)
    """Weight of the KL penalty towards the sft model; 0: no reference is loaded."""
    kl_estimator: str
    """k2 or k3."""
    mask_truncated: bool
    """Leave unfinished completions out of the loss and its denominators; they stay in their group's baseline."""
    updates_per_rollout: int = Field(ge=1)
    """Passes over each rollout. The clip acts from the second one on."""
    micro_batch_rows: int = Field(ge=1)
    lr: float = Field(gt=0)
    warmup_steps: int = Field(ge=0)
    """Updates until lr is reached; it then stays."""
    weight_decay: float = Field(ge=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    clip_norm: float = Field(gt=0)
    precision: Literal["fp32", "bf16", "fp8_tensorwise", "fp8_rowwise", "fp8_blockwise", "mxfp8", "moss"]
    """Of the linear layers, in rollouts and updates alike. moss measures its weights for every rollout and update here. Not fp8_delayed: its
    scales change between a rollout and the update, which would then follow another policy than the one sampled."""
    max_logprob_gap: float = Field(gt=0)
    """Largest allowed |trainer - sampler| log-probability of a sampled token at the first update after a rollout."""
    eval_every: int = Field(ge=1)
    eval_problems: int = Field(ge=1)
    """Held-out problems answered greedily at each evaluation."""
    checkpoint_every: int = Field(ge=1)

    @field_validator("advantage", "aggregation", "kl_estimator")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        NAMED_CHOICES[info.field_name](value)
        return value

    @model_validator(mode="after")
    def _warmup_ends(self) -> Config:
        updates = self.steps * self.updates_per_rollout
        if self.warmup_steps > updates:
            raise ValueError(f"warmup_steps of at most steps x updates_per_rollout = {updates}")
        return self


@dataclass(kw_only=True, slots=True)
class Counters:
    """What a run has counted so far; part of every checkpoint and of the report."""

    completions: int = 0
    truncated: int = 0
    unscored: int = 0
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    steps_without_signal: int = 0
    largest_logprob_gap: float = 0.0
    first_val_accuracy: float = 0.0
    val_accuracy: float = 0.0
    last_rewards: list[float] = field(default_factory=list)


def plan(cfg: Config, ctx: Context) -> dict[str, object]:
    """Upper bounds for the dry run."""
    completions = cfg.steps * cfg.prompts_per_step * cfg.samples_per_prompt
    return {
        "completions": completions, "generated_tokens_at_most": completions * cfg.max_new_tokens,
        "updates": cfg.steps * cfg.updates_per_rollout, "reference_model": cfg.kl_coef > 0,
    }  # fmt: skip


def run(cfg: Config, ctx: Context) -> dict[str, float]:
    """Improve the chat model against the verifier."""
    source, tokenized = ctx.dep("sft"), ctx.dep("tokenize")
    check_fingerprint(source / "tokenizer", fingerprint(tokenized / "tokenizer"))
    model = load_policy(source / "model", cfg.precision)
    reference = load_policy(source / "model", cfg.precision).requires_grad_(False) if cfg.kl_coef > 0 else None
    longest = model.config.max_seq_len - cfg.max_new_tokens
    train, too_long = read_problems(tokenized / "prompts" / "train", longest)
    val, _ = read_problems(tokenized / "prompts" / "val", longest)
    ctx.begin(cfg.steps)
    device = model.head_weight.device
    ctx.note(f"{accounting.num_params(model.config):,} parameters, {len(train):,} prompts ({too_long:,} too long), "
             f"reference {'none' if reference is None else 'the sft weights'}, precision {describe_precision(cfg.precision, device)}, {device}")  # fmt: skip
    tokenizer = load_tokenizer(source / "tokenizer")
    ids = control_ids(tokenizer)
    decoding = Decoding(max_new_tokens=cfg.max_new_tokens, eos_ids=[ids[TURN_END], ids[END_OF_TEXT]], batch=cfg.generation_batch)
    optim = adamw(model, lr=cfg.lr, betas=(cfg.beta1, cfg.beta2), weight_decay=cfg.weight_decay)
    step, counters = resume(ctx, model, optim)

    def evaluate() -> float:
        return greedy_accuracy(model, tokenizer, val[: cfg.eval_problems], decoding)

    if step == 0:
        counters.first_val_accuracy = evaluate()
        ctx.log(0, val_accuracy=counters.first_val_accuracy)
    while step < cfg.steps:
        problems = [train[i] for i in prompt_numbers(step, cfg.prompts_per_step, len(train), ctx.seed)]
        started = time.monotonic()
        rollout = roll_out(
            model, tokenizer, problems, decoding, num_samples=cfg.samples_per_prompt, temperature=cfg.temperature,
            seed=rollout_seed(ctx.seed, step), reward_fn=verified_rewards, advantage=advantage_fn(cfg.advantage),
        )  # fmt: skip
        seconds = time.monotonic() - started
        stats = update(cfg, model, reference, optim, rollout, step, counters)
        step += 1
        count(counters, rollout)
        ctx.log(step, **describe(rollout), **stats)
        ctx.volatile(rollout_tokens_per_second=sum(len(c.tokens) for c in rollout.completions) / seconds,
                     rollout_seconds=seconds, update_seconds=time.monotonic() - started - seconds)  # fmt: skip
        if step % cfg.eval_every == 0 or step == cfg.steps:
            counters.val_accuracy = evaluate()
            ctx.log(step, val_accuracy=counters.val_accuracy)
        if step % cfg.checkpoint_every == 0 or step == cfg.steps or ctx.should_stop():
            save(ctx, model, optim, step, counters)
        if ctx.should_stop():
            raise Interrupted(f"checkpoint saved at step {step} of {cfg.steps}")
    checkpoint.save_model(ctx.out / "model", model, {"stage": "rl", "config": cfg.model_dump()})
    shutil.copytree(source / "tokenizer", ctx.out / "tokenizer")
    return report(cfg, ctx, counters, {"prompts": len(train), "prompts_too_long": too_long, "reference_loaded": reference is not None})


def load_policy(folder: Path, precision: str) -> Decoder:
    """The model in float32 weights on this machine's device, its linear layers computing in `precision`."""
    model = checkpoint.load_model(folder)[0].float()
    apply_precision(model, precision)
    return model.to(pick_device())


def update(cfg: Config, model: Decoder, reference: Decoder | None, optim: torch.optim.Optimizer, rollout: Rollout, step: int,
           counters: Counters) -> dict[str, float]:  # fmt: skip
    """The updates of one rollout. Returns curve values; raises RuntimeError on a log-probability gap or repeated bad gradients.

    A rollout in which no trained completion has an advantage makes no update (without a KL penalty its gradient is zero, and
    momentum alone would move the weights).
    """
    objective = Objective(
        aggregation=cfg.aggregation, clip_low=cfg.clip_low, clip_high=cfg.clip_high, kl_coef=cfg.kl_coef,
        kl_estimator=cfg.kl_estimator, temperature=cfg.temperature,
    )  # fmt: skip
    batches, totals = training_batches(cfg, rollout, model.head_weight.device)
    if not batches:
        counters.steps_without_signal += 1
        return {"lr": learning_rate(cfg, (step + 1) * cfg.updates_per_rollout - 1), "grad_norm": 0.0, "clip_fraction": 0.0}
    reference_lps = None if reference is None else reference_logprobs(reference, batches, cfg.temperature)
    old_lps, clipped, first = None, 0, None
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for i in range(cfg.updates_per_rollout):
        lr = learning_rate(cfg, step * cfg.updates_per_rollout + i)
        for group in optim.param_groups:
            group["lr"] = lr
        optim.zero_grad(set_to_none=True)
        stats = policy_gradients(model, batches, totals, objective, old_lps=old_lps, reference_lps=reference_lps)
        if first is None:
            first, old_lps = stats, stats.old_lps
            check_gap(cfg, stats.gap_max, stats.gap_mean, step)
            counters.largest_logprob_gap = max(counters.largest_logprob_gap, stats.gap_max)
        clipped += stats.clipped_tokens
        result = guarded_step(optim, params, cfg.clip_norm)
        counters.skipped_updates += result.skipped
        counters.skipped_in_a_row = counters.skipped_in_a_row + 1 if result.skipped else 0
        if counters.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RuntimeError(f"gradients were not finite for {counters.skipped_in_a_row} updates in a row (step {step + 1}); weights are those before "
                               f"them. Lower rl.lr (now {cfg.lr}) or rl.clip_high, or use precision: fp32")  # fmt: skip
    values = {
        "lr": lr, "grad_norm": result.grad_norm, "clip_fraction": clipped / (cfg.updates_per_rollout * totals.tokens),
        "logprob_gap_max": first.gap_max, "logprob_gap_mean": first.gap_mean,
    }  # fmt: skip
    return values if reference is None else {**values, "kl": first.kl}


def learning_rate(cfg: Config, index: int) -> float:
    """Rate of the update with that 0-based index."""
    return cfg.lr * constant(index, cfg.steps * cfg.updates_per_rollout, cfg.warmup_steps)


def training_batches(cfg: Config, rollout: Rollout, device: torch.device) -> tuple[list[RolloutBatch], Totals]:
    """Micro-batches of the rows that have a gradient, and the denominators over all rows that count.

    Unfinished rows do not count when mask_truncated is set. Rows without an advantage count, but without a KL penalty their
    gradient is exactly zero, so they are not computed.
    """
    counted = [i for i, completion in enumerate(rollout.completions) if completion.finished or not cfg.mask_truncated]
    lengths = [len(completion.tokens) for completion in rollout.completions]
    totals = Totals(tokens=sum(lengths[i] for i in counted), sequences=len(counted), max_len=cfg.max_new_tokens)
    rows = [i for i in counted if cfg.kl_coef > 0 or rollout.advantages[i] != 0]
    cuts = micro_batches([len(rollout.prompts[i]) + lengths[i] for i in rows], cfg.micro_batch_rows)
    return [_pad([rows[k] for k in cut], rollout, device) for cut in cuts], totals


def _pad(rows: Sequence[int], rollout: Rollout, device: torch.device) -> RolloutBatch:
    completions = [rollout.completions[i] for i in rows]
    return pad_rollouts(
        [rollout.prompts[i] for i in rows], [c.tokens for c in completions], [c.logprobs for c in completions],
        [rollout.advantages[i] for i in rows], device=device,
    )  # fmt: skip


def check_gap(cfg: Config, gap_max: float, gap_mean: float, step: int) -> None:
    """RuntimeError when trainer and sampler disagree about the policy that made the rollout."""
    if not gap_max <= cfg.max_logprob_gap:
        raise RuntimeError(
            f"step {step + 1}: trainer and sampler differ by up to {gap_max:.3g} in a token's log-probability (mean {gap_mean:.3g}), allowed "
            f"{cfg.max_logprob_gap}: updates would not follow the policy that was sampled. Use precision: fp32, or raise rl.max_logprob_gap if "
            f"{cfg.precision} is meant to differ that much"
        )


def describe(rollout: Rollout) -> dict[str, float]:
    """Curve values of a rollout, over everything that was generated."""
    lengths = [len(completion.tokens) for completion in rollout.completions]
    scored = max(sum(rollout.scored), 1)
    return {
        "reward": sum(rollout.rewards) / scored,
        "accuracy": sum(reward > 0 for reward in rollout.rewards) / scored,
        # The mean negative log-probability of what was sampled estimates the entropy of a token without another pass.
        "entropy": -sum(sum(completion.logprobs) for completion in rollout.completions) / sum(lengths),
        "length_mean": sum(lengths) / len(lengths),
        "length_max": max(lengths),
        "truncated_fraction": sum(not completion.finished for completion in rollout.completions) / len(lengths),
        "no_signal_fraction": 1 - rollout.signal_fraction,
    }


def count(counters: Counters, rollout: Rollout) -> None:
    """Add one step's rollout to the counters."""
    counters.completions += len(rollout.completions)
    counters.truncated += sum(not completion.finished for completion in rollout.completions)
    counters.unscored += rollout.scored.count(False)
    counters.last_rewards = [*counters.last_rewards, describe(rollout)["reward"]][-LAST_STEPS:]


def report(cfg: Config, ctx: Context, counters: Counters, facts: dict[str, object]) -> dict[str, float]:
    """Write report.json; returns the stage's final metrics."""
    metrics = {
        "val_accuracy": counters.val_accuracy, "val_accuracy_gain": counters.val_accuracy - counters.first_val_accuracy,
        "reward": sum(counters.last_rewards) / len(counters.last_rewards),
        "steps": cfg.steps, "skipped_updates": counters.skipped_updates, "steps_without_signal": counters.steps_without_signal,
        "truncated_fraction": counters.truncated / counters.completions,
    }  # fmt: skip
    counted = {name: value for name, value in asdict(counters).items() if name != "skipped_in_a_row"}
    write_json(ctx.out / "report.json", {**facts, **counted, "metrics": metrics})
    return metrics


def save(ctx: Context, model: Decoder, optim: torch.optim.Optimizer, step: int, counters: Counters) -> None:
    """Checkpoint everything the next step depends on."""
    tensors = {f"model/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    checkpoint.save_state(ctx.work / "state", step, tensors | checkpoint.optimizer_tensors(optim, model), asdict(counters))


def resume(ctx: Context, model: Decoder, optim: torch.optim.Optimizer) -> tuple[int, Counters]:
    """Continue from the newest intact checkpoint, or start at step 0."""
    found = checkpoint.load_state(ctx.work / "state", note=ctx.note)
    if found is None:
        ctx.resume_at(-1)
        return 0, Counters()
    step, tensors, meta = found
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model/{name}"])
    checkpoint.restore_optimizer(optim, model, tensors)
    ctx.resume_at(step)
    ctx.note(f"resumed at step {step}")
    return step, Counters(**meta)


if __name__ == "__main__":
    raise SystemExit(main("rl", Config, run, plan))
