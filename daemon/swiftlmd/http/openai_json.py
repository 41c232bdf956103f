"""Pieces of OpenAI's JSON that several dialects share."""

from __future__ import annotations

import json
import math
from json.encoder import encode_basestring_ascii
from typing import Any

from swiftlm_proto import messages as m

# JSON has no infinity; OpenAI writes this for a token that could not have been chosen.
NEVER_LOGPROB = -9999.0

FINISH_REASONS = {
    m.FinishedReason.STOP: "stop",
    m.FinishedReason.LENGTH: "length",
    m.FinishedReason.TOOL_CALLS: "tool_calls",
}

# A JSON string in ASCII: lone surrogates survive, and the bytes need no second look.
quote = encode_basestring_ascii

DONE = b"data: [DONE]\n\n"


def data_event(body: dict[str, Any]) -> bytes:
    return f"data: {dumps(body)}\n\n".encode("ascii")


def named_event(name: str, body: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {dumps(body)}\n\n".encode("ascii")


def dumps(body: Any) -> str:  # Any: whatever JSON can hold
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def json_text(value: object) -> str:
    """JSON as people read it; half a character, which no text can hold, stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def usage_body(usage: m.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_body(timings: m.Timings) -> dict[str, Any]:
    return {
        "queue_s": timings.queue_s,
        "prefill_s": timings.prefill_s,
        "first_token_s": timings.first_token_s,
        "decode_s": timings.decode_s,
        "prompt_per_second": timings.prefill_tokens_per_s,
        "predicted_per_second": timings.decode_tokens_per_s,
        "draft_n": timings.draft_tokens,
        "draft_n_accepted": timings.draft_accepted,
    }


def trailer_event(head: dict[str, Any], usage: m.Usage, timings: m.Timings | None) -> bytes:
    """The last chunk of a stream that was asked for its usage: no choices, only the counts."""
    trailer = {**head, "choices": [], "usage": usage_body(usage)}
    if timings is not None:
        trailer["timings"] = timings_body(timings)
    return data_event(trailer)


def chat_logprobs(logprobs: list[m.TokenLogprob]) -> dict[str, Any]:
    content = [{**_token(t), "top_logprobs": [_token(a) for a in t.top]} for t in logprobs]
    return {"content": content, "refusal": None}


def _token(token: m.TokenLogprob) -> dict[str, Any]:
    return {
        "token": token_text(token),
        "logprob": finite(token.logprob),
        "bytes": list(token.token),
    }


def token_text(token: m.TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER_LOGPROB
