"""The low precisions by name: how each rounds its operands, runs on hardware, and stores a weight offline.

In: a name. Out: a `Recipe` of plain functions. A new precision is a new entry of `_recipes()`; nothing else lists them.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from models.precision import blocks, tensorwise
from models.precision.emulation import round_bfloat16, round_float8
from models.precision.formats import E4M3, E5M2, Quantized, decode_e8m0, dequantize, encode_e8m0, quantize_e4m3
from models.precision.linear import Recipe
from models.precision.reference import MX_BLOCK, TILE, Blocked, dequantize_blocked, quantize_blocked
from models.precision.scales import DelayedScales, MossScales

FP32 = "fp32"


def _bfloat16_hardware(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, prepared: None) -> Tensor:
    """Tensor-core bfloat16; the result passes through bfloat16, which the float32 emulation leaves out (relative 2**-9)."""
    bias = None if bias_N is None else bias_N.to(torch.bfloat16)
    return F.linear(x_MK.to(torch.bfloat16), weight_NK.to(torch.bfloat16), bias).to(x_MK.dtype)


def _no_preparation(weight: Tensor) -> None:
    """bfloat16 keeps its cast inside autograd, so there is nothing to prepare ahead."""


def _float8_hardware(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, prepared: Quantized) -> Tensor:
    tensorwise.require_float8(x_MK.device)
    return tensorwise.float8_linear(x_MK, weight_NK, bias_N, prepared)


def _store_bfloat16(weight: Tensor) -> dict[str, Tensor]:
    return {"weight": weight.detach().to(torch.bfloat16)}


def _load_bfloat16(stored: dict[str, Tensor]) -> Tensor:
    return stored["weight"].float()


def _store_float8(weight: Tensor) -> dict[str, Tensor]:
    values, scale = quantize_e4m3(weight.detach())
    return {"weight": values, "weight_scale": scale}


def _load_float8(stored: dict[str, Tensor]) -> Tensor:
    return dequantize(Quantized(stored["weight"], stored["weight_scale"]))


def _store_blocked(weight: Tensor, rows: int, columns: int) -> dict[str, Tensor]:
    """Scales as E8M0 codes, one for each block."""
    values, scales = quantize_blocked(weight.detach(), rows, columns or weight.shape[1])
    return {"weight": values, "weight_scale": encode_e8m0(scales)}


def _load_blocked(stored: dict[str, Tensor], rows: int, columns: int) -> Tensor:
    values = stored["weight"]
    return dequantize_blocked(Blocked(values, decode_e8m0(stored["weight_scale"])), rows, columns or values.shape[1], torch.float32)


def _block_recipes() -> tuple[Recipe, ...]:
    """Recipes whose scales are those of the moment, one for each block."""
    whole_row = 0
    return (
        Recipe(
            name="fp8_rowwise", alignment=tensorwise.ALIGNMENT, counted=True,
            round_input=blocks.rows, round_weight=blocks.rows, round_gradient=blocks.rows,
            round_input_wgrad=blocks.columns, round_weight_dgrad=blocks.columns, round_gradient_wgrad=blocks.columns,
            quantize=functools.partial(_store_blocked, rows=1, columns=whole_row),
            dequantize=functools.partial(_load_blocked, rows=1, columns=whole_row),
        ),
        Recipe(
            name="fp8_blockwise", alignment=tensorwise.ALIGNMENT, counted=True,
            round_input=blocks.long_along_features, round_weight=blocks.tiles, round_gradient=blocks.long_along_features,
            round_input_wgrad=blocks.long_along_tokens, round_gradient_wgrad=blocks.long_along_tokens,
            quantize=functools.partial(_store_blocked, rows=TILE, columns=TILE),
            dequantize=functools.partial(_load_blocked, rows=TILE, columns=TILE),
        ),
        Recipe(
            name="mxfp8", alignment=tensorwise.ALIGNMENT, counted=True,
            round_input=blocks.along_features, round_weight=blocks.along_features, round_gradient=blocks.along_features,
            round_input_wgrad=blocks.along_tokens, round_weight_dgrad=blocks.along_tokens, round_gradient_wgrad=blocks.along_tokens,
            quantize=functools.partial(_store_blocked, rows=1, columns=MX_BLOCK),
            dequantize=functools.partial(_load_blocked, rows=1, columns=MX_BLOCK),
        ),
    )  # fmt: skip


def _stateful_recipes() -> tuple[Recipe, ...]:
    """Recipes with scales from earlier steps. The roundings given here are those of the moment, for a tensor outside a layer."""
    to_e4m3 = functools.partial(round_float8, fmt=E4M3)
    return (
        Recipe(
            name="fp8_delayed", alignment=tensorwise.ALIGNMENT, counted=True, make_scales=DelayedScales,
            round_input=to_e4m3, round_weight=to_e4m3, round_gradient=functools.partial(round_float8, fmt=E5M2),
            quantize=_store_float8, dequantize=_load_float8,
        ),
        Recipe(
            name="moss", alignment=tensorwise.ALIGNMENT, counted=True, make_scales=MossScales,
            round_input=blocks.two_level_along_features, round_weight=to_e4m3, round_gradient=blocks.two_level_along_features,
            round_input_wgrad=blocks.two_level_along_tokens, round_gradient_wgrad=blocks.two_level_along_tokens,
            quantize=_store_float8, dequantize=_load_float8,
        ),
    )  # fmt: skip


def _recipes() -> dict[str, Recipe]:
    bf16 = Recipe(
        name="bf16",
        alignment=1,
        round_input=round_bfloat16,
        round_weight=round_bfloat16,
        round_gradient=round_bfloat16,
        prepare_weight=_no_preparation,
        hardware=_bfloat16_hardware,
        quantize=_store_bfloat16,
        dequantize=_load_bfloat16,
    )
    to_e4m3 = functools.partial(round_float8, fmt=E4M3)
    fp8_tensorwise = Recipe(
        name="fp8_tensorwise",
        alignment=tensorwise.ALIGNMENT,
        round_input=to_e4m3,
        round_weight=to_e4m3,
        round_gradient=functools.partial(round_float8, fmt=E5M2),
        prepare_weight=quantize_e4m3,
        hardware=_float8_hardware,
        quantize=_store_float8,
        dequantize=_load_float8,
    )
    return {recipe.name: recipe for recipe in (bf16, fp8_tensorwise, *_block_recipes(), *_stateful_recipes())}


def describe_precision(precision: str, device: torch.device) -> str:
    """The name, and whether its products are emulated there: in float32, on rounded operands."""
    return f"{precision} (emulated)" if precision != FP32 and (device.type != "cuda" or recipe(precision).hardware is None) else precision


def recipe(precision: str) -> Recipe:
    """The recipe of a low precision by exact name; ValueError with the known names otherwise ("fp32" needs none)."""
    known = _recipes()
    if precision not in known:
        raise ValueError(f"precision: got {precision!r}, expected one of {', '.join([FP32, *known])}")
    return known[precision]
