"""JSON files that are either old or new, never half: written beside their place and renamed into it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Write JSON with sorted keys by an atomic rename. ValueError on NaN or infinity: see finite_or_text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def finite_or_text(value: float) -> float | str:
    """A number that JSON can hold, or the words a reader needs: never 0 for a value that is not one."""
    value = float(value)
    return value if math.isfinite(value) else "not a number" if math.isnan(value) else "overflow"
