"""A record that does not fit its format."""

from __future__ import annotations

from data.sources.readers import Fault


class Misfit(ValueError):
    """Raised by a conversion. `reason` is the same for every record with this fault, so that they can be counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} {detail}".rstrip())
        self.fault = Fault(reason, detail)


class Empty(ValueError):
    """Raised by a conversion for a record that fits but says nothing: counted, no fault."""


def text_field(record: dict, name: str) -> str:
    """A field that must hold text; null counts as empty text."""
    value = record.get(name)
    if value is None and name in record:
        return ""
    if not isinstance(value, str):
        raise Misfit(f"no field '{name}'" if name not in record else f"field '{name}' holds {type(value).__name__}, expected text",
                     f"(got {', '.join(sorted(map(str, record)))})")
    return value


def optional_text(record: dict, name: str) -> str:
    """The same for a field that may be absent."""
    return text_field(record, name) if name in record else ""
