"""Horizontal bars as SVG: the bar ends at the median, the whisker spans lowest to highest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

from swiftlmctl.bench.figures import Figure

_BAR_PX, _ROW_PX, _MARGIN_PX = 420, 24, 16
_CHAR_PX = 6.8  # of the labels, at their widest
_TITLE_PX, _NOTE_PX = 34, 26
_INK, _FAINT = "#1b1b1b", "#6b6b6b"
_STRONG, _PALE = "#4a7bd0", "#c3cede"


def bars(title: str, figures: Mapping[str, Figure], strong: Collection[str] = ()) -> str:
    """One row each; with `strong` only those are in the strong colour."""
    longest = max((max(figure.values) for figure in figures.values()), default=1.0) or 1.0
    left = _MARGIN_PX + _CHAR_PX * max(map(len, figures), default=0) + 10
    room = _CHAR_PX * max((len(str(figure)) for figure in figures.values()), default=0)
    width = left + _BAR_PX + 8 + room + _MARGIN_PX
    height = _TITLE_PX + _ROW_PX * len(figures) + _NOTE_PX
    rows = [
        _row(
            _TITLE_PX + i * _ROW_PX, left, label, figure,
            _STRONG if label in strong or not strong else _PALE, _BAR_PX / longest,
        )
        for i, (label, figure) in enumerate(figures.items())
    ]  # fmt: skip
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" rx="6" fill="#fff"/>',  # readable on a dark page, too
        f'<text x="{_MARGIN_PX}" y="22" font-size="14" font-weight="600" fill="{_INK}">'
        f"{escape(title)}</text>",
        *rows,
        f'<text x="{left:.0f}" y="{height - 9}" font-size="11" fill="{_FAINT}">'
        "bar: median; whisker: lowest to highest</text>",
        "</svg>",
        "",
    ])  # fmt: skip


def _row(top: int, left: float, label: str, figure: Figure, colour: str, scale: float) -> str:
    low, high = (left + edge(figure.values) * scale for edge in (min, max))
    base, middle = top + 15, top + 11
    whisker = f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
    return "\n".join([
        f'<text x="{left - 8:.1f}" y="{base}" text-anchor="end" fill="{_INK}">'
        f"{escape(label)}</text>",
        f'<rect x="{left:.1f}" y="{top + 2}" width="{figure.median * scale:.1f}" height="18" '
        f'rx="2" fill="{colour}"/>',
        *([f'<path d="{whisker}" stroke="{_INK}"/>'] if high > low else []),
        f'<text x="{high + 8:.1f}" y="{base}" fill="{_INK}">{escape(str(figure))}</text>',
    ])  # fmt: skip
