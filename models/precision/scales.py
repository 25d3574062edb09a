"""Scales that live from step to step: amax histories of `fp8_delayed`, the predicted weight bound of `moss`.

In: a layer's tensors and, after each optimizer step, that step's rates. Out: rounded operands. Each class is a module of buffers of
constant size, kept out of `state_dict` (a model folder holds weights only); `models.precision.state` saves and restores them.

Until a layer follows an optimizer (`state.follow_optimizer`), there is no step to count: moss measures its weight at each rounding
and fp8_delayed uses the scale of the moment, which is right anywhere and merely slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from models.precision import blocks
from models.precision.emulation import Rounded, round_to_grid
from models.precision.formats import E4M3, E5M2, SMALLEST_SCALE, Float8Format
from models.precision.moss import advanced_bound, measured_bound

HISTORY = 1024
"""Steps a maximum is remembered by fp8_delayed (Transformer Engine's default)."""
REMEASURE = 500
"""Steps between two measurements of a weight by moss."""
_INPUT, _WEIGHT, _GRADIENT = range(3)


@dataclass(slots=True)
class Casts:
    """What a layer's casts did, in numbers of elements and of scales."""

    saturated: int = 0
    """Finite elements beyond the range of a scale; fp8_delayed and moss weights are the only casts where it can happen."""
    underflowed: int = 0
    """Elements that were not zero and became zero; counted inside `state.counted_casts` only."""
    refreshes: int = 0
    """Scales taken from a maximum anew: by moss on a measurement, by fp8_delayed when a history's maximum changes."""


def round_saturating(x: Tensor, scale: float, fmt: Float8Format) -> Rounded:
    """Grid values of x / scale; a finite overflow becomes the largest number, NaN and infinity become NaN."""
    scaled = x.detach().float() * (1.0 / scale)
    visible = scaled - scaled  # zero, or NaN where it is not finite: a clamp alone would hide an infinity
    values = round_to_grid(scaled.clamp_(-fmt.largest, fmt.largest), 1.0, fmt)
    return Rounded(values.add_(visible), scale)


def largest_magnitude(x: Tensor) -> float:
    """max|x|; 0 of an empty tensor, NaN if one is in it."""
    if x.numel() == 0:
        return 0.0
    low, high = torch.aminmax(x.detach())
    return max(-low.item(), high.item()) if low == low else float("nan")


class DelayedScales(nn.Module):
    """fp8_delayed: each tensor's scale is the maximum of its last HISTORY steps / largest.

    The maxima of one step (over its micro-batches) become history together, after the optimizer step, so a step's numbers do not
    depend on how its batch is cut. A tensor without history takes the scale of the moment (FP8-03).
    """

    round_input_wgrad = round_weight_dgrad = round_gradient_wgrad = None

    def __init__(self, weight: Tensor, casts: Casts, history: int = HISTORY) -> None:
        super().__init__()
        self.casts = casts
        self.register_buffer("history", torch.zeros(3, history), persistent=False)
        self.register_buffer("pending", torch.zeros(3), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)
        self.remembered = [0.0, 0.0, 0.0]

    def round_input(self, x: Tensor) -> Rounded:
        """E4M3."""
        return self._round(x, _INPUT, E4M3)

    def round_weight(self, weight: Tensor) -> Rounded:
        """E4M3."""
        return self._round(weight, _WEIGHT, E4M3)

    def round_gradient(self, grad: Tensor) -> Rounded:
        """E5M2."""
        return self._round(grad, _GRADIENT, E5M2, record=True)

    def advance(self, weight: Tensor, lr: float, weight_decay: float, kappa: float) -> None:
        """After an optimizer step: this step's maxima enter the histories, the oldest leave."""
        self.history[:, int(self.steps) % self.history.shape[1]] = self.pending
        self.pending.zero_()
        self.steps += 1
        self.refresh()

    def refresh(self) -> None:
        """Take the scales from the histories, after a change of them."""
        found = self.history.amax(dim=1).tolist()
        self.casts.refreshes += sum(new != old for new, old in zip(found, self.remembered, strict=True))
        self.remembered = found

    def _round(self, x: Tensor, which: int, fmt: Float8Format, record: bool = False) -> Rounded:
        largest = largest_magnitude(x)
        if not isfinite(largest):  # it must reach the optimizer's guard, and must not enter the history
            return Rounded(torch.full_like(x, float("nan"), dtype=torch.float32).contiguous(), 1.0)
        if record or torch.is_grad_enabled():
            self.pending[which] = max(float(self.pending[which]), largest)
        remembered = self.remembered[which] or largest
        scale = float(torch.tensor(max(remembered / fmt.largest, SMALLEST_SCALE)))
        if largest <= remembered:
            return Rounded(round_to_grid(x, 1.0 / scale, fmt), scale)
        self.casts.saturated += int((x.detach().abs() > scale * fmt.largest).sum())
        return round_saturating(x, scale, fmt)


class MossScales(nn.Module):
    """moss: two-level activations and gradients; the weight's scale from a bound that follows the optimizer."""

    round_input = staticmethod(blocks.two_level_along_features)
    round_input_wgrad = staticmethod(blocks.two_level_along_tokens)
    round_gradient = staticmethod(blocks.two_level_along_features)
    round_gradient_wgrad = staticmethod(blocks.two_level_along_tokens)
    round_weight_dgrad = None

    def __init__(self, weight: Tensor, casts: Casts, interval: int = REMEASURE) -> None:
        super().__init__()
        self.casts = casts
        self.interval = interval
        self.follows = False
        self.counting = False
        self.register_buffer("bound", torch.zeros((), dtype=torch.float64), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64), persistent=False)

    def round_weight(self, weight: Tensor) -> Rounded:
        """E4M3 with the scale bound / largest."""
        bound = float(self.bound) if self.follows else measured_bound(largest_magnitude(weight))
        scale = float(torch.tensor(max(bound / E4M3.largest, SMALLEST_SCALE)))
        if self.counting:
            self.casts.saturated += int((weight.detach().abs() * (1.0 / scale) > E4M3.largest).sum())
        if not isfinite(scale):
            return Rounded(torch.full_like(weight, float("nan"), dtype=torch.float32), 1.0)
        return round_saturating(weight, scale, E4M3)

    def measure(self, weight: Tensor) -> None:
        """Take the bound from the weight itself."""
        self.bound.fill_(measured_bound(largest_magnitude(weight)))
        self.casts.refreshes += 1

    def advance(self, weight: Tensor, lr: float, weight_decay: float, kappa: float) -> None:
        """After an optimizer step with these rates: move the bound, or measure it when the interval is over."""
        self.steps += 1
        if int(self.steps) % self.interval == 0:
            self.measure(weight)
        else:
            self.bound.fill_(advanced_bound(float(self.bound), lr, weight_decay, kappa))

    def refresh(self) -> None:
        """The bound is the scale: nothing else to set."""
