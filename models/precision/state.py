"""What precision layers carry from step to step: saved, restored, counted, and moved along with an optimizer.

In: a model whose layers `apply_precision` converted. Out: tensors of constant size under names of their own ("precision/<layer>/<key>"),
totals of the casts, and an optimizer whose every step advances the scales. Models in fp32, bf16 and fp8_tensorwise have none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from models.precision.linear import PrecisionLinear
from models.precision.moss import adamw_reach
from models.precision.scales import MossScales

PREFIX = "precision/"
_COUNTS = "casts"


def precision_state(model: nn.Module) -> dict[str, Tensor]:
    """Scales, histories and counters of every layer that has some, as "precision/<layer>/<key>" copies; {} if none has.

    The size depends on the model alone, not on the steps taken (FP8-04).
    """
    tensors = {}
    for name, layer in _counted_layers(model):
        casts = layer.casts
        tensors[f"{PREFIX}{name}/{_COUNTS}"] = torch.tensor([casts.saturated, casts.underflowed, casts.refreshes])
        if layer.scales is not None:
            tensors |= {f"{PREFIX}{name}/{key}": buffer.detach().clone() for key, buffer in layer.scales.named_buffers()}
    return tensors


def restore_precision_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of `precision_state` back, bit for bit, on each layer's device; other entries are ignored.

    Refuses (ValueError naming them, FP8-03) when a tensor is missing, left over or of another shape: a run that continues with other
    scales is another run. With no such tensor at all the model keeps its fresh state; ask `has_precision_state` first.
    """
    saved = {name for name in tensors if name.startswith(PREFIX)}
    wanted = precision_state(model)
    wrong = sorted(saved ^ set(wanted)) or sorted(name for name in wanted if tensors[name].shape != wanted[name].shape)
    if wrong:
        raise ValueError(f"precision state is for other layers: {wrong} are absent on one side or differ in shape; resume with the precision "
                         "the checkpoint was made with, or start from its weights only")  # fmt: skip
    for name, layer in _counted_layers(model):
        counts = tensors[f"{PREFIX}{name}/{_COUNTS}"].tolist()
        if layer.scales is not None:
            for key, buffer in layer.scales.named_buffers():
                buffer.copy_(tensors[f"{PREFIX}{name}/{key}"])
            layer.scales.refresh()
        layer.casts.saturated, layer.casts.underflowed, layer.casts.refreshes = counts


def has_precision_state(tensors: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint's tensors hold any precision state."""
    return any(name.startswith(PREFIX) for name in tensors)


def cast_totals(model: nn.Module) -> dict[str, int]:
    """Sums over layers since the start: fp8_saturated, fp8_underflowed, fp8_scale_refreshes; {} for a model that does not count.

    Underflows, and saturated moss weights, are counted within `counted_casts` only.
    """
    casts = [layer.casts for _, layer in _counted_layers(model)]
    if not casts:
        return {}
    return {
        "fp8_saturated": sum(c.saturated for c in casts), "fp8_underflowed": sum(c.underflowed for c in casts),
        "fp8_scale_refreshes": sum(c.refreshes for c in casts),
    }  # fmt: skip


@contextmanager
def counted_casts(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Within the block (if `on`) every counting layer looks at its casts element by element, at the cost of a pass or two."""
    layers = [layer for _, layer in _counted_layers(model)] if on else []
    _set_counting(layers, True)
    try:
        yield
    finally:
        _set_counting(layers, False)


def follow_optimizer(model: nn.Module, optim: torch.optim.Optimizer) -> None:
    """From now on every `optim.step()` advances the model's scales: histories move on, moss bounds grow by that step's reach.

    A moss bound that was not restored from a checkpoint is measured now; afterwards weights may change through `optim` only (after an
    edit from outside call `remeasure`). A second call for the same pair changes nothing. ValueError for moss with an optimizer whose
    step it has no bound for; call it after `restore_precision_state`.
    """
    layers = [layer for _, layer in _counted_layers(model) if layer.scales is not None]
    if not layers or getattr(optim, "precision_follower", None) is model:
        return
    moss = [layer for layer in layers if isinstance(layer.scales, MossScales)]
    if moss and not isinstance(optim, torch.optim.AdamW):
        raise ValueError(f"precision 'moss': got optimizer {type(optim).__name__}, expected AdamW: the weight scale is predicted from a bound of "
                         "the optimizer's step; use AdamW or another precision")  # fmt: skip
    groups = [_group_of(optim, layer) for layer in layers]
    reaches = [adamw_reach(*group["betas"]) if group and isinstance(layer.scales, MossScales) else 0.0 for layer, group in zip(layers, groups)]
    for layer in moss:
        if int(layer.scales.steps) == 0 and float(layer.scales.bound) == 0:
            layer.scales.measure(layer.weight)
        layer.scales.follows = True

    def advance(optim: torch.optim.Optimizer, *_: object) -> None:
        for layer, group, reach in zip(layers, groups, reaches):
            lr, decay = (float(group["lr"]), float(group["weight_decay"])) if group else (0.0, 0.0)
            layer.scales.advance(layer.weight, lr, decay, reach)

    optim.register_step_post_hook(advance)
    optim.precision_follower = model


def remeasure(model: nn.Module) -> None:
    """Take every moss bound from the weights as they are: after loading, averaging, merging or editing them."""
    for _, layer in _counted_layers(model):
        if isinstance(layer.scales, MossScales):
            layer.scales.measure(layer.weight)


def _group_of(optim: torch.optim.Optimizer, layer: PrecisionLinear) -> dict | None:
    """The optimizer's group with the layer's weight; None for a weight that it does not hold and so does not move."""
    return next((group for group in optim.param_groups if any(parameter is layer.weight for parameter in group["params"])), None)


def _counted_layers(model: nn.Module) -> list[tuple[str, PrecisionLinear]]:
    return [(name, m) for name, m in model.named_modules() if isinstance(m, PrecisionLinear) and m.recipe.counted]


def _set_counting(layers: list[PrecisionLinear], on: bool) -> None:
    for layer in layers:
        layer.counting = on
        if isinstance(layer.scales, MossScales):
            layer.scales.counting = on
