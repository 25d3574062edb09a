"""stages/reporting/svg.py: well-formed elements, rounded coordinates, escaped labels."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reporting import svg


@pytest.mark.parametrize(
    ("value", "shown"), [(1.0, "1"), (1.005, "1"), (2.346, "2.35"), (-0.001, "0"), (-1.5, "-1.5"), (100.0, "100"), (0.0, "0")]
)
def test_coordinates_are_short_and_stable(value: float, shown: str) -> None:
    assert svg.coordinate(value) == shown


def test_path_by_hand() -> None:
    assert svg.path([(0, 1), (2.5, 3)], "curve", closed=True) == '<path d="M0 1 L2.5 3Z" class="curve"/>'


@settings(deadline=None)
@given(st.text())
def test_any_label_gives_well_formed_xml(label: str) -> None:
    picture = ElementTree.fromstring(svg.drawing(10, 20, label, [svg.text(1, 2, label, "name"), svg.circle(1, 2, 3, "dot", label)]))
    assert picture.attrib["role"] == "img"
    assert [child.tag for child in picture] == ["text", "circle"]
