"""A tally of unfit records: the first places, whatever the pieces it came from."""

from __future__ import annotations

import pytest

from data.sources.faults import Faults
from data.sources.readers import Fault


def tally(places: list[str], reason: str = "bad") -> Faults:
    faults = Faults()
    for place in places:
        faults.add(Fault(reason, f"(in {place})"), place)
    return faults


def test_pieces_put_together_give_the_tally_of_the_whole() -> None:
    places = [f"a:{i}" for i in range(9)]
    joined = Faults()
    for start in (0, 3, 6):
        joined.extend(tally(places[start : start + 3]).to_dict())
    assert joined.to_dict() == tally(places).to_dict() == {"counts": {"bad": 9}, "places": {"bad": places[:5]}, "first": "a:0: bad (in a:0)"}


def test_the_limit_is_a_fraction_of_all_records() -> None:
    faults = tally(["a:1", "a:2"])
    faults.add(Fault("worse"), "a:3")
    faults.check("s", 30, 0.1)
    Faults().check("s", 0, 0.0)
    with pytest.raises(ValueError, match=r"source 's': 3 of 29 records do not fit, above max_bad_fraction=0.1: 2 bad \(at a:1, a:2\); 1 worse \(at a:3\)\. The first: a:1: bad \(in a:1\);"):
        faults.check("s", 29, 0.1)
