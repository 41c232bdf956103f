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
from swiftlm_engine.streaming.slots import PolicyKind, SlotMap, make_policy
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
    parser.add_argument("--disks", default="0.5,3,6", help="GB/s of reads of one expert's size")
    parser.add_argument("--step-ms", type=float, default=8.0, help="a token of the resident model")
    parser.add_argument("--wait-ms", type=float, default=0.15, help="for the router of a layer")
    arguments = parser.parse_args()
    loaded = load_weights(arguments.folder, "", find_device(), lambda *_: None, StreamOptions())
    assert loaded.streaming is not None
    trace = loaded.streaming.streamer.trace = Trace()
    mx.random.seed(0)
    for prompt in PROMPTS:
        _sample(loaded, prompt, arguments.tokens)
    loaded.streaming.streamer.close()
    experts, top_k = loaded.streaming.num_experts, loaded.streaming.experts_per_token
    layers = len({call.layer for call in trace.calls})
    disks = [float(speed) for speed in arguments.disks.split(",")]
    predicted = [f"tokens/s at {speed:g} GB/s" for speed in disks]
    report = Report(
        "slot policies: hit rate", ["slots", *PolicyKind, "one pool, lru", "chosen", *predicted]
    )
    curves: Curves = {kind: [] for kind in PolicyKind}
    for slots in dict.fromkeys(max(top_k, round(experts * share)) for share in SHARES):
        for kind in PolicyKind:
            rate = replay(trace, slots, kind, count_from=0.5).hit_rate
            curves[kind].append((slots / experts, rate))
        rates = (f"{curves[kind][-1][1]:.3f}" for kind in PolicyKind)
        chosen = choose_policy(trace, slots)
        simulated = (
            simulated_tokens_s(
                missed=(1 - chosen.hit_rates[chosen.policy]) * top_k * layers,
                record_bytes=loaded.streaming.record_bytes,
                disk_bytes_s=disk * 1e9,
                step_s=arguments.step_ms / 1e3 + layers * arguments.wait_ms / 1e3,
            )
            for disk in disks
        )
        pool = f"{pooled_hit_rate(trace, slots, experts):.3f}"
        speeds = (f"{speed:.0f}" for speed in simulated)
        report.add(f"{slots} of {experts}", *rates, pool, chosen.policy, *speeds)
    report.notes.append(f"{len(trace.calls)} calls, the second half counted")
    print(report)
    if arguments.out:
        (arguments.out / "slot_policies.svg").write_text(plot(curves))


def pooled_hit_rate(trace: Trace, slots: int, num_experts: int) -> float:
    """Of one pool of as many slots over all layers; the second half of the calls is counted."""
    numbers = {layer: i for i, layer in enumerate(dict.fromkeys(c.layer for c in trace.calls))}
    size = slots * len(numbers)
    pool = SlotMap(size, make_policy(PolicyKind.LRU, size))
    hits = wanted = 0
    for number, call in enumerate(trace.calls):
        first = numbers[call.layer] * num_experts
        plan = pool.plan([first + expert for expert in call.experts])
        pool.commit(plan)
        if number >= len(trace.calls) // 2:
            hits += len(plan.hits)
            wanted += len(call.experts)
    return hits / wanted


def simulated_tokens_s(
    *, missed: float, record_bytes: int, disk_bytes_s: float, step_s: float
) -> float:
    """One after the other: the layers' waits and arithmetic, then the reads of what missed."""
    return 1 / (step_s + missed * record_bytes / disk_bytes_s)


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
