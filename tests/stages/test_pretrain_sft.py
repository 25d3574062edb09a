"""pretrain and sft on a toy corpus: they learn, they repeat exactly, every precision and method runs or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models import checkpoint
from stages import pretrain, sft
from stages.config import StageError
from stages.context import Context
from tests.stages import toy_chain

SHAPE = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "rope_base": 1e4, "norm_eps": 1e-6,
         "tied_head": True, "qk_norm": True, "qkv_bias": False}
LOOP = {"seq_len": 64, "damaged_shards": "fail", "tokens_per_step": 256, "micro_batch_rows": 2, "peak_lr": 0.01, "warmup_steps": 2, "weight_decay": 0.1,
        "optimizer": "adamw", "schedule": "wsd", "decay_fraction": 0.5, "final_fraction": None,
        "muon": {"momentum": 0.95, "nesterov": True, "update_rms": 0.18, "fast_steps": 8, "settling_steps": 2, "newton_schulz_dtype": "fp32"},
        "beta1": 0.9, "beta2": 0.95, "clip_norm": 1.0, "eval_every": 4, "checkpoint_every": 4}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_chain.tokenize_output(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Path:
    return run_pretrain(tmp_path_factory.mktemp("base"), tokens)[0]


def run_pretrain(folder: Path, tokens: Path, note: Callable[[str], None] | None = None, **changes: object) -> tuple[Path, dict[str, float]]:
    cfg = pretrain.Config.model_validate({**LOOP, "packing": "sequential", "model": SHAPE, "precision": "fp8_tensorwise", "total_tokens": 8 * 256, "eval_rows": 4, "sample_tokens": 4,
                                          **changes})
    ctx = Context.for_test(folder, "pretrain", {"tokenize": tokens})
    ctx.note = note or ctx.note
    metrics = pretrain.run(cfg, ctx)
    ctx.write_curves()
    return ctx.out, metrics


def run_sft(folder: Path, tokens: Path, base: Path, **changes: object) -> tuple[Path, dict[str, float]]:
    lora = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]}
    cfg = sft.Config.model_validate({**LOOP, "packing": "best_fit", "method": "full", "lora": lora, "precision": "fp32", "steps": 8, **changes})
    ctx = Context.for_test(folder, "sft", {"tokenize": tokens, "pretrain": base})
    return ctx.out, sft.run(cfg, ctx)


def test_loss_falls_and_the_output_is_complete(tokens: Path, base: Path) -> None:
    rows = [line.split(",") for line in (base / "curve.csv").read_text().splitlines()]
    losses = [float(row[1]) for row in rows[1:]]
    assert rows[0][:2] == ["step", "loss"] and len(losses) == 8 and losses[-1] < losses[0] - 0.5
    assert {path.name for path in base.iterdir()} == {"model", "tokenizer", "curve.csv", "val.csv", "samples.txt"}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_blockwise", "mxfp8", "moss"])
def test_every_precision_trains_and_repeats_bit_for_bit(tmp_path: Path, tokens: Path, precision: str) -> None:
    first, metrics = run_pretrain(tmp_path / "a", tokens, precision=precision)
    second, again = run_pretrain(tmp_path / "b", tokens, precision=precision)
    assert metrics == again
    for name in ("model/model.safetensors", "model/config.json", "curve.csv", "val.csv", "samples.txt"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_loss_01_micro_batches_change_nothing_but_rounding(tmp_path: Path, tokens: Path) -> None:
    curves = []
    for rows in (1, 4):
        out, _ = run_pretrain(tmp_path / str(rows), tokens, precision="fp32", micro_batch_rows=rows)
        curves.append([float(line.split(",")[1]) for line in (out / "curve.csv").read_text().splitlines()[1:]])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)


@pytest.mark.parametrize(("changes", "message"), [
    ({"total_tokens": 255}, "less than one step of 256"),
    ({"tokens_per_step": 100}, "multiple of seq_len=64; nearest above: 128"),
    ({"warmup_steps": 7}, "got warmup=7 and 4 decaying updates .* in a run of 8"),
    ({"schedule": "cosine"}, r"schedule 'cosine': got \['decay_fraction'\], expected exactly \['final_fraction'\]; set the others to null"),
    ({"tokens_per_step": 64 * 4096, "total_tokens": 64 * 8192, "warmup_steps": 0}, "do not fill one batch"),
])
def test_settings_that_cannot_work_are_refused(tmp_path: Path, tokens: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_pretrain(tmp_path, tokens, **changes)


@pytest.mark.parametrize(("changes", "last"), [
    ({"optimizer": "muon"}, 1 / 5), ({"schedule": "cosine", "decay_fraction": None, "final_fraction": 0.1}, 0.144564),
    ({"schedule": "linear", "decay_fraction": None, "final_fraction": 0.0}, 1 / 7),
])
def test_every_optimizer_and_schedule_trains_and_says_so(tmp_path: Path, tokens: Path, changes: dict, last: float) -> None:
    """The last of 8 updates: one of five parts of the ramp of 4; the cosine 6/7 of the way to a tenth; a seventh of the line to zero."""
    notes: list[str] = []
    out, _ = run_pretrain(tmp_path, tokens, note=notes.append, **changes)
    rows = [line.split(",") for line in (out / "curve.csv").read_text().splitlines()]
    rates, losses = ([float(row[rows[0].index(name)]) for row in rows[1:]] for name in ("lr", "loss"))
    assert rates[1] == max(rates) == 0.01 and rates[-1] == pytest.approx(0.01 * last, rel=1e-4)
    assert losses[-1] < losses[0] - 0.3
    wanted = "Muon, decay 0.1: 14 tensors" if "optimizer" in changes else "AdamW, decay 0.1: 15 tensors"
    assert any(wanted in note and "AdamW, no decay: 9 tensors" in note for note in notes), notes


def test_sft_under_muon_and_its_refusal_for_adapters(tmp_path: Path, tokens: Path, base: Path) -> None:
    _, metrics = run_sft(tmp_path / "full", tokens, base, optimizer="muon", peak_lr=0.003)
    _, before = run_sft(tmp_path / "still", tokens, base, optimizer="muon", peak_lr=1e-9)
    assert metrics["val_loss"] < before["val_loss"] and metrics["skipped_updates"] == 0
    with pytest.raises(StageError, match="method 'lora' with optimizer 'muon'.*expected optimizer: adamw or method: full"):
        run_sft(tmp_path / "lora", tokens, base, method="lora", optimizer="muon")


def test_widths_fp8_cannot_take_are_refused(tmp_path: Path, tokens: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        run_pretrain(tmp_path, tokens, model={**SHAPE, "intermediate_size": 40})


def test_sft_trains_every_weight_or_an_adapter(tmp_path: Path, tokens: Path, base: Path) -> None:
    full, metrics = run_sft(tmp_path / "full", tokens, base)
    lora, with_adapter = run_sft(tmp_path / "lora", tokens, base, method="lora")
    before = checkpoint.load_model(base / "model")[0].state_dict()
    after_full, after_lora = (checkpoint.load_model(out / "model")[0].state_dict() for out in (full, lora))
    assert set(before) == set(after_full) == set(after_lora)
    moved = {name for name in before if not torch.equal(before[name], after_lora[name])}
    assert moved and all("q_proj" in name or "down_proj" in name for name in moved)
    assert sum(not torch.equal(before[name], after_full[name]) for name in before) == len(before)
    assert with_adapter["trained_parameters"] < metrics["trained_parameters"] / 2
    assert with_adapter["merge_max_logit_difference"] <= 1e-4
    assert len(json.loads((lora / "merge.json").read_text())["tensors"]) == 4


def test_sft_lora_in_fp8_runs_and_merges(tmp_path: Path, tokens: Path, base: Path) -> None:
    _, metrics = run_sft(tmp_path, tokens, base, method="lora", precision="fp8_tensorwise", lora={"rank": 16, "alpha": 16.0, "targets": ["gate_proj"]})
    assert metrics["merge_max_logit_difference"] <= 1e-4


def test_sft_04_another_tokenizer_is_refused(tmp_path: Path, tokens: Path, base: Path) -> None:
    other = toy_chain.training_output(tmp_path / "other", tokens, checkpoint.load_model(base / "model")[0])
    path = other / "tokenizer/tokenizer_config.json"
    path.write_text(path.read_text().replace("<|im_end|>", "<|im_start|>", 1))
    text = (other / "tokenizer/tokenizer.json").read_text()
    (other / "tokenizer/tokenizer.json").write_text(text.replace('"<think>"', '"<thinks>"'))
    with pytest.raises(ValueError, match="tokenizer"):
        run_sft(tmp_path / "run", tokens, other)


def test_sft_longer_rows_than_the_base_model_are_refused(tmp_path: Path, tokens: Path, base: Path) -> None:
    with pytest.raises(StageError, match="exceeds the base model's context of 64"):
        run_sft(tmp_path, tokens, base, seq_len=128)
