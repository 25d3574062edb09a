"""Records of one source that do not fit: how many by reason, and where the first ones stand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from data.sources.readers import Fault

PLACES = 5
"""Places kept for each reason."""


@dataclass
class Faults:
    """A tally of unfit records, filled in reading order."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    first: str = ""
    """The first one's whole message."""

    def add(self, fault: Fault, place: str) -> None:
        """Count one."""
        self.counts[fault.reason] += 1
        self.first = self.first or fault.at(place)
        places = self.places.setdefault(fault.reason, [])
        if len(places) < PLACES:
            places.append(place)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {"counts": dict(self.counts), "places": self.places, "first": self.first}

    def extend(self, later: dict[str, object]) -> None:
        """Add what `to_dict` gave for a later piece of the same source."""
        self.counts.update(later["counts"])
        self.first = self.first or later["first"]
        for reason, places in later["places"].items():
            self.places[reason] = [*self.places.get(reason, []), *places][:PLACES]

    def check(self, source: str, records: int, limit: float) -> None:
        """ValueError with counts and places when more than the fraction `limit` of `records` is unfit."""
        bad = self.counts.total()
        if bad <= limit * records:
            return
        listed = "; ".join(f"{count:,} {reason} (at {', '.join(self.places[reason])}{', ...' if count > PLACES else ''})"
                           for reason, count in sorted(self.counts.items()))
        raise ValueError(f"source '{source}': {bad:,} of {records:,} records do not fit, above max_bad_fraction={limit}: {listed}. The first: {self.first}; "
                         "correct or remove them, name the right `record_format` or `fields`, or raise max_bad_fraction")
