"""Checkpoints: safetensors + JSON, published whole by one rename, verified by sha256 when read.

A model folder holds model.safetensors and config.json (architecture, caller's meta, hash). A state root holds step-00000123/ folders
with state.safetensors and meta.json: everything a run needs to continue bit for bit (weights, optimizer state, random states).
`load_state` takes the newest intact folder; newest means last written, not highest number, so a leftover of an older run loses.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from models.architectures.decoder import Decoder, DecoderConfig
from models.storage import flush_entry, publish_folder, read_tensors, sha256_file, write_json, write_tensors

MODEL_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
STATE_FILE = "state.safetensors"
META_FILE = "meta.json"
OPTIM = "optim/"
MANIFEST = OPTIM + "manifest"
RNG_CPU = "rng/torch_cpu"
RNG_CUDA = "rng/torch_cuda/"


@runtime_checkable
class PackedState(Protocol):
    """An optimizer whose state holds tensors that no file format knows, such as 8-bit moments with their scales."""

    def take_apart(self, key: str, value: Tensor) -> dict[str, Tensor]: ...

    def put_together(self, parameter: Tensor, parts: Mapping[str, Tensor]) -> dict[str, Tensor]: ...


def save_model(folder: Path, model: Decoder, meta: Mapping[str, Any]) -> None:
    """Writes model.safetensors and config.json as one folder, replacing an older one in one step.

    Equal weights and meta give equal bytes. meta is any JSON object. Raises OSError with the cause when the disk refuses.
    """

    def fill(temporary: Path) -> None:
        digest = write_tensors(temporary / MODEL_FILE, model.state_dict(), {"format": "pt"})
        config = {"architecture": model.config.to_dict(), "meta": dict(meta), "sha256": digest}
        write_json(temporary / CONFIG_FILE, config)

    publish_folder(folder, fill)


def load_model(folder: Path) -> tuple[Decoder, dict[str, Any]]:
    """The model (on CPU, stored dtype) and its meta. Raises ValueError for a damaged folder or a missing or unknown tensor."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: got no {CONFIG_FILE}; expected a model folder written by save_model")
    config = _read_json(path)
    missing = sorted({"architecture", "meta", "sha256"} - set(config))
    if missing:
        raise ValueError(
            f"{path}: keys {missing} are missing; expected a model folder written by save_model (a Hugging Face folder is read by "
            "models.interop.from_hf_folder)"
        )
    if not (folder / MODEL_FILE).is_file() or sha256_file(folder / MODEL_FILE) != config["sha256"]:
        raise ValueError(f"{folder / MODEL_FILE}: missing or not the bytes recorded in {CONFIG_FILE}; restore it or rerun its stage")
    model = build_decoder(DecoderConfig.from_dict(config["architecture"]), read_tensors(folder / MODEL_FILE), str(folder))
    return model, config["meta"]


def build_decoder(config: DecoderConfig, tensors: Mapping[str, Tensor], where: str) -> Decoder:
    """A Decoder whose parameters are exactly `tensors`; any missing, unknown or misshapen one is a ValueError naming it."""
    with torch.device("meta"):
        model = Decoder(config)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    missing = sorted(set(shapes) - set(tensors))
    unknown = sorted(set(tensors) - set(shapes))
    if "lm_head.weight" in missing:
        raise ValueError(f"{where}: tensor lm_head.weight is missing, yet the config says the head is untied; restore the tensor, or "
                         "set the tie flag if the head is the embedding")  # fmt: skip
    if missing or unknown:
        raise ValueError(f"{where}: tensors missing: {missing}, unknown: {unknown}; expected exactly the config's {len(shapes)} tensors")
    wrong = [f"{name} {tuple(tensors[name].shape)}, expected {shape}" for name, shape in shapes.items() if tensors[name].shape != shape]
    if wrong:
        raise ValueError(f"{where}: wrong shapes: {'; '.join(wrong)}; the tensors and the config belong to different models")
    model.load_state_dict(dict(tensors), strict=True, assign=True)
    return model.requires_grad_(True)


def save_state(root: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], keep: int = 2) -> Path:
    """Writes root/step-<step>/ and returns it; then, and only then, removes all but the newest `keep` folders.

    Folders with a higher step are leftovers of a run that was given up (this run is at `step`), so they go first. meta is any JSON
    object. Raises ValueError for a negative step or keep < 1, OSError with the cause (older checkpoints stay) when the disk refuses.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"save_state: got step={step}, keep={keep}; expected step >= 0 and keep >= 1")
    folder = root / f"step-{step:08d}"
    serial = 1 + max((_serial(path) for path in _step_folders(root)), default=0)

    def fill(temporary: Path) -> None:
        digest = write_tensors(temporary / STATE_FILE, tensors)
        body = {"step": step, "serial": serial, "meta": dict(meta), "sha256": digest}
        write_json(temporary / META_FILE, {**body, "checksum": _checksum(body)})

    publish_folder(folder, fill)
    older = [path for path in _step_folders(root) if path != folder]
    stale = [path for path in older if _step(path) > step]
    rest = sorted((path for path in older if _step(path) < step), key=_step, reverse=True)
    for path in stale + rest[keep - 1 :]:
        _remove(path)
    return folder


def load_state(
    root: Path, note: Callable[[str], None] = warnings.warn
) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """(step, tensors, meta) of the newest intact checkpoint, or None. Leftovers of an interrupted save are removed.

    Every damaged folder is reported through `note`, with the steps lost by falling back (CKPT-02); it is kept until a later save
    passes it.
    """
    _clean(root)
    # A damaged meta.json has no serial (0) and is looked at first: it may have been the newest, and its damage must be told.
    order = sorted(_step_folders(root), key=lambda path: (_serial(path) == 0, _serial(path), _step(path)), reverse=True)
    damaged = []
    for path in order:
        try:
            meta, tensors = _read_state(path)
        except ValueError as error:
            damaged.append(_step(path))
            note(f"checkpoint {path.name} is damaged and skipped: {error}")
            continue
        lost = max(damaged, default=0) - _step(path)
        if lost > 0:
            note(f"resuming from step {_step(path)} instead of {_step(path) + lost}: {lost} steps are lost and run again")
        return _step(path), tensors, meta
    if damaged:
        note(f"no intact checkpoint in {root}: starting anew, {max(damaged)} steps are lost")
    return None


def optimizer_tensors(optim: torch.optim.Optimizer, model: torch.nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as "optim/<parameter>/<key>" tensors plus a manifest of what belongs to it; nothing is copied.

    Hyperparameters are not stored: they follow from the config and the step. Raises ValueError for a state value that is no tensor or
    a parameter that is not the model's.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    manifest: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Tensor] = {}
    for parameter, algorithm in _optimized(optim).items():
        if parameter not in names:
            raise ValueError("optimizer_tensors: the optimizer holds a parameter that is not the model's; build it from this model")
        name = names[parameter]
        state = _plain_state(optim, {key: value for key, value in optim.state.get(parameter, {}).items() if value is not None})
        manifest[name] = {"keys": sorted(state), "shape": list(parameter.shape), "algorithm": algorithm}
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"optimizer state {name}/{key} is {type(value).__name__}; expected a tensor; store it as one")
            tensors[f"{OPTIM}{name}/{key}"] = value
    tensors[MANIFEST] = torch.frombuffer(bytearray(json.dumps(manifest, sort_keys=True).encode()), dtype=torch.uint8)
    return tensors


def restore_optimizer(optim: torch.optim.Optimizer, model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts the state saved by `optimizer_tensors` back, bit for bit, on each parameter's device.

    Refuses (ValueError naming the tensors, CKPT-07) when any is missing, the parameters differ or the state is another optimizer's:
    without its moments the optimizer would restart cold and the loss would jump. Other entries of `tensors` are ignored.
    """
    if MANIFEST not in tensors:
        raise ValueError(f"checkpoint has no optimizer state ({MANIFEST} is missing); load the weights only and start the optimizer anew")
    manifest: dict[str, dict[str, Any]] = json.loads(bytes(tensors[MANIFEST].cpu().numpy()))
    names = {parameter: name for name, parameter in model.named_parameters()}
    wanted = {names[parameter]: list(parameter.shape) for parameter in _optimized(optim)}
    saved = {name: entry["shape"] for name, entry in manifest.items()}
    if wanted != saved:
        differ = sorted(name for name in wanted.keys() | saved.keys() if wanted.get(name) != saved.get(name))
        raise ValueError(f"optimizer state is for other parameters: {differ} are absent on one side or differ in shape; resume with the "
                         "config the checkpoint was made with")  # fmt: skip
    algorithms = {names[parameter]: algorithm for parameter, algorithm in _optimized(optim).items()}
    foreign = {(saved, algorithms[name]) for name, entry in manifest.items() if (saved := entry.get("algorithm", algorithms[name])) != algorithms[name]}
    if foreign:
        pairs = ", ".join(f"{saved} for {now}" for saved, now in sorted(foreign))
        raise ValueError(f"optimizer state is another optimizer's: got {pairs}; resume with the config the checkpoint was made with")
    expected = [f"{OPTIM}{name}/{key}" for name, entry in manifest.items() for key in entry["keys"]]
    lost = sorted(name for name in expected if name not in tensors)
    if lost:
        raise ValueError(f"checkpoint lacks optimizer tensors {lost}; use an older checkpoint or a weights-only start")
    for group in optim.param_groups:
        step_on_device = group.get("capturable", False) or group.get("fused", False)
        for parameter in group["params"]:
            state = {}
            for key in manifest[names[parameter]]["keys"]:
                value = tensors[f"{OPTIM}{names[parameter]}/{key}"]
                # torch keeps a scalar step counter on CPU unless the update kernel reads it on the device.
                device = parameter.device if value.dim() or step_on_device else torch.device("cpu")
                state[key] = value.detach().to(device, copy=True)
            if state:
                optim.state[parameter] = optim.put_together(parameter, state) if isinstance(optim, PackedState) else state
            else:
                optim.state.pop(parameter, None)


def rng_tensors() -> dict[str, Tensor]:
    """torch's random states: CPU, and every CUDA device once CUDA is in use. Names start with "rng/"."""
    tensors = {RNG_CPU: torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"{RNG_CUDA}{index}"] = state
    return tensors


def restore_rng(tensors: Mapping[str, Tensor]) -> None:
    """Puts the states of `rng_tensors` back. Raises ValueError when they are missing or need more CUDA devices than there are."""
    if RNG_CPU not in tensors:
        raise ValueError(f"checkpoint has no random state ({RNG_CPU} is missing); it cannot be resumed exactly")
    devices = sorted(int(name.removeprefix(RNG_CUDA)) for name in tensors if name.startswith(RNG_CUDA))
    if devices and devices[-1] >= torch.cuda.device_count():
        raise ValueError(
            f"checkpoint holds the random state of CUDA device {devices[-1]}; got {torch.cuda.device_count()} CUDA devices; resume on the "
            "machine shape it was made on"
        )
    torch.set_rng_state(tensors[RNG_CPU])
    for index in devices:
        torch.cuda.set_rng_state(tensors[f"{RNG_CUDA}{index}"], index)


def _plain_state(optim: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """State as tensors that a file can hold."""
    if not isinstance(optim, PackedState):
        return state
    return {name: part for key, value in state.items() for name, part in optim.take_apart(key, value).items()}


def _optimized(optim: torch.optim.Optimizer) -> dict[Tensor, str]:
    """Parameters in order, each with the algorithm that moves it: its group's "algorithm", or the optimizer's class."""
    return {parameter: group.get("algorithm", type(optim).__name__) for group in optim.param_groups for parameter in group["params"]}


def _step_folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if path.is_dir() and path.name.removeprefix("step-").isdigit())


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); restore it or write it anew") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: got a {type(value).__name__}; expected a JSON object")
    return value


def _read_meta(folder: Path) -> dict[str, Any]:
    body = _read_json(folder / META_FILE)
    checksum = body.pop("checksum", None)
    if checksum != _checksum(body) or body.get("step") != _step(folder):
        raise ValueError(f"{folder / META_FILE}: content does not match its checksum or folder name")
    return body


def _serial(folder: Path) -> int:
    """Rank of this save within its root, counted up by every save; 0 when meta.json is damaged."""
    try:
        return int(_read_meta(folder)["serial"])
    except ValueError:
        return 0


def _read_state(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    body = _read_meta(folder)
    path = folder / STATE_FILE
    if not path.is_file() or sha256_file(path) != body["sha256"]:
        raise ValueError(f"{path}: missing or not the bytes recorded in {META_FILE}")
    return body["meta"], read_tensors(path)


def _remove(folder: Path) -> None:
    """Renames before deleting, so that a kill midway leaves a leftover and not a damaged checkpoint."""
    trash = folder.with_name(f".trash-{folder.name}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(folder, trash)
    shutil.rmtree(trash, ignore_errors=True)


def _clean(root: Path) -> None:
    """Removes what an interrupted save left; a folder that was set aside but not yet replaced comes back."""
    for folder in sorted(root.glob(".old-step-*")):
        original = folder.with_name(folder.name.removeprefix(".old-"))
        if not original.exists():
            os.rename(folder, original)
            flush_entry(root)
    for pattern in (".old-step-*", ".tmp-step-*", ".trash-step-*"):
        for folder in root.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)
