"""The shared loop: batch cutting, guarded updates, exact resume, stopping."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from data.packing import PackedBatch, PackedStream
from models.architectures.decoder import Decoder, DecoderConfig, init_weights
from models.optimizers.adamw import adamw
from models.optimizers.factory import make_optimizer
from models.optimizers.muon import MuonSettings
from models.optimizers.schedules import make_schedule, wsd
from models.precision import apply_precision, cast_totals, precision_state
from models.precision.scales import MossScales
from stages.config import StageError
from stages.context import Context, Interrupted
from stages.training import LoopSettings, backward, rows_per_step, steps_for, train

SHAPE = DecoderConfig(vocab_size=32, num_layers=2, hidden_size=16, intermediate_size=32, num_heads=2, num_kv_heads=1, head_dim=8, max_seq_len=16,
                      rope_base=1e4, norm_eps=1e-6, tied_head=True, qk_norm=True, qkv_bias=False)


def documents(count: int = 60) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"tokens": rng.integers(1, 32, rng.integers(3, 20))} for _ in range(count)]


MUON = MuonSettings(momentum=0.95, nesterov=True, update_rms=0.18, fast_steps=8, settling_steps=2, newton_schulz_dtype="fp32")
NAMES = ["adamw", "muon"]


def make(optimizer: str = "adamw") -> tuple[Decoder, torch.optim.Optimizer, PackedStream]:
    model = Decoder(SHAPE)
    init_weights(model, 0)
    optim = make_optimizer(optimizer, model, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, muon_settings=MUON)
    return model, optim, PackedStream(documents(), 16, 4, 0, "sequential")


def make_in(precision: str) -> tuple[Decoder, torch.optim.Optimizer, PackedStream]:
    """`make` in a low precision, moss measuring every 5 steps so that a run of 12 holds predictions and measurements."""
    model = Decoder(dataclasses.replace(SHAPE, num_kv_heads=2))  # FP8 takes widths in multiples of 16
    init_weights(model, 0)
    apply_precision(model, precision)
    _, _, stream = make()
    optim = adamw(model, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for module in model.modules():
        if isinstance(module, MossScales):
            module.interval = 5
    return model, optim, stream


def settings(steps: int, micro: int = 4) -> LoopSettings:
    return LoopSettings(total_steps=steps, micro_batch_rows=micro, peak_lr=0.01, lr_multiplier=lambda step: wsd(step, steps, 3, 0.3), clip_norm=1.0,
                        checkpoint_every=4, eval_every=5)


def weights(model: Decoder) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_loss_01_04_gradients_do_not_depend_on_how_the_batch_is_cut() -> None:
    batch = make()[2].next()
    grads, losses = [], []
    for micro in (4, 2, 1, 3):
        model = make()[0]
        losses.append(backward(model, batch, micro))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    assert all(count == batch.num_targets for _, count in losses)
    for loss, _ in losses[1:]:
        assert loss == pytest.approx(losses[0][0], rel=1e-6)
    for grad in grads[1:]:
        torch.testing.assert_close(grad, grads[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("optimizer", NAMES)
def test_loss_01_04_weights_after_a_run_do_not_depend_on_how_the_batch_is_cut(tmp_path: Path, optimizer: str) -> None:
    """Micro-batches of 4, 2, 1 and 3 + 1 rows. Orthogonalising magnifies rounding in directions the gradient hardly has."""
    ends = []
    for micro in (4, 2, 1, 3):
        model, optim, stream = make(optimizer)
        ctx = Context.for_test(tmp_path / str(micro), "pretrain", {})
        train(ctx, model, optim, stream, settings(6, micro), lambda step: {})
        ends.append(([values[name] for _, values in ctx._points for name in ("loss", "grad_norm") if name in values], weights(model)))
    for curve, end in ends[1:]:
        assert curve == pytest.approx(ends[0][0], rel=1e-3)
        torch.testing.assert_close(end, ends[0][1], rtol=1e-3, atol=1e-3 if optimizer == "muon" else 1e-4)


def test_loss_02_the_schedule_counts_updates_not_micro_batches(tmp_path: Path) -> None:
    """Warm-up of 10 updates with accumulation 4: the peak is reached exactly at update 10; micro-batches of 0 rows are refused."""
    ctx = Context.for_test(tmp_path, "pretrain", {})
    ten = dataclasses.replace(settings(12, micro=1), lr_multiplier=make_schedule("wsd", total=12, warmup=10, decay_fraction=0.0))
    train(ctx, *make(), ten, lambda step: {})
    rates = [values["lr"] for _, values in ctx._points if "lr" in values]
    assert rates == pytest.approx([0.001 * n for n in range(1, 11)] + [0.01, 0.01]) and rates[9] == 0.01
    with pytest.raises(StageError, match="micro_batch_rows=0 must be at least 1"):
        backward(make()[0], make()[2].next(), 0)


def test_data_06_packed_loss_is_the_sum_over_the_documents_alone() -> None:
    first, second = np.array([3, 4, 5]), np.array([7, 8, 9, 10, 11])
    model = make()[0]

    def alone(tokens: np.ndarray) -> float:
        row = tokens[None].astype(np.int64)
        targets = np.concatenate([row[:, 1:], [[-100]]], axis=1)
        return backward(model, PackedBatch(row, targets, np.arange(len(tokens))[None], np.zeros_like(row)), 1)[0]

    packed = PackedBatch(np.concatenate([first, second])[None], np.array([[4, 5, -100, 8, 9, 10, 11, -100]]), np.array([[0, 1, 2, 0, 1, 2, 3, 4]]),
                         np.array([[0, 0, 0, 1, 1, 1, 1, 1]]))
    assert backward(model, packed, 1)[0] == pytest.approx(alone(first) + alone(second), rel=1e-6)


@pytest.mark.parametrize("optimizer", NAMES)
@pytest.mark.parametrize("stop_at", [1, 4, 7, 11])
def test_ckpt_05_06_07_stopped_and_resumed_equals_unbroken(tmp_path: Path, stop_at: int, optimizer: str) -> None:
    model, optim, stream = make(optimizer)
    unbroken = Context.for_test(tmp_path / "a", "pretrain", {})
    train(unbroken, model, optim, stream, settings(12), lambda step: {"val_x": float(step)})
    unbroken.write_curves()

    broken = Context.for_test(tmp_path / "b", "pretrain", {})
    broken.stop_requested = lambda: len(broken._points) >= stop_at
    with pytest.raises(Interrupted, match="checkpoint saved at step"):
        train(broken, *make(optimizer), settings(12), lambda step: {"val_x": float(step)})
    resumed = Context.for_test(tmp_path / "b", "pretrain", {})
    again, optim, stream = make(optimizer)
    train(resumed, again, optim, stream, settings(12), lambda step: {"val_x": float(step)})
    resumed.write_curves()
    assert torch.equal(weights(again), weights(model))
    for name in ("curve.csv", "val.csv"):
        assert (tmp_path / "b/out" / name).read_bytes() == (tmp_path / "a/out" / name).read_bytes()


@pytest.mark.parametrize("precision", ["moss", "fp8_delayed", "mxfp8"])
def test_fp8_03_killed_twice_and_resumed_equals_unbroken(tmp_path: Path, precision: str) -> None:
    """Bit for bit: weights, curves (losses and counts of casts among them), and the scales themselves."""
    model, optim, stream = make_in(precision)
    unbroken = Context.for_test(tmp_path / "a", "pretrain", {})
    train(unbroken, model, optim, stream, settings(12), lambda step: {"val_x": float(step)})
    unbroken.write_curves()
    for stop_at in (3, 7):
        broken = Context.for_test(tmp_path / "b", "pretrain", {})
        broken.stop_requested = lambda broken=broken, stop_at=stop_at: len(broken._points) >= stop_at
        with pytest.raises(Interrupted, match="checkpoint saved at step"):
            train(broken, *make_in(precision), settings(12), lambda step: {"val_x": float(step)})
    resumed = Context.for_test(tmp_path / "b", "pretrain", {})
    again, optim, stream = make_in(precision)
    train(resumed, again, optim, stream, settings(12), lambda step: {"val_x": float(step)})
    resumed.write_curves()
    assert torch.equal(weights(again), weights(model))
    ours, theirs = precision_state(again), precision_state(model)
    assert ours and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("curve.csv", "val.csv"):
        assert (tmp_path / "b/out" / name).read_bytes() == (tmp_path / "a/out" / name).read_bytes()
    totals = cast_totals(model)
    assert totals["fp8_underflowed"] > 0 and (precision != "moss" or totals["fp8_saturated"] == 0)
    assert "fp8_saturated" in (tmp_path / "a/out/curve.csv").read_text().splitlines()[0]


def test_fp8_04_checkpoints_keep_their_size(tmp_path: Path) -> None:
    train(Context.for_test(tmp_path, "pretrain", {}), *make_in("fp8_delayed"), settings(12), lambda step: {})
    folders = sorted((tmp_path / "work/state").glob("step-*/state.safetensors"))
    assert len(folders) == 2 and len({path.stat().st_size for path in folders}) == 1


def test_fp8_03_a_checkpoint_without_scales_starts_them_safely(tmp_path: Path) -> None:
    """Saved in bfloat16, continued in moss and fp8_delayed: scales come from the weights and tensors, and the user is told."""
    for precision in ("moss", "fp8_delayed"):
        first = Context.for_test(tmp_path / precision, "pretrain", {})
        first.stop_requested = lambda first=first: len(first._points) >= 4
        with pytest.raises(Interrupted):
            train(first, *make_in("bf16"), settings(12), lambda step: {})
        notes: list[str] = []
        second = Context.for_test(tmp_path / precision, "pretrain", {})
        second.note = notes.append
        model, optim, stream = make_in(precision)
        assert train(second, model, optim, stream, settings(12), lambda step: {}) == 0
        assert any("no precision state" in note for note in notes) and cast_totals(model)["fp8_scale_refreshes"] > 0
        losses = [values["loss"] for _, values in second._points if "loss" in values]
        assert max(losses[4:]) < losses[0] * 1.1


def test_ckpt_02_damaged_newest_checkpoint_falls_back_and_still_agrees(tmp_path: Path) -> None:
    model, optim, stream = make()
    train(Context.for_test(tmp_path / "a", "pretrain", {}), model, optim, stream, settings(12), lambda step: {})
    broken = Context.for_test(tmp_path / "b", "pretrain", {})
    broken.stop_requested = lambda: len(broken._points) >= 9
    with pytest.raises(Interrupted):
        train(broken, *make(), settings(12), lambda step: {})
    newest = sorted((tmp_path / "b/work/state").glob("step-*/state.safetensors"))[-1]
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    notes: list[str] = []
    resumed = Context.for_test(tmp_path / "b", "pretrain", {})
    resumed.note = notes.append
    again, optim, stream = make()
    train(resumed, again, optim, stream, settings(12), lambda step: {})
    assert any("step-00000008 is damaged" in note for note in notes) and "resumed at step 4" in notes, notes
    assert torch.equal(weights(again), weights(model))


@pytest.mark.parametrize("optimizer", NAMES)
def test_ckpt_05_07_stopped_twice_equals_unbroken(tmp_path: Path, optimizer: str) -> None:
    model, optim, stream = make(optimizer)
    train(Context.for_test(tmp_path / "a", "pretrain", {}), model, optim, stream, settings(12), lambda step: {})
    for updates in (3, 5):
        broken = Context.for_test(tmp_path / "b", "pretrain", {})
        seen = []
        broken.log = lambda step, seen=seen, **values: seen.append(step)
        broken.stop_requested = lambda seen=seen, updates=updates: len(seen) >= updates
        with pytest.raises(Interrupted):
            train(broken, *make(optimizer), settings(12), lambda step: {})
    again, optim, stream = make(optimizer)
    train(Context.for_test(tmp_path / "b", "pretrain", {}), again, optim, stream, settings(12), lambda step: {})
    assert torch.equal(weights(again), weights(model))


@pytest.mark.parametrize("optimizer", NAMES)
def test_fp8_05_one_non_finite_gradient_is_skipped_and_the_run_goes_on(tmp_path: Path, optimizer: str) -> None:
    model, optim, stream = make(optimizer)
    calls = iter(range(100))
    poisoned = model.model.layers[0].mlp.down_proj.weight
    poisoned.register_hook(lambda grad: grad * float("inf") if next(calls) == 2 else grad)
    ctx = Context.for_test(tmp_path, "pretrain", {})
    assert train(ctx, model, optim, stream, settings(6), lambda step: {}) == 1
    assert [values["skipped"] for _, values in ctx._points if "skipped" in values] == [0, 0, 1, 1, 1, 1]
    assert weights(model).isfinite().all()


def test_ckpt_07_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    ctx = Context.for_test(tmp_path, "pretrain", {})
    ctx.stop_requested = lambda: len(ctx._points) >= 2
    with pytest.raises(Interrupted):
        train(ctx, *make("adamw"), settings(12), lambda step: {})
    with pytest.raises(ValueError, match="another optimizer's: got AdamW for Muon"):
        train(Context.for_test(tmp_path, "pretrain", {}), *make("muon"), settings(12), lambda step: {})


@pytest.mark.parametrize("optimizer", NAMES)
def test_fp8_05_non_finite_gradients_are_skipped_counted_and_stop_the_run(tmp_path: Path, optimizer: str) -> None:
    model, optim, stream = make(optimizer)
    before = weights(model)
    poisoned = model.model.layers[0].mlp.down_proj.weight
    poisoned.register_hook(lambda grad: torch.full_like(grad, float("nan")))
    ctx = Context.for_test(tmp_path, "pretrain", {})
    with pytest.raises(RuntimeError, match="not finite for 3 updates in a row .step 3.*Lower peak_lr"):
        train(ctx, model, optim, stream, settings(12), lambda step: {})
    assert torch.equal(weights(model), before)
    assert [values["skipped"] for _, values in ctx._points] == [1, 2, 3]


def test_sizes_that_do_not_fit_are_refused() -> None:
    assert (steps_for(100, 40), rows_per_step(64, 16)) == (2, 4)
    with pytest.raises(StageError, match="less than one step of 40 tokens"):
        steps_for(39, 40)
    with pytest.raises(StageError, match="multiple of seq_len=16; nearest above: 80"):
        rows_per_step(65, 16)
