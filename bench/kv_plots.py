"""The plots of docs/turboquant.md: python bench/kv_plots.py kv_quality-*.json --out docs/img"""

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 64, 44, 58
COLOURS = ["#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#b7791f"]

Costs = list[dict[str, object]]
Decades = tuple[int, int]  # of KLD shown
OF_FORMATS, OF_GROWTH = (-4, 1), (-4, -1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    records = [json.loads(path.read_text()) for path in options.records]
    models: dict[str, Costs] = defaultdict(list)
    for record in records:
        models[record["model"]] += record["costs"]
    (options.out / "kv_kld.svg").write_text(bars(models))
    (options.out / "kv_growth.svg").write_text(growth(models))
    return 0


def bars(models: dict[str, Costs]) -> str:
    """Mean KLD at 1024 tokens per format, a group of bars per format, a bar per model."""
    means: dict[str, dict[str, float]] = defaultdict(dict)
    for model, costs in models.items():
        kept = [c for c in costs if c["tokens"] == min(int(c["tokens"]) for c in costs)]
        for format in dict.fromkeys(str(c["format"]) for c in kept):
            means[format][model] = statistics.fmean(
                float(c["kld"]) for c in kept if c["format"] == format
            )
    step = (WIDTH - LEFT - 10) / len(means)
    width = step * 0.8 / len(models)
    parts = axes("KLD against exact KV, mean over texts (nats, log scale)", OF_FORMATS)
    for i, (format, by_model) in enumerate(means.items()):
        for j, model in enumerate(models):
            if model not in by_model:
                continue
            x, y = LEFT + i * step + step * 0.1 + j * width, height_of(by_model[model], OF_FORMATS)
            base = HEIGHT - BOTTOM
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 2:.1f}" height="{base - y:.1f}" '
                f'fill="{COLOURS[j]}"/>'
            )
        parts.append(label(LEFT + (i + 0.5) * step, HEIGHT - BOTTOM + 16, format, "middle"))
    return picture(parts + legend(list(models)))


def growth(models: dict[str, Costs]) -> str:
    """KLD over the position in the longest text measured, k4v3."""
    parts = axes("k4v3: KLD over the position in the text (nats, log scale)", OF_GROWTH)
    names = []
    for model, costs in models.items():
        ours = [c for c in costs if c["format"] == "k4v3"]
        for tokens in sorted({int(c["tokens"]) for c in ours}):
            lines = [c["by_position"] for c in ours if c["tokens"] == tokens]
            mean = [statistics.fmean(column) for column in zip(*lines, strict=True)]
            longest = max(int(c["tokens"]) for cs in models.values() for c in cs)
            points = " ".join(
                f"{position(tokens * (0.25 + 0.75 * (k + 0.5) / len(mean)), longest):.1f},"
                f"{height_of(value, OF_GROWTH):.1f}"
                for k, value in enumerate(mean)
            )
            colour = COLOURS[len(names) % len(COLOURS)]
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            names.append(f"{model}, {tokens}")
    longest = max(int(c["tokens"]) for cs in models.values() for c in cs)
    for k in range(5):
        at = longest * k / 4
        parts.append(label(position(at, longest), HEIGHT - BOTTOM + 16, f"{at:.0f}", "middle"))
    return picture(parts + legend(names))


def position(token: float, longest: int) -> float:
    return LEFT + (WIDTH - LEFT - 20) * token / longest


def height_of(kld: float, decades: Decades) -> float:
    low, high = decades
    share = (math.log10(max(kld, 10.0**low)) - low) / (high - low)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def axes(title: str, decades: Decades) -> list[str]:
    parts = [label(LEFT, 16, title, "start")]
    for decade in range(decades[0], decades[1] + 1):
        y = height_of(10.0**decade, decades)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#cbd5e0"/>'
        )
        parts.append(label(LEFT - 6, y + 4, f"{10.0**decade:g}", "end"))
    return parts


def legend(names: list[str]) -> list[str]:
    parts = []
    for i, name in enumerate(names):
        x = LEFT + 8 + 190 * (i % 3)
        y = 24 + 14 * (i // 3)
        parts.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[i]}"/>')
        parts.append(label(x + 14, y + 9, name, "start"))
    return parts


def label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def picture(parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    return head + "\n" + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    sys.exit(main())
