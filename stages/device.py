"""Where tensors live. The machine decides, not params: a device moves no metric beyond rounding."""

from __future__ import annotations

import os

import torch

from stages.config import StageError

VARIABLE = "HEADRACE_DEVICE"


def pick_device() -> torch.device:
    """The device named by HEADRACE_DEVICE, else the first CUDA device, else the CPU. StageError when the named one is absent."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StageError(f"{VARIABLE}={name!r} is no device ({error}); expected cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise StageError(f"{VARIABLE}={name!r}, but this machine has {torch.cuda.device_count()} CUDA device(s); unset it or name cpu")
    return device
