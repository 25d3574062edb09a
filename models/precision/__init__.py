"""Number formats a model's linear layers can compute in: formats, CPU emulation, hardware path, recipes."""

from models.precision.apply import apply_precision
from models.precision.linear import PrecisionLinear, Recipe, hold_weights
from models.precision.recipes import recipe

__all__ = ["PrecisionLinear", "Recipe", "apply_precision", "hold_weights", "recipe"]
