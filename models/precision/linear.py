"""One linear layer for every low precision: an `nn.Linear` whose numbers are decided by a `Recipe`.

In: float tensors (..., K). Out: (..., N) in the input's dtype. The layer owns the very Parameters of the layer it replaces, so
parameter names, optimizer and checkpoints do not change. On a CPU products are emulated (`emulation.py`); on CUDA the recipe's
hardware path runs, or the emulation where a recipe has none.

Two things are never computed twice. Layers fed by the same tensor (query, key and value; gate and up) round it once. And inside
`hold_weights(model)` each weight is rounded once for all forwards: micro-batches of one update, or the steps of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from models.precision.emulation import Backward, Rounded, RoundFn, emulated_linear
from models.precision.scales import Casts, DelayedScales, MossScales


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All a precision consists of; a new one is a new value of this class, not a new layer."""

    name: str
    alignment: int
    """Both feature counts must be multiples of this."""
    round_input: RoundFn
    round_weight: RoundFn
    round_gradient: RoundFn
    round_input_wgrad: RoundFn | None = None
    """The input as the weight gradient needs it, whose blocks lie along the tokens; None: as the forward product has it."""
    round_weight_dgrad: RoundFn | None = None
    """The weight as the input gradient needs it; None: as the forward product has it."""
    round_gradient_wgrad: RoundFn | None = None
    """The output's gradient as the weight gradient needs it; None: as the input gradient has it."""
    make_scales: Callable[[Tensor, Casts], DelayedScales | MossScales] | None = None
    """A layer's state from its weight; its six roundings then stand in for the recipe's."""
    counted: bool = False
    """Whether layers count their casts and have state to save."""
    prepare_weight: Callable[[Tensor], Any] | None = None
    """CUDA: weight (N, K) to what `hardware` multiplies with."""
    hardware: Callable[[Tensor, Tensor, Tensor | None, Any], Tensor] | None = None
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
        self.casts = Casts()
        self.counting = False
        self.scales = None if recipe.make_scales is None else recipe.make_scales(linear.weight, self.casts).to(linear.weight.device)
        self.holding = False
        self._held: Any = None
        self._held_dgrad: Rounded | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows_MK = x.reshape(-1, self.in_features)
        if x.is_cuda and self.recipe.hardware is not None:
            prepared = self._weight_operand(self.recipe.prepare_weight)
            y_MN = self.recipe.hardware(rows_MK, self.weight, self.bias, prepared)
        else:
            y_MN = self._emulated(x, rows_MK)
        return y_MN.to(x.dtype).view(*x.shape[:-1], self.out_features)

    def _emulated(self, x: Tensor, rows_MK: Tensor) -> Tensor:
        use = self.recipe if self.scales is None else self.scales
        with_graph = torch.is_grad_enabled()
        rounded_w = self._weight_operand(lambda weight: self._counted(weight, use.round_weight(weight)))
        rounded_x = self._counted(rows_MK, _round_once(x, use.round_input))
        rounded_x = Rounded(rounded_x.values.view(rows_MK.shape), rounded_x.scale)
        dgrad_w = wgrad_x = None
        if use.round_weight_dgrad is not None and with_graph and x.requires_grad:
            dgrad_w = self._dgrad_operand(use.round_weight_dgrad)
        if use.round_input_wgrad is not None and with_graph and self.weight.requires_grad:
            wgrad_x = _round_once(x, use.round_input_wgrad)
        backward = Backward(self._counted_gradient(use.round_gradient), use.round_gradient_wgrad, wgrad_x, dgrad_w)
        return emulated_linear(rows_MK, self.weight, self.bias, rounded_x, rounded_w, backward)

    def _counted(self, x: Tensor, rounded: Rounded) -> Rounded:
        if self.counting:
            self.casts.underflowed += int(torch.count_nonzero(x.detach())) - int(torch.count_nonzero(rounded.values))
        return rounded

    def _counted_gradient(self, round_gradient: RoundFn) -> RoundFn:
        return (lambda grad: self._counted(grad, round_gradient(grad))) if self.counting else round_gradient

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, precision={self.recipe.name}"

    def hold(self, holding: bool) -> None:
        """Start or stop reusing the rounded weight; either way the next forward rounds anew."""
        self.holding = holding
        self._held = self._held_dgrad = None

    def _weight_operand(self, prepare: Callable[[Tensor], Any]) -> Any:
        if self._held is not None:
            return self._held
        operand = prepare(self.weight.detach())
        if self.holding:
            self._held = operand
        return operand

    def _dgrad_operand(self, round_weight_dgrad: RoundFn) -> Rounded:
        if self._held_dgrad is not None:
            return self._held_dgrad
        operand = round_weight_dgrad(self.weight.detach())
        if self.holding:
            self._held_dgrad = operand
        return operand


def _round_once(x: Tensor, round_fn: RoundFn) -> Rounded:
    """round_fn(x), or what another layer with the same function got from the same, unmodified tensor.

    The rounded copies hang on the tensor and die with it. Inference-mode tensors count no modifications: always rounded. So is the
    input of a layer whose own scale decides, which is a bound method.
    """
    if x.is_inference() or isinstance(round_fn, MethodType):
        return round_fn(x)
    found = getattr(x, "_rounded", None)
    if found is None or found[0] != x._version:
        found = x._rounded = (x._version, {})
    copies = found[1]
    if round_fn not in copies:
        copies[round_fn] = round_fn(x)
    return copies[round_fn]


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
