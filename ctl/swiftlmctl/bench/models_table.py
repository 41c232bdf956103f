"""One table over several models: first token, generation speed, peak memory."""

from __future__ import annotations

from collections.abc import Sequence

from swiftlm_proto import messages as m
from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import Endpoint, EndpointReply
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.figures import Figure
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, models, objection, refusal, seconds, speed, tell
from swiftlmctl.errors import CtlError
from swiftlmctl.output import size_text

COLUMNS = ("model", "first token", "generation", "peak", "footprint")
_PROMPT_SENTENCES, _PROMPT_TOKENS = 24, 500  # about
_NEW_TOKENS = 96
_FAVOURITES = ("gemma-4-e2b", "gemma-4-e4b", "gemma-4-26b-a4b", "gemma-4-31b")


def fill(report: Report, endpoint: Endpoint, names: Sequence[str], runs: int) -> None:
    for name in names or default_names():
        _row(report, Session(Endpoint(endpoint.url, name, endpoint.key), runs), name)


def default_names() -> list[str]:
    """The Gemma 4 sizes that are here; without one of them, every model that is."""
    here = [row.model for row in models() if row.state is not m.ModelStatusState.BROKEN]
    favourites = [name for name in here if any(size in name for size in _FAVOURITES)]
    return favourites or here


def _row(report: Report, session: Session, name: str) -> None:
    def ask(run: int) -> EndpointReply:
        tell(f"{name}, run {run + 1} of {session.runs}")
        question = f"{texts.prose(_PROMPT_SENTENCES, run)}\n\nWrite a short story about this."
        messages = [{"role": "user", "content": question}]
        return session.endpoint.chat(messages, max_tokens=_NEW_TOKENS, cache_prompt=False)

    tell(f"loading {name}")
    try:
        context = session.load().context
        asks = [Ask(_PROMPT_TOKENS, _NEW_TOKENS)] * (session.runs + 1)
        announce(session, asks, context, smaller="--runs 1")
        replies = session.repeated(ask)
        memory = session.memory()
        session.unload()  # the next one gets the whole machine
    except CtlError as error:
        report.add(name, "", refusal(error))
        return
    generation = speed(replies)
    first = "" if objection(replies) else seconds(reply.first_s for reply in replies)
    report.add(name, first, generation, size_text(memory.peak), size_text(memory.footprint))
    if isinstance(generation, Figure):
        report.bars[name] = generation
