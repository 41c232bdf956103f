"""Requests in the form that further programs are known to send them."""

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
    # The next two bodies are those that the programs send; the rest is written after their sources.
    "Cherry Studio": (
        CHAT,
        {
            "model": MODEL, "temperature": 0.05, "top_p": 0.08, "stream": True,
            "messages": [USER, {"role": "assistant", "content": ""}, USER],
            "stream_options": {"include_usage": True}, "enable_thinking": False,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    "Open WebUI": (OLLAMA, {"model": MODEL, "messages": [USER], "stream": True, "options": {}}),
    "LibreChat": (
        CHAT,
        {
            "model": MODEL, "user": "66f0", "stream": True, "temperature": 1, "top_p": 1, "n": 1,
            "stream_options": {"include_usage": True}, "presence_penalty": 0,
            "messages": [
                {"role": "assistant", "content": [{"type": "text", "text": "yo"}]},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "name": "f",
                 "content": [{"type": "text", "text": "x"}]},
                USER,
            ],
        },
    ),
    "Letta": (
        CHAT,
        {
            "model": MODEL, "stream": True,
            "messages": [{"role": "developer", "content": "x"}, USER],
            "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
                "type": "object", "properties": {"request_heartbeat": {"type": "boolean"}},
                "required": ["request_heartbeat"], "additionalProperties": False}}}],
            "tool_choice": "required", "functions": None, "function_call": None, "top_p": None,
            "response_format": None, "parallel_tool_calls": False, "logit_bias": None,
        },
    ),
    "LobeChat": (
        CHAT,
        {
            "model": MODEL, "messages": [USER], "stream": True, "temperature": 1, "top_p": 1,
            "frequency_penalty": 0, "presence_penalty": 0, "enabledSearch": False, "tools": [],
        },
    ),
    "OpenHands": (
        CHAT,
        {
            "model": MODEL, "stream": True, "max_completion_tokens": 64000, "drop_params": True,
            "messages": [
                {"role": "system", "content": [
                    {"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]},
                {"role": "assistant", "content": [], "reasoning_content": "t",
                 "function_call": None, "thinking_blocks": None,
                 "provider_specific_fields": {"refusal": None},
                 "tool_calls": [{"index": 0, "id": "c", "type": "function",
                                 "function": {"arguments": "{}", "name": "f"}}]},
                {"role": "tool", "tool_call_id": "c", "name": "f", "content": "ok"},
                USER,
            ],
            "extra_body": {"metadata": {"a": "b"}}, "metadata": {"trace_version": "1"},
        },
    ),
    "Dify": (
        CHAT,
        {
            "model": MODEL, "stream": True, "messages": [USER], "max_tokens": 512, "user": "u",
            "response_format": {"type": "text"}, "stop": ["a"], "temperature": 0.7,
            "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        },
    ),
    "JetBrains AI": (
        "/api/generate",
        {
            "model": MODEL, "prompt": "a", "raw": True, "stream": True, "keep_alive": "30m",
            "options": {"temperature": 0.0, "num_predict": 128, "stop": ["\n\n"], "top_k": 1},
        },
    ),
    "Xcode": (
        CHAT,
        {"model": MODEL, "messages": [USER], "stream": True, "tools": [], "max_tokens": 32768},
    ),
    "CodeCompanion": (
        CHAT,
        {
            "model": MODEL, "stream": True, "intent": True, "snippy": {"enabled": False},
            "messages": [{**USER, "copilot_cache_control": {"type": "ephemeral"}, "_meta": {}}],
        },
    ),
    "4D AIKit": (CHAT, {"model": MODEL, "messages": [USER], "max_completion_tokens": 0, "n": 1,
                        "stream": True, "seed": -1}),
    "a form that nobody filled in": (
        CHAT,
        {
            "model": MODEL, "messages": [USER], "stream": True, "temperature": "", "top_p": "",
            "top_k": "", "min_p": "", "seed": "", "max_tokens": "", "stop": "", "n": "",
            "presence_penalty": "", "repetition_penalty": "", "top_logprobs": "",
        },
    ),
    "tools of Responses on chat": (
        CHAT,
        {"model": MODEL, "messages": [USER], "stream": True, "tool_choice": "auto",
         "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}]},
    ),
    "tools of Anthropic on chat": (
        CHAT,
        {"model": MODEL, "messages": [USER], "stream": True, "tool_choice": {"type": "auto"},
         "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]},
    ),
    "off values on messages": (
        "/v1/messages",
        {"model": MODEL, "messages": [USER], "stream": True, "max_tokens": -1, "top_k": -1,
         "temperature": "", "top_p": "", "system": "", "stop_sequences": [], "tools": []},
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
        said += event.get("response", "") if path == "/api/generate" else ""
        if path == OLLAMA:
            said += event.get("message", {}).get("content", "")
        said += event["delta"] if event.get("type") == "response.output_text.delta" else ""
        if event.get("type") == "content_block_delta":
            said += event["delta"]["text"]
    assert said == "Hello, world!"
