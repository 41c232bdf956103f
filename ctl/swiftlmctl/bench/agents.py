"""A recorded coding-agent loop, replayed turn by turn: what a user waits for at turn N."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any  # JSON values

from swiftlmctl.bench import texts
from swiftlmctl.bench.endpoint import EndpointReply, Message, Refused
from swiftlmctl.bench.estimate import Ask, announce
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, objection, seconds, tell

COLUMNS = ("turn", "prompt", "from cache", "first token", "of cold", "total")
_NEW_TOKENS = 32
_HISTORY_SHARE = 0.6  # of the context: the file that the agent has read
FULL, QUICK = 6_000, 1_200  # tokens of that file
_TURN_TOKENS = 110  # of a turn's new messages, about
_NEW_TURN_ROOM = 64  # tokens that a turn may prefill besides its own new messages


def fill(report: Report, session: Session, history_tokens: int) -> None:
    """Each turn sends the whole history again, as agents do; only what is new may be prefilled."""
    loop = _recorded()
    loaded = session.load()
    history_tokens = min(history_tokens, int(loaded.context * _HISTORY_SHARE))
    asks = list(_asks(history_tokens, len(loop["turns"])))
    announce(session, asks * session.runs, loaded.context, smaller="--quick, or --runs 1")
    file = texts.prose_of(history_tokens, session.count_tokens, seed=6)
    system = {"role": "system", "content": loop["system"].replace("{file}", file)}
    replays: list[list[EndpointReply]] = []
    try:
        for run in range(session.runs):
            session.clear_cache()
            tell(f"run {run + 1} of {session.runs}")
            replays.append(_replay(session, loop, system))
    except Refused as error:
        report.add(f"run {len(replays) + 1}", "", "", f"refused: {error}")
    finally:
        if replays:
            _rows(report, replays)


def _asks(history_tokens: int, num_turns: int) -> Iterator[Ask]:
    for turn in range(num_turns):
        prompt = history_tokens + _TURN_TOKENS * (turn + 1)
        yield Ask(prompt, _NEW_TOKENS, prompt - _TURN_TOKENS if turn else 0)


def _rows(report: Report, replays: list[list[EndpointReply]]) -> None:
    turns = list(zip(*replays, strict=True))
    cold = seconds(reply.first_s for reply in turns[0])
    before = 0
    for number, replies in enumerate(turns, 1):
        _row(report, number, replies, cold.median, before)
        before = replies[0].prompt_tokens
    wall = seconds(sum(reply.total_s for reply in replay) for replay in replays)
    report.notes.append(f"{wall} in all; the recorded answers stand in for the model's.")


def _replay(session: Session, loop: Mapping[str, Any], system: Message) -> list[EndpointReply]:
    messages, replies = [system], []
    for number, turn in enumerate(loop["turns"], 1):
        tell(f"turn {number} of {len(loop['turns'])}")
        messages += turn
        replies.append(session.endpoint.chat(messages, tools=loop["tools"], max_tokens=_NEW_TOKENS))
    return replies


def _row(
    report: Report, number: int, replies: tuple[EndpointReply, ...], cold_s: float, before: int
) -> None:
    """`before` is the prompt of the turn before; 0 in the first."""
    prompt = replies[0].prompt_tokens
    fresh = max(reply.prompt_tokens - reply.cached_tokens for reply in replies)
    if before:
        allowed = prompt - before + _NEW_TURN_ROOM
        report.check(fresh <= allowed, f"turn {number}: {fresh} prefilled, {allowed} allowed")
    cells = (number, f"{prompt:,}", f"{prompt - fresh:,}")
    if wrong := objection(replies):
        report.add(*cells, wrong)
        return
    first = seconds(reply.first_s for reply in replies)
    total = seconds(reply.total_s for reply in replies)
    report.add(*cells, first, f"{first.median / cold_s:.0%}", total)
    report.bars[f"turn {number}"] = first


def _recorded() -> Mapping[str, Any]:
    text = resources.files("swiftlmctl.bench").joinpath("agent_loop.json").read_text("utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content
