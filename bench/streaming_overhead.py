"""What a streamed layer costs in Python when nothing has to be read.

`PYTHONPATH=engine:proto python -m bench.streaming_overhead FOLDER` (a mixture of experts). Ids are
evaluated before and the result is not waited for: what is timed is the exchange of ids for slots
and the making of the graph, against the making of the resident layer's graph in the same run, as
CPU time of the calling thread (nothing in it waits), which a busy machine changes little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from bench.table import Report
from swiftlm_engine.load.device import find_device
from swiftlm_engine.load.weights import load_weights
from swiftlm_engine.streaming.layer import StreamedExperts
from swiftlm_engine.streaming.report import StreamOptions

CALLS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    device = find_device()
    probe = load_weights(folder, "", device, lambda *_: None, StreamOptions())
    assert probe.streaming is not None
    experts, top_k = probe.streaming.num_experts, probe.streaming.experts_per_token
    streamed = load_weights(folder, "", device, lambda *_: None, StreamOptions(experts - 1)).model
    path, layer = next(
        (p, x) for p, x in streamed.named_modules() if isinstance(x, StreamedExperts)
    )
    resident = dict(load_weights(folder, "", device, lambda *_: None).model.named_modules())[path]
    hidden = streamed.args.hidden_size
    x = mx.random.normal((1, 1, hidden))
    ids = [mx.random.permutation(experts - 1)[None, None, :top_k] for _ in range(50)]
    ids = [i.astype(mx.uint32) for i in ids]
    mx.eval(x, ids)
    for i in ids:
        mx.eval(layer(x, i))
    report = Report("streamed layer without a miss", ["", "median ms", "quartiles"])
    for name, call in (("resident", resident), ("streamed", layer), ("resident again", resident)):
        low, middle, high = timed(call, x, ids)
        report.add(name, f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    report.notes.append("target: streamed within 0.15 ms")
    print(report)


def timed(
    layer: Callable[[mx.array, mx.array], mx.array], x: mx.array, ids: list[mx.array]
) -> tuple[float, float, float]:
    times = []
    for number in range(CALLS):
        started = time.thread_time()
        y = layer(x, ids[number % len(ids)])
        times.append((time.thread_time() - started) * 1e3)
        mx.eval(y)
    low, middle, high = statistics.quantiles(times, n=4)
    return low, middle, high


if __name__ == "__main__":
    main()
