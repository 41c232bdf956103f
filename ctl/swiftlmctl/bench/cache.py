"""The prefix cache under the pattern that broke others: long, short, long again, all at once.

A 5,537-token document, 18 tokens of something else, the document with another question, the very
same request, then four clients that alternate. Texts must repeat, prefixes must hit, memory must
stay bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import EndpointReply, Message
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.figures import Figure
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, objection, tell
from swiftlmctl.output import size_text

COLUMNS = ("step", "prompt", "from cache", "first token", "as it should be")
_SHORT = "Name one colour of the rainbow and nothing else, please."
_QUESTIONS = ("How many records are open?", "What is the name of record 7?")
_NEW_TOKENS = 16
_SHORT_TOKENS, _QUESTION_TOKENS = 50, 30  # with the chat template, about
_GROWTH = 1.02  # the same prompts again add nothing


@dataclass(frozen=True, slots=True)
class CacheSizes:
    payload_tokens: int
    rounds: int

    def asks(self) -> Iterator[Ask]:
        payload, cached = self.payload_tokens, self.payload_tokens - _QUESTION_TOKENS
        yield Ask(payload, _NEW_TOKENS)
        yield Ask(_SHORT_TOKENS, _NEW_TOKENS)
        for _ in range(2 + 2 * self.rounds):  # of the four at once two ask the document
            yield Ask(payload, _NEW_TOKENS, cached)


FULL, QUICK = CacheSizes(5_537, 3), CacheSizes(1_200, 2)


def fill(report: Report, session: Session, sizes: CacheSizes) -> None:
    loaded = session.load()
    announce(session, sizes.asks(), loaded.context, smaller="--quick")
    num_tokens = min(sizes.payload_tokens, loaded.context * 2 // 3)
    payload = texts.payload(num_tokens, session.count_tokens)
    session.clear_cache()
    long, other = (_asked(payload, question) for question in _QUESTIONS)
    cold = _step(report, session, "payload, cold", long, least=0.0)
    _step(report, session, "18 tokens", [{"role": "user", "content": _SHORT}], least=0.0)
    _step(report, session, "payload, another question", other, least=0.9)
    again = _step(report, session, "the very same request", long, least=0.9)
    report.add("same text, hit or not", "", "", "", report.check(
        again.text == cold.text, "a hit gives the text of a cold run"
    ))  # fmt: skip
    _alternating(report, session, long, cold.text, sizes.rounds)
    if not objection([cold, again]):
        report.bars |= {
            "payload, cold": Figure((cold.first_s,), "s"),
            "the very same request": Figure((again.first_s,), "s"),
        }


def _asked(payload: str, question: str) -> list[Message]:
    return [
        {"role": "system", "content": f"Answer from this document.\n{payload}"},
        {"role": "user", "content": question},
    ]


def _step(
    report: Report, session: Session, name: str, messages: list[Message], least: float
) -> EndpointReply:
    """`least` is the share of the prompt that has to come from the cache."""
    tell(name)
    reply = session.endpoint.chat(messages, max_tokens=_NEW_TOKENS)
    share = reply.cached_tokens / max(reply.prompt_tokens, 1)
    word = report.check(share >= least, f"{name}: {least:.0%} from the cache, got {share:.0%}")
    first = objection([reply]) or f"{reply.first_s:.3f} s"
    report.add(name, reply.prompt_tokens, reply.cached_tokens, first, word)
    return reply


def _alternating(
    report: Report, session: Session, long: list[Message], text: str, rounds: int
) -> None:
    """Two clients ask the document, two something short, several times over."""
    short: list[Message] = [{"role": "user", "content": _SHORT}]
    with ThreadPoolExecutor(4) as clients:
        sizes = []
        for number in range(rounds):
            tell(f"four at once, round {number + 1} of {rounds}")
            ask = [long, short, long, short]
            replies = list(clients.map(
                lambda messages: session.endpoint.chat(messages, max_tokens=_NEW_TOKENS), ask
            ))  # fmt: skip
            same = all(reply.text == text for reply in replies[::2])
            hit = all(reply.cached_tokens > 0.9 * reply.prompt_tokens for reply in replies[::2])
            sizes.append(session.memory())
            first = objection(replies) or f"{max(reply.first_s for reply in replies):.3f} s"
            word = report.check(same and hit, f"round {number + 1}: text equal and cached")
            report.add(f"four at once, round {number + 1}", "", "", first, word)
    first_round, last_round = sizes[0], sizes[-1]
    bounded = last_round.active <= _GROWTH * first_round.active
    word = report.check(bounded, "arrays stay where the first round left them")
    active = (size_text(use.active) for use in (first_round, last_round))
    report.add("arrays, first and last round", *active, "", word)
    footprints = ", ".join(size_text(use.footprint) for use in sizes)
    report.notes.append(f"Footprint after each round: {footprints}; free buffers come and go.")
