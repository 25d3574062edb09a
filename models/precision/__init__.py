"""Number formats a model's linear layers can compute in: formats, CPU emulation, hardware path, recipes, their state."""

from models.precision.apply import apply_precision, end_blocks
from models.precision.linear import PrecisionLinear, Recipe, hold_weights
from models.precision.recipes import describe_precision, recipe
from models.precision.state import cast_totals, counted_casts, follow_optimizer, precision_state, restore_precision_state

__all__ = [
    "PrecisionLinear", "Recipe", "apply_precision", "cast_totals", "counted_casts", "describe_precision", "end_blocks", "follow_optimizer", "hold_weights",
    "precision_state", "recipe", "restore_precision_state",
]  # fmt: skip
