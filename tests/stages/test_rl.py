"""The rl stage on a toy: it learns, it resumes bit for bit (CKPT-05), and it stops with a reason when it must."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from data.chat import CHAT_TEMPLATE, encode_prompt
from data.shards import write_mds
from data.tokenizer import TURN_END, control_ids, load_tokenizer, plain_encoder, save_tokenizer, train_bpe
from models import checkpoint
from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.inference.generate import Completion
from models.optimizers.adamw import adamw
from stages import rl
from stages.config import StageError
from stages.context import Context, Interrupted
from stages.rollouts import Rollout, read_problems

ANSWERS = ["3", "5", "8"]
VOCAB = 275
VALUES = dict(
    steps=6, prompts_per_step=8, samples_per_prompt=6, max_new_tokens=12, temperature=1.0, generation_batch=16, advantage="grpo",
    aggregation="token_mean", clip_low=0.2, clip_high=0.28, kl_coef=0.0, kl_estimator="k3", mask_truncated=False,
    updates_per_rollout=1, micro_batch_rows=16, lr=0.001, warmup_steps=2, weight_decay=0.0, beta1=0.9, beta2=0.95,
    clip_norm=1.0, precision="fp32", max_logprob_gap=1e-4, eval_every=3, eval_problems=10, checkpoint_every=4,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def config(**changes: object) -> rl.Config:
    return rl.Config(**{**VALUES, **changes})


def question(number: int) -> tuple[str, str]:
    """(question, right answer). The warm-started model gives one of ANSWERS at random."""
    return f"case {number}", "3"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs of tokenize and sft, with a model that knows the answers' form and guesses their content."""
    root = tmp_path_factory.mktemp("inputs")
    tokenized, source = root / "tokenize", root / "sft"
    texts = [f"{question(n)[0]} user assistant #### {a}" for n in range(40) for a in ANSWERS]
    save_tokenizer(tokenized / "tokenizer", train_bpe(texts, VOCAB, 2), CHAT_TEMPLATE)
    save_tokenizer(source / "tokenizer", train_bpe(texts, VOCAB, 2), CHAT_TEMPLATE)
    tokenizer = load_tokenizer(tokenized / "tokenizer")
    columns = {"tokens": "ndarray:uint16", "prompt": "str", "answer": "str", "task": "str", "id": "str"}
    for split, numbers in (("train", range(0, 60)), ("val", range(60, 81))):
        rows = [
            {"tokens": np.array(encode_prompt(tokenizer, [{"role": "user", "content": text}]), dtype=np.uint16),
             "prompt": text, "answer": answer, "task": "toy", "id": f"{n}"}
            for n in numbers for text, answer in [question(n)]
        ]  # fmt: skip
        write_mds(tokenized / "prompts" / split, columns, rows, 1 << 20)
    checkpoint.save_model(source / "model", warm_start(tokenizer, tokenized), {})
    return {"tokenize": tokenized, "sft": source}


def warm_start(tokenizer: object, tokenized: Path) -> Decoder:
    """A tiny decoder fitted to answer every training question with "#### 3", "#### 5" or "#### 8" at random, then to end the turn."""
    shape = DecoderConfig(
        vocab_size=VOCAB, num_layers=2, hidden_size=32, intermediate_size=64, num_heads=2, num_kv_heads=1, head_dim=16,
        max_seq_len=64, rope_base=10000.0, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False,
    )  # fmt: skip
    model = Decoder(shape)
    init_weights(model, 0)
    optim = adamw(model, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    problems, _ = read_problems(tokenized / "prompts" / "train", 52)
    answers = [[*map(int, ids), control_ids(tokenizer)[TURN_END]] for ids in plain_encoder(tokenizer).encode([f"#### {a}" for a in ANSWERS])]
    generator = torch.Generator().manual_seed(0)
    width = max(len(p.tokens) for p in problems) + len(answers[0])
    for _ in range(50):
        picks = torch.randint(0, 3, (len(problems),), generator=generator).tolist()
        rows = [p.tokens + answers[pick] for p, pick in zip(problems, picks, strict=True)]
        tokens_BT = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        starts_B1 = torch.tensor([[len(p.tokens)] for p in problems])
        ends_B1 = torch.tensor([[len(row)] for row in rows])
        place_T = torch.arange(1, width)[None]
        lp = model(tokens_BT)[:, :-1].log_softmax(-1).gather(-1, tokens_BT[:, 1:, None]).squeeze(-1)
        loss = -lp[(place_T >= starts_B1) & (place_T < ends_B1)].mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
    return model


def stage(inputs: dict[str, Path], folder: Path, **changes: object) -> tuple[dict[str, float], Context]:
    ctx = Context.for_test(folder, stage="rl", deps=inputs, seed=4)
    return rl.run(config(**changes), ctx), ctx


def curve(ctx: Context) -> list[tuple[int, dict[str, float]]]:
    return [(step, values) for step, values in map(json.loads, (ctx.work / "curve.jsonl").read_text().splitlines())]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def unbroken(inputs, tmp_path_factory) -> tuple[dict[str, float], Context]:
    return stage(inputs, tmp_path_factory.mktemp("unbroken"))


def test_it_learns_the_answers(inputs, tmp_path):
    metrics, ctx = stage(inputs, tmp_path, steps=16, lr=0.003, eval_every=8, checkpoint_every=16)
    rewards = [values["reward"] for _, values in curve(ctx) if "reward" in values]
    assert sum(rewards[:3]) / 3 < 0.5
    assert metrics["reward"] > 0.7
    assert metrics["val_accuracy"] > 0.9
    assert metrics["val_accuracy_gain"] > 0.5


def test_output_is_a_model_a_tokenizer_and_a_report(inputs, unbroken):
    metrics, ctx = unbroken
    model, meta = checkpoint.load_model(ctx.out / "model")
    assert meta["stage"] == "rl" and meta["config"] == config().model_dump()
    assert files(ctx.out / "tokenizer") == files(inputs["sft"] / "tokenizer")
    report = json.loads((ctx.out / "report.json").read_text())
    assert report["completions"] == 6 * 8 * 6 and report["prompts"] == 60 and report["prompts_too_long"] == 0
    assert report["reference_loaded"] is False and report["metrics"] == metrics
    before, _ = checkpoint.load_model(inputs["sft"] / "model")
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))


def test_curve_has_every_step_once_and_no_timing(unbroken):
    _, ctx = unbroken
    points = [(step, values) for step, values in curve(ctx) if "reward" in values]
    assert [step for step, _ in points] == list(range(1, 7))
    names = {"reward", "accuracy", "entropy", "length_mean", "length_max", "clip_fraction", "truncated_fraction", "no_signal_fraction",
             "grad_norm", "lr", "logprob_gap_max", "logprob_gap_mean"}  # fmt: skip
    assert all(names == set(values) for _, values in points)
    assert [step for step, values in curve(ctx) if "val_accuracy" in values] == [0, 3, 6]
    assert ctx.volatiles["rollout_tokens_per_second"] > 0
    assert all(values["clip_fraction"] == 0 for _, values in points), "one update per rollout has ratio 1 throughout"


def test_loss02_the_rate_counts_updates_and_peaks_at_the_last_warmup_one(inputs, tmp_path, unbroken):
    rates = [values["lr"] for _, values in curve(unbroken[1]) if "lr" in values]
    assert rates == [0.0005, *[0.001] * 5]
    _, ctx = stage(inputs, tmp_path, steps=2, updates_per_rollout=2, warmup_steps=3)
    assert [values["lr"] for _, values in curve(ctx) if "lr" in values] == [0.001 * 2 / 3, 0.001]


def test_the_same_run_twice_gives_the_same_bytes(inputs, tmp_path, unbroken):
    metrics, ctx = stage(inputs, tmp_path)
    assert metrics == unbroken[0]
    assert files(ctx.out) == files(unbroken[1].out)
    assert curve(ctx) == curve(unbroken[1])


def test_ckpt05_a_stop_request_saves_and_the_next_attempt_ends_bit_for_bit_the_same(inputs, tmp_path, unbroken):
    ctx = Context.for_test(tmp_path, stage="rl", deps=inputs, seed=4)
    ctx.stop_requested = lambda: sum("reward" in values for _, values in curve(ctx)) == 2
    with pytest.raises(Interrupted, match="step 2 of 6"):
        rl.run(config(), ctx)
    metrics, ctx = stage(inputs, tmp_path)
    assert metrics == unbroken[0]
    assert files(ctx.out) == files(unbroken[1].out)
    assert curve(ctx) == curve(unbroken[1])


@pytest.mark.parametrize("dies_at", [1, 5, 6])
def test_ckpt05_a_crash_between_checkpoints_changes_nothing(inputs, tmp_path, unbroken, dies_at):
    class Crash(Exception):
        pass

    ctx = Context.for_test(tmp_path, stage="rl", deps=inputs, seed=4)
    log = ctx.log

    def log_and_die(step: int, /, **values: float) -> None:
        log(step, **values)
        if step == dies_at:
            raise Crash

    ctx.log = log_and_die
    with pytest.raises(Crash):
        rl.run(config(), ctx)
    metrics, ctx = stage(inputs, tmp_path)
    assert metrics == unbroken[0]
    assert files(ctx.out) == files(unbroken[1].out)
    assert curve(ctx) == curve(unbroken[1])


def test_kl_needs_and_loads_the_reference(inputs, tmp_path):
    metrics, ctx = stage(inputs, tmp_path, steps=3, kl_coef=0.05, warmup_steps=0)
    kls = [values["kl"] for _, values in curve(ctx) if "kl" in values]
    assert len(kls) == 3 and kls[0] == 0 and kls[2] > 0
    assert json.loads((ctx.out / "report.json").read_text())["reference_loaded"] is True
    assert metrics["steps_without_signal"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"updates_per_rollout": 3, "lr": 0.02, "warmup_steps": 0, "mask_truncated": True, "kl_estimator": "k2"},
        {"advantage": "rloo", "aggregation": "seq_mean_token_sum", "temperature": 1.3},
        {"advantage": "dr_grpo", "aggregation": "seq_sum_const", "micro_batch_rows": 5},
        {"aggregation": "seq_mean_token_mean", "kl_coef": 0.01, "kl_estimator": "k2"},
    ],
)
def test_every_choice_runs(inputs, tmp_path, changes):
    metrics, ctx = stage(inputs, tmp_path, steps=2, **changes)
    assert metrics["steps"] == 2
    clipped = [values["clip_fraction"] for _, values in curve(ctx) if "clip_fraction" in values]
    assert (max(clipped) > 0) == ("updates_per_rollout" in changes)


def test_micro_batches_do_not_change_the_run_beyond_rounding(inputs, tmp_path):
    runs = [stage(inputs, tmp_path / str(rows), steps=2, micro_batch_rows=rows, clip_norm=1e9) for rows in (4, 48)]
    norms = [[values["grad_norm"] for _, values in curve(ctx) if "grad_norm" in values] for _, ctx in runs]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0][0] > 0


def test_a_gap_between_trainer_and_sampler_stops_the_run(inputs, tmp_path):
    with pytest.raises(RuntimeError, match=r"step 1: trainer and sampler differ by up to .* allowed 1e-12.*max_logprob_gap"):
        stage(inputs, tmp_path, max_logprob_gap=1e-12)
    assert not (tmp_path / "out" / "model").exists()


def toy_rollout(rewards_differ: bool = True, finished: tuple[bool, ...] = (True, True, False)) -> Rollout:
    completions = [Completion(tokens=[9] * n, logprobs=[-1.0] * n, finished=done) for n, done in zip((2, 3, 6), finished, strict=True)]
    return Rollout(
        prompts=[[4, 5]] * 3, completions=completions, rewards=[1.0, 0.0, 0.0], scored=[True] * 3,
        advantages=[1.0, -0.5, -0.5] if rewards_differ else [0.0] * 3, signal_fraction=float(rewards_differ),
    )  # fmt: skip


def test_rl04_masked_truncated_completions_leave_loss_and_divisor_but_not_the_length_metrics():
    cpu = torch.device("cpu")
    batches, totals = rl.training_batches(config(mask_truncated=True), toy_rollout(), cpu)
    assert (totals.tokens, totals.sequences) == (5, 2)
    assert sum(len(batch.tokens_BT) for batch in batches) == 2
    batches, totals = rl.training_batches(config(mask_truncated=False), toy_rollout(), cpu)
    assert (totals.tokens, totals.sequences) == (11, 3)
    assert sum(len(batch.tokens_BT) for batch in batches) == 3
    values = rl.describe(toy_rollout())
    assert values["length_mean"] == pytest.approx(11 / 3) and values["length_max"] == 6
    assert values["truncated_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("rollout", [toy_rollout(rewards_differ=False), toy_rollout(finished=(False, False, False))])
def test_rl04_a_rollout_that_trains_nothing_makes_no_update(inputs, rollout):
    model = rl.load_policy(inputs["sft"] / "model", "fp32")
    before = [parameter.clone() for parameter in model.parameters()]
    counters = rl.Counters()
    optim = adamw(model, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    values = rl.update(config(mask_truncated=True), model, None, optim, rollout, 0, counters)
    assert counters.steps_without_signal == 1 and values["grad_norm"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_bad_gradients_are_skipped_counted_and_stop_the_run_at_the_third_in_a_row(inputs):
    model = rl.load_policy(inputs["sft"] / "model", "fp32")
    before = [parameter.clone() for parameter in model.parameters()]
    model.model.norm.weight.register_hook(lambda grad: grad * float("nan"))
    optim, counters, cfg = adamw(model, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1), rl.Counters(), config(max_logprob_gap=100.0)
    for step in range(2):
        rl.update(cfg, model, None, optim, toy_rollout(), step, counters)
    assert counters.skipped_updates == 2
    with pytest.raises(RuntimeError, match="3 updates in a row"):
        rl.update(cfg, model, None, optim, toy_rollout(), 2, counters)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_prompts_that_cannot_fit_are_refused_before_any_rollout(inputs, tmp_path):
    with pytest.raises(StageError, match=r"none of at most 4 tokens.*lower rl.max_new_tokens"):
        stage(inputs, tmp_path, max_new_tokens=60)


def test_another_tokenizer_than_that_of_the_prompts_is_refused(inputs, tmp_path):
    other = tmp_path / "sft"
    save_tokenizer(other / "tokenizer", train_bpe(["other words entirely, other words"] * 9, 270, 2), CHAT_TEMPLATE)
    with pytest.raises(ValueError, match="tokenizer"):
        stage({**inputs, "sft": other}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_prompt": 1}, "greater than or equal to 2"),
        ({"kl_estimator": "k1"}, "zero in expectation"),
        ({"advantage": "gae"}, "'dr_grpo', 'grpo', 'rloo'"),
        ({"aggregation": "mean"}, "seq_mean_token_mean"),
        ({"temperature": 0.0}, "greater than 0"),
        ({"warmup_steps": 7}, "warmup_steps"),
        ({"precision": "int3"}, "fp8_tensorwise"),
        ({"precision": "fp8_delayed"}, "'fp8_blockwise', 'mxfp8' or 'moss'"),
        ({"learning_rate": 1.0}, "Extra inputs"),
    ],
)
def test_rl01_bad_settings_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        config(**changes)


def test_no_setting_has_a_default():
    assert all(field.is_required() for field in rl.Config.model_fields.values())
