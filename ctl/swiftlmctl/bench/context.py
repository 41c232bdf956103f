"""Speed and memory over context lengths and configurations: what each way of running costs."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import EndpointReply
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.figures import Figure
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, objection, refusal, seconds, speed, tell
from swiftlmctl.errors import CtlError
from swiftlmctl.output import size_text

CONFIGURATIONS = {
    "vanilla": {"kv": "fp16", "stream": "off"},
    "turbo": {"kv": "k4v3", "stream": "off"},
    "SSD": {"kv": "fp16", "stream": "on"},
    "SSD + turbo": {"kv": "k4v3", "stream": "on"},
}
COLUMNS = (
    "configuration", "context", "generation", "first token", "prefill", "from disk", "active",
    "peak", "footprint",
)  # fmt: skip
_NEW_TOKENS = 64
_ROOM = _NEW_TOKENS + 64  # for the answer and the chat template


def fill(
    report: Report, session: Session, contexts: Sequence[int], configurations: Sequence[str]
) -> None:
    """One row for each configuration and context; a refusal is a row, too."""
    runs = f"{session.runs} run" if session.runs == 1 else f"{session.runs} runs"
    report.notes.append(f"{runs} each, median (range); prompts never meet the cache.")
    for name in configurations:
        tell(f"loading {session.endpoint.model}, {name}")
        try:
            loaded = session.load_anew(**CONFIGURATIONS[name])
        except CtlError as error:
            report.add(name, "", refusal(error))
            continue
        if name == configurations[0]:
            within = [Ask(length, _NEW_TOKENS) for length in contexts if length <= loaded.context]
            asks = within * len(configurations) * (session.runs + 1)
            announce(session, asks, loaded.context, smaller="--runs 1, or shorter --contexts")
        if read := session.read_from_disk():
            report.notes.append(f"{name}: {read}.")
        for context in contexts:
            if context > loaded.context:
                report.add(name, f"{context:,}", f"the model ends at {loaded.context:,}")
            else:
                _cell(report, session, name, context)


def _cell(report: Report, session: Session, name: str, context: int) -> None:
    try:
        _measured(report, session, name, context)
    except CtlError as error:
        report.add(name, f"{context:,}", f"failed: {error}")
        report.check(False, f"{name}, {context:,}: {error}")


def _measured(report: Report, session: Session, name: str, context: int) -> None:
    def ask(run: int) -> EndpointReply:
        which = f"run {run + 1} of {session.runs}" if run >= 0 else "warm-up"
        tell(f"{name}, {context:,} tokens, {which}")
        text = texts.prose_of(context - _ROOM, session.count_tokens, seed=context + run)
        question = {"role": "user", "content": f"{text}\n\nTell in your own words what happens."}
        return session.endpoint.chat([question], max_tokens=_NEW_TOKENS, cache_prompt=False)

    pid, before = session.pid(), session.memory()
    replies = session.repeated(ask)
    if session.pid() != pid:
        raise CtlError(f"{session.endpoint.model} was loaded anew while {name} was measured")
    if wrong := objection(replies):
        report.add(name, f"{context:,}", wrong)
        return
    memory = session.memory()
    read = memory.read - before.read
    if CONFIGURATIONS[name]["stream"] == "on" and not read:
        report.add(name, f"{context:,}", "nothing was read from disk")
        return
    generation = speed(replies)
    first = seconds(reply.first_s for reply in replies)
    prefill = Figure(tuple(reply.prefill_tokens_per_s for reply in replies), "tok/s")
    sizes = (size_text(n) for n in (memory.active, memory.peak, memory.footprint))
    from_disk = size_text(read) if read else "nothing"
    report.add(name, f"{context:,}", generation, first, prefill, from_disk, *sizes)
    label = f"{name}, {context:,}"
    report.figures |= {f"{label} first token": first, f"{label} prefill": prefill}
    if isinstance(generation, Figure):
        report.bars[label] = generation
