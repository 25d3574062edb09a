"""Switches the linear layers of a model to a named precision, in place.

In: an `nn.Module` holding `nn.Linear` layers. Out: the same module with those layers computing in the named precision, on the same
Parameters. Kept in high precision, as in published FP8 runs: embeddings, output head, norms, attention core.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from torch import nn

from models.precision.linear import PrecisionLinear, Recipe
from models.precision.recipes import FP32, recipe

_HEAD = "lm_head"


def apply_precision(model: nn.Module, precision: str, exclude: Collection[str] = ()) -> None:
    """Make the linear layers of `model` compute in `precision` ("fp32" or a name of `recipes`), in place.

    Each `nn.Linear` is replaced by a layer that shares its Parameters, so names and optimizers stay valid (hooks on the old
    layer do not move). "fp32" gives plain `nn.Linear` back and leaves a plain model untouched. Left alone: a layer named
    "lm_head" and any layer whose weight is also an embedding's. `exclude` are patterns of dotted names whose layers stay, or become
    again, plain: "model.layers.0.*" (`end_blocks` makes those of the first and last blocks), "*.down_proj". Checked before anything
    is replaced (ValueError): the name, that every pattern fits a layer, that there is a layer to convert, and that features fit the
    format (FP8: multiples of 16, on every device alike).
    """
    chosen = None if precision == FP32 else recipe(precision)
    sites = _sites(model)
    excluded = _excluded(model, sites, exclude)
    low = [site for site in sites if id(site[2]) not in excluded]
    if chosen is not None:
        _check_sites(low, chosen)
    converted: dict[int, nn.Linear] = {}
    for parent, name, layer in sites:
        if id(layer) not in converted:
            plain = chosen is None or id(layer) in excluded
            converted[id(layer)] = _plain(layer) if plain else PrecisionLinear(layer, chosen)
        setattr(parent, name, converted[id(layer)])


def end_blocks(model: nn.Module, first: int, last: int) -> tuple[str, ...]:
    """Patterns for `apply_precision(exclude=...)`: the first and the last blocks of the model's one list of blocks.

    ValueError when the model has no single outermost `nn.ModuleList`, or fewer blocks than asked for.
    """
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    outer = [(name, m) for name, m in lists if not any(name != other and name.startswith(f"{other}.") for other, _ in lists)]
    if len(outer) != 1:
        raise ValueError(f"end_blocks: got a model with {len(outer)} outermost lists of blocks, expected one; write the patterns by hand")
    name, blocks = outer[0]
    if first < 0 or last < 0 or first + last > len(blocks):
        raise ValueError(f"end_blocks: got first={first}, last={last}, expected numbers >= 0 with a sum of at most {len(blocks)} blocks")
    prefix = f"{name}." if name else ""
    return tuple(f"{prefix}{i}.*" for i in (*range(first), *range(len(blocks) - last, len(blocks))))


def _sites(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """(parent, child name, layer) of every layer to convert; a layer shared by two parents is listed twice."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) in (nn.Linear, PrecisionLinear) and name != _HEAD and id(child.weight) not in embeddings
    ]


def _excluded(model: nn.Module, sites: list[tuple[nn.Module, str, nn.Linear]], exclude: Collection[str]) -> set[int]:
    """Ids of the layers that a pattern fits; ValueError for a pattern that fits none."""
    layers = {id(layer) for _, _, layer in sites}
    names = [(name, id(m)) for name, m in model.named_modules(remove_duplicate=False) if id(m) in layers]
    fits = {pattern: {layer for name, layer in names if fnmatchcase(name, pattern)} for pattern in exclude}
    empty = sorted(pattern for pattern, found in fits.items() if not found)
    if empty:
        raise ValueError(f"apply_precision: got exclude patterns {empty} that fit no layer, expected names such as {names[0][0] if names else None!r}")
    return set().union(*fits.values())


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
