"""Prefill of a streamed model: prompts of 2,000 tokens through the real engine and its scheduler.

One engine a row, the first prompt behind a load, which finds out how large chunks are, and two more
of other tokens. Warm: the file is in the page cache. Cold: it is dropped before each prompt and
what is read is kept out, so that each chunk reads from the disk, as of a model larger than memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine_harness import EngineHarness  # `tests` is on the path of `make bench-stream`

from bench.gpu_streaming import drop
from bench.table import Figure, Report, ratio
from swiftlm_engine.messages import GenerateJob
from swiftlm_engine.sampling.settings import SamplingSettings
from swiftlm_engine.schedule.step import StepPlan, StepResult

TOKENS, ANSWER, PROMPTS = 2000, 4, 3
CONTEXT, VOCAB = 4096, 256
BLOCK = 2**24
_GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """To run the model; `cold` where the disk is read."""

    name: str
    options: dict[str, object]
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """One prompt."""

    text: str
    tokens_s: float
    chunks: tuple[int, ...]
    read_bytes: int


def prefill(folder: Path, num_experts: int) -> Report:
    """Ends with an error where a streamed model says something else than the resident one."""
    columns = ["weights", "first prompt", "tokens/s", "of resident", "passes", "read per token"]
    report = Report(f"streaming: prefill of {TOKENS:,} tokens", columns)
    texts: list[str] = []
    resident: Figure | None = None
    for way in _ways(num_experts):
        found = list(_run(folder, way))
        if resident is None:
            texts = [prompt.text for prompt in found]
        if [prompt.text for prompt in found] != texts:
            raise SystemExit(f"{way.name}: the text is not that of the resident model")
        figure = Figure(tuple(prompt.tokens_s for prompt in found[1:]))
        last = found[-1]
        if way.cold and not last.read_bytes:
            raise SystemExit(f"{way.name}: nothing was read")
        resident = resident or figure
        report.add(
            way.name,
            f"{found[0].tokens_s:.0f}",
            figure,
            ratio(figure, resident),
            f"{len(last.chunks)} of {min(last.chunks)} to {max(last.chunks)}",
            f"{last.read_bytes / TOKENS / 1e6:.2f} MB",
        )
    report.notes.append("passes and bytes are those of the last prompt; all texts are the same")
    return report


def _ways(num_experts: int) -> Iterator[Way]:
    yield Way("resident", {})
    for slots in (num_experts, num_experts // 2, num_experts // 4):
        options: dict[str, object] = {"stream_experts": "experts", "expert_slots": slots}
        name = f"{slots} of {num_experts} experts"
        yield Way(f"{name}, warm", options | {"ssd_nocache": "off"})
        if slots < num_experts:
            yield Way(f"{name}, cold", options | {"ssd_nocache": "on"}, cold=True)
    layers: dict[str, object] = {"stream_experts": "layers"}
    yield Way("whole layers, warm", layers | {"ssd_nocache": "off"})
    yield Way("whole layers, cold", layers | {"ssd_nocache": "on"}, cold=True)


def _run(folder: Path, way: Way) -> Iterator[Prefilled]:
    chance = random.Random(1)
    with EngineHarness(folder, context=CONTEXT, kv="fp16", **way.options) as engine:
        chunks = _noted_chunks(engine)
        for number in range(PROMPTS):
            if way.cold:
                drop(folder)
            else:
                _read(folder)
            ids = tuple(chance.randrange(VOCAB) for _ in range(TOKENS))
            before = engine.mlx.call(lambda: _bytes_read(engine)).result(60)
            job = GenerateJob(f"p{number}", ids, _GREEDY, max_tokens=ANSWER, ignore_eos=True)
            [answer] = engine.run(job)
            finished = answer.finished
            assert finished is not None
            yield Prefilled(
                answer.content,
                finished.timings.prefill_tokens_per_s,
                tuple(tokens for tokens, _ in chunks),
                chunks[-1][1] - before,
            )
            chunks.clear()


def _noted_chunks(engine: EngineHarness) -> list[tuple[int, int]]:
    """Fills with the tokens of each prefill pass, and the bytes read by its end."""
    scheduler, chunks = engine.session.engine.scheduler, list[tuple[int, int]]()
    apply = scheduler.apply

    def noted(plan: StepPlan, result: StepResult) -> None:
        chunks.extend((chunk.count, _bytes_read(engine)) for chunk in plan.chunks)
        apply(plan, result)

    scheduler.apply = noted  # type: ignore[method-assign]  # nothing else tells passes apart
    return chunks


def _bytes_read(engine: EngineHarness) -> int:
    """Asked on its own thread."""
    streaming = engine.session.streaming
    if streaming is None:
        return 0
    return int(streaming.to_json()["bytes"])


def _read(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as source:
            while source.read(BLOCK):
                pass
