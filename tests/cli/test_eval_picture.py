"""What `hearth eval --svg` draws, read as XML."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.app.cli.evaluate_picture import picture

SVG = "{http://www.w3.org/2000/svg}"
LEFT, RIGHT, TOP, BOTTOM = 84, 856, 64, 486
ROWS = [
    ("bf16", 16.0, 0.00002, 0.000001),
    ("Q8_0", 8.5, 0.0009, 0.00002),
    ("int8", 8.02, 0.0011, 0.00003),
    ("Q4_K_M", 4.9, 0.021, 0.001),
    ("gptq+asym", 4.25, 0.031, 0.0012),
    ("awq", 4.25, 0.04, 0.0016),
    ("Q4_0", 4.5, 0.055, 0.002),
]


def row(name: str, bits: float | None, value: float | None, error: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "logits": "dequantized"}
    found["kl_divergence"] = {"value": value, "error": error}
    if bits is not None:
        found |= {"bits_per_weight": bits, "size_bytes": int(bits * 1_000_000)}
    return found


def report(*rows: dict[str, Any], reference: str = "guide") -> dict[str, Any]:
    return {
        "reference": {"name": reference},
        "protocol": {
            "name": "second-half",
            "windows": 6,
            "window_tokens": 512,
            "scored_tokens": 1530,
        },
        "text": {"name": "bundled text"},
        "rows": list(rows),
    }


def texts(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [one for one in root.iter(f"{SVG}text") if one.get("class") == kind]


def axis(root: ElementTree.Element, kind: str, place: str) -> tuple[float, float, float, float]:
    """Two ticks: value and place of each."""
    first, *_, last = texts(root, kind)
    return tuple(
        number for one in (first, last) for number in (float(one.text or ""), float(one.get(place)))
    )


def test_each_model_has_its_point_and_bar_at_the_place_that_the_axes_say() -> None:
    drawn = picture(report(*(row(*one) for one in ROWS)))
    root = ElementTree.fromstring(drawn)
    one, left, other, right = axis(root, "x-tick", "x")
    low, bottom, high, top = axis(root, "y-tick", "y")
    assert left < right and top < bottom

    def across(bits: float) -> float:
        return left + (bits - one) / (other - one) * (right - left)

    def down(value: float) -> float:
        return bottom + math.log(value / low) / math.log(high / low) * (top - 4 - bottom + 4) - 4

    groups = [one for one in root.iter(f"{SVG}g") if one.get("class") == "point"]
    assert len(groups) == len(ROWS)
    for group, (name, bits, value, error) in zip(
        groups, sorted(ROWS, key=lambda one: (one[1], one[0])), strict=True
    ):
        about, bar, circle = group
        assert about.text.startswith(f"{name}: {bits:.2f} bits a weight, ")
        assert f"{value:.5f} ± {error:.5f}" in about.text
        assert float(circle.get("cx")) == pytest.approx(across(bits), abs=0.2)
        assert float(circle.get("cy")) == pytest.approx(down(value), abs=0.2)
        assert bar.get("x1") == bar.get("x2") == circle.get("cx")
        assert float(bar.get("y1")) == pytest.approx(down(value + error), abs=0.2)
        assert float(bar.get("y2")) == pytest.approx(down(value - error), abs=0.2)
    assert [one.text for one in texts(root, "name")] == [
        about[0].text.partition(":")[0] for about in groups
    ]
    assert drawn == picture(report(*(row(*one) for one in ROWS)))
    assert "prefers-color-scheme: dark" in drawn
    assert "from guide" in texts(root, "title")[0].text


def test_names_cover_neither_each_other_nor_points() -> None:
    root = ElementTree.fromstring(picture(report(*(row(*one) for one in ROWS))))
    boxes = []
    for one in texts(root, "name"):
        x, y = float(one.get("x")), float(one.get("y"))
        boxes.append((x, y - 11, x + 7.6 * len(one.text), y + 3))
    for one in root.iter(f"{SVG}circle"):
        x, y = float(one.get("cx")), float(one.get("cy"))
        boxes.append((x - 4, y - 4, x + 4, y + 4))
    for (left, up, right, low), (x, top, end, bottom) in combinations(boxes, 2):
        assert right <= x or end <= left or low <= top or bottom <= up
        assert min(left, x) >= LEFT and max(right, end) <= RIGHT
        assert min(up, top) >= TOP and max(low, bottom) <= BOTTOM


def test_rows_without_a_size_are_lines_and_what_has_no_place_is_named() -> None:
    rows = [
        row("f32, again", None, 0.0, 0.0),
        row("bf16, as served", None, 0.0004, 0.0001),
        row("exact", 16.0, 0.0, 0.0),
        row("broken", 4.0, None, None),
        {"name": "failed", "error": {"code": "x"}},
        row("Q4_0", 4.5, 0.05, 0.08),
        {"name": "no reference", "logits": "served"},
    ]
    root = ElementTree.fromstring(picture(report(*rows)))
    (line,) = (one for one in root.iter(f"{SVG}line") if one.get("class") == "noise")
    low, bottom, high, top = axis(root, "y-tick", "y")
    wanted = bottom - 4 + math.log(0.0004 / low) / math.log(high / low) * (top - bottom)
    assert float(line.get("y1")) == pytest.approx(wanted, abs=0.2)
    (left_out,) = texts(root, "quiet left-out")
    assert left_out.text == "Not drawn: f32, again, exact, broken, failed, no reference"
    (group,) = (one for one in root.iter(f"{SVG}g") if one.get("class") == "point")
    assert float(group[1].get("y2")) == BOTTOM, "a bar that reaches below zero ends at the frame"


@pytest.mark.parametrize("rows", [[], [row("f32, again", None, 0.1, 0.0)], [row("a", 4.0, 0.0, 0)]])
def test_without_a_point_nothing_is_drawn(rows: list[dict[str, Any]]) -> None:
    assert picture(report(*rows)) == ""


@given(
    name=st.text(max_size=40),
    rows=st.lists(
        st.tuples(
            st.floats(1, 32), st.floats(1e-9, 20), st.none() | st.floats(0, 5, allow_nan=False)
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_every_report_becomes_xml_with_its_points_inside(
    name: str, rows: list[tuple[float, float, float | None]]
) -> None:
    """Whatever models are called, and however far apart they are."""
    found = report(*(row(f"{name}{at}", *one) for at, one in enumerate(rows)), reference=name)
    root = ElementTree.fromstring(picture(found))
    circles = list(root.iter(f"{SVG}circle"))
    assert len(circles) == len(rows)
    for one in circles:
        assert LEFT <= float(one.get("cx")) <= RIGHT and TOP <= float(one.get("cy")) <= BOTTOM
    assert len(texts(root, "x-tick")) >= 2 and len(texts(root, "y-tick")) >= 1
