"""Switches the linear layers of a model to a named precision, in place.

In: an `nn.Module` holding `nn.Linear` layers. Out: the same module with those layers computing in the named precision, on the same
Parameters. Kept in high precision, as in published FP8 runs: embeddings, output head, norms, attention core.
"""

from __future__ import annotations

from torch import nn

from models.precision.linear import PrecisionLinear, Recipe
from models.precision.recipes import FP32, recipe

_HEAD = "lm_head"


def apply_precision(model: nn.Module, precision: str) -> None:
    """Make the linear layers of `model` compute in `precision` ("fp32", "bf16" or "fp8_tensorwise"), in place.

    Each `nn.Linear` is replaced by a layer that shares its Parameters, so names and optimizers stay valid (hooks on the old
    layer do not move). "fp32" gives plain `nn.Linear` back and leaves a plain model untouched. Left alone: a layer named
    "lm_head" and any layer whose weight is also an embedding's. Checked before anything is replaced (ValueError): the name, that
    there is a layer to convert, and that features fit the format ("fp8_tensorwise": multiples of 16, on every device alike).
    """
    chosen = None if precision == FP32 else recipe(precision)
    sites = _sites(model)
    if chosen is not None:
        _check_sites(sites, chosen)
    converted: dict[int, nn.Linear] = {}
    for parent, name, layer in sites:
        if id(layer) not in converted:
            converted[id(layer)] = _plain(layer) if chosen is None else PrecisionLinear(layer, chosen)
        setattr(parent, name, converted[id(layer)])


def _sites(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """(parent, child name, layer) of every layer to convert; a layer shared by two parents is listed twice."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in (nn.Linear, PrecisionLinear) and name != _HEAD and id(child.weight) not in embeddings
    ]


def _check_sites(sites: list[tuple[nn.Module, str, nn.Linear]], chosen: Recipe) -> None:
    if not sites:
        raise ValueError(f"precision {chosen.name!r}: got a model without nn.Linear children outside {_HEAD!r}, expected some")
    for _, name, layer in sites:
        for side, features in (("in", layer.in_features), ("out", layer.out_features)):
            if features % chosen.alignment:
                raise ValueError(
                    f"precision {chosen.name!r}, layer {name!r}: got {side}_features={features}, expected a multiple of "
                    f"{chosen.alignment}; nearest above: {-(-features // chosen.alignment) * chosen.alignment}"
                )


def _plain(layer: nn.Linear) -> nn.Linear:
    if type(layer) is nn.Linear:
        return layer
    plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    plain.weight = layer.weight
    plain.register_parameter("bias", layer.bias)
    return plain.train(layer.training)
