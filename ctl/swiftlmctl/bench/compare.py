"""The same questions to this service and to another OpenAI server, turn about: A, B, A, B."""

from __future__ import annotations

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import Endpoint, EndpointReply, Refused
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.figures import Figure, ratio
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, objection, seconds, speed, tell

_LENGTHS = {"short question": 0, "page of text": 24, "long text": 160}  # sentences
_NEW_TOKENS = 64
COLUMNS = ("prompt", "measure", "ours", "other", "ratio")


def fill(report: Report, session: Session, other: Endpoint) -> None:
    """Ratios are ours over theirs for speed, theirs over ours for time: above 1 we are faster."""
    _announce(session)
    ours, runs = session.endpoint, session.runs
    for name, num_sentences in _LENGTHS.items():
        try:
            replies = _asked((ours, other), name, num_sentences, runs)
        except Refused as error:
            report.add(name, "refused", error)
            continue
        _rows(report, name, replies[ours], replies[other])


def _announce(session: Session) -> None:
    """As if the other server were as fast as ours."""
    context = session.load().context
    asks = []
    for num_sentences in _LENGTHS.values():
        [question] = _question(num_sentences, 0)
        asks.append(Ask(session.count_tokens(question["content"]), _NEW_TOKENS))
    announce(session, asks * 2 * (session.runs + 1), context, smaller="--runs 1")


def _asked(
    pair: tuple[Endpoint, Endpoint], name: str, num_sentences: int, runs: int
) -> dict[Endpoint, list[EndpointReply]]:
    replies: dict[Endpoint, list[EndpointReply]] = {endpoint: [] for endpoint in pair}
    for run in range(-1, runs):
        # Whoever comes second finds warm caches of the machine: take turns at being second.
        for endpoint in pair if run % 2 == 0 else reversed(pair):
            tell(f"{name}, run {run + 1} of {runs}, {endpoint.url}")
            reply = endpoint.chat(_question(num_sentences, run), max_tokens=_NEW_TOKENS)
            if run >= 0:
                replies[endpoint].append(reply)
    return replies


def _question(num_sentences: int, seed: int) -> list[dict[str, str]]:
    text = texts.prose(num_sentences, seed) if num_sentences else f"Number {seed + 2}."
    return [{"role": "user", "content": f"{text}\n\nWhat does this make you think of?"}]


def _rows(report: Report, name: str, ours: list[EndpointReply], other: list[EndpointReply]) -> None:
    first = [objection(replies) or seconds(r.first_s for r in replies) for replies in (ours, other)]
    report.add(name, "first token", *first, _ratio(*reversed(first)))
    speeds = [speed(replies) for replies in (ours, other)]
    report.add(name, "generation", *speeds, _ratio(*speeds))
    for label, figure in zip(("ours", "other"), speeds, strict=True):
        if isinstance(figure, Figure):
            report.bars[f"{name}, {label}"] = figure


def _ratio(above: Figure | str, below: Figure | str) -> str:
    """Only where both have a figure."""
    if isinstance(above, Figure) and isinstance(below, Figure):
        return ratio(above, below)
    return "-"
