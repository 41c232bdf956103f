"""One streamed chat request and what it took."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.servers import Server

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    first_s: float  # until the first token
    total_s: float
    num_tokens: int
    prompt_tokens: int
    cached_tokens: int
    prefill_s: float = 0.0  # as the server says; 0 = it does not

    @property
    def decode_tokens_per_s(self) -> float:
        return (self.num_tokens - 1) / max(self.total_s - self.first_s, 1e-9)


async def chat(
    http: aiohttp.ClientSession, server: Server, messages: Sequence[Message], **fields: Any
) -> Answer:
    body = {
        "model": server.model,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **fields,
    }
    started = time.perf_counter()
    first, text, num_pieces, usage, timings = None, "", 0, {}, {}
    async with http.post(f"{server.url}/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise RuntimeError(f"{server.name}: {reply.status} {await reply.text()}")
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            timings = chunk.get("timings") or timings
            for choice in chunk.get("choices") or ():
                delta = choice["delta"].get("content") or ""
                if delta and first is None:
                    first = time.perf_counter() - started
                text += delta
                num_pieces += bool(delta)
    total = time.perf_counter() - started
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        text,
        first if first is not None else total,
        total,
        usage.get("completion_tokens") or num_pieces,  # some servers count nothing in a stream
        usage.get("prompt_tokens", 0),
        details.get("cached_tokens") or 0,
        timings.get("prefill_s") or 0.0,
    )


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=3600), connector=aiohttp.TCPConnector(limit=0)
    )
