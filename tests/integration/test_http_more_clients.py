"""Requests in the form that further programs are known to send them; none was recorded from one."""

from __future__ import annotations

import json

import pytest
from scripted_backend import MODEL

USER = {"role": "user", "content": "hi"}
CHAT, OLLAMA = "/v1/chat/completions", "/api/chat"
REQUESTS = {
    "SillyTavern": (
        CHAT,
        {
            "model": MODEL, "messages": [{"role": "system", "content": "x"}, {**USER, "name": "U"}],
            "temperature": 1.2, "max_tokens": 300, "stream": True, "presence_penalty": 0,
            "frequency_penalty": 0, "top_p": 1, "top_k": 0, "min_p": 0, "top_a": 0,
            "repetition_penalty": 1, "stop": [], "logit_bias": {}, "seed": None, "n": None,
            "typical_p": 1, "tfs": 1, "dry_multiplier": 0, "dry_base": 1.75, "mirostat_mode": 0,
        },
    ),
    "Jan": (
        CHAT,
        {
            "model": MODEL, "messages": [USER], "stream": True, "temperature": 0.8, "top_k": 40,
            "top_p": 0.95, "min_p": 0.05, "repeat_last_n": 64, "repeat_penalty": 1.0,
            "presence_penalty": 0, "frequency_penalty": 0, "dynatemp_range": 0,
            "dynatemp_exponent": 1, "timings_per_token": True, "return_progress": True,
        },
    ),
    "llama.cpp's page": (
        CHAT,
        {
            "messages": [USER], "stream": True, "reasoning_format": "auto", "cache_prompt": True,
            "timings_per_token": True, "temperature": 0.8, "max_tokens": -1, "dry_multiplier": 0,
            "dry_penalty_last_n": -1, "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1,
            "samplers": ["top_k", "top_p", "temperature"],
        },
    ),
    "AnythingLLM": (
        CHAT,
        {"model": MODEL, "stream": True, "messages": [USER], "temperature": 0.7, "user": ""},
    ),
    "Obsidian Copilot": (
        OLLAMA,
        {
            "model": MODEL, "stream": True, "format": None, "keep_alive": "15m",
            "messages": [{"role": "user", "content": "hi", "images": []}],
            "options": {"num_ctx": 65536, "temperature": 0.1, "top_p": None, "num_gpu": None},
        },
    ),
    "Page Assist": (
        OLLAMA,
        {
            "model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True,
            "think": False, "keep_alive": "5m", "options": {"use_mmap": True, "num_thread": 8},
        },
    ),
    "Goose": (
        CHAT,
        {
            "model": MODEL, "messages": [USER], "stream": True, "max_tokens": 4096,
            "stream_options": {"include_usage": True}, "reasoning_effort": "medium",
            "tools": [{"type": "function", "function": {"name": "dev__shell", "parameters": {
                "$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}}}],
        },
    ),
    "Roo Code": (
        CHAT,
        {
            "model": MODEL, "temperature": 0, "max_completion_tokens": 8192, "stream": True,
            "stream_options": {"include_usage": True}, "parallel_tool_calls": False,
            "messages": [
                {"role": "system", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "hi",
                                              "cache_control": {"type": "ephemeral"}}]},
            ],
        },
    ),
    "VS Code": (
        CHAT,
        {
            "model": MODEL, "messages": [USER], "temperature": 0.1, "top_p": 1, "n": 1,
            "max_tokens": 4096, "stream": True, "stream_options": {"include_usage": True},
            "prediction": None, "intent": False, "copilot_thread_id": "t", "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "read_file", "parameters": {}}}],
        },
    ),
    "n8n": (
        "/v1/responses",
        {
            "model": MODEL, "input": [{"type": "message", "role": "user", "content": "hi"}],
            "stream": True, "store": False, "include": [], "text": {"format": {"type": "text"}},
            "parallel_tool_calls": True, "truncation": "auto", "top_logprobs": 0, "metadata": {},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("program", REQUESTS)
async def test_requests_of_further_programs_are_answered(http, server, program):
    path, body = REQUESTS[program]
    async with http.post(server.url + path, json=body) as reply:
        raw = await reply.text()
        assert reply.status == 200, raw
    lines = [line.removeprefix("data: ") for line in raw.splitlines() if "{" in line]
    said = ""
    for event in map(json.loads, (line for line in lines if line.startswith("{"))):
        for choice in event.get("choices", ()):
            said += choice["delta"].get("content") or ""
        said += event.get("message", {}).get("content", "")
        said += event["delta"] if event.get("type") == "response.output_text.delta" else ""
    assert said == "Hello, world!"
