"""Hit curves of slot policies: what a trained router asks for, replayed at every number of slots.

`PYTHONPATH=engine:proto python -m bench.slot_policies FOLDER [--out docs/img]` (a mixture of
experts). Texts are sampled, not greedy: a greedy loop asks for the same experts for ever.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from bench.table import Report
from swiftlm_engine.load.device import find_device
from swiftlm_engine.load.weights import LoadedWeights, load_weights
from swiftlm_engine.streaming.policy_choice import choose_policy
from swiftlm_engine.streaming.report import StreamOptions
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.trace import Trace, replay

PROMPTS = (
    "HAMLET. To be, or not to be", "def parse_args(", "The Roman Empire",
    "MACBETH. Is this a dagger", "import os\nimport sys\n", "The city lies on the river",
)  # fmt: skip
SHARES = (1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of the experts
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 320, 56, 44, 40
COLOURS = {PolicyKind.LRU: "#2b6cb0", PolicyKind.LFU: "#c05621", PolicyKind.S3_FIFO: "#2f855a"}

Curves = dict[PolicyKind, list[tuple[float, float]]]  # share of experts held, hit rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    loaded = load_weights(arguments.folder, "", find_device(), lambda *_: None, StreamOptions())
    assert loaded.streaming is not None
    trace = loaded.streaming.streamer.trace = Trace()
    mx.random.seed(0)
    for prompt in PROMPTS:
        _sample(loaded, prompt, arguments.tokens)
    loaded.streaming.streamer.close()
    experts, top_k = loaded.streaming.num_experts, loaded.streaming.experts_per_token
    report = Report("slot policies: hit rate", ["slots", *PolicyKind, "chosen"])
    curves: Curves = {kind: [] for kind in PolicyKind}
    for slots in dict.fromkeys(max(top_k, round(experts * share)) for share in SHARES):
        for kind in PolicyKind:
            rate = replay(trace, slots, kind, count_from=0.5).hit_rate
            curves[kind].append((slots / experts, rate))
        rates = (f"{curves[kind][-1][1]:.3f}" for kind in PolicyKind)
        report.add(f"{slots} of {experts}", *rates, choose_policy(trace, slots).policy)
    report.notes.append(f"{len(trace.calls)} calls, the second half counted")
    print(report)
    if arguments.out:
        (arguments.out / "slot_policies.svg").write_text(plot(curves))


def _sample(loaded: LoadedWeights, prompt: str, tokens: int) -> None:
    cache = make_prompt_cache(loaded.model)
    ids = loaded.tokenizer.encode(prompt)
    for _ in range(tokens):
        logits = loaded.model(mx.array([ids]), cache=cache)
        ids = [int(mx.random.categorical(logits[0, -1] / 0.8).item())]


def plot(curves: Curves) -> str:
    parts = [_text(LEFT, 18, "hit rate against share of experts with a slot")]
    for tenth in range(0, 11, 2):
        x, y = _place(tenth / 10, tenth / 10)
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - 10}" y2="{y}" stroke="#ddd"/>',
            _text(LEFT - 8, y + 4, f"{tenth / 10:.1f}", "end"),
            _text(x, HEIGHT - BOTTOM + 18, f"{tenth * 10} %", "middle"),
        ]
    for number, (kind, curve) in enumerate(curves.items()):
        points = " ".join(f"{x},{y}" for x, y in (_place(*point) for point in curve))
        colour = COLOURS[kind]
        parts += [
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>',
            _text(WIDTH - 150 + 50 * number, 18, kind, colour=colour),
        ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *parts,
                      "</svg>\n"])  # fmt: skip


def _place(share: float, rate: float) -> tuple[float, float]:
    x = LEFT + share * (WIDTH - 10 - LEFT)
    return round(x, 1), round(HEIGHT - BOTTOM - rate * (HEIGHT - BOTTOM - TOP), 1)


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#333") -> str:
    return (f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12" fill="{colour}" '
            f'text-anchor="{anchor}">{text}</text>')  # fmt: skip


if __name__ == "__main__":
    main()
