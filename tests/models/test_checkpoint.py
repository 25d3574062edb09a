"""Checkpoints: kills, damage, rotation, full disks, exact optimizer and random state (CKPT-01 to CKPT-05, CKPT-07)."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from models.architectures.decoder import Decoder
from models.checkpoint import (
    build_decoder,
    load_model,
    load_state,
    optimizer_tensors,
    restore_optimizer,
    restore_rng,
    rng_tensors,
    save_model,
    save_state,
)
from tests.models.toy import FAMILIES, TOY, random_tokens, toy_model


def state_of(step: int) -> dict[str, torch.Tensor]:
    """A state whose every value says which step it belongs to."""
    return {"a": torch.full((1000,), step), "b": torch.full((30, 7), float(step))}


def quiet(text: str) -> None:
    raise AssertionError(f"nothing should be reported, got: {text}")


# Model folders


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_round_trip_is_bit_exact(tmp_path: Path, config, dtype: torch.dtype) -> None:
    model = toy_model(config).to(dtype)
    save_model(tmp_path / "model", model, {"stage": "sft", "lr": 0.1})
    loaded, meta = load_model(tmp_path / "model")
    assert meta == {"stage": "sft", "lr": 0.1}
    assert loaded.config == config
    for (name, saved), (other, value) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == other and saved.dtype == value.dtype and torch.equal(saved, value)
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in loaded.parameters())
    assert torch.equal(model(random_tokens(2, 5)), loaded(random_tokens(2, 5)))


def test_equal_models_give_equal_bytes_and_a_resave_replaces(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_model(tmp_path / name, toy_model(seed=9), {"b": 1, "a": 2})
        save_model(tmp_path / name, toy_model(), {"b": 1, "a": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert torch.equal(load_model(tmp_path / "one")[0].model.norm.weight, toy_model().model.norm.weight)


def test_damaged_model_folder_is_refused_by_name(tmp_path: Path) -> None:
    save_model(tmp_path / "model", toy_model(), {})
    path = tmp_path / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="not the bytes recorded in config.json"):
        load_model(tmp_path / "model")
    path.unlink()
    with pytest.raises(ValueError, match="model.safetensors: missing"):
        load_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ValueError, match="from_hf_folder"):
        load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="no config.json"):
        load_model(tmp_path)


def test_exp_07_missing_unknown_and_misshapen_tensors_are_named() -> None:
    config = replace(TOY, tied_head=False)
    tensors = toy_model(config).state_dict()
    with pytest.raises(ValueError, match="lm_head.weight is missing, yet the config says the head is untied"):
        build_decoder(config, {name: value for name, value in tensors.items() if name != "lm_head.weight"}, "here")
    with pytest.raises(ValueError, match=r"missing: \['model.layers.1.mlp.up_proj.weight'\]"):
        build_decoder(config, {name: value for name, value in tensors.items() if name != "model.layers.1.mlp.up_proj.weight"}, "here")
    with pytest.raises(ValueError, match=r"unknown: \['lm_head.weight'\]"):
        build_decoder(TOY, tensors, "here")
    with pytest.raises(ValueError, match=r"model.norm.weight \(31,\), expected \(32,\)"):
        build_decoder(config, {**tensors, "model.norm.weight": torch.ones(31)}, "here")


# Resume state


def test_state_round_trip(tmp_path: Path) -> None:
    assert load_state(tmp_path / "none", note=quiet) is None
    folder = save_state(tmp_path / "root", 123, state_of(123), {"cursor": [1, 2], "lr": 0.1 + 0.2})
    assert folder == tmp_path / "root" / "step-00000123"
    step, tensors, meta = load_state(tmp_path / "root", note=quiet)
    assert (step, meta) == (123, {"cursor": [1, 2], "lr": 0.1 + 0.2})
    assert all(torch.equal(tensors[name], value) for name, value in state_of(123).items())


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(0, 50, 10):
        save_state(tmp_path, step, state_of(step), {}, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020", "step-00000030", "step-00000040"]
    for step, keep in ((-1, 2), (1, 0)):
        with pytest.raises(ValueError, match="step >= 0 and keep >= 1"):
            save_state(tmp_path, step, {}, {}, keep=keep)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_state(tmp_path, 5, state_of(4), {})
    save_state(tmp_path, 5, state_of(5), {})
    assert load_state(tmp_path, note=quiet)[1]["a"][0] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1024])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("file", ["state.safetensors", "meta.json"])
@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink])
def test_ckpt_02_damage_falls_back_to_the_newest_intact(tmp_path: Path, file: str, damage: Callable[[Path], None]) -> None:
    for step in (10, 20, 30):
        save_state(tmp_path, step, state_of(step), {"padding": "x" * 2000}, keep=3)
    damage(tmp_path / "step-00000030" / file)
    notes: list[str] = []
    step, tensors, _ = load_state(tmp_path, note=notes.append)
    assert step == 20 and tensors["a"][0] == 20
    assert any("step-00000030 is damaged" in note for note in notes)
    assert any("10 steps are lost" in note for note in notes)
    # The run goes on and passes the damaged step.
    save_state(tmp_path, 30, state_of(31), {}, keep=2)
    assert load_state(tmp_path, note=quiet)[1]["a"][0] == 31


def test_ckpt_02_every_one_damaged_starts_anew_and_says_so(tmp_path: Path) -> None:
    for step in (10, 20):
        empty(save_state(tmp_path, step, state_of(step), {}) / "state.safetensors")
    notes: list[str] = []
    assert load_state(tmp_path, note=notes.append) is None
    assert "no intact checkpoint" in notes[-1] and "20 steps are lost" in notes[-1]


def test_ckpt_03_a_stale_higher_step_is_neither_kept_nor_resumed(tmp_path: Path) -> None:
    save_state(tmp_path, 1000, state_of(1000), {"run": "old"})
    shutil.copytree(tmp_path / "step-00001000", tmp_path / "copy")
    save_state(tmp_path, 10, state_of(10), {"run": "new"}, keep=1)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000010"]
    # Killed after the rename and before the pruning: both folders are there, and the fresh one is the newer.
    (tmp_path / "copy").rename(tmp_path / "step-00001000")
    assert load_state(tmp_path, note=quiet)[2] == {"run": "new"}


def test_ckpt_03_a_failed_save_removes_nothing(tmp_path: Path) -> None:
    save_state(tmp_path, 10, state_of(10), {}, keep=1)
    with pytest.raises(ValueError, match="complex64"):
        save_state(tmp_path, 20, {"z": torch.zeros(3, dtype=torch.complex64)}, {}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert load_state(tmp_path, note=quiet)[0] == 10


def test_ckpt_04_full_disk_then_space_again(tiny_disk: Path) -> None:
    root = tiny_disk / "state"
    save_state(root, 1, {"x": torch.ones(150_000)}, {})
    with pytest.raises(OSError, match="step-00000002 was not written: the disk is full"):
        save_state(root, 2, {"x": torch.full((150_000,), 2.0)}, {}, keep=1)
    assert [path.name for path in root.iterdir()] == ["step-00000001"]
    step, tensors, _ = load_state(root, note=quiet)
    assert step == 1 and tensors["x"].sum() == 150_000
    save_state(root, 2, {"x": torch.ones(50_000)}, {}, keep=1)
    assert load_state(root, note=quiet)[0] == 2


def save_forever(root: Path, first: int, ready: Connection) -> None:
    """Child process: saves ever higher steps until it is killed."""
    torch.set_num_threads(1)
    for step in range(first, 10**7):
        save_state(root, step, {"x": torch.full((300_000,), step), "y": torch.full((1,), step)}, {"step": step}, keep=2)
        ready.send(step)


def test_ckpt_01_killed_at_random_moments_the_previous_checkpoint_loads(tmp_path: Path) -> None:
    """SIGKILL while saving: what `load_state` gives is whole, no older than the last finished save, and leftovers are gone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.models.test_checkpoint"])
    moments = random.Random(0)
    first = 1
    for _ in range(15):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=save_forever, args=(tmp_path, first, sender))
        child.start()
        done = receiver.recv()
        time.sleep(moments.uniform(0.0, 0.03))
        child.kill()
        child.join()
        while receiver.poll():
            done = receiver.recv()
        step, tensors, meta = load_state(tmp_path, note=quiet)
        assert step >= done and meta == {"step": step}
        assert (tensors["x"] == step).all() and tensors["y"].item() == step
        assert all(path.name.startswith("step-") for path in tmp_path.iterdir())
        first = step + 1


def test_ckpt_01_leftovers_of_every_kind_are_cleaned_and_a_set_aside_folder_returns(tmp_path: Path) -> None:
    save_state(tmp_path, 10, state_of(10), {})
    (tmp_path / ".tmp-step-00000011").mkdir()
    (tmp_path / ".tmp-step-00000011" / "state.safetensors").write_bytes(b"half")
    (tmp_path / ".trash-step-00000009").mkdir()
    # Killed between the two renames of a replacement: the old folder is aside, the new one not yet in place.
    (tmp_path / "step-00000010").rename(tmp_path / ".old-step-00000010")
    assert load_state(tmp_path, note=quiet)[0] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


# Optimizer and random state


def train(model: Decoder, optim: torch.optim.Optimizer, steps: int, seed: int) -> list[float]:
    losses = []
    for step in range(steps):
        tokens = random_tokens(2, 9, seed=seed + step)
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "adamw amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
    "sgd momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-2),
}


@pytest.mark.parametrize("make_fn", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_ckpt_07_resumed_losses_and_state_are_those_of_the_unbroken_run(tmp_path: Path, make_fn) -> None:
    model = toy_model()
    optim = make_fn(model.parameters())
    train(model, optim, 3, seed=0)
    save_state(tmp_path, 3, {**model.state_dict(), **optimizer_tensors(optim, model)}, {})
    unbroken = train(model, optim, 5, seed=100)

    _, tensors, _ = load_state(tmp_path, note=quiet)
    resumed = Decoder(TOY)
    resumed.load_state_dict({name: tensors[name] for name in resumed.state_dict()})
    fresh = make_fn(resumed.parameters())
    restore_optimizer(fresh, resumed, tensors)
    assert train(resumed, fresh, 5, seed=100) == unbroken
    for one, two in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, two)
        assert optim.state[one].keys() == fresh.state[two].keys()
        for key, value in optim.state[one].items():
            assert value is None or torch.equal(value, fresh.state[two][key])


def test_ckpt_07_cold_moments_would_show() -> None:
    """The check above can fail: the same resume without the optimizer's state gives other losses."""
    model, other = toy_model(), Decoder(TOY)
    optim = OPTIMIZERS["adamw"](model.parameters())
    train(model, optim, 3, seed=0)
    other.load_state_dict(model.state_dict())
    assert train(other, OPTIMIZERS["adamw"](other.parameters()), 3, seed=100) != train(model, optim, 3, seed=100)


def test_ckpt_07_missing_or_foreign_optimizer_state_is_refused() -> None:
    model = toy_model()
    optim = OPTIMIZERS["adamw"](model.parameters())
    train(model, optim, 1, seed=0)
    tensors = optimizer_tensors(optim, model)
    with pytest.raises(ValueError, match="no optimizer state"):
        restore_optimizer(optim, model, model.state_dict())
    lost = {name: value for name, value in tensors.items() if name != "optim/model.norm.weight/exp_avg"}
    with pytest.raises(ValueError, match=r"lacks optimizer tensors \['optim/model.norm.weight/exp_avg'\]"):
        restore_optimizer(optim, model, lost)
    untied = toy_model(replace(TOY, tied_head=False))
    with pytest.raises(ValueError, match=r"\['lm_head.weight'\] are absent on one side"):
        restore_optimizer(OPTIMIZERS["adamw"](untied.parameters()), untied, tensors)
    wide = toy_model(replace(TOY, intermediate_size=64))
    with pytest.raises(ValueError, match="gate_proj.weight.* differ in shape"):
        restore_optimizer(OPTIMIZERS["adamw"](wide.parameters()), wide, tensors)
    with pytest.raises(ValueError, match="not the model's"):
        optimizer_tensors(optim, untied)


def test_a_parameter_without_gradient_has_no_state_and_that_is_restored() -> None:
    model = toy_model()
    optim = OPTIMIZERS["adamw"](model.parameters())
    model.model.norm.weight.requires_grad_(False)
    train(model, optim, 1, seed=0)
    tensors = optimizer_tensors(optim, model)
    restore_optimizer(optim, model, tensors)
    assert model.model.norm.weight not in optim.state and model.model.embed_tokens.weight in optim.state


def test_restored_state_is_a_copy() -> None:
    model = toy_model()
    optim = OPTIMIZERS["adamw"](model.parameters())
    train(model, optim, 1, seed=0)
    tensors = {name: value.clone() for name, value in optimizer_tensors(optim, model).items()}
    restore_optimizer(optim, model, tensors)
    before = tensors["optim/model.norm.weight/exp_avg"].clone()
    train(model, optim, 1, seed=1)
    assert torch.equal(tensors["optim/model.norm.weight/exp_avg"], before)


def test_ckpt_05_random_state_continues_exactly(tmp_path: Path) -> None:
    torch.manual_seed(3)
    torch.rand(7)
    save_state(tmp_path, 1, rng_tensors(), {})
    unbroken = F.dropout(torch.ones(100), 0.1)
    torch.rand(5)
    restore_rng(load_state(tmp_path, note=quiet)[1])
    assert torch.equal(F.dropout(torch.ones(100), 0.1), unbroken)


def test_ckpt_05_missing_random_state_or_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="no random state"):
        restore_rng({})
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="CUDA device 99"):
        restore_rng({**rng_tensors(), "rng/torch_cuda/99": torch.get_rng_state()})
    assert torch.equal(before, torch.get_rng_state())


def test_meta_survives_as_json(tmp_path: Path) -> None:
    folder = save_state(tmp_path, 1, {}, {"名": "é", "nested": {"b": [1.5, None, True]}})
    assert json.loads((folder / "meta.json").read_text(encoding="utf-8"))["meta"]["名"] == "é"
    assert load_state(tmp_path, note=quiet)[2] == {"名": "é", "nested": {"b": [1.5, None, True]}}
