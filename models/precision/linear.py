"""One linear layer for every low precision: an `nn.Linear` whose numbers are decided by a `Recipe`.

In: float tensors (..., K). Out: (..., N) in the input's dtype. The layer owns the very Parameters of the layer it replaces, so
parameter names, optimizer and checkpoints do not change. On a CPU products are emulated (`emulation.py`); on CUDA the recipe's
hardware path runs.

Two things are never computed twice. Layers fed by the same tensor (query, key and value; gate and up) round it once. And inside
`hold_weights(model)` each weight is rounded once for all forwards: micro-batches of one update, or the steps of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from models.precision.emulation import Rounded, RoundFn, emulated_linear


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All a precision consists of; a new one is a new value of this class, not a new layer."""

    name: str
    alignment: int
    """Both feature counts must be multiples of this."""
    round_input: RoundFn
    round_weight: RoundFn
    round_gradient: RoundFn
    prepare_weight: Callable[[Tensor], Any]
    """CUDA: weight (N, K) to what `hardware` multiplies with."""
    hardware: Callable[[Tensor, Tensor, Tensor | None, Any], Tensor]
    """CUDA: (x (M, K), weight (N, K), bias (N,) or None, prepared weight) to (M, N) in x's dtype, differentiable."""
    quantize: Callable[[Tensor], dict[str, Tensor]]
    """Offline: weight to the tensors stored for it."""
    dequantize: Callable[[dict[str, Tensor]], Tensor]
    """Load: stored tensors back to a float32 weight."""


class PrecisionLinear(nn.Linear):
    """Drop-in `nn.Linear` computing in `recipe`; built from a layer, whose parameters it shares."""

    def __init__(self, linear: nn.Linear, recipe: Recipe) -> None:
        nn.Module.__init__(self)  # nn.Linear's own initialiser would allocate and draw fresh weights
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.training = linear.training
        self.recipe = recipe
        self.holding = False
        self._held: Any = None

    def forward(self, x: Tensor) -> Tensor:
        rows_MK = x.reshape(-1, self.in_features)
        if x.is_cuda:
            prepared = self._weight_operand(self.recipe.prepare_weight)
            y_MN = self.recipe.hardware(rows_MK, self.weight, self.bias, prepared)
        else:
            rounded_w = self._weight_operand(self.recipe.round_weight)
            rounded_x = _round_once(x, self.recipe)
            rounded_x = Rounded(rounded_x.values.view(rows_MK.shape), rounded_x.scale)
            y_MN = emulated_linear(
                rows_MK, self.weight, self.bias, rounded_x, rounded_w, self.recipe.round_gradient
            )
        return y_MN.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, precision={self.recipe.name}"

    def hold(self, holding: bool) -> None:
        """Start or stop reusing the rounded weight; either way the next forward rounds anew."""
        self.holding = holding
        self._held = None

    def _weight_operand(self, prepare: Callable[[Tensor], Any]) -> Any:
        if self._held is not None:
            return self._held
        operand = prepare(self.weight.detach())
        if self.holding:
            self._held = operand
        return operand


def _round_once(x: Tensor, recipe: Recipe) -> Rounded:
    """Round an input, or return what another layer of this recipe got from the same, unmodified tensor.

    The rounded copy hangs on the tensor and dies with it. Inference-mode tensors count no modifications: always rounded.
    """
    if x.is_inference():
        return recipe.round_input(x)
    found = getattr(x, "_rounded_input", None)
    if found is not None and found[0] is recipe and found[1] == x._version:
        return found[2]
    rounded = recipe.round_input(x)
    x._rounded_input = (recipe, x._version, rounded)
    return rounded


@contextmanager
def hold_weights(model: nn.Module) -> Iterator[None]:
    """Within the block every precision layer rounds its weight once, at its first forward.

    The weights must not change inside: an optimizer step there would go unseen (fused optimizers do not even advance the
    tensor's version counter, so it cannot be noticed). Layers already held by an outer block stay held until that one ends.
    """
    layers = [m for m in model.modules() if isinstance(m, PrecisionLinear) and not m.holding]
    for layer in layers:
        layer.hold(True)
    try:
        yield
    finally:
        for layer in layers:
            layer.hold(False)
