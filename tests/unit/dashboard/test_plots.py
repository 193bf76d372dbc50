"""What a plot shows, and tells those who do not see it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from inferd.dashboard.plots import HEIGHT, POINTS_MAX, WIDTH, Line, plot, shown

VALUES = st.lists(st.none() | st.floats(0, 1e6), max_size=800)


@given(VALUES, VALUES, st.none() | st.floats(0, 1e6))
def test_every_line_stays_within_the_picture(
    first: list[float | None], second: list[float | None], limit: float | None
) -> None:
    lines = [Line("p50", first), Line("p95", second)]
    picture = ET.fromstring(plot("TTFT", lines, "s", limit))
    points = [
        tuple(map(float, point.split(",")))
        for line in picture.iter("polyline")
        for point in line.attrib["points"].split()
    ]
    assert all(0 <= x <= WIDTH + 1 and 0 <= y <= HEIGHT for x, y in points)
    assert len(points) <= 4 * POINTS_MAX
    drawn = {line.attrib["class"] for line in picture.iter("polyline")}
    known = {number for number, line in enumerate(lines) if any(v is not None for v in line.values)}
    assert drawn == {f"line line-{number}" for number in known}


def test_a_picture_says_in_words_where_its_lines_end() -> None:
    picture = plot("<TTFT>", [Line("p50", [0.1, 0.25]), Line("p95", [0.4, None])], "s")
    assert 'aria-label="&lt;TTFT&gt;: p50 0.25 s, p95 -"' in picture


def test_a_gap_is_no_line() -> None:
    assert plot("KV", [Line("used", [0.1, 0.2, None, 0.3, 0.4])], "%").count("<polyline") == 2
    assert plot("KV", [Line("used", [None, 0.3, None])], "%").count("<polyline") == 1


def test_values_are_shown_in_their_unit() -> None:
    assert shown(0.0384, "ms") == "38 ms"
    assert shown(0.512, "%") == "51 %"
    assert shown(72.4, "s") == "72 s"
    assert shown(3, "") == "3"
