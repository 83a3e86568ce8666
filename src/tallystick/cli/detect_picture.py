"""Series over time as SVG, one below the other, with the band in which each was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tallystick.fleet.detect.explain import Panel

WIDE, HIGH, MARGIN, TEXT = 900, 130, 60, 16
POINTS_MAX = 2000  # of one series; of more, every so many
STYLE = (
    "text{font:12px sans-serif;fill:#444}.axis{text-anchor:end}.band{fill:#cfe8cf}.alert{fill:#f4d3d0}"
    "polyline{fill:none;stroke:#25c;stroke-width:1.2}.frame{fill:none;stroke:#bbb}"
)


def draw_svg(title: str, panels: Sequence[Panel], alert_us: tuple[int, int]) -> str:
    """`alert_us` is when the alert began and ended."""
    times = [int(one) for panel in panels for one in (panel.times[:1].tolist() + panel.times[-1:].tolist())]
    first, last = min([alert_us[0], *times]), max([alert_us[1], *times, alert_us[0] + 1])
    width, height = WIDE + 2 * MARGIN, MARGIN + (HIGH + MARGIN) * len(panels)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    parts = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    parts.append(f'<text x="{MARGIN}" y="{2 * TEXT}">{escape(title)}</text>')

    def across(ts: int) -> float:
        return MARGIN + WIDE * (ts - first) / (last - first)

    for number, panel in enumerate(panels):
        top = MARGIN + (HIGH + MARGIN) * number
        bounds = [one for one in (panel.low, panel.high) if one is not None]
        low = min([*panel.values.tolist(), *bounds], default=0.0)
        span = max([*panel.values.tolist(), *bounds], default=1.0) - low or 1.0

        def down(value: float, top: float = top, low: float = low, span: float = span) -> float:
            return top + HIGH * (1 - (value - low) / span)

        from_x, to_x = across(alert_us[0]), max(across(alert_us[1]), across(alert_us[0]) + 2)
        parts.append(f'<rect class="alert" x="{from_x:.1f}" y="{top}" width="{to_x - from_x:.1f}" height="{HIGH}"/>')
        if bounds:
            above, below = (
                down(high) if high is not None else end for high, end in ((panel.high, top), (panel.low, top + HIGH))
            )
            size = f'y="{above:.1f}" width="{to_x - from_x:.1f}" height="{max(below - above, 1):.1f}"'
            parts.append(f'<rect class="band" x="{from_x:.1f}" {size}/>')
        every = len(panel.times) // POINTS_MAX + 1
        drawn = zip(panel.times[::every].tolist(), panel.values[::every].tolist(), strict=True)
        points = " ".join(f"{across(ts):.1f},{down(value):.1f}" for ts, value in drawn)
        parts.append(
            f'<polyline points="{points}"/><rect class="frame" x="{MARGIN}" y="{top}" width="{WIDE}" height="{HIGH}"/>'
        )
        parts.append(f'<text x="{MARGIN}" y="{top - 5}">{escape(panel.name)}</text>')
        for value, y in ((low + span, top + TEXT), (low, top + HIGH)):
            parts.append(f'<text class="axis" x="{MARGIN - 5}" y="{y}">{value:.4g}</text>')
    parts.append(f'<text x="{MARGIN}" y="{height - MARGIN / 2}">{(last - first) / 1e6:.1f} s</text></svg>')
    return "\n".join(parts) + "\n"
