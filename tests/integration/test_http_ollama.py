"""Ollama's API as its clients use it: PyPI's `ollama` runs in tests/clients; here are the requests
in the form that programs are known to send."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import pytest
from scripted_backend import (
    EMBEDDER,
    MODEL,
    Reason,
    Script,
    ScriptedBackend,
    calls,
    logprob,
    parts_text,
    serve,
    text,
    tool_call,
)

from swiftlm_proto import messages as m
from swiftlmd.config.http import HttpOptions
from swiftlmd.faults import Kind, ServiceError

USER = {"role": "user", "content": "hi"}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
TOOL = {
    "type": "function",
    "function": {
        "name": "HassTurnOn",
        "description": "Turns on a device",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": [],
        },
    },
}


@pytest.fixture
def api(http):
    async def post(server, path, body, status=200):
        async with http.post(f"{server.url}/api/{path}", json=body) as reply:
            raw = (await reply.read()).decode()
            assert reply.status == status, raw
            if reply.content_type == "application/x-ndjson":
                return [json.loads(line) for line in raw.splitlines()]
            return json.loads(raw)

    return post


async def test_a_chat_is_streamed_as_lines_unless_it_is_switched_off(api, server):
    body = {"model": MODEL, "messages": [USER]}
    lines = await api(server, "chat", body)
    assert [line["done"] for line in lines] == [False] * 4 + [True]
    assert "".join(line["message"]["content"] for line in lines) == "Hello, world!"
    last = lines[-1]
    assert last["done_reason"] == "stop"
    assert last["prompt_eval_count"] == 12
    assert last["eval_count"] == 4
    assert last["prompt_eval_duration"] == 250_000_000
    assert last["total_duration"] >= 0
    whole = await api(server, "chat", {**body, "stream": False})
    assert whole["message"] == {"role": "assistant", "content": "Hello, world!"}
    assert whole["done"]
    assert whole["model"] == MODEL


async def test_calls_come_whole_and_their_results_find_them(api, server):
    server.backend.default = calls(
        m.Delta(reasoning="hm"),
        *tool_call("HassTurnOn", '{"name"', ': "lamp"}'),
        *tool_call("HassTurnOn", "{}", index=1, call_id="c2"),
    )
    body = {"model": MODEL, "messages": [USER], "tools": [TOOL]}
    lines = await api(server, "chat", body)
    said = [line["message"] for line in lines]
    assert said[0]["thinking"] == "hm"
    sent = [call["function"] for x in said for call in x.get("tool_calls", ())]
    assert [call["arguments"] for call in sent] == [{"name": "lamp"}, {}]
    whole = await api(server, "chat", {**body, "stream": False})
    assert [call["function"] for call in whole["message"]["tool_calls"]] == sent
    # As clients send it back: without ids, by the name of the tool or by the order.
    again = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": c} for c in sent]},
        {"role": "tool", "content": "on", "tool_name": "HassTurnOn"},
        {"role": "tool", "content": "off"},
    ]
    await api(server, "chat", {**body, "messages": again})
    [_, assistant, first, second] = server.backend.requests[-1].chat.messages
    assert [call.id for call in assistant.tool_calls] == [first.tool_call_id, second.tool_call_id]
    assert json.loads(assistant.tool_calls[0].arguments) == {"name": "lamp"}


async def test_options_and_format_and_think_hold(api, server):
    options = {
        "temperature": 0.5,
        "num_predict": 7,
        "top_k": 0,
        "top_p": 0.5,
        "seed": 3,
        "stop": ["END"],
        "repeat_penalty": 1.2,
        "repeat_last_n": 32,
        "num_ctx": 2048,
        "num_gpu": 99,
        "mirostat": 0,
        "typical_p": 1.0,
        "tfs_z": 1,
    }
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    body = {"model": MODEL, "messages": [USER], "options": options, "format": schema}
    await api(server, "chat", {**body, "think": "high", "keep_alive": "1h30m"})
    [request] = server.backend.requests
    assert request.max_tokens == 7
    assert request.stop == ["END"]
    assert (request.sampling.seed, request.sampling.repetition_context) == (3, 32)
    assert json.loads(request.constraint.json_schema) == schema
    assert request.chat.reasoning_effort == "high"
    assert request.keep_alive_s == 5400
    await api(server, "chat", {"model": MODEL, "messages": [USER], "think": False, "format": ""})
    assert server.backend.requests[1].chat.enable_thinking is False
    assert server.backend.requests[1].constraint is None


async def test_a_context_that_the_model_has_not_is_told_in_the_answer(api, server):
    body = {"model": MODEL, "messages": [USER], "options": {"num_ctx": 100_000}}
    lines = await api(server, "chat", body)
    assert "100000" in lines[-1]["warnings"][0]


@pytest.mark.parametrize(
    ("keep_alive", "seconds"),
    [(-1, -1), ("-1m", -1), (0, 0), ("0", 0), ("1.5h", 5400), ("500ms", 1), (3.2, 4), ("", None)],
)
async def test_keep_alive_is_read_as_go_writes_it(api, server, keep_alive, seconds):
    await api(server, "chat", {"model": MODEL, "messages": [USER], "keep_alive": keep_alive})
    assert server.backend.requests[0].keep_alive_s == seconds


async def test_a_prompt_becomes_a_chat_and_a_raw_one_stays_as_it_is(api, server):
    body = {"model": MODEL, "prompt": "why?", "system": "Be brief.", "stream": False}
    answer = await api(server, "generate", {**body, "images": [PNG]})
    assert answer["response"] == "Hello, world!"
    [system, user] = server.backend.requests[0].chat.messages
    assert (parts_text(system), parts_text(user)) == ("Be brief.", "why?")
    assert user.parts[1].image.media_type == "image/png"
    await api(server, "generate", {"model": MODEL, "prompt": "[INST] x", "raw": True})
    assert server.backend.requests[1].text == "[INST] x"
    await api(server, "generate", {"model": MODEL, "prompt": "a", "suffix": "c"})
    assert server.backend.requests[2].infill == m.Infill(prefix="a", suffix="c")


async def test_thoughts_of_a_prompt_and_logprobs_have_their_fields(api, server):
    server.backend.default = Script(
        (m.Delta(reasoning="hm"), m.Delta(content="a", logprobs=[logprob("a")])),
        reason=Reason.LENGTH,
    )
    body = {"model": MODEL, "prompt": "x", "logprobs": True, "top_logprobs": 2}
    lines = await api(server, "generate", body)
    assert lines[0]["thinking"] == "hm"
    assert lines[1]["logprobs"][0]["token"] == "a"
    assert len(lines[1]["logprobs"][0]["top_logprobs"]) == 2
    assert lines[-1]["done_reason"] == "length"


@pytest.mark.parametrize("path", ["chat", "generate"])
async def test_a_request_without_a_prompt_loads_or_unloads(api, server, path):
    assert (await api(server, path, {"model": MODEL}))["done_reason"] == "load"
    unloaded = await api(server, path, {"model": MODEL, "keep_alive": 0})
    assert (unloaded["done"], unloaded["done_reason"]) == (True, "unload")
    assert server.backend.requests[-1].keep_alive_s == 0


async def test_the_tag_that_every_model_has_in_ollama_may_stand(api, server):
    body = {"model": f"{MODEL}:latest", "messages": [USER], "stream": False}
    assert (await api(server, "chat", body))["model"] == f"{MODEL}:latest"
    missing = await api(server, "chat", {**body, "model": "absent"}, status=404)
    assert "absent" in missing["error"]


async def test_models_are_listed_and_described(api, http, server):
    async with http.get(server.url + "/api/tags") as reply:
        listed = (await reply.json())["models"]
    assert [model["name"] for model in listed] == [MODEL, EMBEDDER]
    assert all(len(model["digest"]) == 64 and model["details"]["family"] for model in listed)
    async with http.get(server.url + "/api/ps") as reply:
        assert (await reply.json())["models"][0]["context_length"] == 4096
    async with http.get(server.url + "/api/version") as reply:
        major, minor, _ = (await reply.json())["version"].split(".")
        assert (int(major), int(minor)) > (0, 6)  # what VS Code asks for at least
    shown = await api(server, "show", {"name": MODEL})
    assert {"completion", "tools"} <= set(shown["capabilities"])
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 4096


async def test_texts_become_vectors(api, server):
    answer = await api(server, "embed", {"model": EMBEDDER, "input": ["a", "b"], "dimensions": 4})
    assert [len(vector) for vector in answer["embeddings"]] == [4, 4]
    assert answer["prompt_eval_count"] == 6
    old = await api(server, "embeddings", {"model": EMBEDDER, "prompt": "a"})
    assert len(old["embedding"]) == 8
    assert (await api(server, "embed", {"model": EMBEDDER, "input": []}))["embeddings"] == []


class Narrow(ScriptedBackend):
    """Takes four tokens of a text, as an engine does."""

    async def embed(self, model, request, **more):
        ids = [list(one.token_ids.ids) if one.token_ids else one.text for one in request.inputs]
        if any(len(one) > 4 for one in ids):
            fault = m.Fault(kind=Kind.CONTEXT_TOO_LONG, message="too long", param="input")
            return m.EmbedReply(fault=fault)
        return await super().embed(model, request, **more)


@pytest.mark.parametrize(
    ("path", "switch", "status"),
    [
        ("/api/embed", {}, 200),
        ("/api/embed", {"truncate": False}, 400),
        ("/v1/embeddings", {}, 400),
        ("/v1/embeddings", {"truncate": True}, 200),
        ("/v1/embeddings", {"truncate": "END"}, 200),
        ("/v1/embeddings", {"truncate": "START"}, 400),
    ],
)
async def test_long_texts_are_cut_only_where_that_is_asked_for(http, path, switch, status):
    backend = Narrow()
    backend.models = [replace(x, loaded=replace(x.loaded, context=4)) for x in backend.models]
    async with serve(backend) as server:
        body = {"model": EMBEDDER, "input": ["abcdefgh"], **switch}
        async with http.post(server.url + path, json=body) as reply:
            assert reply.status == status, await reply.text()


async def test_faults_have_ollamas_shape_before_and_in_a_stream(api, http):
    fault = m.Fault(kind=m.FaultKind.INTERNAL, message="the engine died")
    async with serve(ScriptedBackend(default=text("half", fault=fault))) as server:
        lines = await api(server, "chat", {"model": MODEL, "messages": [USER]})
    assert lines[-1] == {"error": "the engine died"}
    refusal = ServiceError(Kind.BUSY, "full", retry_after_s=2)
    async with serve(ScriptedBackend(refusal=refusal)) as server:
        answer = await api(server, "chat", {"model": MODEL, "messages": [USER]}, status=429)
        assert answer == {"error": "full"}


async def test_a_long_silence_is_filled_with_pieces_without_text(api):
    options = HttpOptions(port=0, first_comment_s=0.02, comment_s=0.02)
    script = text("late", before=lambda number: asyncio.ensure_future(asyncio.sleep(0.15)))
    async with serve(ScriptedBackend(default=script), options) as server:
        lines = await api(server, "generate", {"model": MODEL, "prompt": "x"})
    assert len(lines) > 3
    assert [line["response"] for line in lines if line["response"]] == ["late"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("chat", {"messages": [USER]}, "model"),
        ("chat", {"model": MODEL, "messages": [{"role": "wizard"}]}, "messages.0.role"),
        ("chat", {"model": MODEL, "messages": [USER], "think": "hard"}, "think"),
        ("chat", {"model": MODEL, "messages": [USER], "format": "yaml"}, "format"),
        ("chat", {"model": MODEL, "messages": [USER], "keep_alive": "soon"}, "keep_alive"),
        ("chat", {"model": MODEL, "messages": [USER], "top_logprobs": 2}, "top_logprobs"),
        (
            "chat",
            {"model": MODEL, "messages": [USER], "options": {"temperature": -1}},
            "options.temperature",
        ),
        (
            "chat",
            {"model": MODEL, "messages": [USER], "options": {"mirostat": 2}},
            "options.mirostat",
        ),
        (
            "chat",
            {"model": MODEL, "messages": [USER], "options": {"typical_p": 0.5}},
            "options.typical_p",
        ),
        (
            "chat",
            {"model": MODEL, "messages": [USER], "options": {"stop": ["x"] * 1000}},
            "options.stop",
        ),
        (
            "chat",
            {"model": MODEL, "messages": [{**USER, "images": ["%%"]}]},
            "messages.0.images.0",
        ),
        ("generate", {"model": MODEL, "prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("generate", {"model": MODEL, "prompt": "x", "context": [1, 2]}, "context"),
        ("generate", {"model": MODEL, "prompt": "x", "raw": True, "system": "y"}, "system"),
        ("embed", {"model": MODEL, "input": 5}, "input"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(api, server, path, body, named):
    answer = await api(server, path, body, status=400)
    assert named in answer["error"]
    assert not server.backend.requests


async def test_a_kept_answer_is_refused_by_name(http, server):
    headers = {"X-Keep-Answer": "k" * 20}
    body = {"model": MODEL, "messages": [USER]}
    async with http.post(server.url + "/api/chat", json=body, headers=headers) as reply:
        assert reply.status == 400
        assert "X-Keep-Answer" in (await reply.json())["error"]


class Fetching(m.AdminBase):
    async def pull(self, message):
        yield m.OperationEvent(stage="listing", detail="listing files")
        if "absent" in message.model:
            yield m.OperationEvent(fault=m.Fault(kind=Kind.INVALID, message="no such repository"))
            return
        yield m.OperationEvent(stage="downloading", done_bytes=5, total_bytes=10)
        yield m.OperationEvent(stage="done", done=True)


async def test_a_model_is_pulled_with_its_progress(api):
    async with serve(admin=Fetching()) as server:
        lines = await api(server, "pull", {"model": "hf.co/org/model:latest"})
        assert [line["status"] for line in lines] == [
            *["listing files", "pulling org/model", "success"]
        ]
        assert (lines[1]["completed"], lines[1]["total"]) == (5, 10)
        whole = await api(server, "pull", {"name": "org/model", "stream": False})
        assert whole == {"status": "success"}
        failed = await api(server, "pull", {"model": "org/absent"})
        assert failed[-1] == {"error": "no such repository"}
        tagged = await api(server, "pull", {"model": "llama3:8b-q4"}, status=400)
        assert "8b-q4" in tagged["error"]


# What programs send, field by field, as of November 2026.
RECORDED = {
    "Home Assistant": (
        "chat",
        {
            "model": MODEL,
            "stream": True,
            "think": False,
            "keep_alive": "-1s",
            "options": {"num_ctx": 8192},
            "tools": [TOOL],
            "messages": [
                {"role": "system", "content": "You are a voice assistant.", "images": None},
                {"role": "user", "content": "lamp on", "images": None, "tool_calls": None},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"function": {"name": "HassTurnOn", "arguments": {"name": "lamp"}}}
                    ],
                },
                {"role": "tool", "content": '{"success": true}'},
            ],
        },
    ),
    "Open WebUI": (
        "chat",
        {
            "model": f"{MODEL}",
            "messages": [{"role": "user", "content": "hi", "images": [PNG]}],
            "options": {"stop": [], "num_predict": -1, "temperature": 0.7, "num_ctx": 4096},
            "stream": True,
            "think": None,
            "format": None,
            "keep_alive": None,
            "tools": [],
        },
    ),
    "Open WebUI, titles": (
        "generate",
        {"model": MODEL, "prompt": "A title", "stream": False, "options": {"num_predict": 50}},
    ),
    "Zed": (
        "chat",
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": "hi", "images": None},
                {"role": "assistant", "content": "ok", "tool_calls": None, "images": None},
                {"role": "user", "content": "go on"},
            ],
            "stream": True,
            "keep_alive": -1,
            "options": {"num_ctx": 16384, "num_predict": None, "stop": [], "temperature": 1.0},
            "think": None,
            "tools": [TOOL],
        },
    ),
    "Raycast": (
        "chat",
        {
            "model": f"{MODEL}:latest",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "options": {"temperature": 0.5},
            "keep_alive": "5m",
        },
    ),
}


@pytest.mark.parametrize("program", RECORDED)
async def test_requests_in_the_form_of_programs_are_answered(api, server, program):
    path, body = RECORDED[program]
    answer = await api(server, path, body)
    lines = answer if isinstance(answer, list) else [answer]
    said = "".join(line.get("response", line.get("message", {}).get("content")) for line in lines)
    assert said == "Hello, world!"
    assert lines[-1]["done"] is True
    assert lines[-1]["done_reason"] == "stop"
