"""Speed and memory over context lengths and configurations: what each way of running costs."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import Reply
from swiftlmctl.bench.figures import Figure
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, speed, tell
from swiftlmctl.errors import CtlError
from swiftlmctl.output import size_text

CONTEXTS = (512, 40_000, 100_000)
CONFIGURATIONS = {
    "vanilla": {"kv": "fp16", "stream": "off"},
    "turbo": {"kv": "k4v3", "stream": "off"},
    "SSD": {"kv": "fp16", "stream": "on"},
    "SSD + turbo": {"kv": "k4v3", "stream": "on"},
}
_NEW_TOKENS = 64
_ROOM = _NEW_TOKENS + 64  # for the answer and the chat template
_COLUMNS = (
    "configuration", "context", "generation", "first token", "prefill", "active", "peak",
    "footprint",
)  # fmt: skip


def run(session: Session, contexts: Sequence[int], configurations: Sequence[str]) -> Report:
    """One row for each configuration and context; a refusal is a row, too."""
    report = Report(f"context {session.endpoint.model}", _COLUMNS)
    for name in configurations:
        tell(f"loading {session.endpoint.model}, {name}")
        try:
            session.unload()
            loaded = session.load(**CONFIGURATIONS[name])
        except CtlError as error:
            report.add(name, "", f"refused: {error}", *[""] * 5)
            continue
        for context in contexts:
            if context > loaded.context:
                report.add(name, f"{context:,}", f"the model ends at {loaded.context:,}", *[""] * 5)
            else:
                _cell(report, session, name, context)
    report.notes.append(f"{session.runs} runs each, median (range); prompts never meet the cache.")
    return report


def _cell(report: Report, session: Session, name: str, context: int) -> None:
    def ask(run: int) -> Reply:
        tell(f"{name}, {context:,} tokens, run {run + 1} of {session.runs}")
        text = texts.prose_of(context - _ROOM, session.count_tokens, seed=context + run)
        question = {"role": "user", "content": f"{text}\n\nTell in your own words what happens."}
        return session.endpoint.chat([question], max_tokens=_NEW_TOKENS, cache_prompt=False)

    replies = session.repeated(ask)
    memory = session.memory()
    generation = speed(replies)
    first = Figure(tuple(reply.first_s for reply in replies), "s")
    prefill = Figure(tuple(reply.prefill_tokens_per_s for reply in replies), "tok/s")
    sizes = (size_text(n) for n in (memory.active, memory.peak, memory.footprint))
    report.add(name, f"{context:,}", generation, first, prefill, *sizes)
    label = f"{name}, {context:,}"
    report.figures |= {f"{label} first token": first, f"{label} prefill": prefill}
    if isinstance(generation, Figure):
        report.bars[label] = generation
