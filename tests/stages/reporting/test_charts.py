"""stages/reporting/charts.py: marks sit where the numbers say, labels stay apart and inside the drawing."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.reporting import charts
from stages.reporting.scales import Bucket, thin


def parse(drawing: str) -> Element:
    return ElementTree.fromstring(drawing)


def texts(picture: Element) -> list[str]:
    return [child.text or "" for child in picture.iter("text")]


def of_class(picture: Element, name: str) -> list[Element]:
    return [child for child in picture.iter() if name in child.attrib.get("class", "").split()]


def curve(values: list[float], name: str = "train", style: str = "first") -> charts.Series:
    return charts.Series(name, thin(list(enumerate(values)), 100), style, f"{values[-1]:.2f}")


def test_line_chart_falls_where_the_numbers_fall() -> None:
    picture = parse(
        charts.line_chart("Loss", charts.Axis("step"), charts.Axis("nats per token"), [curve([4.0, 3.0, 2.0])], 380, 220, ("unigram", 3.5))
    )
    path = of_class(picture, "curve")[0].attrib["d"]
    ys = [float(pair.split()[1]) for pair in path.replace("M", "").split(" L")]
    assert ys == sorted(ys)  # y grows downwards, the loss falls
    reference = float(of_class(picture, "reference")[0].attrib["y1"])
    assert ys[0] < reference < ys[1]
    assert {"step", "nats per token", "train", "2.00", "unigram"} <= set(texts(picture))
    assert picture.attrib["aria-label"] == "Loss. train: last value 2.00"


def test_line_chart_draws_the_range_of_thinned_points() -> None:
    thinned = charts.Series("train", [Bucket(0, 2.0, 1.0, 3.0), Bucket(1, 2.0, 2.0, 2.0)], "first", "2")
    assert of_class(parse(charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [thinned], 380, 220)), "band")
    assert not of_class(parse(charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [curve([1.0, 2.0])], 380, 220)), "band")


def test_one_point_is_a_dot_and_equal_values_do_not_divide_by_zero() -> None:
    assert len(of_class(parse(charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [curve([5.0])], 380, 220)), "dot")) == 1
    assert of_class(parse(charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [curve([5.0, 5.0])], 380, 220)), "curve")


def test_steps_are_never_labelled_between_whole_numbers() -> None:
    picture = parse(charts.line_chart("t", charts.Axis("update", whole=True), charts.Axis("y"), [curve([1.0, 2.0, 3.0])], 380, 220))
    base = max(float(child.attrib["y"]) for child in picture.iter("text") if child.attrib["class"] == "tick")
    labels = [child.text for child in picture.iter("text") if child.attrib["class"] == "tick" and float(child.attrib["y"]) == base]
    assert labels == ["0", "1", "2"]


def test_the_name_of_a_reference_keeps_away_from_the_curve() -> None:
    for values, anchor in (([9.0, 1.0], "start"), ([1.0, 9.0], "end")):
        picture = parse(charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [curve(values)], 380, 220, ("unigram", 0.5)))
        assert next(child for child in picture.iter("text") if child.text == "unigram").attrib["text-anchor"] == anchor


def test_a_narrow_log_axis_still_has_ticks() -> None:
    dots = [charts.Dot("a", 1.0, 2.1e-7, 2.1e-7, 2.1e-7, "a"), charts.Dot("b", 2.0, 2.7e-7, 2.7e-7, 2.7e-7, "b")]
    picture = parse(charts.scatter_chart("KL", charts.Axis("MiB"), charts.Axis("KL", log=True), dots, 300, 220))
    assert len(of_class(picture, "grid")) >= 2


def test_a_chart_without_numbers_is_refused() -> None:
    empty = charts.Series("train", [], "first", "")
    for call in (
        lambda: charts.line_chart("t", charts.Axis("x"), charts.Axis("y"), [empty], 380, 220),
        lambda: charts.level_chart("t", "y", [charts.LevelGroup("trained", [])], 380, 220),
        lambda: charts.scatter_chart("t", charts.Axis("x"), charts.Axis("y"), [], 380, 220),
        lambda: charts.bar_chart("t", [], 380),
    ):
        with pytest.raises(ValueError, match="at least one"):
            call()


def test_levels_rise_with_the_score_and_whiskers_span_the_interval() -> None:
    levels = [
        charts.Level("base", 0.2, 0.1, 0.3, "20.0 %", "base 20 %"),
        charts.Level("rl", 0.6, 0.5, 0.7, "60.0 %", "rl 60 %", ("+40 points", "p 0.01")),
    ]
    drawing = charts.level_chart(
        "Accuracy", "problems right, %", [charts.LevelGroup("trained", levels), charts.LevelGroup("exports", levels[:1])], 600, 252
    )
    picture = parse(drawing)
    ys = [float(dot.attrib["cy"]) for dot in of_class(picture, "dot")]
    assert ys[0] - ys[1] == pytest.approx(0.4 * 160 / 0.8)  # 160 pixels from 0 to 80 %
    assert ys[2] == ys[0]
    stem = of_class(picture, "whisker")[0]
    assert float(stem.attrib["y1"]) - float(stem.attrib["y2"]) == pytest.approx(0.2 * 160 / 0.8)
    assert {"base", "rl", "20.0 %", "0", "80", "trained", "exports", "+40 points", "p 0.01"} <= set(texts(picture))
    assert len(of_class(picture, "water")) == 2  # groups stand apart


def test_a_rise_is_written_only_where_there_is_room() -> None:
    levels = [charts.Level("sft", 0.5, 0.4, 0.6, "50 %", "sft"), charts.Level("rl", 0.52, 0.4, 0.6, "52 %", "rl", ("+2 points", "p 0.9"))]
    assert "+2 points" not in texts(parse(charts.level_chart("Accuracy", "%", [charts.LevelGroup("trained", levels)], 900, 252)))
    levels[1] = charts.Level("rl", 0.9, 0.8, 1.0, "90 %", "rl", ("+40 points", "p 0.01"))
    assert "+40 points" in texts(parse(charts.level_chart("Accuracy", "%", [charts.LevelGroup("trained", levels)], 900, 252)))
    assert "+40 points" not in texts(parse(charts.level_chart("Accuracy", "%", [charts.LevelGroup("trained", levels)], 240, 252)))


def test_a_log_axis_puts_equal_ratios_at_equal_distances() -> None:
    dots = [charts.Dot(name, x, y, y, y, name) for name, x, y in (("a", 1.0, 1e-5), ("b", 2.0, 1e-3), ("c", 3.0, 1e-1))]
    picture = parse(charts.scatter_chart("KL", charts.Axis("MiB", include_zero=True), charts.Axis("KL", log=True), dots, 300, 220))
    a, b, c = (float(dot.attrib["cy"]) for dot in of_class(picture, "dot"))
    assert a - b == pytest.approx(b - c, abs=0.02)
    assert a > b > c


def test_scatter_keeps_a_far_right_name_inside() -> None:
    dots = [charts.Dot("int8", 1.0, 0.5, 0.4, 0.6, "int8"), charts.Dot("bf16", 2.0, 0.55, 0.45, 0.65, "bf16")]
    picture = parse(
        charts.scatter_chart("Size", charts.Axis("MiB", include_zero=True), charts.Axis("accuracy"), dots, 300, 220, ("rl", 0.5))
    )
    by_name = {child.text: child for child in picture.iter("text")}
    assert by_name["bf16"].attrib["text-anchor"] == "end"
    assert by_name["int8"].attrib["text-anchor"] == "start"


def test_bars_are_shares_of_their_track() -> None:
    picture = parse(charts.bar_chart("Mix", [("stdlib", 0.3, "30 %"), ("tasks", 0.6, "60 %")], 400))
    assert [float(bar.attrib["width"]) for bar in of_class(picture, "bar")] == [120.0, 240.0]


def test_doubling_histogram_has_one_bar_a_filled_bin_and_a_gap_for_an_empty_one() -> None:
    picture = parse(charts.doubling_histogram("Lengths", charts.Axis("tokens"), charts.Axis("rows", whole=True), {7: 10, 15: 20, 63: 5, 127: 0}, 380, 190))
    bars = of_class(picture, "bar")
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.02) and heights[0] == pytest.approx(2 * heights[2], abs=0.02) and len(bars) == 3
    places = [float(bar.attrib["x"]) for bar in bars]
    assert places[2] - places[1] == pytest.approx(2 * (places[1] - places[0]), abs=0.02)
    assert [bar[0].text for bar in bars] == ["4 to 7: 10", "8 to 15: 20", "32 to 63: 5"]
    assert [text for text in texts(picture) if text in {"4", "8", "16", "32", "64", "128"}] == ["4", "8", "16", "32", "64"]


@pytest.mark.parametrize("counts", [{}, {7: 0}, {8: 3}, {0: 1}])
def test_doubling_histogram_refuses_nothing_and_other_bins(counts: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="bins that end at 1, 3, 7, 15"):
        charts.doubling_histogram("Lengths", charts.Axis("tokens"), charts.Axis("rows"), counts, 380, 190)


def test_share_track_puts_marks_by_share_and_shape() -> None:
    picture = parse(charts.share_track("sums", [(0.0, "hollow"), (0.5, "half"), (1.0, "full")], 114))
    assert [float(child.attrib["cx"]) for child in picture.iter("circle") if float(child.attrib["r"]) > 2] == [7.0, 57.0, 107.0]
    assert len({child.attrib["class"] for child in picture.iter("circle")}) == 3


@settings(deadline=None)
@given(st.lists(st.floats(30.0, 180.0), min_size=1, max_size=4))
def test_end_labels_never_overlap(places: list[float]) -> None:
    moved = charts._apart(places, 29.0, 30.0, 190.0)
    ordered = sorted(moved)
    assert all(b - a >= 29.0 - 1e-9 for a, b in zip(ordered, ordered[1:], strict=False))
    assert max(moved) + 14 <= 190.0 + 1e-9
