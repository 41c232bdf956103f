"""Hit rates of slot policies, by replaying a trace of a streamed model.

`PYTHONPATH=engine:proto python -m bench.streaming FOLDER` (a mixture of experts).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from bench.table import Report
from swiftlm_engine.device import find_device
from swiftlm_engine.loader import LoadedWeights, load_weights
from swiftlm_engine.streaming.install import StreamOptions
from swiftlm_engine.streaming.slots import PolicyKind
from swiftlm_engine.streaming.trace import Trace, replay

PROMPTS = ("HAMLET. To be, or not to be", "def parse_args(", "The Roman Empire")
SHARES = (8, 4, 2)  # of the experts: one in so many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    loaded = load_weights(arguments.folder, "", find_device(), lambda *_: None, StreamOptions())
    assert loaded.streaming is not None
    trace = loaded.streaming.streamer.trace = Trace()
    for prompt in PROMPTS:
        _generate(loaded, prompt, arguments.tokens)
    counters = loaded.streaming.to_json()
    experts, top_k = loaded.streaming.num_experts, loaded.streaming.experts_per_token
    report = Report("streaming: hit rate by policy", ["slots", *PolicyKind])
    for slots in (max(top_k, experts // share) for share in SHARES):
        rates = [replay(trace, slots, kind).hit_rate for kind in PolicyKind]
        report.add(f"{slots} of {experts}", *(f"{rate:.3f}" for rate in rates))
    report.notes.append(
        f"live, {loaded.streaming.slots} slots LRU: hit rate {counters['hit_rate']}, "
        f"{counters['gb_per_s']} GB/s, {counters['reads']} reads, "
        f"{counters['sync_s'] / counters['syncs'] * 1e3:.2f} ms per sync (with compute)"
    )
    print(report)
    loaded.streaming.streamer.close()


def _generate(loaded: LoadedWeights, prompt: str, tokens: int) -> None:
    cache = make_prompt_cache(loaded.model)
    ids = loaded.tokenizer.encode(prompt)
    for _ in range(tokens):
        logits = loaded.model(mx.array([ids]), cache=cache)
        ids = [int(mx.argmax(logits[0, -1]).item())]


if __name__ == "__main__":
    main()
