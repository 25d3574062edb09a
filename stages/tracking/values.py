"""Settings as text that is equal for equal settings, and names that MLflow accepts.

In: any parameter value. Out: a string without memory addresses, set order or other traces of one process.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from pathlib import PurePath

MAX_PARAM = 6000  # characters; MLflow refuses longer parameter values
MAX_TAG = 5000
MAX_KEY = 250
_FORBIDDEN = re.compile(r"[^\w\-. :/]")


def describe(value: object) -> str:
    """Text of a setting for the tracker: scalars as YAML would show them, containers as JSON, sets sorted, callables by name."""
    plain = _plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= MAX_PARAM else text[: MAX_PARAM - 1] + "…"


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, PurePath):
        return value.as_posix()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    named = value if hasattr(value, "__qualname__") else type(value)  # a repr would show a memory address
    return f"{named.__module__}.{named.__qualname__}"


def _key(key: object) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, sort_keys=True)


def clean_key(name: str) -> str:
    """A metric, parameter or tag name with every character MLflow refuses replaced by an underscore."""
    return _FORBIDDEN.sub("_", name)[:MAX_KEY]
