"""A recorded coding-agent loop, replayed turn by turn: what a user waits for at turn N."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any  # JSON values

from swiftlmctl.bench import texts
from swiftlmctl.bench.figures import Figure
from swiftlmctl.bench.report import Report
from swiftlmctl.bench.session import Session, tell

_NEW_TOKENS = 32
_HISTORY_SHARE = 0.6  # of the context: the file that the agent has read
_HISTORY_TOKENS = 6_000
_NEW_TURN_ROOM = 64  # tokens that a turn may prefill besides its own new messages


def run(session: Session) -> Report:
    """Each turn sends the whole history again, as agents do; only what is new may be prefilled."""
    columns = ("turn", "prompt", "from cache", "first token", "of cold", "total")
    report = Report(f"agents {session.endpoint.model}", columns)
    loop = _recorded()
    loaded = session.load()
    session.clear_cache()
    history_tokens = min(_HISTORY_TOKENS, int(loaded.context * _HISTORY_SHARE))
    file = texts.prose_of(history_tokens, session.count_tokens, seed=6)
    messages = [{"role": "system", "content": loop["system"].replace("{file}", file)}]
    cold_s, before, wall_s = 0.0, 0, 0.0
    for number, turn in enumerate(loop["turns"], 1):
        tell(f"turn {number} of {len(loop['turns'])}")
        messages += turn
        reply = session.endpoint.chat(messages, tools=loop["tools"], max_tokens=_NEW_TOKENS)
        cold_s = cold_s or reply.first_s
        grown = reply.prompt_tokens - before
        fresh = reply.prompt_tokens - reply.cached_tokens
        if before:
            report.check(fresh <= grown + _NEW_TURN_ROOM, f"turn {number}: {fresh} prefilled again")
        before, wall_s = reply.prompt_tokens, wall_s + reply.total_s
        report.add(
            number,
            f"{reply.prompt_tokens:,}",
            f"{reply.cached_tokens:,}",
            f"{reply.first_s:.3f} s",
            f"{reply.first_s / cold_s:.0%}",
            f"{reply.total_s:.2f} s",
        )
        report.bars[f"turn {number}"] = Figure((reply.first_s,), "s")
    report.notes.append(f"{wall_s:.1f} s in all; the recorded answers stand in for the model's.")
    return report


def _recorded() -> Mapping[str, Any]:
    text = resources.files("swiftlmctl.bench").joinpath("agent_loop.json").read_text("utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content
