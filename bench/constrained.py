"""Decoding under a JSON schema against decoding freely, same server, same prompt."""

from __future__ import annotations

import json

from bench.client import chat, session
from bench.options import OPTIONS
from bench.servers import ours
from bench.table import Figure, Report, ratio

RUNS = 5
NUM_TOKENS = 48
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "notes": {
            "type": "array",
            "items": {"type": "string", "maxLength": 80},
            "minItems": 6,
            "maxItems": 8,
        },
    },
    "required": ["title", "notes"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "Describe a fox with a title and notes, as JSON."}]


async def run() -> Report:
    report = Report("constrained", ["", "schema", "free", "ratio"])
    bound, free = [], []
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "fox", "strict": True, "schema": SCHEMA},
    }
    with ours(OPTIONS.folder) as server:
        async with session() as http:
            for _ in range(RUNS):
                fields = {"max_tokens": OPTIONS.num_tokens or NUM_TOKENS}
                answer = await chat(
                    http, server, QUESTION, **fields, response_format=response_format
                )
                bound.append(answer.decode_tokens_per_s)
                plain = await chat(http, server, QUESTION, **fields, ignore_eos=True)
                free.append(plain.decode_tokens_per_s)
            whole = await chat(http, server, QUESTION, response_format=response_format)
    try:
        json.loads(whole.text)
        report.notes.append("a whole answer parses")
    except ValueError:
        report.notes.append(f"a whole answer does NOT parse: {whole.text[:200]!r}")
    mine, theirs = Figure(tuple(bound), "tok/s"), Figure(tuple(free), "tok/s")
    report.add("decode", mine, theirs, ratio(mine, theirs))
    return report
