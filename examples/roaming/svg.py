"""A plot of lines over time as SVG: enough for reports, and no library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from skerry.placement.tables import Array

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44


def draw(
    title: str, seconds: Array, lines: Array, bound: float, marks: Sequence[float] = ()
) -> str:
    """`lines` (times, lines) in ms over `seconds`, the bound dashed, `marks` along the bottom.

    Lines are broken where a value is no number.
    """
    top = max(float(np.nanmax(lines, initial=bound)), bound) * 1.1
    end = float(seconds[-1]) or 1.0

    def x(at: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * at / end:.1f}"

    def y(ms: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ms / top:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for part in range(6):
        at, ms = end * part / 5, top * part / 5
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ms)}" y2="{y(ms)}" '
                     'stroke="#ddd"/>')  # fmt: skip
        parts.append(f'<text x="{LEFT - 6}" y="{y(ms)}" text-anchor="end">{ms:.0f} ms</text>')
        parts.append(f'<text x="{x(at)}" y="{HEIGHT - 12}" text-anchor="middle">{at:.0f} s</text>')
    for number in range(lines.shape[1]):
        colour = f"hsl({number * 137 % 360},65%,45%)"
        values = zip(seconds.tolist(), lines[:, number].tolist(), strict=True)
        path = _path([(x(at), y(ms)) if np.isfinite(ms) else None for at, ms in values])
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" opacity="0.7"/>')
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(bound)}" y2="{y(bound)}" '
                 'stroke="#c00" stroke-dasharray="6 4"/>')  # fmt: skip
    foot = HEIGHT - BOTTOM
    parts += [f'<line x1="{x(at)}" x2="{x(at)}" y1="{foot}" y2="{foot + 8}" stroke="#000"/>'
              for at in marks]  # fmt: skip
    return "\n".join([*parts, "</svg>", ""])


def _path(points: list[tuple[str, str] | None]) -> str:
    """Points joined; those that lie on a level between two others are left out."""
    steps: list[str] = []
    pen = "M"
    for number, point in enumerate(points):
        if point is None:
            pen = "M"
            continue
        around = points[number - 1 : number] + points[number + 1 : number + 2]
        if pen == "L" and len(around) == 2 and all(p and p[1] == point[1] for p in around):
            continue
        steps.append(f"{pen}{point[0]} {point[1]}")
        pen = "L"
    return "".join(steps)
