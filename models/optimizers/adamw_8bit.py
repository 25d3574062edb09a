"""AdamW whose two moments are held in 8 bits, by torchao (an optional package; asked for by name and absent, it is refused).

In: a module. Out: an optimizer with a quarter of AdamW's state: blocks of 256 values share a float32 scale, a code is one of 256
values spaced dynamically (Dettmers et al. 2021, "8-bit optimizers via block-wise quantization", arXiv 2110.02861). A parameter of
fewer than 4,096 values, or of a number that 256 does not divide, keeps float32 moments. The update itself is computed in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from models.optimizers.adamw import param_groups

SIGNED = "exp_avg"
"""The moment that has a sign; the other, exp_avg_sq, uses all 256 codes above zero."""


def adamw_8bit(model: nn.Module, lr: float, betas: tuple[float, float], weight_decay: float, eps: float = 1e-8) -> torch.optim.Optimizer:
    """8-bit AdamW over the groups of `models.optimizers.adamw.param_groups`. ValueError when torchao is not installed."""
    try:
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import OptimState8bit
    except ImportError as error:
        raise ValueError(f"optimizer: got 'adamw_8bit', which needs torchao ({error}); expected it installed with "
                         "`pip install -r requirements-8bit.txt`, or optimizer: adamw or muon") from error  # fmt: skip

    class PackedAdamW(AdamW8bit):
        """torchao's, with a rate that is a plain number between updates, and state that a checkpoint can take apart and put together."""

        @torch.no_grad()
        def step(self, closure: Callable[[], float] | None = None) -> float | None:
            """One update: compiled on a GPU, and plain on CPU, where compiling takes longer than a small run."""
            on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
            rates = [float(group["lr"]) for group in self.param_groups]
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = torch.tensor(rate, dtype=torch.float32)
            try:
                with torch.compiler.set_stance("force_eager") if on_cpu else contextlib.nullcontext():
                    return super().step(closure)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

        def take_apart(self, key: str, value: Tensor) -> dict[str, Tensor]:
            """Plain tensors that make up state `value`: itself, or the codes, scales and code table of 8-bit state."""
            if not isinstance(value, OptimState8bit):
                return {key: value}
            return {f"{key}.codes": value.codes, f"{key}.scale": value.scale, f"{key}.qmap": value.qmap}

        def put_together(self, parameter: Tensor, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
            """The state of `parameter` from what `take_apart` gave for each of its keys."""
            state = {key: value for key, value in parts.items() if "." not in key}
            for key in sorted({name.split(".")[0] for name in parts if "." in name}):
                inner = (parts[f"{key}.{part}"] for part in ("codes", "scale", "qmap"))
                state[key] = OptimState8bit(*inner, signed=key == SIGNED, dtype=parameter.dtype)
            return state

    optim = PackedAdamW(param_groups(model.parameters(), weight_decay), lr=lr, betas=betas, eps=eps)
    for group in optim.param_groups:
        group["lr"], group["algorithm"] = lr, "AdamW8bit"
    return optim
