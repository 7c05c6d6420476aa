"""The picture of `hearth eval --svg`: KL divergence on a logarithmic axis over bits per weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from hearth.app import format as words
from hearth.app.terminal import safe_text

_WIDTH, _HEIGHT = 880, 560
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 856, 64, 486
"""The edges of the plot."""
_CHARACTER, _LINE = 7.6, 14
"""Approximate character width and line height of labels."""
_STYLE: Final = """
svg { color: #1f2328; font: 12px system-ui, sans-serif; }
.paper { fill: #ffffff; }
text { fill: currentColor; }
.title { font-size: 16px; }
.quiet { opacity: 0.75; }
.grid { stroke: currentColor; opacity: 0.15; }
.frame, .noise { stroke: currentColor; fill: none; }
.noise { stroke-dasharray: 5 4; opacity: 0.6; }
.point circle { fill: #0969da; }
.point line { stroke: #0969da; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  svg { color: #e6edf3; }
  .paper { fill: #0d1117; }
  .point circle { fill: #58a6ff; }
  .point line { stroke: #58a6ff; }
}
"""


@dataclass(frozen=True, slots=True)
class _Point:
    """A row that can be drawn: a model, or, without `bits`, a level of noise."""

    name: str
    bits: float | None
    divergence: float
    error: float
    about: str


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to positions, linearly or by their logarithms."""

    least: float
    most: float
    start: float
    end: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        distance = self._even(value) - self._even(self.least)
        share = distance / (self._even(self.most) - self._even(self.least))
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Round numbers; on a logarithmic axis powers of ten, and on a short one also 2 and 5 times
        them.
        """
        if self.is_logarithmic:
            steps = (1,) if self.most > 1000 * self.least else (1, 2, 5)
            low, high = math.floor(math.log10(self.least)), math.ceil(math.log10(self.most))
            every = [step * 10.0**power for power in range(low, high + 1) for step in steps]
        else:
            wide = (self.most - self.least) / 8
            unit = 10.0 ** math.floor(math.log10(wide))
            step = next(unit * one for one in (1, 2, 5, 10) if unit * one >= wide)
            first, last = math.ceil(self.least / step), math.floor(self.most / step)
            every = [step * number for number in range(first, last + 1)]
        return (one for one in every if self.least <= one <= self.most)

    def _even(self, value: float) -> float:
        return math.log10(value) if self.is_logarithmic else value


def picture(report: dict[str, Any]) -> str:
    """An SVG of the models of `report` (the object of `hearth eval --json`), which depends on
    nothing else. Empty if no model has both bits per weight and a KL divergence above zero.
    """
    rows = [row for row in report["rows"] if "error" not in row]
    every = [point for row in rows if (point := _point(row)) is not None]
    points = sorted(
        (one for one in every if one.bits is not None), key=lambda one: (one.bits, one.name)
    )
    if not points:
        return ""
    x, y = _axes(points, every)
    drawn = {one.name for one in every}
    left_out = [row["name"] for row in report["rows"] if row["name"] not in drawn]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img">',
        f"<title>{_text(_title(report))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>',
        *_frame(report, x, y, left_out),
    ]
    for one in every:
        if one.bits is None:
            at = y.place(one.divergence)
            lines += [
                f'<line class="noise" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
                _label(_RIGHT - 4, at - 4, one.name, "quiet", "end"),
            ]
    spots = [(x.place(one.bits or 0.0), y.place(one.divergence)) for one in points]
    names = _labels(points, spots, [y.place(one.divergence) for one in every if one.bits is None])
    for one, (across, down), label in zip(points, spots, names, strict=True):
        top, bottom = y.place(one.divergence + one.error), _BOTTOM * 1.0
        if one.divergence > one.error:
            bottom = min(bottom, y.place(one.divergence - one.error))
        lines += [
            f'<g class="point"><title>{_text(one.about)}</title>',
            f'<line x1="{across:.1f}" x2="{across:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>',
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4"/></g>',
            _label(*label, one.name, "name"),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _point(row: dict[str, Any]) -> _Point | None:
    """The point of `row`; None if it has no place on a logarithmic axis."""
    divergence = row.get("kl_divergence")
    if divergence is None or not divergence["value"] or divergence["value"] < 0:
        return None
    value, error = divergence["value"], divergence["error"] or 0.0
    bits = row.get("bits_per_weight")
    size = "" if bits is None else f"{bits:.2f} bits a weight, {words.size(row['size_bytes'])}, "
    about = f"{row['name']}: {size}KL divergence {value:.5f} ± {error:.5f}, {row['logits']}"
    return _Point(row["name"], bits, value, error, about)


def _axes(points: Sequence[_Point], every: Sequence[_Point]) -> tuple[_Axis, _Axis]:
    bits = [one.bits for one in points if one.bits is not None]
    margin = (max(bits) - min(bits)) / 12 or 0.5
    # An error bar that reaches below zero has no end on this axis; it is cut at a tenth of it.
    low = min(max(one.divergence - one.error, one.divergence / 10) for one in every)
    high = max(one.divergence + one.error for one in every)
    wide = max(2.3, (high / low) ** 0.06)
    return (
        _Axis(min(bits) - margin, max(bits) + margin, _LEFT, _RIGHT),
        _Axis(low / wide, high * wide, _BOTTOM, _TOP, is_logarithmic=True),
    )


def _frame(report: dict[str, Any], x: _Axis, y: _Axis, left_out: Sequence[str]) -> Iterator[str]:
    protocol = report["protocol"]
    yield _label(_LEFT, 26, _title(report), "title")
    yield _label(
        _LEFT,
        46,
        f"{protocol['name']}: {protocol['windows']:,} windows of {protocol['window_tokens']:,} "
        f"tokens, {protocol['scored_tokens']:,} scored, of {report['text']['name']}; bars are "
        "standard errors",
        "quiet",
    )
    for tick in x.ticks():
        at = x.place(tick)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>'
        yield _label(at, _BOTTOM + 18, f"{tick:g}", "x-tick", "middle")
    for tick in y.ticks():
        at = y.place(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield _label(_LEFT - 8, at + 4, f"{tick:g}", "y-tick", "end")
    size = f'width="{_RIGHT - _LEFT}" height="{_BOTTOM - _TOP}"'
    yield f'<rect class="frame" x="{_LEFT}" y="{_TOP}" {size}/>'
    yield _label((_LEFT + _RIGHT) / 2, _BOTTOM + 38, "bits a weight", "", "middle")
    middle = (_TOP + _BOTTOM) / 2
    yield (
        f'<text transform="translate(22 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        "KL divergence, nats a token</text>"
    )
    if left_out:
        yield _label(_LEFT, _BOTTOM + 60, f"Not drawn: {', '.join(left_out)}", "quiet left-out")


def _labels(
    points: Sequence[_Point], spots: Sequence[tuple[float, float]], lines: Sequence[float]
) -> list[tuple[float, float]]:
    """Where each name begins: next to its point, where it covers other names and points least.

    Args:
        lines: heights of the lines across the plot, whose names are above them on the right.
    """
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots]
    taken += [(_RIGHT - 160, y - _LINE, _RIGHT, y + 1) for y in lines]
    starts: list[tuple[float, float]] = []
    for one, (x, y) in zip(points, spots, strict=True):
        wide = _CHARACTER * len(one.name)
        right, left, middle = x + 8, x - 8 - wide, x - wide / 2
        places = [(right, y + 4), (left, y + 4), (middle, y - 10), (middle, y + 19)]
        places += [(side, y + 4 + down) for down in (-14, 14, -28, 28) for side in (right, left)]
        at = min(places, key=_covered(wide, taken))
        taken.append((at[0], at[1] - _LINE + 3, at[0] + wide, at[1] + 3))
        starts.append(at)
    return starts


def _covered(
    wide: float, taken: Sequence[tuple[float, float, float, float]]
) -> Callable[[tuple[float, float]], float]:
    """A function that gives the area of a name that covers something or is outside the plot."""

    def area(place: tuple[float, float]) -> float:
        x, y = place
        top = y - _LINE + 3
        total = sum(
            max(0.0, min(x + wide, right) - max(x, left)) * max(0.0, min(y + 3, low) - max(top, up))
            for left, up, right, low in taken
        )
        outside = max(0.0, _LEFT - x) + max(0.0, x + wide - _RIGHT)
        return total + _LINE * (outside + max(0.0, _TOP - top) + max(0.0, y + 3 - _BOTTOM))

    return area


def _title(report: dict[str, Any]) -> str:
    return f"KL divergence from {report['reference']['name']} over bits a weight"


def _label(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_text(text)}</text>'
    )


def _text(text: str) -> str:
    """`text` escaped for XML, without control characters, which XML does not allow."""
    return escape(safe_text(text))
